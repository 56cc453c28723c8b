"""The input of a fold: verified entries with their opened payloads, typed events, and the field types of bodies.

Decoding is total and deterministic: every body is either a typed event or an `EventFault`. Spec §4.7.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, dataclass_transform

from veen.core import Msg, PayloadHdr, Receipt, cbor, naming
from veen.core.cbor import Bstr, Bytes, DeferredFaults, FieldType, Map, Nested, Text, Uint, Wire, array, heads, text_map
from veen.core.cbor.value import read_value
from veen.core.errors import Malformed
from veen.core.hashing import U64_MAX, u64be
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.core.naming import ZERO_HASH

AT_BYTES = 16
Ranges: TypeAlias = tuple[tuple[int, int], ...]  # (first, last), ascending and not adjacent
PROFILE_PREFIX = "veen/schema:"  # of the schema names of operation profiles. 001, spec-3 §1.4


class At(NamedTuple):
    """A place in a stream. Labels of a stream are ordered by epoch, so tuple comparison is stream order."""

    epoch: int
    stream_seq: int

    def key(self) -> bytes:
        """Encode as 16 bytes whose byte order is the order of places."""
        return u64be(self.epoch) + u64be(self.stream_seq)

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        return cls(int.from_bytes(key[:8], "big"), int.from_bytes(key[8:AT_BYTES], "big"))


@array("entry")
class FoldEntry(Wire):
    """One entry. `header` and `body` are None if the payload could not be opened.

    If the message has attachments, `header.schema` and `body` are those of the wrapped payload.
    """

    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint(least=1)]
    hub_ts: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]
    auth_ref: Annotated[bytes | None, Bstr(nullable=True)]
    msg_id: Annotated[bytes, Bstr()]
    header: Annotated[PayloadHdr | None, Nested(PayloadHdr, optional=True)] = None
    body: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        return (
            "header and body must both be present or both be absent"
            if (self.header is None) != (self.body is None)
            else None
        )

    @classmethod
    def of(cls, message: Msg, receipt: Receipt, header: PayloadHdr | None, body: bytes | None, epoch: int = 0) -> Self:
        """Build the entry from a message and its receipt. The caller must have verified both."""
        return cls(
            receipt.label,
            epoch,
            receipt.stream_seq,
            receipt.hub_ts,
            message.client_id,
            message.auth_ref,
            receipt.leaf_hash,
            header,
            body,
        )

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    @property
    def origin(self) -> bytes:
        """The id of the original message. A mirrored copy names the original as its `parent_id`."""
        parent = self.header.parent_id if self.header else None
        return self.msg_id if parent is None else parent


class Event(Wire):
    """Base of event bodies: a frozen dataclass whose `LAYOUT` lists its text keys. Two forms may share a schema."""

    __slots__ = ()
    NAME: ClassVar[str]  # of its schema
    SCHEMA: ClassVar[bytes]

    def payload(self, parent_id: bytes | None = None) -> tuple[PayloadHdr, bytes]:
        """The header and body of a message that carries this event."""
        return PayloadHdr(self.SCHEMA, parent_id), self.encode()


E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def event(name: str, *, prefix: str = "", keys: Mapping[str, str] | None = None) -> Callable[[type[E]], type[E]]:
    """Make a frozen dataclass whose encoding is a map with its field names as keys, except those that `keys` renames.

    The schema id is the hash of `prefix` and `name`.

    >>> @event("door.opened.v1")
    ... class DoorOpened(Event):
    ...     door: Annotated[int, Uint()]
    """

    def make(cls: type[E]) -> type[E]:
        made = text_map(name, keys=keys)(cls)
        made.NAME, made.SCHEMA = name, naming.schema_id(prefix + name)
        return made

    return make


def draft(
    event: Event, *, client_id: bytes, hub_ts: int, after: At | None = None, parent_id: bytes | None = None
) -> FoldEntry:
    """Build the entry that this event would become if it were logged after `after`. Used with `preview`."""
    epoch, stream_seq = after or (0, 0)
    return FoldEntry(ZERO_HASH, epoch, stream_seq + 1, hub_ts, client_id, None, ZERO_HASH, *event.payload(parent_id))


class FaultKind(StrEnum):
    """Why an entry was not applied."""

    SEALED = "sealed"  # this reader cannot open the payload
    MALFORMED = "malformed"  # the body does not match its schema
    COPY = "copy"  # the same event is already in the log
    REFUSED = "refused"  # well formed, but the state does not allow it


@array("fault")
class EventFault(Wire):
    """An entry that was not applied, its place and the reason. `part` is set if only that part did not apply it."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint(least=1)]
    kind: Annotated[str, Text(MAX_BODY_BYTES)]
    reason: Annotated[str, Text(MAX_MSG_BYTES)]
    part: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        return None if self.kind in FaultKind.__members__.values() else f"unknown fault kind {self.kind!r}"

    @classmethod
    def at(cls, at: At, kind: FaultKind, reason: str, part: bytes | None = None) -> "EventFault":
        return cls(at.epoch, at.stream_seq, str(kind), reason, part)

    @property
    def place(self) -> At:
        return At(self.epoch, self.stream_seq)


def body(name: str, *kinds: FieldType) -> Map:
    """The layout of an event body: a map whose text keys are the field names, in the order given."""
    return Map(name, {kind.name: kind for kind in kinds})


class Int(FieldType):
    """A signed integer that one CBOR head can hold: −2^64 to 2^64−1."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[int, int]:
        major, argument, end = heads.read_head(data, pos)
        if major not in (heads.UINT, heads.NINT):
            raise heads.unexpected(self.name, "an integer", data, pos)
        return (argument if major == heads.UINT else -1 - argument), end

    def write(self, field: int) -> bytes:
        if isinstance(field, bool) or not isinstance(field, int) or not -1 - U64_MAX <= field <= U64_MAX:
            raise ValueError(f"{self.name} is {field!r}, not an integer between -2^64 and 2^64-1")
        return cbor.encode(field)


class Number(FieldType):
    """An integer of any size, for sums. Encoded by `number_value`."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[int, int]:
        found, end = read_value(data, pos, 1)
        return number_of(found, self.name), end

    def write(self, field: int) -> bytes:
        return cbor.encode(number_value(field))


def number_value(number: int) -> cbor.Value:
    """An integer of any size as a CBOR value: a CBOR integer if it fits, else `[negative, magnitude]`."""
    if -1 - U64_MAX <= number <= U64_MAX:
        return number
    magnitude = abs(number)
    return (number < 0, magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "big"))


def number_of(found: cbor.Value, name: str = "number") -> int:
    """The inverse of `number_value`. Raises `Malformed` for any other encoding."""
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    match found:
        case (bool() as negative, bytes() as magnitude):
            number = int.from_bytes(magnitude, "big")
            number = -number if negative else number
            if number_value(number) == found:
                return number
    raise Malformed("cbor", f"{name} is not a number")


class ValueItem(FieldType):
    """One CBOR value of any shape, stored as the received bytes so that it is never re-encoded."""

    __slots__ = ("_majors",)

    def __init__(self, *majors: int, name: str = "", optional: bool = False) -> None:
        """`majors` restricts the major type, for example `heads.MAP` for a value that must be a map."""
        super().__init__(name=name, optional=optional)
        self._majors = majors

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes, int]:
        _, end = read_value(data, pos)
        self._check(data[pos], pos)
        return data[pos:end], end

    def write(self, field: bytes) -> bytes:
        try:
            cbor.decode(field, self.name)
            self._check(field[0], 0)
        except Malformed as error:
            raise ValueError(str(error)) from None
        return field

    def plain(self, field: bytes) -> cbor.Value:
        """The decoded value, for display and JSON."""
        return cbor.decode(field, self.name)

    def _check(self, initial: int, pos: int) -> None:
        if self._majors and initial >> 5 not in self._majors:
            wanted = " or ".join(heads.MAJOR_NAMES[major] for major in self._majors)
            raise Malformed("cbor", f"{self.name} at byte {pos} is not {wanted}")


def body_text(*, name: str = "", optional: bool = False) -> Text:
    """A text that only the size of the body bounds."""
    return Text(MAX_BODY_BYTES, name=name, optional=optional)


def optional_map(*, name: str = "") -> ValueItem:
    """An optional map that the overlay does not interpret, such as `metadata`."""
    return ValueItem(heads.MAP, name=name, optional=True)


def ascending(items: Iterable[bytes]) -> bool:
    """Whether the byte strings are strictly ascending."""
    listed = list(items)
    return all(a < b for a, b in pairwise(listed))


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Merge overlapping and adjacent ranges."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def plain_wire(wire: Wire, *, absent: bool = False) -> dict[str, cbor.Value]:
    """The fields of a wire object as plain values, for display and JSON. With `absent`, absent fields are None."""
    shown: dict[str, cbor.Value] = {}
    for kind in wire.LAYOUT.kinds:
        if kind.fixed:  # a version: the object does not store it
            continue
        found = getattr(wire, kind.name)
        if found is not None:
            shown[kind.name] = kind.plain(found) if isinstance(kind, ValueItem) else _plain(found)
        elif absent:
            shown[kind.name] = None
    return shown


def _plain(found: object) -> cbor.Value:
    match found:
        case tuple():
            return tuple(_plain(one) for one in found)
        case Wire():
            return plain_wire(found)
        case int():
            return number_value(found)
        case bytes() | str():
            return found
    raise AssertionError(found)
