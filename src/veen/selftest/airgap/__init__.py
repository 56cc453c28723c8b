"""Checks of an air-gap bridge between two running hubs: the invariants of its profile.

A run writes only to its own streams under new keys.
"""

from veen.selftest.airgap.airgap_run import run
from veen.selftest.airgap.claims import CHECKS

__all__ = ["CHECKS", "run"]
