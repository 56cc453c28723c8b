"""Compare copies of one hub's log: two receipts for one place with different roots prove equivocation."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from veen.core import HubIdentity, Malformed, Receipt, Unavailable, Unverified, cbor
from veen.core.coverage import Coverage, retired_verdict
from veen.core.handover import HandOver, LabelSize
from veen.core.hub_identity import HubKey
from veen.pipeline import chunk_verifier
from veen.pipeline.audit.piece_audit import ChainLink
from veen.pipeline.jobs import Runner
from veen.pipeline.read_plan import MAX_PER_TASK, Piece, Task
from veen.pipeline.rows import unverified_entries
from veen.pipeline.sources import open_source
from veen.storage import recovery, rotation
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.recovery import RecoveredLabels

MAX_DIFFERENCES = 100  # to examine per comparison; most are a damaged receipt


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One directory: its metadata and the outcomes of its labels."""

    url: str
    metadata: HubMetadata
    labels: dict[bytes, list[ChainLink]]
    statements: Folders  # has the hand-overs and recoveries, on this machine


@dataclass(frozen=True, slots=True)
class CopyComparison:
    """The same range of a label in two copies."""

    label: bytes
    pieces: Task
    others: Task


@dataclass(frozen=True, slots=True)
class ConflictingReceipts:
    """Two receipts that one hub signed for one place with different roots.

    They prove equivocation to anyone, unless `retired` is the verdict that a thief of a retired key may have made one.
    """

    hub_id: bytes
    label: bytes
    stream_seq: int
    sources: tuple[str, str]
    receipts: tuple[bytes, bytes]
    retired: str | None = None


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
                    claims = (one, Receipt.decode(mine)), (other, Receipt.decode(theirs))
                    if _is_stated(*claims) or _is_stated(*reversed(claims)):
                        continue
                    reported.add(label)
                    retired = _retired(*claims)
                    yield ConflictingReceipts(hub_id, label, seq, (one.url, other.url), (mine, theirs), retired)


def _is_stated(old: tuple[LogCopy, Receipt], new: tuple[LogCopy, Receipt]) -> bool:
    """Whether the hub stated in the newer copy that it lost the entry of the older one, and went on with another key.

    An incarnation that signed after the second in which the next one began is not explained by that: two copies of the
    hub ran.
    """
    (older, receipt), (newer, _) = old, new
    known, identity, folders = older.metadata.identity, newer.metadata.identity, newer.statements
    if identity.is_other_incarnation(known):
        return identity.begins_after(known) and receipt.hub_ts <= identity.signing_keys[0].valid_from
    try:
        key = identity.verify_receipt(receipt)
        stated = RecoveredLabels(recovery.read_recoveries(folders))
        return stated.has_lost(receipt, identity, key)
    except (OSError, Malformed, Unverified):
        return False


def _retired(*claims: tuple[LogCopy, Receipt]) -> str | None:
    """The verdict on conflicting receipts if one of them may be a thief's; None if the hub signed both in time."""
    newest = max((copy.metadata for copy, _ in claims), key=lambda found: len(found.identity.hub_keys))
    for copy, receipt in claims:
        identity = newest.identity_at(receipt.label, receipt.stream_seq)
        try:
            key = identity.verify_receipt(receipt)
        except Unverified:
            return None  # neither record continues the other: both keys are blamed
        if key != identity.newest and not _is_covered(copy, identity, key, receipt):
            return retired_verdict(key.valid_until or 0)
    return None


def _is_covered(copy: LogCopy, identity: HubIdentity, key: HubKey, receipt: Receipt) -> bool:
    """Whether a later key signed the end of the verified log that contains the receipt, or it was handed over."""
    links = [link for link in copy.labels[receipt.label] if link.piece.last >= receipt.stream_seq]
    if not links or not all(link.outcome.sound for link in links):
        return False
    order = identity.signing_keys
    last = _receipt_at(copy, receipt.label, links[-1].piece.last)
    try:
        if last is not None and order.index(identity.verify_receipt(last)) > order.index(key):
            return True
    except (Unverified, ValueError):
        return False
    made = next((one for one in rotation.read_handovers(copy.statements, identity) if one.old_pk == key.hub_pk), None)
    row = _handed_over(copy, made, receipt.label) if made else None
    if row is None or row.size < receipt.stream_seq:
        return False
    there = _receipt_at(copy, receipt.label, row.size)
    return there is not None and there.mmr_root == row.mmr_root


def _receipt_at(copy: LogCopy, label: bytes, seq: int) -> Receipt | None:
    return next((Receipt.decode(found) for _, found in _receipts(_within(copy, label, seq, seq))), None)


def coverage_of(copy: LogCopy) -> dict[bytes, Coverage]:
    """Whether the end of each label under a retired key leads to a hand-over. Empty if the hub has had only one key."""
    found: dict[bytes, Coverage] = {}
    if len(copy.metadata.identity.signing_keys) == 1:
        return found
    made: dict[bytes, list[HandOver]] = {}  # by hub: a fork has those of its origins too
    for label, links in copy.labels.items():
        last = links[-1]
        if last.outcome.hub_ts is None:
            continue
        identity = copy.metadata.identity_at(label, last.piece.last)
        if identity.hub_id not in made:
            made[identity.hub_id] = rotation.read_handovers(copy.statements, identity)
        found[label] = _coverage(copy, last, identity, made[identity.hub_id])
    return found


def _coverage(copy: LogCopy, last: ChainLink, identity: HubIdentity, made: list[HandOver]) -> Coverage:
    assert last.outcome.hub_ts is not None
    ended = last.outcome.hub_ts[1]
    retired = [key for key in identity.signing_keys[:-1] if key.valid_until and ended < _retired_at(key, made)]
    if not retired:
        return Coverage.CURRENT
    rows = (_handed_over(copy, each, last.piece.chunk.label) for each in made)
    end = (last.piece.last, last.outcome.root)
    covered = last.outcome.sound and any(row is not None and (row.size, row.mmr_root) == end for row in rows)
    return Coverage.COVERED if covered else Coverage.UNCOVERED


def _retired_at(key: HubKey, made: list[HandOver]) -> int:
    return next((one.hub_ts for one in made if one.old_pk == key.hub_pk), key.valid_until or 0)


def _handed_over(copy: LogCopy, made: HandOver, label: bytes) -> LabelSize | None:
    """The row of a label in a hand-over."""
    try:
        proved = rotation.handed_over(copy.statements, made, label)
    except (OSError, Malformed, Unverified):
        return None  # damaged; veen fsck reports it
    return proved.row if proved else None


def uncompared(one: LogCopy, other: LogCopy, label: bytes) -> Iterator[CopyComparison]:
    """The comparisons of a label that both copies need after the last place where their trees were equal."""
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
        with suppress(Malformed, Unavailable, Unverified):  # the audit of the piece reported it
            source = open_source(piece.source)
            if piece.chunk.pruned:
                verifier = chunk_verifier.start(source, source.metadata(), piece)
                for left in chunk_verifier.verified(source, verifier, piece):
                    if left.receipt is not None and not left.failures:
                        yield left.stream_seq, left.receipt.encode()
                continue
            for one in unverified_entries(source, piece):
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
