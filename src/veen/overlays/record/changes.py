"""The settings of a recorder's administrator: streams of event types, producers, and the profile. §3.2.

Each event type has exactly one stream. A second mapping is refused; only a migration moves a type to another stream.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, TypeAlias

from veen.core import cbor
from veen.core.cbor import Nested, Text, Uint, Wire, text_map
from veen.core.limits import MAX_TEXT_BYTES
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.overlay import FoldStep, WalkOverlay
from veen.overlays.record.record_events import MapType, Migration, Producer, RecorderProfile

_TYPE, _KEY, _PRODUCER, _PROFILE = b"t", b"k", b"p", b"s"


@text_map("standing")
class RecorderSetting(Wire):
    """The state of one part: the stream of a type, the owner of a key, a producer, or the profile."""

    since: Annotated[int, Uint()] = 0  # the entry that set it
    stream: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    owner: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    producer: Annotated[Producer | None, Nested(Producer, optional=True)] = None
    profile: Annotated[RecorderProfile | None, Nested(RecorderProfile, optional=True)] = None


NOTHING = RecorderSetting()
States: TypeAlias = Mapping[bytes, RecorderSetting]


class RecorderChanges(WalkOverlay[RecorderSetting]):
    """One part per event type, per producer, per client key of a producer, and one for the profile."""

    CLASS = "record.changes"
    EVENTS = (MapType, Migration, Producer, RecorderProfile)
    INITIAL = NOTHING

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        if isinstance(event, Producer) and entry.client_id in event.client_ids:
            return "the administrator's own key cannot be a producer key"
        return None

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        match event:
            case MapType():
                return (_TYPE + event.event_type.encode(),)
            case Migration():
                return tuple(_TYPE + one.encode() for one in event.event_types)
            case Producer():
                return (_PRODUCER + event.name.encode(), *(_KEY + one for one in event.client_ids))
            case _:
                return (_PROFILE,)

    def refusal(self, state: RecorderSetting, step: FoldStep) -> str | None:
        event = step.event
        match event:
            case MapType() if state.stream is not None:
                if state.stream == event.stream:
                    return f"{event.event_type} is already mapped to {state.stream}"
                return f"{event.event_type} is mapped to {state.stream}; use a migration to move it"
            case Migration() if state.stream != event.from_stream:
                type_ = step.part[1:].decode()
                return f"{type_} is mapped to {state.stream or 'no stream'}, not to {event.from_stream}"
            case Producer() if step.part[:1] == _KEY and state.owner not in (None, event.name):
                return f"client key {step.part[1:].hex()[:16]}… belongs to producer {state.owner}"
        return None

    def apply(self, state: RecorderSetting, step: FoldStep) -> RecorderSetting:
        event, since = step.event, step.entry.stream_seq
        match event:
            case MapType():
                return replace(state, since=since, stream=event.stream)
            case Migration():
                return replace(state, since=since, stream=event.to_stream)
            case Producer() if step.part[:1] == _KEY:
                return replace(state, since=since, owner=event.name)
            case Producer():
                return replace(state, since=since, producer=event)
            case RecorderProfile():
                return replace(state, since=since, profile=event)
        raise AssertionError(event)

    def encode_state(self, state: RecorderSetting) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> RecorderSetting:
        return RecorderSetting.decode(data)

    def plain(self, part: bytes, state: RecorderSetting) -> Mapping[str, cbor.Value]:
        since: dict[str, cbor.Value] = {"since": state.since}
        if part[:1] == _TYPE:
            return {"event_type": part[1:].decode(), "stream": state.stream, **since}
        if part[:1] == _KEY:
            return {"client_id": part[1:], "producer": state.owner, **since}
        if part[:1] == _PRODUCER:
            found = state.producer
            origins, streams = (found.origins, found.streams) if found else ((), ())
            return {"producer": part[1:].decode(), "origins": origins, "streams": streams, **since}
        return {"profile_id": state.profile.profile_id() if state.profile else None, **since}


RECORDER_CHANGES = RecorderChanges()


def stream_of(states: States, event_type: str) -> str | None:
    """The stream of an event type, or None if it is not mapped."""
    return states.get(_TYPE + event_type.encode(), NOTHING).stream


def types_of(states: States, stream: str | None = None) -> tuple[str, ...]:
    """The event types of a stream, or of all streams, ascending."""
    found = (part for part, setting in states.items() if part[:1] == _TYPE and setting.stream is not None)
    return tuple(sorted(part[1:].decode() for part in found if stream in (None, states[part].stream)))


def producer_of(states: States, client_id: bytes) -> Producer | None:
    """The producer that a client key belongs to, or None."""
    owner = states.get(_KEY + client_id, NOTHING).owner
    if owner is None:
        return None
    found = states.get(_PRODUCER + owner.encode(), NOTHING).producer
    return found if found is not None and client_id in found.client_ids else None


def producers(states: States) -> tuple[Producer, ...]:
    """Every producer, by name."""
    found = (setting.producer for part, setting in states.items() if part[:1] == _PRODUCER)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.name))


def profile_of(states: States) -> RecorderProfile | None:
    """The recorder's profile, or None if it is not set."""
    return states.get(_PROFILE, NOTHING).profile
