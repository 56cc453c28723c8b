"""The entries of a chunk in blocks of whole entries, whether it is kept as it is or compressed."""

import mmap
from collections.abc import Iterator
from pathlib import Path

from veen.core import Malformed, Unavailable
from veen.storage import openings, packed
from veen.storage.frame import Data
from veen.storage.packed import PackedChunk


def read_blocks(path: Path, offset: int = 0, size: int = 0) -> Iterator[tuple[Data, int]]:
    """The chunk's entries from `offset` on, each block with where in it they begin.

    Offsets count bytes of entries, never of a compressed file. With `size`, only the first bytes of a file that is not
    compressed are looked at: the rest is being written.
    """
    if is_packed(path):
        yield from PackedChunk(mapped(path)).blocks(offset)
    else:
        yield mapped(path, size), offset


def check_packing(path: Path) -> None:
    """Raise where a compressed chunk is not, byte for byte, what was written. For others its entries say so."""
    if is_packed(path):
        PackedChunk(mapped(path)).check_digest()


def is_packed(path: Path) -> bool:
    return path.suffix == packed.SUFFIX


def mapped(path: Path, size: int = 0) -> Data:
    """A file's bytes, or its first `size`, without reading them all."""
    try:
        with open(openings.open_file(path), "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise Malformed("log", f"{path.name} is shorter than it must be: {error}") from None
    except OSError as error:
        raise Unavailable(f"{path.name} cannot be read: {error.strerror}") from None
