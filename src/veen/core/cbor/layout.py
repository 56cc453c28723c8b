"""Field tables: the kinds of one object in order, as an array or as a map with known keys. Spec §3.1."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from veen.core.cbor import heads, value
from veen.core.cbor.kinds import Kind, Late
from veen.core.errors import Malformed


def _getter(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Reads these attributes of an object, in order, as a tuple also where there is one."""
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda wire: (only(wire),)
    return attrgetter(*names)


class Layout(ABC):
    """The fields of one object, in order."""

    __slots__ = ("_plan", "fields_of", "kinds", "name")

    def __init__(self, name: str, kinds: Iterable[Kind], keys: Iterable[bytes]) -> None:
        self.name = name
        self.kinds = tuple(kinds)
        self.fields_of = _getter([kind.name for kind in self.kinds if not kind.fixed])
        # What is written before each field; a fixed one is written whole here, once and for all.
        self._plan = tuple(
            (key + kind.write(None), None) if kind.fixed else (key, kind)
            for key, kind in zip(keys, self.kinds, strict=True)
        )

    @abstractmethod
    def read(self, data: bytes, pos: int, late: Late) -> tuple[list[Any], int]:
        """The values of all fields that are not fixed, in order; None for an absent one."""

    @abstractmethod
    def write(self, fields: Iterable[Any]) -> bytes:
        """The encoding of an object with these fields, given as `read` gives them."""

    def _write_fields(self, fields: Iterable[Any]) -> list[bytes]:
        """The parts that are there, each with its key."""
        given = iter(fields)
        parts = []
        for key, kind in self._plan:
            if kind is None:
                parts.append(key)
                continue
            field = next(given)
            if field is not None or not kind.optional:
                parts.append(key + kind.write(field))
        return parts


class Array(Layout):
    """Fields by position; optional ones only at the end, where they are trimmed."""

    __slots__ = ("_least",)

    def __init__(self, name: str, *kinds: Kind) -> None:
        super().__init__(name, kinds, [b""] * len(kinds))
        self._least = sum(not kind.optional for kind in kinds)

    def read(self, data: bytes, pos: int, late: Late) -> tuple[list[Any], int]:
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

    def write(self, fields: Iterable[Any]) -> bytes:
        parts = self._write_fields(fields)
        return heads.write_head(heads.ARRAY, len(parts)) + b"".join(parts)


class Map(Layout):
    """Fields by key, in the listed order; optional ones may be absent, `null` may not stand for them."""

    __slots__ = ("_keys",)

    def __init__(self, name: str, kinds: Mapping[int, Kind] | Mapping[str, Kind]) -> None:
        self._keys = tuple(value.encode(key) for key in kinds)
        super().__init__(name, kinds.values(), self._keys)

    def read(self, data: bytes, pos: int, late: Late) -> tuple[list[Any], int]:
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

    def write(self, fields: Iterable[Any]) -> bytes:
        parts = self._write_fields(fields)
        return heads.write_head(heads.MAP, len(parts)) + b"".join(parts)
