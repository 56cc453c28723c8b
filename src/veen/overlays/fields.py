"""Field types of overlay bodies and states, beyond those of the wire objects."""

from collections.abc import Iterable
from itertools import pairwise

from veen.core import cbor
from veen.core.cbor import DeferredFaults, FieldType, Map, heads
from veen.core.cbor.value import read_value
from veen.core.errors import Malformed
from veen.core.hashing import U64_MAX


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

    def _check(self, initial: int, pos: int) -> None:
        if self._majors and initial >> 5 not in self._majors:
            wanted = " or ".join(heads.MAJOR_NAMES[major] for major in self._majors)
            raise Malformed("cbor", f"{self.name} at byte {pos} is not {wanted}")


def optional_map(*, name: str = "") -> ValueItem:
    """An optional map that the overlay does not interpret, such as `metadata`."""
    return ValueItem(heads.MAP, name=name, optional=True)


def ascending(items: Iterable[bytes]) -> bool:
    """Whether the byte strings are strictly ascending."""
    listed = list(items)
    return all(a < b for a, b in pairwise(listed))
