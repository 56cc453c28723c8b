"""The recorder's events, their counts, and the settings of a recorder's administrator. 001, products-spec-1 §3.

Three fields of the specification are taken from the entry: `principal_id` is its client_id, `hub_commit_seq` its
stream_seq, and `hub_commit_time` its hub_ts. Each event counts once: an event with the same source and position as an
earlier one is a copy. Each event type has exactly one stream. A second mapping is refused; only a migration moves a
type to another stream (§3.2).
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, ClassVar, TypeAlias

from veen.core import Malformed, canonical_json, cbor
from veen.core.cbor import Bstr, DeferredFaults, FieldType, ListOf, Nested, Text, Uint, Wire, heads, text_map
from veen.core.hashing import U64_MAX, ht
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import Event, FoldEntry, Number, event, plain_wire
from veen.overlays.overlay import FoldStep, MergeOverlay, WalkOverlay

NAMESPACE = "record/"
CHANGES = "record/infrastructure/changes"
"""The stream of the administrator's settings: type mappings, migrations, producers and the profile."""

MAX_POSITION_BYTES = 64
MAX_LISTED = 1_024
_MIN_SEGMENTS = 2  # after NAMESPACE: a group and a name

Position = int | bytes


class PositionKind(FieldType):
    """An unsigned integer, or bytes for sources without numbered positions."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[Position, int]:
        major, _, _ = heads.read_head(data, pos)
        if major == heads.UINT:
            return heads.read_uint(self.name, data, pos)
        content, end = heads.read_string(self.name, heads.BSTR, data, pos)
        if not 1 <= len(content) <= MAX_POSITION_BYTES:
            raise Malformed("cbor", f"{self.name} has {len(content)} bytes, not 1 to {MAX_POSITION_BYTES}")
        return content, end

    def write(self, field: Position) -> bytes:
        flaw = position_flaw(field)
        if flaw is not None:
            raise ValueError(flaw)
        return cbor.encode(field)


def position_flaw(position: Position) -> str | None:
    """Why a value is not a valid position, or None."""
    if isinstance(position, bytes):
        fits = 1 <= len(position) <= MAX_POSITION_BYTES
        return None if fits else f"position has {len(position)} bytes, not 1 to {MAX_POSITION_BYTES}"
    fits = not isinstance(position, bool) and 0 <= position <= U64_MAX
    return None if fits else f"position is {position}, not an unsigned 64-bit integer"


@event("record.event.v1", keys={"content": "payload"})  # `Event.payload()` uses that name
class RecordEvent(Event):
    """`record.event.v1`. `event_time` is in milliseconds since 1970; `payload` is canonical JSON.

    `source` and `position` identify its origin: a second event with the same values is a copy.
    """

    subject_id: Annotated[str, Text(MAX_TEXT_BYTES)]
    event_type: Annotated[str, Text(MAX_TEXT_BYTES)]
    event_time: Annotated[int, Uint()]
    origin: Annotated[str, Text(MAX_TEXT_BYTES)]
    content: Annotated[str, Text(MAX_BODY_BYTES)]
    source: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    position: Annotated[Position | None, PositionKind(optional=True)] = None

    def flaw(self) -> str | None:
        for name in ("subject_id", "event_type", "origin"):
            if not getattr(self, name):
                return f"{name} is empty"
        if (self.source is None) != (self.position is None):
            return "source and position must be given together"
        try:
            canonical_json.decode(self.content.encode(), "payload")
        except Malformed as error:
            return str(error)
        return None

    def value(self) -> canonical_json.Plain:
        """The payload as a value."""
        return canonical_json.decode(self.content.encode(), "payload")


class _Names(ListOf):
    """Names in ascending order, none twice."""

    __slots__ = ()

    def __init__(self, *, name: str = "", least: int = 1) -> None:
        super().__init__(Text(MAX_TEXT_BYTES), name=name, most=MAX_LISTED, least=least)


def _unordered(name: str, listed: tuple[str, ...] | tuple[bytes, ...]) -> str | None:
    ordered = all(a < b for a, b in pairwise(listed))  # type: ignore[operator]
    return None if ordered and all(listed) else f"{name} must be ascending, unique and not empty"


def stream_flaw(stream: str) -> str | None:
    """Why a name is not a recorder stream, or None."""
    segments = stream.removeprefix(NAMESPACE).split("/")
    if not stream.startswith(NAMESPACE) or len(segments) < _MIN_SEGMENTS or not all(segments):
        return f"{stream!r} is not a recorder stream: use the form {NAMESPACE}GROUP/NAME"
    return None


@event("record.map.v1")
class MapType(Event):
    """`record.map.v1`: assigns an event type to its stream."""

    event_type: Annotated[str, Text(MAX_TEXT_BYTES)]
    stream: Annotated[str, Text(MAX_TEXT_BYTES)]

    def flaw(self) -> str | None:
        if not self.event_type:
            return "event_type is empty"
        return stream_flaw(self.stream)


@event("record.migration.v1")
class Migration(Event):
    """`record.migration.v1`: moves event types to another stream from here on. §3.2.2.

    A rename moves every type of a stream, a split some of them.
    """

    kind: Annotated[str, Text(MAX_TEXT_BYTES)]
    from_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    to_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    event_types: Annotated[tuple[str, ...], _Names()]
    reason: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    KINDS: ClassVar = ("rename", "split")

    def flaw(self) -> str | None:
        if self.kind not in self.KINDS:
            return f"kind is {self.kind!r}, not {' or '.join(self.KINDS)}"
        if self.from_stream == self.to_stream:
            return "from_stream and to_stream are the same"
        return (
            stream_flaw(self.from_stream) or stream_flaw(self.to_stream) or _unordered("event_types", self.event_types)
        )


@event("record.producer.v1")
class Producer(Event):
    """`record.producer.v1`: the client keys of one emitting service, its origins and its streams. §2.3.

    One identity per service. Auditors compare `origin` and `principal_id` of events with it.
    """

    name: Annotated[str, Text(MAX_TEXT_BYTES)]
    client_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="client_id"), most=MAX_LISTED, least=1)]
    origins: Annotated[tuple[str, ...], _Names()]
    streams: Annotated[tuple[str, ...], _Names()]

    def flaw(self) -> str | None:
        if not self.name:
            return "name is empty"
        if CHANGES in self.streams:
            return f"a producer may not write to {CHANGES}, which is reserved for the administrator"
        flaws = [stream_flaw(stream) for stream in self.streams]
        flaws += [_unordered("client_ids", self.client_ids), _unordered("origins", self.origins)]
        flaws.append(_unordered("streams", self.streams))
        return next((flaw for flaw in flaws if flaw is not None), None)


@event("record.profile.v1")
class RecorderProfile(Event):
    """`record.profile.v1`: the configuration of a recorder. Its hash is the profile id in checkpoints. §3.2.4.

    Checkpoints are made every `every_sec` seconds, every `every_events` events, or both.
    """

    hub_id: Annotated[bytes, Bstr()]
    admin_pk: Annotated[bytes, Bstr()]
    streams: Annotated[tuple[str, ...], _Names()]
    max_payload_bytes: Annotated[int, Uint(least=1, most=MAX_BODY_BYTES)]
    retention_sec: Annotated[int, Uint(least=1)]
    every_sec: Annotated[int | None, Uint(least=1, optional=True)] = None
    every_events: Annotated[int | None, Uint(least=1, optional=True)] = None

    def flaw(self) -> str | None:
        if self.every_sec is None and self.every_events is None:
            return "every_sec or every_events is required"
        if CHANGES not in self.streams:
            return f"streams must include {CHANGES}"
        flaws = [stream_flaw(stream) for stream in self.streams] + [_unordered("streams", self.streams)]
        return next((flaw for flaw in flaws if flaw is not None), None)

    def profile_id(self) -> bytes:
        return ht("veen/recorder-profile", self.encode())


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

    def plain(self, part: bytes, state: EventTally) -> Mapping[str, cbor.Value]:
        kind, key = part[:1], part[1:]
        shown: dict[str, cbor.Value] = {_NAMES[kind]: key if kind == PRINCIPAL else key.decode()}
        return shown | plain_wire(state)


RECORD_TALLIES = RecordTallies()


def place_key(event: RecordEvent) -> bytes | None:
    """The deduplication key of an event, from its source and position; None if it has none."""
    if event.source is None or event.position is None:
        return None
    return ht("veen/record-place", cbor.encode((event.source, event.position)))
