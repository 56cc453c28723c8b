"""Which pieces of which chunks a read comes to, and how they are dealt out to tasks. No entry is read for it.

A verified read is planned only if nothing that it covers is missing; with `verify=entry`, a piece stands for each gap.

Large chunks are split between entries, small ones are packed together. A piece that does not begin with its chunk needs
no peaks of its own: whoever reads it follows the entries before it from the chunk's snapshot, which costs a few hashes
each and no signature, and believes nothing but what the chunk itself says.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby, pairwise

from veen.core import Receipt, Unavailable, Unverified, VeenError
from veen.pipeline.extents import Gap, extent_of
from veen.pipeline.selection import Selection, Verify
from veen.pipeline.sources import Chunk, ChunkSource, open_source
from veen.storage import frame
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.metadata import HubMetadata

TASKS_PER_CORE = 4
LEAST_PER_TASK, MOST_PER_TASK = 1_000, 20_000  # entries: tenths of a second to seconds of verification
_MOST_LISTED = 8  # labels that an error names
_WEIGHT_BYTES = 16_384  # an entry of this size costs as much as two small ones


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one chunk, and all that another process needs to read it."""

    source: str
    hub_id: bytes
    chunk: Chunk
    first: int
    last: int
    peaks: tuple[bytes, ...] | None = None  # of the tree before the chunk, where they are not to be read from the log
    failure: Failure | None = None  # of a piece that stands for entries that cannot be read: why

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

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
    """The tasks of a read, over all its sources."""
    return deal(pieces(selection), selection.parallelism)


def pieces(selection: Selection) -> list[Piece]:
    """The ranges of chunks that a read needs.

    Raises `Unverified` where a read with `verify=full` would miss an entry, `Unavailable` for an unknown stream.
    """
    found: list[Piece] = []
    known: dict[str, frozenset[bytes]] = {}
    wanted: dict[str, frozenset[bytes]] = {}
    for path in selection.paths:
        source = open_source(path)
        hub_metadata = pinned(source.hub_metadata(), selection.pin)
        labels = selection.labels_of(hub_metadata)
        extent = extent_of(source, hub_metadata, labels, check=selection.verify is not Verify.NONE)
        known[source.url] = extent.labels
        wanted |= {name: wanted.get(name, frozenset()) | one for name, one in selection.asked(hub_metadata).items()}
        gaps = {label: list(of_label) for label, of_label in groupby(extent.gaps, key=lambda gap: gap.label)}
        chunks = {of_label[0].label: of_label for of_label in by_label(extent.chunks)}
        for label in sorted(gaps.keys() | chunks.keys()):
            timed, within = in_time(source, hub_metadata, chunks.get(label, []), selection)
            found += planned(source.url, hub_metadata, timed, gaps.get(label, []), within, selection.verify)
    check_known(wanted, known)
    return found


def check_known(wanted: Mapping[str, frozenset[bytes]], known: Mapping[str, frozenset[bytes]]) -> None:
    """Raise for a stream or label that was asked for and that no source has. `known` are the labels by source."""
    there = frozenset().union(*known.values())
    for name, labels in wanted.items():
        if not labels & there:
            where = ", ".join(known)
            error = Unavailable(f"{name} has no entries in {where}")
            others = [other for other in wanted if wanted[other] & there]
            listed = sorted(label.hex() for label in there)
            similar = get_close_matches(name, [*others, *(f"label {one}" for one in listed)])
            if similar:
                error.add_note(f"did you mean {' or '.join(similar)}?")
            if listed:
                more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
                error.add_note(f"a log has labels, not names; here are {', '.join(listed[:_MOST_LISTED])}{more}")
            error.add_note("check the spelling, the epoch, and that it is this hub's stream")
            raise error


def pinned(hub_metadata: HubMetadata, pin: bytes | None) -> HubMetadata:
    """The papers, if they are the hub's that is meant."""
    if pin is not None:
        hub_metadata.identity.check_pinned(pin)
    return hub_metadata


def by_label(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks of each label; they come sorted."""
    start = 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or chunks[at].label != chunks[start].label:
            yield list(chunks[start:at])
            start = at


Range = tuple[int, int | None]  # from which entry to which; None for no end


def in_time(
    source: ChunkSource, hub_metadata: HubMetadata, chunks: list[Chunk], selection: Selection
) -> tuple[list[Chunk], Range]:
    """The chunks of a label that may hold entries of the time asked for, and the range of entries that may be.

    `hub_ts` never goes back within a label, so the chunks are found by halving, from the first entry of a few. A read
    that verifies believes only times that the hub signed. Where an entry cannot be read or is not signed, nothing is
    left out.
    """
    first, last = selection.seq_min, selection.seq_max
    if selection.ts_min is None and selection.ts_max is None:
        return chunks, (first, last)

    def begins(chunk: Chunk) -> int:
        receipt = Receipt.decode(frame.read_unhashed(source.first_frame(chunk))[0].receipt)
        if selection.verify is not Verify.NONE:
            if (receipt.label, receipt.stream_seq) != (chunk.label, chunk.start_seq):
                raise Unverified("receipt", "it is for another place")
            hub_metadata.identity_at(chunk.label, chunk.start_seq).verify_receipt(receipt)
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
    url: str, hub_metadata: HubMetadata, chunks: Iterable[Chunk], gaps: Sequence[Gap], within: Range, verify: Verify
) -> list[Piece]:
    """The pieces of a label in a range, in order. Raises for a gap in it where the read must be complete."""
    hub_id, made = hub_metadata.identity.hub_id, []
    for gap in gaps:
        first, last = _part(gap.first, gap.last, within)
        if first <= last:
            if verify is Verify.FULL:
                raise gap.refusal(url)
            missing = Chunk(gap.label, gap.first, gap.last, gap.name, 0)
            made.append(Piece(url, hub_id, missing, first, last, failure=gap.failure))
    had = {
        gap.name: gap.last for gap in gaps if gap.failure.check is EntryCheck.PLACE
    }  # what another chunk has as well
    for chunk in chunks:
        first, last = _part(max(chunk.start_seq, had.get(chunk.name, 0) + 1), chunk.end_seq, within)
        if first <= last:
            made.append(Piece(url, hub_id, chunk, first, last))
    return sorted(made, key=lambda piece: (piece.first, piece.failure is None))


def _part(first: int, last: int, within: Range) -> tuple[int, int]:
    least, most = within
    return max(first, least), last if most is None else min(last, most)


def deal(found: Sequence[Piece], parallelism: int | None = None) -> list[Task]:
    """Tasks of about equal weight, in order."""
    cores = parallelism or os.cpu_count() or 1
    total = sum(piece.weight for piece in found)
    share = min(max(-(-total // (cores * TASKS_PER_CORE)), LEAST_PER_TASK), MOST_PER_TASK)
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
    """A piece in parts of about one share each."""
    if piece.failure is not None:
        yield piece
        return
    count = min(max(1, round(piece.weight / share)), piece.entries)
    cuts = [piece.first + piece.entries * number // count for number in range(count + 1)]
    for first, end in pairwise(cuts):
        yield Piece(piece.source, piece.hub_id, piece.chunk, first, end - 1, piece.peaks)
