"""Verify the entries of a chunk, and the artifacts of a closed one: summary, peak snapshot and checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from veen.core import Malformed, Mmr, Msg, Receipt, Unverified
from veen.core.cbor import Wire
from veen.core.hashing import HASH_BYTES
from veen.pipeline.read_plan import Piece
from veen.pipeline.sources import NAMES, Chunk, ChunkSource, DirectoryChunks
from veen.storage import frame
from veen.storage.artifacts import BoundCheckpoint, ChunkSummary, PeakSnapshot
from veen.storage.entry_check import EntryCheck, EntryVerifier, Failure
from veen.storage.frame import Data, LogEntry
from veen.storage.fsck_report import Finding, Severity
from veen.storage.log_check import check_checkpoint
from veen.storage.metadata import HubMetadata
from veen.storage.pruned_chunk import PrunedEntry

W = TypeVar("W", bound=Wire)
_DAMAGED_MESSAGE = {EntryCheck.FORM, EntryCheck.BINDING, EntryCheck.CLIENT_SIG}


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """An entry as far as it can be read, with the checks it failed."""

    stream_seq: int
    size: int
    entry: LogEntry | None = None
    message: Msg | None = None
    receipt: Receipt | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing after this entry can be read in its chunk."""
        return any(failure.check is EntryCheck.FRAME for failure in self.failures)


class ChunkVerifier:
    """Verifies the entries of one chunk in order."""

    def __init__(self, metadata: HubMetadata, chunk: Chunk, first: int, peaks: tuple[bytes, ...] | None) -> None:
        """`first` is the first entry to verify. `peaks` are those of the tree before the chunk, None if unknown."""
        size = chunk.start_seq - 1
        self.identity = metadata.identity
        self.anchored = peaks is not None
        tree = Mmr(size, peaks if peaks is not None else [bytes(HASH_BYTES)] * size.bit_count())
        known = _no_client if first == 1 else None
        self._entries = EntryVerifier(metadata, chunk.label, tree, 0, known, in_step=self.anchored)
        self.hashes, self.rehashed = Mmr(), Mmr()  # trees over the stored and the recomputed entry hashes
        self.size_bytes = 0
        self.doubtful_from = 0  # first damaged message; client sequences need not continue across it

    @property
    def tree(self) -> Mmr:
        return self._entries.tree

    @property
    def in_step(self) -> bool:
        """Whether the tree is still the label's tree, as far as the entries show."""
        return self._entries.in_step

    def add_unverified(self, entry: LogEntry, size: int) -> None:
        """Add an entry to the tree without verifying it; another piece does."""
        self._note(entry.entry_hash, entry.entry_hash, size)
        if (message := _decoded(Msg, entry.msg)) is not None:
            self.tree.append(message.leaf_hash())
        elif (receipt := _decoded(Receipt, entry.receipt)) is not None:
            self.tree.append(receipt.leaf_hash)
        else:
            self._lose_tree()

    def verify(self, entry: LogEntry, size: int, header: Failure | None) -> VerifiedEntry:
        """Verify an entry. `header` is the failure of its header or hash, if any."""
        seq = self.tree.size + 1
        found = frame.entry_hash(entry.msg, entry.receipt) if header else entry.entry_hash
        self._note(entry.entry_hash, found, size)
        failures = [header] if header else []
        before, in_step = Mmr(self.tree.size, self.tree.peaks), self._entries.in_step
        taken, faults = self._entries.judge(entry, b"")
        message = taken[1] if taken else _decoded(Msg, entry.msg)
        receipt = taken[2] if taken else _decoded(Receipt, entry.receipt)
        faults = self._recovered(before, in_step, message, receipt, faults)
        checks = {fault.check for fault in faults}
        if checks & _DAMAGED_MESSAGE:
            self._entries.cursors.clear()
            self._entries.known, self.doubtful_from = None, self.doubtful_from or seq
        if not in_step:
            faults.append(Failure(EntryCheck.ANCHOR, "the tree before it is unknown, so its root cannot be checked"))
        return VerifiedEntry(seq, size, entry, message, receipt, (*failures, *faults))

    def verify_pruned(self, entry: PrunedEntry) -> VerifiedEntry:
        """Verify the rest of a pruned entry: its place, its order, and its receipt if that was kept."""
        in_step = self._entries.in_step
        self._note(entry.entry_hash, entry.entry_hash, entry.size)
        (_, message, receipt), faults = self._entries.judge_pruned(entry)
        if not in_step:
            faults.append(Failure(EntryCheck.ANCHOR, "the tree before it is unknown, so its root cannot be checked"))
        return VerifiedEntry(entry.stream_seq, entry.size, None, message, receipt, tuple(faults))

    def _recovered(
        self, before: Mmr, in_step: bool, message: Msg | None, receipt: Receipt | None, faults: list[Failure]
    ) -> list[Failure]:
        """Continue with the tree that the hub signed if this entry is damaged and the tree is not."""
        if message is not None and receipt is not None and not any(fault.check is EntryCheck.ROOT for fault in faults):
            return faults
        leaf = receipt.leaf_hash if receipt is not None else message.leaf_hash() if message is not None else None
        if leaf is None or not in_step:
            if message is None or receipt is None:
                self._entries.tree = before
                self._lose_tree() if leaf is None else self.tree.append(leaf)
            return faults
        continued = before.copy()
        continued.append(leaf)
        if receipt is None:  # only the message is readable
            self._entries.tree, self._entries.in_step = continued, True
        elif continued.root() == receipt.mmr_root:
            self._entries.tree, self._entries.in_step = continued, True
            return [fault for fault in faults if fault.check is not EntryCheck.ROOT]
        elif {EntryCheck.HUB_SIG, EntryCheck.CLIENT_SIG} & {fault.check for fault in faults} == {EntryCheck.HUB_SIG}:
            self._entries.in_step = True  # the root is not signed by the hub, but the message is signed by its client
        return faults

    def _lose_tree(self) -> None:
        """Give up the tree: fill the place with zeros, and check no roots from here on."""
        self.tree.append(bytes(HASH_BYTES))
        self._entries.in_step = False

    def _note(self, stored: bytes, found: bytes, size: int) -> None:
        self.hashes.append(stored)
        self.rehashed.append(found)
        self.size_bytes += size


def start(source: ChunkSource, metadata: HubMetadata, piece: Piece) -> ChunkVerifier:
    """Return a verifier at the beginning of the piece's chunk."""
    size = piece.chunk.start_seq - 1
    peaks: tuple[bytes, ...] | None = piece.peaks
    if peaks is None:
        try:
            peaks = source.peaks(piece.chunk.label, size) if size else ()
        except (Malformed, Unverified):
            peaks = None
    return ChunkVerifier(metadata, piece.chunk, piece.first, peaks)


def verified(source: ChunkSource, verifier: ChunkVerifier, piece: Piece) -> Iterator[VerifiedEntry]:
    """Verify the entries of a piece. An unreadable frame ends the iteration."""
    seq, chunk = piece.chunk.start_seq, piece.chunk
    try:
        if chunk.pruned and isinstance(source, DirectoryChunks):
            with source.pruned(chunk, verifier.identity) as left:
                for one in left.entries():
                    if one.stream_seq > piece.last:
                        return
                    found = verifier.verify_pruned(one)
                    seq += 1
                    if one.stream_seq >= piece.first:
                        yield found
            return
        for data, at in source.blocks(chunk):
            pos = at
            while pos < len(data) and seq <= piece.last:
                entry, end, header = _read(data, pos)
                if entry.stream_seq != seq and _place(entry) != seq:
                    raise Malformed("entry", f"its header says entry {entry.stream_seq}")
                if seq < piece.first:
                    verifier.add_unverified(entry, end - pos)
                else:
                    yield verifier.verify(entry, end - pos, header)
                seq, pos = seq + 1, end
            if seq > piece.last and not (piece.last == chunk.end_seq and chunk.closed):
                return
            if pos < len(data):
                raise Malformed("chunk", f"it continues after entry {chunk.end_seq}, its last")
        if seq <= piece.last:
            raise Malformed("chunk", f"it ends with entry {seq - 1}, before entry {piece.last}")
    except (Malformed, Unverified) as error:
        yield VerifiedEntry(seq, 0, failures=(Failure(EntryCheck.FRAME, str(error)),))


def _read(data: Data, pos: int) -> tuple[LogEntry, int, Failure | None]:
    """Read the entry at `pos`, even if its header has a wrong length."""
    try:
        entry, end = frame.read_unhashed(data, pos)
        if frame.entry_hash(entry.msg, entry.receipt) == entry.entry_hash:
            return entry, end, None
    except Malformed as error:
        failure: Malformed | None = error
    else:
        failure = None
    try:
        rebuilt, rebuilt_end = frame.read_by_content(data, pos)
    except Malformed:
        if failure is not None:
            raise failure from None
        return entry, end, Failure(EntryCheck.HASH, "its bytes do not match its hash")
    return rebuilt, rebuilt_end, Failure(EntryCheck.HASH, "its header was changed after it was written")


def _place(entry: LogEntry) -> int:
    """The stream_seq in the receipt; 0 if the receipt cannot be read."""
    receipt = _decoded(Receipt, entry.receipt)
    return receipt.stream_seq if receipt is not None else 0


def _decoded(form: type[W], data: bytes) -> W | None:
    try:
        return form.decode(data)
    except Malformed:
        return None


def _no_client(client_id: bytes) -> None:
    """Report that no client has written before a label's first entry."""


def artifact_names(chunk: Chunk) -> tuple[str, str, str]:
    """The file names of summary, peak snapshot and checkpoint of a closed chunk."""
    label, start, end = chunk.label, chunk.start_seq, chunk.end_seq
    return NAMES.summary(label, start, end).name, NAMES.peaks(label, end).name, NAMES.checkpoint(label, end).name


def check_artifacts(
    source: DirectoryChunks, metadata: HubMetadata, chunk: Chunk, verifier: ChunkVerifier
) -> tuple[list[Finding], BoundCheckpoint | None]:
    """Check the artifacts of a closed chunk. Returns the faults, and the checkpoint's binding row if it is valid."""
    found: list[Finding] = []

    def damaged(name: str, what: str) -> None:
        found.append(Finding(Severity.DAMAGED, f"log/{name}", what, chunk.label))

    try:
        source.check_packing(chunk)  # decompression alone does not detect every flipped bit
    except Malformed as error:
        damaged(chunk.name, str(error))
    summary, snapshot, checkpoint = artifact_names(chunk)
    peaks = PeakSnapshot(chunk.label, chunk.end_seq, tuple(verifier.tree.peaks)).encode()
    for name, expected, of in ((summary, _summaries(chunk, verifier), "the chunk"), (snapshot, {peaks}, "the tree")):
        try:
            if source.artifact(name) not in expected:
                damaged(name, f"it differs from what {of} yields")
        except Malformed as error:
            damaged(name, error.reason)
    try:
        signed = source.artifact(checkpoint)
        return found, check_checkpoint(signed, metadata, chunk.label, chunk.end_seq, verifier.tree.root())
    except (Malformed, Unverified) as error:
        damaged(checkpoint, str(error))
        return found, None


def _summaries(chunk: Chunk, verifier: ChunkVerifier) -> set[bytes]:
    """The two possible summaries: if an entry and its hash differ, the summary was made while one of them was right."""
    place = (chunk.label, chunk.start_seq, chunk.end_seq, verifier.tree.root(), chunk.entries, verifier.size_bytes)
    return {ChunkSummary(*place, hashes.root()).encode() for hashes in (verifier.hashes, verifier.rehashed)}
