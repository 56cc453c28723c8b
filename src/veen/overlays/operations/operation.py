"""Common parts of the operation profiles: ids, schemas, and links between operations. 001, spec-3 §1."""

from typing import ClassVar

from veen.core import Malformed, cbor, naming
from veen.core.cbor import Bstr, DeferredFaults, ListOf, Map, Text, heads
from veen.core.cbor.value import read_value
from veen.core.hashing import ht
from veen.core.limits import MAX_BODY_BYTES, MAX_VALUE_DEPTH
from veen.overlays.event import Event
from veen.overlays.fields import ValueItem


class Embedded(ValueItem):
    """One CBOR value in deterministic encoding except for key order, stored as the received bytes."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes, int]:
        _, end = _read(data, pos, MAX_VALUE_DEPTH)
        return data[pos:end], end

    def write(self, field: bytes) -> bytes:
        try:
            decode(field, self.name)
        except Malformed as error:
            raise ValueError(str(error)) from None
        return field


def decode(data: bytes, what: str = "body") -> cbor.Value:
    """Decode an embedded body."""
    value, end = _read(data, 0, MAX_VALUE_DEPTH)
    if end != len(data):
        raise Malformed(what, f"{len(data) - end} bytes after the end")
    return value


def _read(data: bytes, pos: int, depth: int) -> tuple[cbor.Value, int]:
    major, count, start = heads.read_head(data, pos)
    if major not in (heads.ARRAY, heads.MAP):
        return read_value(data, pos)
    if depth == 0:
        raise Malformed("cbor", f"nested too deep at byte {pos}")
    count, start = heads.read_count("value", major, data, pos)
    if major == heads.ARRAY:
        items: list[cbor.Value] = []
        for _ in range(count):
            item, start = _read(data, start, depth - 1)
            items.append(item)
        return tuple(items), start
    entries: dict[cbor.Key, cbor.Value] = {}
    for _ in range(count):
        key, end = read_value(data, start, 0)
        if not isinstance(key, int | str) or isinstance(key, bool) or (isinstance(key, int) and key < 0):
            raise Malformed("cbor", f"the key at byte {start} is neither an unsigned integer nor text")
        if key in entries:
            raise Malformed("cbor", f"the key at byte {start} repeats")
        entries[key], start = _read(data, end, depth - 1)
    return entries, start


def operation_id(msg_id: bytes) -> bytes:
    """The id by which operations refer to each other. §1.1."""
    return ht("veen/operation-id", msg_id)


def profile_schema(name: str) -> bytes:
    """The schema id of a profile's body. Unlike other schemas, the name is hashed with a prefix. §1.4."""
    return naming.schema_id(f"veen/schema:{name}")


def text(*, name: str = "", optional: bool = False) -> Text:
    return Text(MAX_BODY_BYTES, name=name, optional=optional)


def ids(item: str, most: int = MAX_BODY_BYTES, *, name: str = "") -> ListOf:
    return ListOf(Bstr(name=item), name=name, most=most)


def anything(*, name: str = "", optional: bool = False) -> ValueItem:
    return ValueItem(name=name, optional=optional)


PARENT = Bstr(name="parent_operation_id", optional=True)
METADATA = anything(name="metadata", optional=True)


class Operation(Event):
    """Base of the bodies of all profiles."""

    __slots__ = ()
    NAME: ClassVar[str]  # of its schema
    LAYOUT: ClassVar[Map]

    @property
    def parent(self) -> bytes | None:
        """The operation that this one depends on or answers, or None."""
        found = getattr(self, "parent_operation_id", None)
        return found if isinstance(found, bytes) else None


def repeated(listed: tuple[bytes, ...], what: str) -> str | None:
    return None if len(set(listed)) == len(listed) else f"duplicate in {what}"
