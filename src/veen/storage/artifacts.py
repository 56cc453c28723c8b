"""The recovery artifacts beside the chunks: summaries, peak snapshots, checkpoint indexes. Spec §4.8.3, §8.4."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from veen.core import Malformed, limits
from veen.core.cbor import Bstr, ListOf, Map, Nested, Uint, VersionField, Wire
from veen.core.cbor.heads import ARRAY, read_head, write_head

# CBOR unsigned integers in their shortest form, and 32-byte strings.
_LONG = rb"\x18[\x18-\xff]|\x19(?!\x00)..|\x1a(?!\x00\x00)....|\x1b(?!\x00{4}).{8}"
UINT = rb"(?:[\x00-\x17]|" + _LONG + rb")"
FROM_1 = rb"(?:[\x01-\x17]|" + _LONG + rb")"
HASH = rb"\x58\x20.{32}"


def split(data: bytes, head: bytes, row: re.Pattern[bytes]) -> list[tuple[bytes, ...]] | None:
    """Split the array that follows `head` and ends the file into rows; None if the bytes do not match completely.

    Each row is a tuple of the pattern's groups. The first group must cover the whole row.
    """
    if not data.startswith(head):
        return None
    try:
        major, count, pos = read_head(data, len(head))
    except Malformed:
        return None
    rows: list[tuple[bytes, ...]] = row.findall(data, pos)
    whole = major == ARRAY and len(rows) == count and sum(len(found[0]) for found in rows) == len(data) - pos
    return rows if whole else None


def joined(head: bytes, rows: list[bytes]) -> bytes:
    """The encoded file: head, then an array of `rows`."""
    return b"".join([head, write_head(ARRAY, len(rows)), *rows])


def uint(encoded: bytes) -> int:
    """Decode an integer that `UINT` or `FROM_1` matched."""
    return int.from_bytes(encoded[1:], "big") if len(encoded) > 1 else encoded[0]


@dataclass(frozen=True, slots=True)
class ChunkSummary(Wire):
    """Range, size and hashes of a closed chunk, without its entries."""

    label: bytes
    start_seq: int
    end_seq: int
    mmr_root_end: bytes
    entry_count: int
    total_bytes: int
    entry_hashes_root: bytes

    LAYOUT: ClassVar = Map(
        "chunk summary",
        {
            1: VersionField(),
            2: Bstr("label"),
            3: Uint("start_seq", least=1),
            4: Uint("end_seq", least=1),
            5: Bstr("mmr_root_end"),
            6: Uint("entry_count", least=1),
            7: Uint("total_bytes", least=1),
            8: Bstr("entry_hashes_root"),
        },
    )

    def flaw(self) -> str | None:
        return (
            None
            if self.end_seq - self.start_seq + 1 == self.entry_count
            else "start_seq..end_seq does not span entry_count entries"
        )


@dataclass(frozen=True, slots=True)
class PeakSnapshot(Wire):
    """The peaks of a label's tree at a chunk's end: where verification of the next chunk starts."""

    label: bytes
    upto_seq: int
    peaks: tuple[bytes, ...]

    LAYOUT: ClassVar = Map(
        "peak snapshot",
        {
            1: VersionField(),
            2: Bstr("label"),
            3: Uint("upto_seq", least=1),
            4: ListOf("peaks", Bstr("peak"), least=1, most=limits.MAX_PEAKS),
        },
    )

    def flaw(self) -> str | None:
        return None if len(self.peaks) == self.upto_seq.bit_count() else "the number of peaks does not match upto_seq"


@dataclass(frozen=True, slots=True)
class IndexedCheckpoint(Wire):
    """One checkpoint and the artifacts from which its root can be recomputed."""

    upto_seq: int
    mmr_root: bytes
    chunk_start: int
    chunk_end: int
    peaks_ref: int  # the upto_seq of the peak snapshot

    LAYOUT: ClassVar = Map(
        "indexed checkpoint",
        {
            1: Uint("upto_seq", least=1),
            2: Bstr("mmr_root"),
            3: Uint("chunk_start", least=1),
            4: Uint("chunk_end", least=1),
            5: Uint("peaks_ref", least=1),
        },
    )


@dataclass(frozen=True, slots=True)
class CheckpointIndex(Wire):
    """All regular checkpoints of a label, ascending."""

    label: bytes
    checkpoints: tuple[IndexedCheckpoint, ...]

    LAYOUT: ClassVar = Map(
        "checkpoint index",
        {
            1: VersionField(),
            2: Bstr("label"),
            3: ListOf(
                "checkpoints",
                Nested("indexed checkpoint", IndexedCheckpoint),
                least=1,
                most=limits.MAX_CHUNKS_PER_LABEL,
            ),
        },
    )

    def flaw(self) -> str | None:
        seqs = [checkpoint.upto_seq for checkpoint in self.checkpoints]
        return None if all(a < b for a, b in pairwise(seqs)) else "checkpoints are not in ascending order"


@dataclass(frozen=True, slots=True)
class BoundCheckpoint(Wire):
    """One regular checkpoint, and the key that signed it."""

    label: bytes
    upto_seq: int
    epoch: int
    mmr_root: bytes
    key_id: bytes

    LAYOUT: ClassVar = Map(
        "bound checkpoint",
        {
            1: Bstr("label"),
            2: Uint("upto_seq", least=1),
            3: Uint("epoch"),
            4: Bstr("mmr_root"),
            5: Bstr("key_id"),
        },
    )

    @property
    def place(self) -> tuple[bytes, int]:
        return self.label, self.upto_seq


@dataclass(frozen=True, slots=True)
class CheckpointBinding(Wire):
    """`checkpoint-binding.cbor`: every regular checkpoint of a hub, by label and then ascending."""

    hub_id: bytes
    checkpoints: tuple[BoundCheckpoint, ...]

    LAYOUT: ClassVar = Map(
        "checkpoint binding",
        {
            1: VersionField(),
            2: Bstr("hub_id"),
            3: ListOf("checkpoints", Nested("bound checkpoint", BoundCheckpoint), most=limits.MAX_BOUND_CHECKPOINTS),
        },
    )

    def flaw(self) -> str | None:
        places = [checkpoint.place for checkpoint in self.checkpoints]
        return None if all(a < b for a, b in pairwise(places)) else "checkpoints are not in ascending order"
