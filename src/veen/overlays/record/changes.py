"""What a recorder's administrator said: which event type goes to which stream, who produces, how it is set up. §3.2.

Each event type has exactly one stream. A second mapping is refused; a migration moves a type, and stays in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from veen.core import cbor
from veen.core.cbor import Nested, Text, Uint, Wire
from veen.core.limits import MAX_TEXT_BYTES
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import body
from veen.overlays.overlay import FoldStep, WalkOverlay
from veen.overlays.record.record_events import MapType, Migration, Producer, RecorderProfile

_TYPE, _KEY, _PRODUCER, _PROFILE = b"t", b"k", b"p", b"s"


@dataclass(frozen=True, slots=True)
class RecorderSetting(Wire):
    """What stands of one part: the stream of a type, the owner of a key, a producer, or the set-up."""

    since: int = 0  # the entry that said so
    stream: str | None = None
    owner: str | None = None
    producer: Producer | None = None
    profile: RecorderProfile | None = None

    LAYOUT: ClassVar = body(
        "standing",
        Uint("since"),
        Text("stream", MAX_TEXT_BYTES, optional=True),
        Text("owner", MAX_TEXT_BYTES, optional=True),
        Nested("producer", Producer, optional=True),
        Nested("profile", RecorderProfile, optional=True),
    )


NOTHING = RecorderSetting()
States: TypeAlias = Mapping[bytes, RecorderSetting]


class RecorderChanges(WalkOverlay[RecorderSetting]):
    """A part per event type, per producer, per client key of a producer, and one for the set-up."""

    CLASS = "record.changes"
    EVENTS = (MapType, Migration, Producer, RecorderProfile)
    INITIAL = NOTHING

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        if isinstance(event, Producer) and entry.client_id in event.client_ids:
            return "the administrator who says so is no producer"
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
                told = "already" if state.stream == event.stream else f"to {state.stream}: a migration moves it"
                return f"{event.event_type} is mapped {told}"
            case Migration() if state.stream != event.from_stream:
                type_ = step.part[1:].decode()
                return f"{type_} is not of {event.from_stream}, but of {state.stream or 'no stream'}"
            case Producer() if step.part[:1] == _KEY and state.owner not in (None, event.name):
                return f"client key {step.part[1:].hex()[:16]}… is of producer {state.owner}"
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
    """The one stream that events of a type are written to; None where nobody has mapped it."""
    return states.get(_TYPE + event_type.encode(), NOTHING).stream


def types_of(states: States, stream: str | None = None) -> tuple[str, ...]:
    """The event types that are written to a stream, ascending; of all streams where none is named."""
    found = (part for part, standing in states.items() if part[:1] == _TYPE and standing.stream is not None)
    return tuple(sorted(part[1:].decode() for part in found if stream in (None, states[part].stream)))


def producer_of(states: States, client_id: bytes) -> Producer | None:
    """Whose client key it is; None where it is no producer's."""
    owner = states.get(_KEY + client_id, NOTHING).owner
    if owner is None:
        return None
    found = states.get(_PRODUCER + owner.encode(), NOTHING).producer
    return found if found is not None and client_id in found.client_ids else None


def producers(states: States) -> tuple[Producer, ...]:
    """Every producer, by name."""
    found = (standing.producer for part, standing in states.items() if part[:1] == _PRODUCER)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.name))


def profile_of(states: States) -> RecorderProfile | None:
    """How the recorder is set up; None where nobody has said."""
    return states.get(_PROFILE, NOTHING).profile
