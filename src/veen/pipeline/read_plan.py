"""Plan a read: find the pieces of chunks it needs and distribute them over tasks. Planning reads no entries.

A verified read is planned only if none of its entries is missing; with `verify=entry`, each gap becomes a piece.

Large chunks are split between entries, small ones are packed together. A piece that starts inside its chunk needs no
peaks of its own: its reader hashes the entries before it, starting from the chunk's snapshot. That costs a few hashes
per entry, no signatures, and trusts no data outside the chunk.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import groupby, pairwise

from veen.core import Receipt, Unavailable, Unverified, VeenError
from veen.pipeline.extents import Gap, extent_of
from veen.pipeline.selection import Selection, Verify
from veen.pipeline.sources import Chunk, ChunkSource, by_label, open_source
from veen.storage import frame
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.metadata import HubMetadata

TASKS_PER_CORE = 4
MIN_PER_TASK, MAX_PER_TASK = 1_000, 20_000  # entries: tenths of a second to seconds of verification
_MAX_LISTED_LABELS = 8  # in an error message
_WEIGHT_BYTES = 16_384  # an entry of this size costs as much to verify as two small ones


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one chunk, with everything that another process needs to read it."""

    source: str
    hub_id: bytes
    chunk: Chunk
    first: int
    last: int
    peaks: tuple[bytes, ...] | None = None  # of the tree before the chunk, if not to be read from the log
    failure: Failure | None = None  # set for missing entries: why they cannot be read

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def after(self, stream_seq: int) -> "Piece":
        """The part of the piece after an entry, whose reader needs none of the entries before."""
        chunk = replace(self.chunk, start_seq=stream_seq + 1)
        return replace(self, chunk=chunk, first=max(self.first, stream_seq + 1), peaks=None)

    @property
    def closes_chunk(self) -> bool:
        """Whether the piece ends with the last entry of a closed chunk, whose artifacts can then be checked."""
        return self.chunk.closed and self.last == self.chunk.end_seq

    @property
    def weight(self) -> int:
        if self.failure is not None:
            return 1
        return self.entries + self.chunk.size * self.entries // max(1, self.chunk.entries) // _WEIGHT_BYTES

    def __str__(self) -> str:
        where = f"log/{self.chunk.name}" if self.chunk.name else f"label {self.chunk.label.hex()[:16]}…"
        return f"{self.source}: {where}, entries {self.first} to {self.last}"


Task = tuple[Piece, ...]


def plan(selection: Selection) -> list[Task]:
    """The tasks of a read over all its sources."""
    return deal(pieces(selection), selection.parallelism)


def pieces(selection: Selection) -> list[Piece]:
    """The chunk ranges that a read needs.

    Raises `Unverified` if a read with `verify=full` would miss an entry, `Unavailable` for an unknown stream.
    """
    found: list[Piece] = []
    known: dict[str, frozenset[bytes]] = {}
    wanted: dict[str, frozenset[bytes]] = {}
    for path in selection.paths:
        source = open_source(path)
        metadata = pinned(source.metadata(), selection.pin)
        labels = selection.labels_of(metadata)
        extent = extent_of(source, metadata, labels, check=selection.verify is not Verify.NONE)
        known[source.url] = extent.labels
        wanted |= {
            name: wanted.get(name, frozenset()) | one for name, one in selection.labels_by_name(metadata).items()
        }
        gaps = {label: list(of_label) for label, of_label in groupby(extent.gaps, key=lambda gap: gap.label)}
        chunks = by_label(extent.chunks)
        for label in sorted(gaps.keys() | chunks.keys()):
            timed, within = in_time(source, metadata, chunks.get(label, []), selection)
            found += planned(source.url, metadata, timed, gaps.get(label, []), within, selection.verify)
    check_known(wanted, known)
    return found


def check_known(
    wanted: Mapping[str, frozenset[bytes]], known: Mapping[str, frozenset[bytes]], streams: Iterable[str] = ()
) -> None:
    """Raise `Unavailable` for a selected stream or label that no source has. `known` maps sources to their labels.

    The error suggests similar names: of what was found, and of `streams`, which are known from elsewhere.
    """
    all_labels = frozenset().union(*known.values())
    for name, labels in wanted.items():
        if not labels & all_labels:
            where = ", ".join(known)
            error = Unavailable(f"{name} has no entries in {where}")
            others = [other for other in wanted if wanted[other] & all_labels]
            listed = sorted(label.hex() for label in all_labels)
            candidates = [*others, *(f"stream {one}" for one in streams), *(f"label {one}" for one in listed)]
            similar = get_close_matches(name, dict.fromkeys(candidates))
            if similar:
                error.add_note(f"did you mean {' or '.join(similar)}?")
            if listed:
                more = f" and {len(listed) - _MAX_LISTED_LABELS} more" if len(listed) > _MAX_LISTED_LABELS else ""
                shown = ", ".join(listed[:_MAX_LISTED_LABELS])
                error.add_note(f"a log stores labels, not stream names; the labels found are {shown}{more}")
            error.add_note("check the spelling, the epoch, and that the stream belongs to this hub")
            raise error


def pinned(metadata: HubMetadata, pin: bytes | None) -> HubMetadata:
    """Return the metadata if it belongs to the pinned hub; raise `Unverified` otherwise."""
    if pin is not None:
        metadata.identity.check_pinned(pin)
    return metadata


Range = tuple[int, int | None]  # first and last entry; None for no end


def in_time(
    source: ChunkSource, metadata: HubMetadata, chunks: list[Chunk], selection: Selection
) -> tuple[list[Chunk], Range]:
    """The chunks of a label that may hold entries in the selected time range, and the range of those entries.

    `hub_ts` never decreases within a label, so a binary search over the first entries of chunks finds them. A verified
    read uses only times that the hub signed. If such an entry cannot be read or verified, nothing is left out.
    """
    first, last = selection.seq_min, selection.seq_max
    if not selection.timed:
        return chunks, (first, last)

    def begins(chunk: Chunk) -> int:
        receipt = Receipt.decode(frame.read_unhashed(source.first_frame(chunk))[0].receipt)
        if selection.verify is not Verify.NONE:
            if (receipt.label, receipt.stream_seq) != (chunk.label, chunk.start_seq):
                raise Unverified("receipt", "it belongs to another place")
            metadata.identity_at(chunk.label, chunk.start_seq).verify_receipt(receipt)
        return receipt.hub_ts

    try:
        after = -1 if selection.ts_min is None else bisect_left(chunks, selection.ts_min, key=begins) - 1
        upto = len(chunks) if selection.ts_max is None else bisect_right(chunks, selection.ts_max, key=begins)
    except VeenError:
        return chunks, (first, last)
    if after >= 0:
        first = max(first, chunks[after].start_seq)
    if upto < len(chunks):
        end = chunks[upto].start_seq - 1
        last = end if last is None else min(last, end)
    return chunks[max(0, after) : upto], (first, last)


def planned(
    url: str, metadata: HubMetadata, chunks: Iterable[Chunk], gaps: Sequence[Gap], within: Range, verify: Verify
) -> list[Piece]:
    """The pieces of a label in a range, in order. Raises for a gap if the read must be complete."""
    hub_id, made = metadata.identity.hub_id, []
    for gap in gaps:
        first, last = _part(gap.first, gap.last, within)
        if first <= last:
            if verify is Verify.FULL:
                raise gap.refusal(url)
            missing = Chunk(gap.label, gap.first, gap.last, gap.name, 0)
            made.append(Piece(url, hub_id, missing, first, last, failure=gap.failure))
    duplicated = {
        gap.name: gap.last for gap in gaps if gap.failure.check is EntryCheck.PLACE
    }  # entries that another chunk also holds
    for chunk in chunks:
        first, last = _part(max(chunk.start_seq, duplicated.get(chunk.name, 0) + 1), chunk.end_seq, within)
        if first <= last:
            made.append(Piece(url, hub_id, chunk, first, last))
    return sorted(made, key=lambda piece: (piece.first, piece.failure is None))


def _part(first: int, last: int, within: Range) -> tuple[int, int]:
    least, most = within
    return max(first, least), last if most is None else min(last, most)


def deal(found: Sequence[Piece], parallelism: int | None = None) -> list[Task]:
    """Split and pack pieces into tasks of about equal weight, in order."""
    cores = parallelism or os.cpu_count() or 1
    total = sum(piece.weight for piece in found)
    share = min(max(-(-total // (cores * TASKS_PER_CORE)), MIN_PER_TASK), MAX_PER_TASK)
    tasks: list[Task] = []
    packed: list[Piece] = []
    weight = 0
    for piece in (part for whole in found for part in split(whole, share)):
        if packed and weight + piece.weight > share + share // 4:
            tasks.append(tuple(packed))
            packed, weight = [], 0
        packed.append(piece)
        weight += piece.weight
    return [*tasks, tuple(packed)] if packed else tasks


def split(piece: Piece, share: int) -> Iterator[Piece]:
    """Split a piece into parts of about one share each."""
    if piece.failure is not None:
        yield piece
        return
    count = min(max(1, round(piece.weight / share)), piece.entries)
    cuts = [piece.first + piece.entries * number // count for number in range(count + 1)]
    for first, end in pairwise(cuts):
        yield Piece(piece.source, piece.hub_id, piece.chunk, first, end - 1, piece.peaks)
