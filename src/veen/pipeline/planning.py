"""Which pieces of which chunks a read comes to, and how they are dealt out to tasks. No entry is read for it.

Large chunks are split between entries, small ones are packed together. A piece that does not begin with its chunk needs
no peaks of its own: whoever reads it follows the entries before it from the chunk's snapshot, which costs a few hashes
each and no signature, and believes nothing but what the chunk itself says.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from veen.core import Receipt, VeenError
from veen.pipeline.selection import Selection
from veen.pipeline.sources import Chunk, Source, open_source
from veen.storage import frame
from veen.storage.directory import Papers

TASKS_PER_CORE = 4
LEAST_PER_TASK, MOST_PER_TASK = 1_000, 20_000  # entries: tenths of a second to seconds of verification
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

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def weight(self) -> int:
        return self.entries + self.chunk.size * self.entries // max(1, self.chunk.entries) // _WEIGHT_BYTES

    def __str__(self) -> str:
        where = f"log/{self.chunk.name}" if self.chunk.name else f"label {self.chunk.label.hex()[:16]}…"
        return f"{self.source}: {where}, entries {self.first} to {self.last}"


Task = tuple[Piece, ...]


def plan(selection: Selection) -> list[Task]:
    """The tasks of a read, over all its sources."""
    return deal(pieces(selection), selection.parallelism)


def pieces(selection: Selection) -> list[Piece]:
    """The ranges of chunks that a read needs."""
    found: list[Piece] = []
    for path in selection.paths:
        source = open_source(path)
        papers = pinned(source.papers(), selection.pin)
        chunks = source.chunks(selection.labels_of(papers))
        found += [
            piece
            for of_label in by_label(chunks)
            for piece in _within(source, papers.identity.hub_id, in_time(source, of_label, selection), selection)
        ]
    return found


def pinned(papers: Papers, pin: bytes | None) -> Papers:
    """The papers, if they are the hub's that is meant."""
    if pin is not None:
        papers.identity.check_pinned(pin)
    return papers


def by_label(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks of each label; they come sorted."""
    start = 0
    for at in range(1, len(chunks) + 1):
        if at == len(chunks) or chunks[at].label != chunks[start].label:
            yield list(chunks[start:at])
            start = at


def in_time(source: Source, chunks: list[Chunk], selection: Selection) -> list[Chunk]:
    """The chunks of a label that may hold entries of the time asked for: `hub_ts` never goes back within a label.

    Found by halving, from the first entry of a few chunks. Where one cannot be read, nothing is left out.
    """
    if selection.ts_min is None and selection.ts_max is None:
        return chunks

    def begins(chunk: Chunk) -> int:
        return Receipt.decode(frame.read_unhashed(source.first_frame(chunk))[0].receipt).hub_ts

    try:
        first = 0 if selection.ts_min is None else bisect_left(chunks, selection.ts_min, key=begins) - 1
        last = len(chunks) if selection.ts_max is None else bisect_right(chunks, selection.ts_max, key=begins)
    except VeenError:
        return chunks
    return chunks[max(0, first) : last]


def _within(source: Source, hub_id: bytes, chunks: Iterable[Chunk], selection: Selection) -> Iterator[Piece]:
    for chunk in chunks:
        first = max(chunk.start_seq, selection.seq_min)
        last = chunk.end_seq if selection.seq_max is None else min(chunk.end_seq, selection.seq_max)
        if first <= last:
            yield Piece(source.url, hub_id, chunk, first, last)


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
    count = min(max(1, round(piece.weight / share)), piece.entries)
    cuts = [piece.first + piece.entries * number // count for number in range(count + 1)]
    for first, end in pairwise(cuts):
        yield Piece(piece.source, piece.hub_id, piece.chunk, first, end - 1, piece.peaks)
