"""Compare copies of one hub's log: two receipts for one place with different roots prove equivocation."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from veen.core import Malformed, Receipt, Unavailable, Unverified, cbor
from veen.pipeline.audit.piece_audit import ChainLink
from veen.pipeline.jobs import Runner
from veen.pipeline.read_plan import MAX_PER_TASK, Piece, Task
from veen.pipeline.rows import unverified_entries
from veen.pipeline.sources import open_source
from veen.storage.metadata import HubMetadata

MAX_DIFFERENCES = 100  # to examine per comparison; most are a damaged receipt


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One directory: its metadata and the outcomes of its labels."""

    url: str
    metadata: HubMetadata
    labels: dict[bytes, list[ChainLink]]


@dataclass(frozen=True, slots=True)
class CopyComparison:
    """The same range of a label in two copies."""

    label: bytes
    pieces: Task
    others: Task


@dataclass(frozen=True, slots=True)
class ConflictingReceipts:
    """Two receipts that one hub signed for one place with different roots. They prove equivocation to anyone."""

    hub_id: bytes
    label: bytes
    stream_seq: int
    sources: tuple[str, str]
    receipts: tuple[bytes, bytes]


def compare(copies: Sequence[LogCopy], run: Runner) -> Iterator[ConflictingReceipts]:
    """The first contradiction of each label between copies of the same hub."""
    for one, other in combinations(copies, 2):
        hub_id = one.metadata.identity.hub_id
        if hub_id != other.metadata.identity.hub_id:
            continue
        shared = sorted(one.labels.keys() & other.labels.keys())
        work = [found for label in shared for found in uncompared(one, other, label)]
        reported: set[bytes] = set()
        for compared, data in zip(work, run(differences, work) if work else (), strict=True):
            label = compared.label
            for seq, mine, theirs in _decode(data):
                if label not in reported and _signed(one, label, seq, mine) and _signed(other, label, seq, theirs):
                    reported.add(label)
                    yield ConflictingReceipts(hub_id, label, seq, (one.url, other.url), (mine, theirs))


def uncompared(one: LogCopy, other: LogCopy, label: bytes) -> Iterator[CopyComparison]:
    """What both copies have after the last place where their trees were equal."""
    roots = [
        {link.piece.last: link.outcome.root for link in copy.labels[label] if link.outcome.sound}
        for copy in (one, other)
    ]
    same = max((seq for seq in roots[0].keys() & roots[1].keys() if roots[0][seq] == roots[1][seq]), default=0)
    end = min(copy.labels[label][-1].piece.last for copy in (one, other))
    for first in range(same + 1, end + 1, MAX_PER_TASK):
        last = min(first + MAX_PER_TASK - 1, end)
        yield CopyComparison(label, _within(one, label, first, last), _within(other, label, first, last))


def _within(copy: LogCopy, label: bytes, first: int, last: int) -> Task:
    pieces = (link.piece for link in copy.labels[label] if link.piece.first <= last and link.piece.last >= first)
    return tuple(Piece(copy.url, one.hub_id, one.chunk, max(one.first, first), min(one.last, last)) for one in pieces)


def differences(work: CopyComparison) -> bytes:
    """Worker: the places where the roots in the receipts differ, with both receipts."""
    theirs = dict(_receipts(work.others))
    found = (
        (seq, receipt, theirs[seq])
        for seq, receipt in _receipts(work.pieces)
        if seq in theirs and _root(theirs[seq]) != _root(receipt)
    )
    return cbor.encode(list(islice(found, MAX_DIFFERENCES)))


def _decode(data: bytes) -> list[tuple[int, bytes, bytes]]:
    found: Any = cbor.decode(data, "comparison")
    return list(found)


def _receipts(pieces: Task) -> Iterator[tuple[int, bytes]]:
    for piece in pieces:
        with suppress(Malformed, Unavailable):  # the audit of the piece reported it
            for one in unverified_entries(open_source(piece.source), piece):
                assert one.entry is not None
                yield one.stream_seq, one.entry.receipt


def _root(encoded: bytes) -> bytes | None:
    try:
        return Receipt.decode(encoded).mmr_root
    except Malformed:
        return None


def _signed(copy: LogCopy, label: bytes, seq: int, encoded: bytes) -> bool:
    """Whether the hub signed the receipt for that place. A damaged receipt contradicts nothing."""
    try:
        receipt = Receipt.decode(encoded)
        copy.metadata.identity_at(label, seq).verify_receipt(receipt)
    except (Malformed, Unverified):
        return False
    return (receipt.label, receipt.stream_seq) == (label, seq)
