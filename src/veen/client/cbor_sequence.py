"""CBOR sequences of wire objects, concatenated without separators. RFC 8742."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from veen.client.local_files import named
from veen.core import Malformed
from veen.core.cbor import DeferredFaults, Wire
from veen.core.limits import MAX_MSG_BYTES

# No wire object is longer, so this many bytes contain a whole one or the end of the file.
_MOST_BYTES = 2 * MAX_MSG_BYTES

W = TypeVar("W", bound=Wire)


def encode(objects: Iterable[Wire]) -> bytes:
    return b"".join(wire.encode() for wire in objects)


def decode(cls: type[W], data: bytes) -> tuple[W, ...]:
    """Decode every object. Raises `Malformed` with the number of the object."""
    return tuple(decode_each(lambda data, pos: cls, data))


def decode_each(type_at: Callable[[bytes, int], type[W]], data: bytes) -> Iterator[W]:
    """As `decode`, for objects of several types: `type_at` gives the type of the object at an offset."""
    count, pos = 0, 0
    while pos < len(data):
        wire, pos = _read(type_at(data, pos), data, pos, count)
        count += 1
        yield wire


def read_file(cls: type[W], path: Path, most_bytes: int = _MOST_BYTES) -> Iterator[W]:
    """Decode the objects of a file that may not fit in memory. No object may exceed `most_bytes`."""
    count = 0
    with named(path), path.open("rb") as file:
        rest, more = b"", True
        while more or rest:
            block = file.read(most_bytes) if more else b""
            more = bool(block)
            data, pos = rest + block, 0
            while pos < len(data) and (not more or len(data) - pos >= most_bytes):
                wire, pos = _read(cls, data, pos, count)
                count += 1
                yield wire
            rest = data[pos:]


def _read(cls: type[W], data: bytes, pos: int, before: int) -> tuple[W, int]:
    late = DeferredFaults()
    try:
        wire, pos = cls.read(data, pos, late)
        late.raise_first()
    except Malformed as error:
        raise Malformed(f"{cls.LAYOUT.name} {before + 1}", error.reason, error.fault) from None
    return wire, pos
