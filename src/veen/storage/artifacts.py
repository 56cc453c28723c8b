"""The recovery artifacts beside the chunks: summaries, peak snapshots, checkpoint indexes. Spec §4.8.3, §8.4."""

import re
from itertools import pairwise
from typing import Annotated

from veen.core import Malformed, limits
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
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


@int_map("chunk summary", VersionField())
class ChunkSummary(Wire):
    """Range, size and hashes of a closed chunk, without its entries."""

    label: Annotated[bytes, Bstr()]
    start_seq: Annotated[int, Uint(least=1)]
    end_seq: Annotated[int, Uint(least=1)]
    mmr_root_end: Annotated[bytes, Bstr()]
    entry_count: Annotated[int, Uint(least=1)]
    total_bytes: Annotated[int, Uint(least=1)]
    entry_hashes_root: Annotated[bytes, Bstr()]

    def flaw(self) -> str | None:
        return (
            None
            if self.end_seq - self.start_seq + 1 == self.entry_count
            else "start_seq..end_seq does not span entry_count entries"
        )


@int_map("peak snapshot", VersionField())
class PeakSnapshot(Wire):
    """The peaks of a label's tree at a chunk's end: where verification of the next chunk starts."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    peaks: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), least=1, most=limits.MAX_PEAKS)]

    def flaw(self) -> str | None:
        return None if len(self.peaks) == self.upto_seq.bit_count() else "the number of peaks does not match upto_seq"


@int_map("indexed checkpoint")
class IndexedCheckpoint(Wire):
    """One checkpoint and the artifacts from which its root can be recomputed."""

    upto_seq: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]
    chunk_start: Annotated[int, Uint(least=1)]
    chunk_end: Annotated[int, Uint(least=1)]
    peaks_ref: Annotated[int, Uint(least=1)]  # the upto_seq of the peak snapshot


@int_map("checkpoint index", VersionField())
class CheckpointIndex(Wire):
    """All regular checkpoints of a label, ascending."""

    label: Annotated[bytes, Bstr()]
    checkpoints: Annotated[
        tuple[IndexedCheckpoint, ...],
        ListOf(Nested(IndexedCheckpoint, name="indexed checkpoint"), least=1, most=limits.MAX_CHUNKS_PER_LABEL),
    ]

    def flaw(self) -> str | None:
        seqs = [checkpoint.upto_seq for checkpoint in self.checkpoints]
        return None if all(a < b for a, b in pairwise(seqs)) else "checkpoints are not in ascending order"


@int_map("bound checkpoint")
class BoundCheckpoint(Wire):
    """One regular checkpoint, and the key that signed it."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    epoch: Annotated[int, Uint()]
    mmr_root: Annotated[bytes, Bstr()]
    key_id: Annotated[bytes, Bstr()]

    @property
    def place(self) -> tuple[bytes, int]:
        return self.label, self.upto_seq


@int_map("checkpoint binding", VersionField())
class CheckpointBinding(Wire):
    """`checkpoint-binding.cbor`: every regular checkpoint of a hub, by label and then ascending."""

    hub_id: Annotated[bytes, Bstr()]
    checkpoints: Annotated[
        tuple[BoundCheckpoint, ...],
        ListOf(Nested(BoundCheckpoint, name="bound checkpoint"), most=limits.MAX_BOUND_CHECKPOINTS),
    ]

    def flaw(self) -> str | None:
        places = [checkpoint.place for checkpoint in self.checkpoints]
        return None if all(a < b for a, b in pairwise(places)) else "checkpoints are not in ascending order"
