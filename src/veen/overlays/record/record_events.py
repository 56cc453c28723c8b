"""The recorder's events, and its administrator's settings for streams and producers. 001, products-spec-1 §3.

Three fields of the specification are taken from the entry: `principal_id` is its client_id, `hub_commit_seq` its
stream_seq, and `hub_commit_time` its hub_ts.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

from veen.core import Malformed, canonical_json, cbor, naming
from veen.core.cbor import Bstr, DeferredFaults, FieldType, ListOf, Map, Text, Uint, heads
from veen.core.hashing import U64_MAX, ht
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import Event, event

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


@dataclass(frozen=True, slots=True)
class RecordEvent(Event):
    """`record.event.v1`. `event_time` is in milliseconds since 1970; `payload` is canonical JSON.

    `source` and `position` identify its origin: a second event with the same values is a copy.
    """

    subject_id: str
    event_type: str
    event_time: int
    origin: str
    content: str  # the wire field `payload`; `Event.payload()` uses that name
    source: str | None = None
    position: Position | None = None

    NAME: ClassVar = "record.event.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)
    LAYOUT: ClassVar = Map(
        NAME,
        {
            "subject_id": Text(MAX_TEXT_BYTES, name="subject_id"),
            "event_type": Text(MAX_TEXT_BYTES, name="event_type"),
            "event_time": Uint(name="event_time"),
            "origin": Text(MAX_TEXT_BYTES, name="origin"),
            "payload": Text(MAX_BODY_BYTES, name="content"),
            "source": Text(MAX_TEXT_BYTES, name="source", optional=True),
            "position": PositionKind(name="position", optional=True),
        },
    )

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

    NAME: ClassVar = "record.map.v1"

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

    NAME: ClassVar = "record.migration.v1"
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

    NAME: ClassVar = "record.producer.v1"

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

    NAME: ClassVar = "record.profile.v1"

    def flaw(self) -> str | None:
        if self.every_sec is None and self.every_events is None:
            return "every_sec or every_events is required"
        if CHANGES not in self.streams:
            return f"streams must include {CHANGES}"
        flaws = [stream_flaw(stream) for stream in self.streams] + [_unordered("streams", self.streams)]
        return next((flaw for flaw in flaws if flaw is not None), None)

    def profile_id(self) -> bytes:
        return ht("veen/recorder-profile", self.encode())
