"""Field tables: the field types of one object in order, as an array or as a map with known keys. Spec §3.1.

A wrong *type* raises at once. A wrong *length* or *version* is recorded in `late` and raised only after the whole
object has proved to be deterministic CBOR, because spec §8.2 checks in that order. A list beyond its bounds raises at
once, so that no sender can make us read it; a MSG contains no list.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_args

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


def _getter(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Like `attrgetter`, but always returns a tuple, even for one name."""
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda wire: (only(wire),)
    return attrgetter(*names)


class Layout(ABC):
    """The fields of one object, in order."""

    __slots__ = ("_heads", "_plan", "fields_of", "kinds", "name")
    major: ClassVar[int]

    def __init__(self, name: str, kinds: Iterable[FieldType], keys: Iterable[bytes]) -> None:
        self.name = name
        self.kinds = tuple(kinds)
        self.fields_of = _getter([kind.name for kind in self.kinds if not kind.fixed])
        self._heads = [heads.write_head(self.major, count) for count in range(len(self.kinds) + 1)]
        # The bytes written before each field. A fixed field is encoded here, once.
        self._plan = tuple(
            (key + kind.write(None), None) if kind.fixed else (key, kind)
            for key, kind in zip(keys, self.kinds, strict=True)
        )

    @abstractmethod
    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[list[Any], int]:
        """The values of all fields that are not fixed, in order; None for an absent one."""

    def write(self, fields: Iterable[Any], *, without_last: int = 0) -> bytes:
        """Encode an object with these fields, in the form that `read` returns; optionally without the last ones."""
        given = iter(fields)
        parts = []
        for key, kind in self._plan[: len(self._plan) - without_last]:
            if kind is None:
                parts.append(key)
                continue
            field = next(given)
            if field is not None or not kind.optional:
                parts.append(key + kind.write(field))
        return self._heads[len(parts)] + b"".join(parts)


class Array(Layout):
    """Fields by position. Optional ones are at the end and omitted if absent."""

    __slots__ = ("_least",)
    major = heads.ARRAY

    def __init__(self, name: str, *kinds: FieldType) -> None:
        super().__init__(name, kinds, [b""] * len(kinds))
        self._least = sum(not kind.optional for kind in kinds)

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[list[Any], int]:
        count, pos = heads.read_count(self.name, heads.ARRAY, data, pos)
        if not self._least <= count <= len(self.kinds):
            raise Malformed("cbor", f"{self.name} has {count} fields, not {self._least}")
        values = []
        for kind in self.kinds[:count]:
            field, pos = kind.read(data, pos, late)
            if not kind.fixed:
                values.append(field)
        values += [None] * (len(self.kinds) - count)
        return values, pos


class Map(Layout):
    """Fields by key, in the listed order. Optional ones may be absent, but not `null`."""

    __slots__ = ("_keys", "names")
    major = heads.MAP

    def __init__(self, name: str, kinds: Mapping[int, FieldType] | Mapping[str, FieldType]) -> None:
        self._keys = tuple(value.encode(key) for key in kinds)
        self.names = tuple(map(str, kinds))  # the keys as text
        super().__init__(name, kinds.values(), self._keys)

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[list[Any], int]:
        count, pos = heads.read_count(self.name, heads.MAP, data, pos)
        values = []
        found = 0
        for key, kind in zip(self._keys, self.kinds, strict=True):
            if found < count and data.startswith(key, pos):
                field, pos = kind.read(data, pos + len(key), late)
                found += 1
            elif kind.optional:
                field = None
            else:
                raise Malformed("cbor", f"{self.name} lacks {kind.name}, or has it out of order, at byte {pos}")
            if not kind.fixed:
                values.append(field)
        if found != count:
            raise Malformed("cbor", f"{self.name} has an unknown, repeated or misplaced key at byte {pos}")
        return values, pos


class Wire:
    """Base class of wire objects: frozen dataclasses whose fields are those of their `LAYOUT`, in order."""

    __slots__ = ()
    LAYOUT: ClassVar[Layout]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode all of `data`. Raises only `Malformed`."""
        late = DeferredFaults()
        try:
            wire, end = cls.read(bytes(memoryview(data)), 0, late)
            if end != len(data):
                raise Malformed("cbor", f"{len(data) - end} bytes after the end")
            late.raise_first()
        except Malformed as error:
            raise Malformed(cls.LAYOUT.name, error.reason, error.fault) from None
        return wire

    @classmethod
    def read(cls, data: bytes, pos: int, late: DeferredFaults) -> tuple[Self, int]:
        """Decode the object that starts at `pos`, for nested objects and sequences. Returns it and its end."""
        values, end = cls.LAYOUT.read(data, pos, late)
        wire = cls(*values)
        if late.flaw is None and not late.first:
            late.flaw = wire.flaw()
        return wire, end

    def encode(self) -> bytes:
        """The only encoding of this object. Raises `ValueError` if a field violates its table."""
        flaw = self.flaw()
        if flaw:
            raise ValueError(f"{self.LAYOUT.name}: {flaw}")
        return self.LAYOUT.write(self.LAYOUT.fields_of(self))

    def unsigned(self, without_last: int = 1) -> bytes:
        """The encoding without the last field: what a signature in that field covers."""
        return self.LAYOUT.write(self.LAYOUT.fields_of(self), without_last=without_last)

    def flaw(self) -> str | None:
        """Why the decoded fields are invalid, for rules that field types cannot state; None if they are valid."""
        return None


class Nested(FieldType):
    """A wire object as a field of another one."""

    __slots__ = ("wire",)

    def __init__(self, wire: type[Wire], *, name: str = "", optional: bool = False) -> None:
        super().__init__(name=name, optional=optional)
        self.wire = wire

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[Wire, int]:
        return self.wire.read(data, pos, late)

    def write(self, field: Wire) -> bytes:
        return field.encode()


W = TypeVar("W", bound=Wire)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def array(name: str, *fixed: FieldType) -> Callable[[type[W]], type[W]]:
    """Make a frozen dataclass whose encoding is an array: first `fixed`, then its fields in order.

    Each field states its type once, for Python and for the wire: `stream_seq: Annotated[int, Uint()]`.
    """
    return lambda cls: _wire(cls, lambda kinds: Array(name, *fixed, *kinds))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def int_map(name: str, *fixed: FieldType, last: tuple[FieldType, ...] = ()) -> Callable[[type[W]], type[W]]:
    """As `array`, but encoded as a map with the keys 1, 2, 3 and so on; `last` are fixed fields after the others."""
    return lambda cls: _wire(cls, lambda kinds: Map(name, dict(enumerate((*fixed, *kinds, *last), 1))))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def text_map(name: str, *fixed: FieldType, keys: Mapping[str, str] | None = None) -> Callable[[type[W]], type[W]]:
    """As `array`, but encoded as a map whose keys are the names of the fields, except those that `keys` renames."""
    other = keys or {}
    return lambda cls: _wire(
        cls, lambda kinds: Map(name, {other.get(kind.name, kind.name): kind for kind in (*fixed, *kinds)})
    )


def _wire(cls: type[W], layout: Callable[[list[FieldType]], Layout]) -> type[W]:
    made = dataclass(frozen=True, slots=True)(cls)
    made.LAYOUT = layout([_field_type(one.type).named(one.name) for one in fields(made)])  # type: ignore[arg-type]
    return made


def _field_type(annotation: object) -> FieldType:
    return next(found for found in get_args(annotation) if isinstance(found, FieldType))
