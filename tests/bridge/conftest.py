"""Where the bridge tests keep their directories: in memory where the machine has such a place."""

from tests.client.conftest import place

__all__ = ["place"]
