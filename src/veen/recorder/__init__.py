"""The recorder: events with evidence, from the inputs people have to a log that anyone can check. docs/recorder.md.

`setup` makes a recorder and its producers, `shipping` sends what a feed gives exactly once, `making` and `verifying`
are about checkpoints, `replay` reads. What events are is in `veen.overlays.record`.
"""

from veen.recorder.checkpoint_scheduler import CheckpointFolder, make
from veen.recorder.feed import EventFeed, FeedItem
from veen.recorder.recorder_checkpoint import CheckpointVerdict, RecorderCheckpoint, StreamPosition, verify
from veen.recorder.replay import ReplayedEvent, Replayer, ReplaySpan
from veen.recorder.routes import NotRecorded, Routes, routes_of
from veen.recorder.setup import Enrolment, Kit, SetupPlan, enrol, init, map_type, move
from veen.recorder.shipper import SetAside, Shipper
from veen.recorder.spool import SpoolFeed, SpoolWriter

__all__ = [
    "CheckpointFolder",
    "CheckpointVerdict",
    "Enrolment",
    "EventFeed",
    "FeedItem",
    "Kit",
    "NotRecorded",
    "RecorderCheckpoint",
    "ReplaySpan",
    "ReplayedEvent",
    "Replayer",
    "Routes",
    "SetAside",
    "SetupPlan",
    "Shipper",
    "SpoolFeed",
    "SpoolWriter",
    "StreamPosition",
    "enrol",
    "init",
    "make",
    "map_type",
    "move",
    "routes_of",
    "verify",
]
