"""How a row of the index shows that it is the one that was written.

LMDB does not notice a wrong bit, and a hub that believed one would decide by it: give a place to two messages, skip
what only the journal has, take a client_seq twice.

    sum     over all rows of some tables, in whatever order they were written
    seal    a crc32 of table, key and row at the row's end
"""

import struct
from hashlib import blake2b
from typing import Any
from zlib import crc32

from veen.core import Malformed

SUM = "sum"  # the row of meta that has it, and is not in it
_SUM_BYTES = 8
_SEAL_BYTES = 4
_Given = bytes | memoryview  # what LMDB hands out, as far as its types say


def share(table: str, key: bytes, row: bytes) -> int:
    """What a row adds to the sum, and takes from it again."""
    if (table, key) == ("meta", SUM.encode()):
        return 0
    return int.from_bytes(blake2b(key + row, digest_size=_SUM_BYTES, person=table.encode()).digest(), "big")


def seal(table: str, key: bytes, row: bytes) -> bytes:
    """The row with its seal."""
    return row + crc32(row, crc32(key, crc32(table.encode()))).to_bytes(_SEAL_BYTES, "big")


def unsealed(table: str, key: _Given, sealed: _Given) -> bytes:
    """The row in its seal. Raises `Malformed` where it does not hold."""
    row = bytes(sealed[:-_SEAL_BYTES])
    if seal(table, bytes(key), row) != sealed:
        raise Malformed("index", f"a row of {table} is not the one that was written")
    return row


def unpacked(layout: struct.Struct, row: _Given) -> tuple[Any, ...]:
    """The fields of a row of fixed length. Raises `Malformed` where it has another."""
    if len(row) != layout.size:
        raise Malformed("index", f"a row has {len(row)} bytes, not {layout.size}")
    return layout.unpack(row)
