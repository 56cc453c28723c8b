"""Directories for the bridge tests, in memory if the machine has a RAM disk."""

from tests.client.conftest import place

__all__ = ["place"]
