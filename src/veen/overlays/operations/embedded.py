"""The body of an operation inside another: a CBOR value whose maps keep the order of their own definitions.

Elsewhere a value of open shape has its keys ascending. A body of ours has them as its schema lists them, and must stand
in another byte for byte as it would stand alone.
"""

from veen.core import Malformed, cbor
from veen.core.cbor import Late, heads
from veen.core.cbor.value import read_value
from veen.core.limits import MAX_VALUE_DEPTH
from veen.overlays.fields import Item


class Embedded(Item):
    """One CBOR value in deterministic encoding, but for the order of keys; kept as the bytes it came in."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: Late) -> tuple[bytes, int]:
        _, end = _read(data, pos, MAX_VALUE_DEPTH)
        return data[pos:end], end

    def write(self, field: bytes) -> bytes:
        try:
            decode(field, self.name)
        except Malformed as error:
            raise ValueError(str(error)) from None
        return field


def decode(data: bytes, what: str = "body") -> cbor.Value:
    """The value of such a body."""
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
