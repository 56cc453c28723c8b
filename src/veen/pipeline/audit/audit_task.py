"""Audit one piece of a log: every entry, and the artifacts beside the chunk if the piece ends it."""

from collections.abc import Callable, Iterator
from time import thread_time

from veen.core import Unavailable
from veen.pipeline import chunk_verifier
from veen.pipeline.audit import directory_check
from veen.pipeline.audit.piece_outcome import MINUTE_SEC, ClientRun, PieceOutcome
from veen.pipeline.chunk_verifier import ChunkVerifier, VerifiedEntry
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.rows import freeze_loaded_objects
from veen.pipeline.sources import DirectoryChunks
from veen.storage.artifacts import BoundCheckpoint
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.fsck_report import MAX_FINDINGS, Finding, Severity
from veen.storage.metadata import HubMetadata

Add = Callable[[int], None]  # reports a number of further entries as done

_REPORT_EVERY = 256  # entries: a tenth of a second


def _ignore(more: int) -> None:
    """Ignore progress."""


def audit_task(task: Task, add: Add = _ignore) -> Iterator[PieceOutcome]:
    """Audit the pieces of a task. An exception from `add` stops it."""
    freeze_loaded_objects()
    known: dict[str, tuple[DirectoryChunks, HubMetadata]] = {}
    for piece in task:
        if piece.source not in known:
            known[piece.source] = _opened(piece.source)
        start = thread_time()
        audit = _Audit(piece, *known[piece.source], add)
        bound = audit.run()
        add(piece.entries - audit.reported)
        yield audit.outcome(bound, thread_time() - start)


def _opened(url: str) -> tuple[DirectoryChunks, HubMetadata]:
    """A directory and its metadata as the driver read them. Damage to other files does not stop the audit."""
    source = DirectoryChunks(url)
    metadata, _ = directory_check.check_metadata(source)
    if metadata is None:
        raise Unavailable(f"the metadata of {url} changed while it was audited")
    return source, metadata


class _Audit:
    """The audit of one piece."""

    def __init__(self, piece: Piece, source: DirectoryChunks, metadata: HubMetadata, add: Add) -> None:
        self._done, self.reported = add, 0
        self._piece = piece
        self._source = source
        self._metadata = metadata
        self._verifier = chunk_verifier.start(source, metadata, piece)
        self._before = tuple(self._verifier.tree.peaks)
        self._findings: list[Finding] = []
        self._clients: dict[bytes, ClientRun] = {}
        self._minutes: dict[int, int] = {}
        self._times: list[int] = []
        self._entries = self._failed = self._first_bytes = 0
        self._broken_at = 0

    def run(self) -> BoundCheckpoint | None:
        """Verify the piece. If a file cannot be read, record a finding and go on."""
        try:
            return self._run()
        except Unavailable as error:
            self._take(
                VerifiedEntry(self._verifier.tree.size + 1, 0, failures=(Failure(EntryCheck.FRAME, str(error)),))
            )
            return None

    def _run(self) -> BoundCheckpoint | None:
        piece = self._piece
        for number, one in enumerate(chunk_verifier.verified(self._source, self._verifier, piece), 1):
            self._take(one)
            if not number % _REPORT_EVERY:
                self.reported += _REPORT_EVERY
                self._done(_REPORT_EVERY)
        whole_end = piece.last == piece.chunk.end_seq and piece.chunk.closed
        if self._broken_at or not self._tree_known() or not whole_end:
            return None
        flaws, bound = chunk_verifier.check_artifacts(self._source, self._metadata, piece.chunk, self._verifier)
        for flaw in flaws:
            self._add(flaw.name, flaw.what, None)
        return bound

    def outcome(self, bound: BoundCheckpoint | None, seconds: float) -> PieceOutcome:
        piece, verifier = self._piece, self._verifier
        return PieceOutcome(
            source=piece.source,
            label=piece.chunk.label,
            start_seq=piece.chunk.start_seq,
            first=piece.first,
            last=piece.last,
            entries=self._entries,
            failed=self._failed,
            anchored=verifier.anchored,
            sound=self._tree_known() and not self._broken_at,
            doubtful_from=verifier.doubtful_from or self._broken_at,
            peaks_before=self._before if verifier.anchored else (),
            peaks=tuple(verifier.tree.peaks),
            chunk_bytes=verifier.size_bytes,
            first_bytes=self._first_bytes,
            hub_ts=(min(self._times), max(self._times)) if self._times else None,
            clients=self._clients,
            minutes=self._minutes,
            seconds=seconds,
            bound=bound,
            findings=tuple(self._findings),
        )

    def _tree_known(self) -> bool:
        return self._verifier.anchored and self._verifier.in_step

    def _take(self, one: VerifiedEntry) -> None:
        if one.ends:
            self._broken_at = one.stream_seq
            if one.stream_seq < self._piece.first:
                return  # the piece that contains the entry reports it
        else:
            self._entries += 1
            self._first_bytes = self._first_bytes or one.size
        # `chain.check_label` reports once that roots could not be checked.
        failures = [failure for failure in one.failures if failure.check is not EntryCheck.ANCHOR]
        self._failed += bool(failures) and not one.ends
        for failure in failures:
            self._add(self._piece.chunk.name, f"{failure.check}: {failure}", one.stream_seq)
        checks = {failure.check for failure in failures}
        if one.receipt is not None and not checks & {EntryCheck.HUB_SIG, EntryCheck.FORM}:
            self._count(one.receipt.hub_ts)
            self._check_origin(one.stream_seq)
        if one.message is not None and not checks & {EntryCheck.CLIENT_SIG, EntryCheck.BINDING, EntryCheck.FORM}:
            self._note(one.stream_seq, one.message.client_id, one.message.client_seq, one.message.prev_ack)

    def _count(self, hub_ts: int) -> None:
        minute = hub_ts - hub_ts % MINUTE_SEC
        self._minutes[minute] = self._minutes.get(minute, 0) + 1
        self._times = [min(hub_ts, *self._times), max(hub_ts, *self._times)] if self._times else [hub_ts, hub_ts]

    def _note(self, seq: int, client: bytes, client_seq: int, prev_ack: int) -> None:
        known = self._clients.get(client)
        first = (known.stream_seq, known.first_seq, known.first_ack) if known else (seq, client_seq, prev_ack)
        self._clients[client] = ClientRun(*first, client_seq, prev_ack)

    def _check_origin(self, seq: int) -> None:
        """The part that a fork kept must end with the root that its origin signed."""
        kept = self._metadata.lineage.checkpoint(self._piece.chunk.label)
        if kept is not None and kept.upto_seq == seq and self._tree_known() and _root(self._verifier) != kept.mmr_root:
            self._add(self._piece.chunk.name, "the log up to here differs from the origin's checkpoint", seq)

    def _add(self, name: str, what: str, seq: int | None) -> None:
        if len(self._findings) < MAX_FINDINGS:
            label = self._piece.chunk.label
            self._findings.append(Finding(Severity.DAMAGED, f"log/{name}", what, label, seq))


def _root(verifier: ChunkVerifier) -> bytes:
    return verifier.tree.root()
