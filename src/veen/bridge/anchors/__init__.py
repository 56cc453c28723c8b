"""Anchors: a checkpoint bound to something that its hub cannot change. 001, ANCHOR0.

`statement` has what is published and what is kept of it; `filelog`, `gitrepo`, `tsa` and `otherhub` are where;
`keeping` stores anchors beside their checkpoints; `service` publishes by count and by time.
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
