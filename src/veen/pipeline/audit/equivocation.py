"""Compare copies of one hub's log: two receipts for one place with different roots prove equivocation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, pairwise
from typing import Any, TypeAlias

from veen.core import Checkpoint, HubIdentity, Malformed, Receipt, Unavailable, Unverified, cbor
from veen.core.handover import AnchoredLog, Coverage, Dating, HandOver, LabelSize
from veen.core.hub_identity import HubKey
from veen.core.proof import Head, size_of
from veen.pipeline import chunk_verifier
from veen.pipeline.audit.piece_audit import ChainLink
from veen.pipeline.jobs import Runner
from veen.pipeline.read_plan import MAX_PER_TASK, Piece, Task
from veen.pipeline.rows import unverified_entries
from veen.pipeline.sources import LOG, NAMES, DirectoryChunks, open_source
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
class KnownDates:
    """Knowledge besides the copies that shows when the hub signed.

    `anchored` are the verified times of anchors, and `checkpoints` those of the anchors. `record` is the
    hub's identity record from another source: copies may have older ones, which do not show that a key was retired.
    """

    witnesses: frozenset[bytes] = frozenset()
    anchored: Mapping[AnchoredLog, int] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    record: HubIdentity | None = None


NO_DATES = KnownDates()
Dates: TypeAlias = Head | HandOver  # a statement that shows that the log before it existed


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
    `dated_by` are the encoded statements that show that receipts of retired keys existed in time.
    """

    hub_id: bytes
    label: bytes
    stream_seq: int
    sources: tuple[str, str]
    receipts: tuple[bytes, bytes]
    retired: str | None = None
    dated_by: tuple[bytes, ...] = ()


def compare(copies: Sequence[LogCopy], run: Runner, dates: KnownDates = NO_DATES) -> Iterator[ConflictingReceipts]:
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
                    retired, dated_by = _judged(dates, *claims)
                    sources = one.url, other.url
                    yield ConflictingReceipts(hub_id, label, seq, sources, (mine, theirs), retired, dated_by)


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


def _judged(dates: KnownDates, *claims: tuple[LogCopy, Receipt]) -> tuple[str | None, tuple[bytes, ...]]:
    """The verdict on conflicting receipts if one of them may be a thief's, and what dates those of retired keys.

    The verdict is None if the hub signed both in time.
    """
    newest = max((copy.metadata for copy, _ in claims), key=lambda found: len(found.identity.hub_keys))
    lineage = newest.lineage
    if dates.record is not None and _continues(dates.record, newest.identity):
        lineage = replace(lineage, identities=(dates.record, *lineage.identities[1:]))
    hubs = lineage.identities
    made = tuple(one for copy, _ in claims for hub in hubs for one in rotation.read_handovers(copy.statements, hub))
    records = (*(hub for copy, _ in claims for hub in copy.metadata.lineage.identities), *hubs)
    witnesses = dates.witnesses - {one.hub_pk for record in records for one in record.hub_keys}
    dating = Dating(lineage, newest.profile, witnesses=witnesses, anchored=dates.anchored, handovers=made)
    existed: list[Receipt] = []
    dated_by: list[bytes] = []
    try:
        for copy, receipt in claims:
            if not dating.is_dated(receipt) and (shown := _shown_by(copy, receipt, dating, dates)):
                existed.append(receipt)
                dated_by.append(shown.encode())
    except Unverified:
        return None, ()  # neither record continues the other: both keys are blamed
    return replace(dating, existed=existed).verdict(receipt for _, receipt in claims), tuple(dated_by)


def _continues(record: HubIdentity, known: HubIdentity) -> bool:
    try:
        record.check_follows(known)
    except Unverified:
        return False
    return record.hub_id == known.hub_id and not record.is_other_incarnation(known)


def _shown_by(copy: LogCopy, receipt: Receipt, dating: Dating, dates: KnownDates) -> Dates | None:
    """A statement that the receipt's signature existed in time: the verified log of the copy leads from one to it."""
    identity, key = dating.key_of(receipt)
    made = next((one for one in dating.handovers if one.old_pk == key.hub_pk), None)
    row = _handed_over(copy, made, receipt.label) if made else None
    if row is not None and _leads_to(copy, receipt, row.size, row.mmr_root):
        return made
    order = identity.signing_keys
    for head in _later(copy, receipt.label, dates):
        with suppress(Unverified):
            later = dating.key_of(head)
            is_later = later[0] == identity and order.index(later[1]) > order.index(key)
            if (is_later or dating.is_dated(head)) and _leads_to(copy, receipt, size_of(head), head.mmr_root):
                return head
    return None


def _later(copy: LogCopy, label: bytes, dates: KnownDates) -> Iterator[Head]:
    """The statements about a label that may show when an entry existed: the end of the log, and checkpoints."""
    last = _receipt_at(copy, label, copy.labels[label][-1].piece.last)
    if last is not None:
        yield last
    yield from (one for one in dates.checkpoints if one.label_curr == label)
    if dates.witnesses or dates.anchored:
        yield from _stored_checkpoints(copy, label)


def _stored_checkpoints(copy: LogCopy, label: bytes) -> Iterator[Checkpoint]:
    """The checkpoints of a label in a copy, with the signatures of witnesses: the newest cosigned one is first."""
    source = open_source(copy.url)
    assert isinstance(source, DirectoryChunks)
    paths = [str(NAMES.newest_cosigned(label))]
    for folder in (str(NAMES.requested), LOG):
        with suppress(Unavailable):
            paths += [f"{folder}/{name}" for name in sorted(source.files.listed(folder))]
    for path in paths:
        if f"-{label.hex()}" in path and path.startswith((f"{LOG}/checkpoint-", f"{NAMES.requested}/")):
            with suppress(Malformed, Unavailable):
                yield Checkpoint.decode(source.files.read(path))


def _leads_to(copy: LogCopy, receipt: Receipt, size: int, mmr_root: bytes) -> bool:
    """Whether the verified log of a copy contains the receipt, and has this root at this size.

    No entry between them is missing, and each has the root of its receipt: else the receipt may be a thief's, in front
    of a part of the hub's own log.
    """
    links = [
        link
        for link in copy.labels[receipt.label]
        if link.piece.last >= receipt.stream_seq and link.piece.first <= size
    ]
    if not links or links[0].piece.first > receipt.stream_seq:
        return False
    if any(before.piece.last + 1 != after.piece.first for before, after in pairwise(links)):
        return False
    if size < receipt.stream_seq or not all(link.outcome.sound for link in links):
        return False
    there = _receipt_at(copy, receipt.label, size)
    return there is not None and there.mmr_root == mmr_root


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
