"""The recorder: records events from common inputs with evidence that anyone can check. See docs/recorder.md.

`setup` creates a recorder and its producers, `shipper` sends the events of a feed exactly once, `recorder_checkpoint`
makes and verifies checkpoints, and `replay` reads. `veen.overlays.record` defines the events.
"""

from veen.recorder.feed import EventFeed, FeedItem
from veen.recorder.recorder_checkpoint import (
    CheckpointFolder,
    CheckpointVerdict,
    RecorderCheckpoint,
    StreamPosition,
    make,
    verify,
)
from veen.recorder.replay import ReplayedEvent, Replayer, ReplaySpan
from veen.recorder.routes import NotRecorded, Routes, routes_of
from veen.recorder.setup import Enrolment, ProducerKit, SetupPlan, enrol, init, map_type, move
from veen.recorder.shipper import SetAside, Shipper
from veen.recorder.spool import SpoolFeed, SpoolWriter

__all__ = [
    "CheckpointFolder",
    "CheckpointVerdict",
    "Enrolment",
    "EventFeed",
    "FeedItem",
    "NotRecorded",
    "ProducerKit",
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
