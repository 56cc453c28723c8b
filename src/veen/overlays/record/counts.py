"""Counts of a recorder stream's events by subject, type, origin, source and principal. §3.1.

Each event counts once. An event with the same source and position as an earlier one is a copy.
"""

from collections.abc import Mapping
from typing import Annotated

from veen.core import cbor
from veen.core.cbor import Uint, Wire, text_map
from veen.core.hashing import ht
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import Number
from veen.overlays.overlay import FoldStep, MergeOverlay
from veen.overlays.record.record_events import RecordEvent

SUBJECT, TYPE, ORIGIN, SOURCE, PRINCIPAL = b"s", b"t", b"o", b"i", b"p"
_NAMES = {SUBJECT: "subject_id", TYPE: "event_type", ORIGIN: "origin", SOURCE: "source", PRINCIPAL: "principal_id"}


@text_map("tally")
class EventTally(Wire):
    """The number of events and their first and last times: event_time in milliseconds, hub_ts in seconds."""

    events: Annotated[int, Number()] = 0
    first_event_time: Annotated[int, Uint()] = 0
    last_event_time: Annotated[int, Uint()] = 0
    first_hub_ts: Annotated[int, Uint()] = 0
    last_hub_ts: Annotated[int, Uint()] = 0


NONE = EventTally()


class RecordTallies(MergeOverlay[EventTally]):
    """One part per subject, type, origin, source and principal. The first byte of the key is the kind."""

    CLASS = "record.events"
    EVENTS = (RecordEvent,)
    EMPTY = NONE

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, RecordEvent)
        found = [
            SUBJECT + event.subject_id.encode(),
            TYPE + event.event_type.encode(),
            ORIGIN + event.origin.encode(),
            PRINCIPAL + entry.client_id,
        ]
        if event.source is not None:
            found.append(SOURCE + event.source.encode())
        return tuple(found)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        assert isinstance(step.event, RecordEvent)
        place = place_key(step.event)
        return (step.entry.origin,) if place is None else (step.entry.origin, place)

    def lift(self, step: FoldStep) -> EventTally:
        assert isinstance(step.event, RecordEvent)
        time, hub_ts = step.event.event_time, step.entry.hub_ts
        return EventTally(1, time, time, hub_ts, hub_ts)

    def merge(self, a: EventTally, b: EventTally) -> EventTally:
        if not a.events or not b.events:
            return a if a.events else b
        return EventTally(
            a.events + b.events,
            min(a.first_event_time, b.first_event_time),
            max(a.last_event_time, b.last_event_time),
            min(a.first_hub_ts, b.first_hub_ts),
            max(a.last_hub_ts, b.last_hub_ts),
        )

    def encode_state(self, state: EventTally) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> EventTally:
        return EventTally.decode(data)

    def plain(self, part: bytes, state: EventTally) -> Mapping[str, cbor.Value]:
        kind, key = part[:1], part[1:]
        shown: dict[str, cbor.Value] = {_NAMES[kind]: key if kind == PRINCIPAL else key.decode()}
        return shown | {
            "events": state.events,
            "first_event_time": state.first_event_time,
            "last_event_time": state.last_event_time,
            "first_hub_ts": state.first_hub_ts,
            "last_hub_ts": state.last_hub_ts,
        }


RECORD_TALLIES = RecordTallies()


def place_key(event: RecordEvent) -> bytes | None:
    """The deduplication key of an event, from its source and position; None if it has none."""
    if event.source is None or event.position is None:
        return None
    return ht("veen/record-place", cbor.encode((event.source, event.position)))


def tally_of(states: Mapping[bytes, EventTally], kind: bytes, name: str | bytes) -> EventTally:
    """The tally of a subject (`SUBJECT`), type, origin, source or principal."""
    return states.get(kind + (name if isinstance(name, bytes) else name.encode()), NONE)
