"""Chain the pieces of a label: each must begin with the tree that the piece before it ended with.

A peak snapshot serves one purpose only: a chunk can be verified before the chunk in front of it. Here the snapshot is
compared with the tree of that chunk. If they differ, the snapshot is wrong, and the chunk is verified again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from veen.core import Limits
from veen.core.receipt import time_fault
from veen.pipeline.audit.piece_outcome import ClientRun, PieceOutcome, Place, place_of
from veen.pipeline.read_plan import Piece
from veen.pipeline.sources import Chunk
from veen.storage.artifacts import IndexedCheckpoint
from veen.storage.fsck_report import Finding, Severity

Outcomes = dict[Place, PieceOutcome]


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A piece of a label and its outcome."""

    piece: Piece
    outcome: PieceOutcome


def links(pieces: Sequence[Piece], outcomes: Outcomes) -> list[ChainLink]:
    return [ChainLink(piece, outcomes[place_of(piece)]) for piece in pieces]


def to_repeat(label: Sequence[ChainLink]) -> Iterator[Piece]:
    """The pieces of a label to verify again, from peaks that are now known to be right."""
    chunk_peaks: tuple[bytes, ...] | None = ()  # of the tree before the current chunk; None if unknown
    before: ChainLink | None = None
    for link in label:
        chunk = link.piece.chunk
        if before is None:
            chunk_peaks = () if chunk.start_seq == 1 else None
        elif before.piece.chunk != chunk:
            follows = before.piece.last + 1 == chunk.start_seq and before.outcome.sound
            chunk_peaks = before.outcome.peaks if follows else None
        before = link
        if chunk_peaks is not None and link.outcome.peaks_before != chunk_peaks:
            yield replace(link.piece, peaks=chunk_peaks)
            # The outcome of this piece is not trusted, so it cannot anchor later pieces in this round.
            before = ChainLink(link.piece, replace(link.outcome, sound=False))


def check_label(label: Sequence[ChainLink], limits: Limits, missing: set[int]) -> Iterator[Finding]:
    """Checks across pieces. `missing` holds the start of each chunk that is known to be gone."""
    yield from _check_following(label, missing)
    yield from _check_order(label)
    yield from _check_rolling(label, limits)
    for link in label:
        if not link.outcome.anchored:
            what = "its roots could not be checked: the peaks before it and the chunk that yields them are damaged"
            yield _damaged(link.piece.chunk, what, link.piece.first)


def _check_following(label: Sequence[ChainLink], missing: set[int]) -> Iterator[Finding]:
    expected = 1
    misplaced: Chunk | None = None
    for link in label:
        chunk = link.piece.chunk
        if link.piece.first == chunk.start_seq and chunk.start_seq != expected and expected not in missing:
            yield _damaged(chunk, f"it is in the place of a chunk that starts with entry {expected}", None)
            misplaced = chunk if chunk.start_seq < expected else None  # the next chunk continues another one
        if chunk != misplaced:
            expected = chunk.end_seq + 1


def _check_order(label: Sequence[ChainLink]) -> Iterator[Finding]:
    """Client sequence numbers and hub time continue from one piece to the next."""
    known: dict[bytes, ClientRun] = {}
    whole, clock, expected = True, 0, 1
    for link in label:
        outcome, chunk = link.outcome, link.piece.chunk
        if link.piece.first != expected:  # missing entries may have continued the sequences
            known, whole = {}, False
        for client, run in outcome.clients.items() if link.piece.first > 1 else ():  # the verifier checked entry 1
            last = known.get(client)
            if (last is None and not whole) or 0 < outcome.doubtful_from < run.stream_seq:
                continue
            seq, ack = (last.last_seq, last.last_ack) if last else (0, 0)
            if run.first_seq != seq + 1:
                yield _damaged(chunk, f"order: client_seq {run.first_seq} follows {seq}", run.stream_seq)
            if run.first_ack < ack:
                yield _damaged(chunk, f"order: prev_ack {run.first_ack} is lower than {ack} before it", run.stream_seq)
        known |= outcome.clients
        if outcome.doubtful_from:
            known, whole = {}, False
        if outcome.hub_ts is not None:
            fault = time_fault(clock, outcome.hub_ts[0])
            if fault:
                yield _damaged(chunk, f"order: {fault}", link.piece.first)
            clock = max(clock, outcome.hub_ts[1])
        expected = link.piece.last + 1


def _check_rolling(label: Sequence[ChainLink], limits: Limits) -> Iterator[Finding]:
    """Chunks end where the limits require it and nowhere else."""
    for before, link in pairwise([*label, None]):
        if before is None or not before.outcome.sound:
            continue
        chunk, size = before.piece.chunk, before.outcome.chunk_bytes
        if before.piece.last != chunk.end_seq:
            continue
        full = chunk.entries >= limits.max_checkpoint_interval
        if chunk.entries > limits.max_checkpoint_interval or (size > limits.max_chunk_bytes and chunk.entries > 1):
            yield _damaged(chunk, "it holds more than the limits allow", None)
        elif link is None or link.outcome.first_bytes == 0 or link.piece.chunk.start_seq != chunk.end_seq + 1:
            continue
        elif not full and size + link.outcome.first_bytes <= limits.max_chunk_bytes:
            yield _damaged(chunk, "it ends before it reaches a limit", None)


def indexed(label: Sequence[ChainLink]) -> list[IndexedCheckpoint]:
    """The rows that the checkpoint index must have."""
    rows = []
    for link in label:
        chunk = link.piece.chunk
        if chunk.closed and link.piece.last == chunk.end_seq:
            end = chunk.end_seq
            rows.append(IndexedCheckpoint(end, link.outcome.root, chunk.start_seq, end, end))
    return rows


def _damaged(chunk: Chunk, what: str, seq: int | None) -> Finding:
    return Finding(Severity.DAMAGED, f"log/{chunk.name}", what, chunk.label, seq)
