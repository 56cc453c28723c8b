"""The head of a label: everything needed to append to its chunk files, in one index row."""

import struct
from dataclasses import dataclass, field
from typing import Self

from veen.core import Malformed
from veen.core.hashing import HASH_BYTES

_FIXED = struct.Struct(">QQQQQQBB")
SECONDS_PER_DAY = 86_400


@dataclass(slots=True)
class LabelHead:
    """The state of a label's log files after the last entry in them."""

    size: int = 0  # entries in the log: the last stream_seq
    hub_ts: int = 0  # of the last entry
    chunk_start: int = 1  # stream_seq of the open chunk's first entry
    chunk_bytes: int = 0  # valid bytes of the open chunk's file
    place_seq: int = 0  # the last entry with a row in `places`
    place_offset: int = 0  # its offset in the open chunk
    peaks: list[bytes] = field(default_factory=list)
    hash_peaks: list[bytes] = field(default_factory=list)  # of the tree over the open chunk's entry hashes

    @property
    def chunk_entries(self) -> int:
        return self.size - self.chunk_start + 1

    def copy(self) -> "LabelHead":
        return LabelHead(
            self.size,
            self.hub_ts,
            self.chunk_start,
            self.chunk_bytes,
            self.place_seq,
            self.place_offset,
            list(self.peaks),
            list(self.hash_peaks),
        )

    def encode(self) -> bytes:
        fixed = _FIXED.pack(
            self.size,
            self.hub_ts,
            self.chunk_start,
            self.chunk_bytes,
            self.place_seq,
            self.place_offset,
            len(self.peaks),
            len(self.hash_peaks),
        )
        return fixed + b"".join(self.peaks) + b"".join(self.hash_peaks)

    @classmethod
    def decode(cls, row: bytes) -> Self:
        if len(row) < _FIXED.size:
            raise Malformed("index", "a head is shorter than its fixed part")
        size, hub_ts, start, used, seq, offset, peaks, hash_peaks = _FIXED.unpack_from(row)
        hashes = [row[at : at + HASH_BYTES] for at in range(_FIXED.size, len(row), HASH_BYTES)]
        if len(row) != _FIXED.size + HASH_BYTES * (peaks + hash_peaks):
            raise Malformed("index", "the length of a head does not match its peaks")
        head = cls(size, hub_ts, start, used, seq, offset, hashes[:peaks], hashes[peaks:])
        if len(head.peaks) != head.size.bit_count() or len(head.hash_peaks) != head.chunk_entries.bit_count():
            raise Malformed("index", "the peaks of a head do not match its size")
        return head
