"""The field types of a field table. Spec §3.1.

A wrong *type* raises at once. A wrong *length* or *version* is recorded in `late` and raised only after the whole
object has proved to be deterministic CBOR, because spec §8.2 checks in that order. A list beyond its bounds raises at
once, so that no sender can make us read it; a MSG contains no list.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar, Self

from veen.core.cbor import heads, value
from veen.core.errors import Fault, Malformed
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_DETAIL_BYTES, WIRE_VERSION

_VERSION = heads.write_head(heads.UINT, WIRE_VERSION)


class DeferredFaults:
    """Faults to raise once the whole object is known to be CBOR: the first of each class, and the first flaw.

    A flaw is a contradiction between fields. It is not looked for if a field is already wrong by itself.
    """

    __slots__ = ("first", "flaw")

    def __init__(self) -> None:
        self.first: dict[Fault, str] = {}
        self.flaw: str | None = None

    def note(self, fault: Fault, reason: str) -> None:
        self.first.setdefault(fault, reason)

    def raise_first(self) -> None:
        """Raise the recorded fault that comes first in the admission table, if any."""
        if self.first:
            fault = min(self.first)
            raise Malformed("cbor", self.first[fault], fault)
        if self.flaw is not None:
            raise Malformed("cbor", self.flaw)


class FieldType(ABC):
    """One named field of a table."""

    __slots__ = ("name", "optional")
    fixed: ClassVar[bool] = False  # has a constant value, so objects do not store it

    def __init__(self, *, name: str = "", optional: bool = False) -> None:
        self.name = name
        self.optional = optional

    def named(self, name: str) -> Self:
        """A copy under this name; an item without a name of its own gets the same."""
        made = copy(self)
        made.name = name
        return made

    @abstractmethod
    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[Any, int]: ...

    @abstractmethod
    def write(self, field: Any) -> bytes: ...


class Uint(FieldType):
    """An unsigned integer within bounds, by default any of 64 bits."""

    __slots__ = ("least", "most")

    def __init__(self, *, name: str = "", least: int = 0, most: int = U64_MAX, optional: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.least = least
        self.most = most

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[int, int]:
        major, number, end = heads.read_head(data, pos)
        if major != heads.UINT:
            raise heads.unexpected(self.name, heads.MAJOR_NAMES[heads.UINT], data, pos)
        if not self.least <= number <= self.most:
            raise Malformed("cbor", f"{self.name} is {number}, not within {self.least}..{self.most}")
        return number, end

    def write(self, field: int) -> bytes:
        if isinstance(field, bool) or not isinstance(field, int) or not self.least <= field <= self.most:
            raise ValueError(f"{self.name} is {field!r}, not within {self.least}..{self.most}")
        return heads.write_head(heads.UINT, field)


class Bool(FieldType):
    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bool, int]:
        head = data[pos : pos + 1]
        if head not in (heads.FALSE_BYTE, heads.TRUE_BYTE):
            heads.read_head(data, pos)
            raise heads.unexpected(self.name, "true or false", data, pos)
        return head == heads.TRUE_BYTE, pos + 1

    def write(self, field: bool) -> bytes:
        return heads.TRUE_BYTE if field else heads.FALSE_BYTE


class Bstr(FieldType):
    """A byte string of exactly `size` bytes. With `nullable`, `null` means that it is absent."""

    __slots__ = ("_head", "nullable", "size")

    def __init__(self, size: int = 32, *, name: str = "", optional: bool = False, nullable: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.size = size
        self.nullable = nullable
        self._head = heads.write_head(heads.BSTR, size)

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes | None, int]:
        if self.nullable and data[pos : pos + 1] == heads.NULL_BYTE:
            return None, pos + 1
        start = pos + len(self._head)
        if data.startswith(self._head, pos) and start + self.size <= len(data):
            return data[start : start + self.size], start + self.size
        content, end = heads.read_string(self.name, heads.BSTR, data, pos)
        if len(content) != self.size:
            late.note(Fault.SIZE, f"{self.name} has {len(content)} bytes, not {self.size}")
        return content, end

    def write(self, field: bytes | None) -> bytes:
        if field is None and self.nullable:
            return heads.NULL_BYTE
        if field is None or len(field) != self.size:
            raise ValueError(f"{self.name} must have {self.size} bytes")
        return self._head + field


class Bytes(FieldType):
    """A byte string of at most `most` bytes."""

    __slots__ = ("most",)

    def __init__(self, most: int, *, name: str = "", optional: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.most = most

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes, int]:
        content, end = heads.read_string(self.name, heads.BSTR, data, pos)
        if len(content) > self.most:
            late.note(Fault.SIZE, f"{self.name} has {len(content)} bytes, above {self.most}")
        return content, end

    def write(self, field: bytes) -> bytes:
        if len(field) > self.most:
            raise ValueError(f"{self.name} has {len(field)} bytes, above {self.most}")
        return heads.write_bstr(field)


class Text(FieldType):
    """A text string of at most `most` UTF-8 bytes."""

    __slots__ = ("most",)

    def __init__(self, most: int, *, name: str = "", optional: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.most = most

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[str, int]:
        text, end = heads.read_text(self.name, data, pos)
        if len(text.encode()) > self.most:
            late.note(Fault.SIZE, f"{self.name} is longer than {self.most} bytes")
        return text, end

    def write(self, field: str) -> bytes:
        if len(field.encode()) > self.most:
            raise ValueError(f"{self.name} is longer than {self.most} bytes")
        return heads.write_text(field)


class VersionField(FieldType):
    """`ver`: always 1, so objects do not store it."""

    __slots__ = ()
    fixed = True

    def __init__(self) -> None:
        super().__init__(name="ver")

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[int, int]:
        if data.startswith(_VERSION, pos):
            return WIRE_VERSION, pos + 1
        version, end = heads.read_uint(self.name, data, pos)
        if version != WIRE_VERSION:
            late.note(Fault.VERSION, f"version {version}, not {WIRE_VERSION}")
        return version, end

    def write(self, field: None = None) -> bytes:
        return _VERSION


class Constant(FieldType):
    """A text with one allowed value."""

    __slots__ = ("text",)
    fixed = True

    def __init__(self, text: str, *, name: str = "") -> None:
        super().__init__(name=name)
        self.text = text

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[str, int]:
        text, end = heads.read_text(self.name, data, pos)
        if text != self.text:
            raise Malformed("cbor", f"{self.name} is not {self.text!r}")
        return text, end

    def write(self, field: None = None) -> bytes:
        return heads.write_text(self.text)


class ListOf(FieldType):
    """Between `least` and `most` items of one type."""

    __slots__ = ("item", "least", "most")

    def __init__(self, item: FieldType, *, name: str = "", most: int, least: int = 0, optional: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.item = item
        self.least = least
        self.most = most

    def named(self, name: str) -> Self:
        made = super().named(name)
        made.item = self.item if self.item.name else self.item.named(name)
        return made

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[tuple[Any, ...], int]:
        count, pos = heads.read_count(self.name, heads.ARRAY, data, pos)
        if not self.least <= count <= self.most:
            raise Malformed("cbor", f"{self.name} has {count} items, not {self.least} to {self.most}", Fault.SIZE)
        items = []
        for _ in range(count):
            item, pos = self.item.read(data, pos, late)
            items.append(item)
        return tuple(items), pos

    def write(self, field: tuple[Any, ...]) -> bytes:
        if not self.least <= len(field) <= self.most:
            raise ValueError(f"{self.name} has {len(field)} items, not {self.least} to {self.most}")
        return heads.write_head(heads.ARRAY, len(field)) + b"".join(map(self.item.write, field))


class Details(FieldType):
    """A map of text to unsigned integer or text: the machine-readable part of an error. Spec §10.6."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[dict[str, int | str], int]:
        heads.read_count(self.name, heads.MAP, data, pos)
        found, end = value.read_value(data, pos, depth=1)
        if end - pos > MAX_DETAIL_BYTES:
            late.note(Fault.SIZE, f"{self.name} is longer than {MAX_DETAIL_BYTES} bytes")
        return details(self.name, found), end

    def write(self, field: dict[str, int | str]) -> bytes:
        try:
            details(self.name, field)
        except Malformed as error:
            raise ValueError(error.reason) from None
        encoded = value.encode(field)
        if len(encoded) > MAX_DETAIL_BYTES:
            raise ValueError(f"{self.name} is longer than {MAX_DETAIL_BYTES} bytes")
        return encoded


def details(name: str, found: object) -> dict[str, int | str]:
    """Check that `found` is a map of error details, from CBOR or JSON."""
    if not isinstance(found, Mapping):
        raise Malformed("cbor", f"{name} is not a map")
    checked: dict[str, int | str] = {}
    for key, entry in found.items():
        number = isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry <= U64_MAX
        if not isinstance(key, str) or not (number or isinstance(entry, str)):
            raise Malformed("cbor", f"{name} must map text to unsigned integers or text")
        checked[key] = entry
    return checked
