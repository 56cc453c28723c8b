"""An air-gap bridge between two running hubs: the invariants of its profile, each tried so that it can fail.

Nothing of it is written to a zone's own streams: names and keys are made for the run.
"""

from veen.selftest.airgap.airgap_run import run
from veen.selftest.airgap.claims import CHECKS

__all__ = ["CHECKS", "run"]
