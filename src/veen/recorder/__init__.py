"""The recorder: events with evidence, from the inputs people have to a log that anyone can check. docs/recorder.md.

`setup` makes a recorder and its producers, `shipping` sends what a feed gives exactly once, `making` and `verifying`
are about checkpoints, `replay` reads. What events are is in `veen.overlays.record`.
"""

from veen.recorder.checkpoint import RecorderCheckpoint, StreamPosition
from veen.recorder.feed import Feed, Item
from veen.recorder.kit import Kit
from veen.recorder.making import CheckpointFolder, make
from veen.recorder.replay import Replayed, Replayer, Span
from veen.recorder.routes import NotRecorded, Routes, routes_of
from veen.recorder.setup import Enrolment, Plan, enrol, init, map_type, move
from veen.recorder.shipping import SetAside, Shipper
from veen.recorder.spool import SpoolWriter
from veen.recorder.spoolfeed import SpoolFeed
from veen.recorder.verifying import Verdict, verify

__all__ = [
    "CheckpointFolder",
    "Enrolment",
    "Feed",
    "Item",
    "Kit",
    "NotRecorded",
    "Plan",
    "RecorderCheckpoint",
    "Replayed",
    "Replayer",
    "Routes",
    "SetAside",
    "Shipper",
    "Span",
    "SpoolFeed",
    "SpoolWriter",
    "StreamPosition",
    "Verdict",
    "enrol",
    "init",
    "make",
    "map_type",
    "move",
    "routes_of",
    "verify",
]
