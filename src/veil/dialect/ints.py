"""Bytes as the dialect writes them: a CBOR array with one unsigned integer for each byte.

A byte below 24 is itself; any other is 18 and then the byte. So a random payload takes 1.9 times its length, and how
long it is depends on what it holds.
"""

import numpy as np

from veil.codec import heads
from veil.codec.heads import ARRAY, BYTES, Reader

_WIDE = 24
_MARK = 0x18


def encode_ints(data: bytes) -> bytes:
    values = np.frombuffer(data, dtype=np.uint8)
    places = np.arange(len(values)) + np.cumsum(values >= _WIDE)
    out = np.full(len(values) + np.count_nonzero(values >= _WIDE), _MARK, dtype=np.uint8)
    out[places] = values
    return heads.head(ARRAY, len(data)) + out.tobytes()


def read_bytes(reader: Reader, most: int) -> bytes:
    """A byte field in either spelling: existing nodes write arrays, and read byte strings too."""
    if reader.at < len(reader.data) and reader.data[reader.at] >> 5 == BYTES:
        return reader.byte_string(most)
    return _read_ints(reader, reader.head(ARRAY, most))


def read_fixed(reader: Reader, length: int) -> bytes:
    data = read_bytes(reader, length)
    if len(data) != length:
        reader.fail(f"{len(data)} bytes, not {length}")
    return data


def _read_ints(reader: Reader, count: int) -> bytes:
    if not count:
        return b""
    window = np.frombuffer(reader.data[reader.at : reader.at + 2 * count], dtype=np.uint8)
    places = np.arange(len(window))
    marks = window == _MARK
    # A byte 18 may be a mark or the value 24. In a run of them every other one is a mark, beginning with the first.
    starts = marks & ~np.concatenate(([False], marks[:-1]))
    marks &= (places - np.maximum.accumulate(np.where(starts, places, 0))) % 2 == 0
    values = np.flatnonzero(~marks)[:count]
    if len(values) < count:
        reader.fail("cut short")
    marked = np.concatenate(([False], marks))[values]
    if not np.array_equal(marked, window[values] >= _WIDE):
        reader.fail("not an array of bytes, each as short as it can be")
    reader.at += int(values[-1]) + 1
    return window[values].tobytes()
