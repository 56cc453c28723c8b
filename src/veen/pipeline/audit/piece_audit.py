"""Audit one piece of a log: every entry, and the artifacts beside the chunk if the piece ends it."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from time import thread_time_ns
from typing import Any, NamedTuple, Self

from veen.core import Limits, Msg, Receipt, Unavailable, VeenError, cbor, control_stream, mmr
from veen.core.handover import HandOver
from veen.core.recovery import RecoveryStatement
from veen.pipeline import chunk_verifier
from veen.pipeline.chunk_verifier import VerifiedEntry
from veen.pipeline.jobs import advance, freeze_loaded_objects
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.sources import DirectoryChunks
from veen.storage.artifacts import BoundCheckpoint
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.fsck_report import MAX_FINDINGS, Finding, Severity
from veen.storage.metadata import HubMetadata

MINUTE_SEC = 60
_REPORT_EVERY = 256  # entries: a tenth of a second


class ClientRun(NamedTuple):
    """The first and the last message of one client within a piece."""

    stream_seq: int  # of the first message
    first_seq: int
    first_ack: int
    last_seq: int
    last_ack: int


@dataclass(slots=True)
class PieceOutcome:
    """The outcome of one audited piece: enough to chain it with the pieces next to it."""

    entries: int = 0  # verified, with or without failures
    failed: int = 0
    anchored: bool = True  # the tree before the chunk was known
    sound: bool = True  # the tree at the end is the label's, as far as the entries show
    doubtful_from: int = 0  # first damaged message; client sequences need not continue across it
    peaks_before: tuple[bytes, ...] = ()  # of the tree before the chunk
    peaks: tuple[bytes, ...] = ()
    chunk_bytes: int = 0
    first_bytes: int = 0  # of the piece's first entry
    hub_ts: tuple[int, int] | None = None
    minutes: dict[int, int] = field(default_factory=dict)
    cpu_nsec: int = 0
    handovers: list[bytes] = field(default_factory=list)  # valid statements of the hub on its control stream
    recoveries: list[bytes] = field(default_factory=list)
    clients: dict[bytes, ClientRun] = field(default_factory=dict)
    bound: BoundCheckpoint | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def root(self) -> bytes:
        return mmr.root_of(self.peaks)

    def plain(self) -> list[Any]:
        """The fields in order, as values that CBOR has."""
        *simple, _, _, _ = (getattr(self, one.name) for one in fields(self))
        clients = [[client, *run] for client, run in self.clients.items()]
        return [*simple, clients, self.bound and self.bound.encode(), [astuple(one) for one in self.findings]]

    @classmethod
    def of(cls, plain: Any) -> Self:
        *simple, clients, bound, findings = plain
        made = cls(*simple)
        made.clients = {client: ClientRun(*run) for client, *run in clients}
        made.bound = BoundCheckpoint.decode(bound) if bound else None
        made.findings = [Finding(Severity(severity), *rest) for severity, *rest in findings]
        return made


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A piece of a label and its outcome."""

    piece: Piece
    outcome: PieceOutcome


@dataclass(frozen=True, slots=True)
class AuditTask:
    """Pieces for one worker, and the metadata of their sources as the driver checked it."""

    pieces: Task
    metadata: Mapping[str, HubMetadata]

    @property
    def weight(self) -> int:
        return sum(piece.entries for piece in self.pieces)


def audit_pieces(task: AuditTask) -> bytes:
    """Worker: audit the pieces of a task."""
    freeze_loaded_objects()
    sources = {piece.source: DirectoryChunks(piece.source) for piece in task.pieces}
    made = [_PieceAudit(piece, sources[piece.source], task.metadata[piece.source]).run() for piece in task.pieces]
    return cbor.encode([outcome.plain() for outcome in made])


def outcomes_of(data: bytes) -> list[PieceOutcome]:
    """The outcomes that `audit_pieces` encoded, in order."""
    found: Any = cbor.decode(data, "audit outcome")
    return [PieceOutcome.of(one) for one in found]


class _PieceAudit:
    """The audit of one piece."""

    def __init__(self, piece: Piece, source: DirectoryChunks, metadata: HubMetadata) -> None:
        self._piece = piece
        self._source = source
        self._metadata = metadata
        self._verifier = chunk_verifier.start(source, metadata, piece)
        self._outcome = PieceOutcome(anchored=self._verifier.anchored)
        self._broken_at = 0

    def run(self) -> PieceOutcome:
        """Verify the piece. If a file cannot be read, record a finding and go on."""
        begin, outcome, verifier = thread_time_ns(), self._outcome, self._verifier
        if verifier.anchored:
            outcome.peaks_before = tuple(verifier.tree.peaks)
        try:
            self._verify()
        except Unavailable as error:
            failure = Failure(EntryCheck.FRAME, str(error))
            self._take(VerifiedEntry(verifier.tree.size + 1, 0, failures=(failure,)))
        outcome.sound = self._tree_known() and not self._broken_at
        outcome.doubtful_from = verifier.doubtful_from or self._broken_at
        outcome.peaks = tuple(verifier.tree.peaks)
        outcome.chunk_bytes = verifier.size_bytes
        outcome.cpu_nsec = thread_time_ns() - begin
        return outcome

    def _verify(self) -> None:
        piece = self._piece
        for number, one in enumerate(chunk_verifier.verified(self._source, self._verifier, piece), 1):
            self._take(one)
            if not number % _REPORT_EVERY:
                advance(_REPORT_EVERY)
        if piece.closes_chunk and self._tree_known() and not self._broken_at:
            found, self._outcome.bound = chunk_verifier.check_artifacts(
                self._source, self._metadata, piece.chunk, self._verifier
            )
            self._outcome.findings += found

    def _tree_known(self) -> bool:
        return self._verifier.anchored and self._verifier.in_step

    def _take(self, one: VerifiedEntry) -> None:
        outcome = self._outcome
        if one.ends:
            self._broken_at = one.stream_seq
            if one.stream_seq < self._piece.first:
                return  # the piece that contains the entry reports it
        else:
            outcome.entries += 1
            outcome.first_bytes = outcome.first_bytes or one.size
        # The check of the label reports once that roots could not be checked.
        failures = [failure for failure in one.failures if failure.check is not EntryCheck.ANCHOR]
        outcome.failed += bool(failures) and not one.ends
        for failure in failures:
            self._damaged(f"{failure.check}: {failure}", one.stream_seq)
        checks = {failure.check for failure in failures}
        if one.receipt is not None and not checks & {EntryCheck.HUB_SIG, EntryCheck.FORM}:
            self._count(one.receipt.hub_ts)
            self._check_origin(one.stream_seq)
            if one.message is not None and not checks:
                self._read_event(one.message, one.receipt)
        message = one.message
        if message is not None and not checks & {EntryCheck.CLIENT_SIG, EntryCheck.BINDING, EntryCheck.FORM}:
            seq, ack = message.client_seq, message.prev_ack
            known = outcome.clients.get(message.client_id) or ClientRun(one.stream_seq, seq, ack, seq, ack)
            outcome.clients[message.client_id] = known._replace(last_seq=seq, last_ack=ack)

    def _count(self, hub_ts: int) -> None:
        outcome, minute = self._outcome, hub_ts - hub_ts % MINUTE_SEC
        outcome.minutes[minute] = outcome.minutes.get(minute, 0) + 1
        low, high = outcome.hub_ts or (hub_ts, hub_ts)
        outcome.hub_ts = min(low, hub_ts), max(high, hub_ts)

    def _read_event(self, message: Msg, receipt: Receipt) -> None:
        """Verify what the hub states about itself on its control stream, which anyone can open."""
        hub = self._metadata.control_hub(receipt.label, receipt.hub_ts)
        if hub is None:
            return
        try:
            event = control_stream.event_of(hub.hub_id, message, Limits())
            if isinstance(event, HandOver | RecoveryStatement):
                event.verify(hub)
        except VeenError as error:
            self._damaged(f"control event: {error}", receipt.stream_seq)
            return
        if isinstance(event, HandOver):
            self._outcome.handovers.append(event.encode())
        elif isinstance(event, RecoveryStatement):
            self._outcome.recoveries.append(event.encode())

    def _check_origin(self, seq: int) -> None:
        """The part that a fork kept must end with the root that its origin signed."""
        kept = self._metadata.lineage.checkpoint(self._piece.chunk.label)
        if kept is None or kept.upto_seq != seq or not self._tree_known():
            return
        if self._verifier.tree.root() != kept.mmr_root:
            self._damaged("the log up to here differs from the origin's checkpoint", seq)

    def _damaged(self, what: str, seq: int) -> None:
        if len(self._outcome.findings) < MAX_FINDINGS:
            chunk = self._piece.chunk
            self._outcome.findings.append(Finding(Severity.DAMAGED, f"log/{chunk.name}", what, chunk.label, seq))
