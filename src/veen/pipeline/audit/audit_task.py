"""One piece of a log audited, wherever that happens: every entry, and at a chunk's end what stands beside it."""

from collections.abc import Callable, Iterator
from time import thread_time

from veen.core import Unavailable
from veen.pipeline import chunk_verifier
from veen.pipeline.audit import directory_check
from veen.pipeline.audit.piece_outcome import MINUTE_SEC, ClientRun, PieceOutcome
from veen.pipeline.chunk_verifier import ChunkVerifier, VerifiedEntry
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.rows import settle
from veen.pipeline.sources import DirectoryChunks
from veen.storage.artifacts import BoundCheckpoint
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.fsck_report import MAX_FINDINGS, Finding, Severity
from veen.storage.metadata import HubMetadata

Add = Callable[[int], None]  # so many entries more are done

_TOLD_EVERY = 256  # entries: a tenth of a second


def _nobody(more: int) -> None:
    """Tell nobody."""


def audit_task(task: Task, add: Add = _nobody) -> Iterator[PieceOutcome]:
    """The outcome of each piece. What `add` raises ends it."""
    settle()
    known: dict[str, tuple[DirectoryChunks, HubMetadata]] = {}
    for piece in task:
        if piece.source not in known:
            known[piece.source] = _opened(piece.source)
        start = thread_time()
        audit = _Audit(piece, *known[piece.source], add)
        bound = audit.run()
        add(piece.entries - audit.told)
        yield audit.outcome(bound, thread_time() - start)


def _opened(url: str) -> tuple[DirectoryChunks, HubMetadata]:
    """A directory and the papers it is audited under: as the driver found them, so damage beside them ends nothing."""
    source = DirectoryChunks(url)
    hub_metadata, _ = directory_check.check_metadata(source)
    if hub_metadata is None:
        raise Unavailable(f"the papers of {url} changed while it was audited")
    return source, hub_metadata


class _Audit:
    """One piece while it is gone through."""

    def __init__(self, piece: Piece, source: DirectoryChunks, hub_metadata: HubMetadata, add: Add) -> None:
        self._done, self.told = add, 0
        self._piece = piece
        self._source = source
        self._hub_metadata = hub_metadata
        self._verifier = chunk_verifier.start(source, hub_metadata, piece)
        self._before = tuple(self._verifier.tree.peaks)
        self._findings: list[Finding] = []
        self._clients: dict[bytes, ClientRun] = {}
        self._minutes: dict[int, int] = {}
        self._times: list[int] = []
        self._entries = self._failed = self._first_bytes = 0
        self._broken_at = 0

    def run(self) -> BoundCheckpoint | None:
        """Go through it. What cannot be read is a finding like any other, and the rest goes on."""
        try:
            return self._run()
        except Unavailable as error:
            self._take(
                VerifiedEntry(self._verifier.tree.size + 1, 0, failures=(Failure(EntryCheck.FRAME, str(error)),))
            )
            return None

    def _run(self) -> BoundCheckpoint | None:
        piece = self._piece
        for number, one in enumerate(chunk_verifier.judged(self._source, self._verifier, piece), 1):
            self._take(one)
            if not number % _TOLD_EVERY:
                self.told += _TOLD_EVERY
                self._done(_TOLD_EVERY)
        whole_end = piece.last == piece.chunk.end_seq and piece.chunk.closed
        if self._broken_at or not self._tree_known() or not whole_end:
            return None
        flaws, bound = chunk_verifier.check_beside(self._source, self._hub_metadata, piece.chunk, self._verifier)
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
                return  # the piece that has it says so
        else:
            self._entries += 1
            self._first_bytes = self._first_bytes or one.size
        # That a root could not be judged is said once, by whoever chains the pieces.
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
        """What a fork kept ends with the root its origin signed."""
        kept = self._hub_metadata.lineage.checkpoint(self._piece.chunk.label)
        if kept is not None and kept.upto_seq == seq and self._tree_known() and _root(self._verifier) != kept.mmr_root:
            self._add(self._piece.chunk.name, "the log up to here is not what the origin's checkpoint says", seq)

    def _add(self, name: str, what: str, seq: int | None) -> None:
        if len(self._findings) < MAX_FINDINGS:
            label = self._piece.chunk.label
            self._findings.append(Finding(Severity.DAMAGED, f"log/{name}", what, label, seq))


def _root(verifier: ChunkVerifier) -> bytes:
    return verifier.tree.root()
