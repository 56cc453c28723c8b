"""The recorder's events and their overlays. 001, products-spec-1 §3.

`RECORD_TALLIES` counts the events of a stream, `RECORDER_CHANGES` folds the administrator's settings.
"""

from veen.overlays.record.changes import (
    RECORDER_CHANGES,
    RecorderChanges,
    RecorderSetting,
    producer_of,
    producers,
    profile_of,
    stream_of,
    types_of,
)
from veen.overlays.record.counts import RECORD_TALLIES, EventTally, RecordTallies, place_key, tally_of
from veen.overlays.record.record_events import (
    CHANGES,
    NAMESPACE,
    MapType,
    Migration,
    Position,
    Producer,
    RecorderProfile,
    RecordEvent,
    stream_flaw,
)

RECORD = (RECORD_TALLIES, RECORDER_CHANGES)

__all__ = [
    "CHANGES",
    "EventTally",
    "MapType",
    "Migration",
    "NAMESPACE",
    "Position",
    "Producer",
    "RECORD",
    "RECORDER_CHANGES",
    "RECORD_TALLIES",
    "RecordEvent",
    "RecordTallies",
    "RecorderChanges",
    "RecorderProfile",
    "RecorderSetting",
    "place_key",
    "producer_of",
    "producers",
    "profile_of",
    "stream_flaw",
    "stream_of",
    "tally_of",
    "types_of",
]
