"""Field tables: the field types of one object in order, as an array or as a map with known keys. Spec §3.1."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_args

from veen.core.cbor import heads, value
from veen.core.cbor.field_types import DeferredFaults, FieldType
from veen.core.errors import Malformed


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

    def write(self, fields: Iterable[Any], *, but_last: bool = False) -> bytes:
        """Encode an object with these fields, in the form that `read` returns; optionally without the last one."""
        given = iter(fields)
        parts = []
        for key, kind in self._plan[:-1] if but_last else self._plan:
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

    __slots__ = ("_keys",)
    major = heads.MAP

    def __init__(self, name: str, kinds: Mapping[int, FieldType] | Mapping[str, FieldType]) -> None:
        self._keys = tuple(value.encode(key) for key in kinds)
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

    def unsigned(self) -> bytes:
        """The encoding without the last field: what a signature in that field covers."""
        return self.LAYOUT.write(self.LAYOUT.fields_of(self), but_last=True)

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
