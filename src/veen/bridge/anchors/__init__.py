"""Anchors: a checkpoint bound to something that its hub cannot change. 001, ANCHOR0.

`statement` defines what is published and the anchor file. `backends` are the systems it is published to. `service`
publishes by entry count and by time, stores the anchor files, and verifies them.
"""

from veen.bridge.anchors.service import AnchorStore, Cadence, publish, run, verify
from veen.bridge.anchors.statement import Anchored, AnchorRef, AnchorStatement, Backend, anchor_publish, anchor_verify

__all__ = [
    "AnchorRef",
    "AnchorStatement",
    "AnchorStore",
    "Anchored",
    "Backend",
    "Cadence",
    "anchor_publish",
    "anchor_verify",
    "publish",
    "run",
    "verify",
]
