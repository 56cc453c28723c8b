"""What stands beside a closed chunk: its summary, the peak snapshot and the checkpoint, held against its entries."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Malformed, Mmr, Msg, Receipt, Unverified, mmr
from veen.core.hashing import HASH_BYTES
from veen.pipeline.read_plan import Piece
from veen.pipeline.sources import Chunk, ChunkSource, DirectoryChunks
from veen.storage import frame
from veen.storage.accepted_entry import Cursor
from veen.storage.artifacts import BoundCheckpoint, ChunkSummary, PeakSnapshot
from veen.storage.entry_check import EntryCheck, EntryVerifier, Failure
from veen.storage.frame import Data, LogEntry
from veen.storage.log_check import check_checkpoint
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders

_DAMAGED_MESSAGE = {EntryCheck.FORM, EntryCheck.BINDING, EntryCheck.CLIENT_SIG}


@dataclass(frozen=True, slots=True)
class VerifiedEntry:
    """An entry, as far as it can be read, and what is wrong with it."""

    stream_seq: int
    size: int
    entry: LogEntry | None = None
    message: Msg | None = None
    receipt: Receipt | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing after it in the chunk can be read."""
        return any(failure.check is EntryCheck.FRAME for failure in self.failures)


class ChunkVerifier:
    """The entries of one chunk, one after the other."""

    def __init__(self, hub_metadata: HubMetadata, chunk: Chunk, first: int, peaks: tuple[bytes, ...] | None) -> None:
        """`first` is the entry to judge first. `peaks` are those of the tree before the chunk, None if not known."""
        size = chunk.start_seq - 1
        self.anchored = peaks is not None
        tree = Mmr(size, peaks if peaks is not None else [bytes(HASH_BYTES)] * size.bit_count())
        known = _nobody_yet if first == 1 else None
        self._judge = EntryVerifier(hub_metadata, chunk.label, tree, 0, known, in_step=self.anchored)
        self.hashes, self.rehashed = Mmr(), Mmr()  # of the entry hashes as they stand there, and as they come out
        self.size_bytes = 0
        self.doubtful_from = 0  # the first damaged message: what clients wrote before and after need not fit together

    @property
    def tree(self) -> Mmr:
        return self._judge.tree

    @property
    def in_step(self) -> bool:
        """Whether the tree is, as far as can be told, the label's."""
        return self._judge.in_step

    @property
    def cursors(self) -> dict[bytes, Cursor]:
        return self._judge.cursors

    def pass_by(self, entry: LogEntry, size: int) -> None:
        """Take an entry into the tree without judging it: someone else does."""
        self._note(entry.entry_hash, entry.entry_hash, size)
        try:
            self.tree.append(Msg.decode(entry.msg).leaf_hash())
        except Malformed:
            try:
                self.tree.append(Receipt.decode(entry.receipt).leaf_hash)
            except Malformed:
                self._lose()

    def judge(self, entry: LogEntry, size: int, header: Failure | None) -> VerifiedEntry:
        """`header` is what is wrong with its header or its hash."""
        seq = self.tree.size + 1
        found = frame.entry_hash(entry.msg, entry.receipt) if header else entry.entry_hash
        self._note(entry.entry_hash, found, size)
        failures = [header] if header else []
        before, in_step = Mmr(self.tree.size, self.tree.peaks), self._judge.in_step
        taken, faults = self._judge.judge(entry, b"")
        message, receipt = (taken[1], taken[2]) if taken else _readable(entry)
        faults = self._mended(before, in_step, message, receipt, faults)
        checks = {fault.check for fault in faults}
        if checks & _DAMAGED_MESSAGE:
            self._judge.cursors.clear()
            self._judge.known, self.doubtful_from = None, self.doubtful_from or seq
        if not in_step:
            faults.append(Failure(EntryCheck.ANCHOR, "the tree before it is not known, so its root cannot be judged"))
        return VerifiedEntry(seq, size, entry, message, receipt, (*failures, *faults))

    def _mended(
        self, before: Mmr, in_step: bool, message: Msg | None, receipt: Receipt | None, faults: list[Failure]
    ) -> list[Failure]:
        """Go on with the tree that the hub signed, where this entry is damaged and the tree is not."""
        if message is not None and receipt is not None and not any(fault.check is EntryCheck.ROOT for fault in faults):
            return faults
        leaf = receipt.leaf_hash if receipt is not None else message.leaf_hash() if message is not None else None
        if leaf is None or not in_step:
            if message is None or receipt is None:
                self._judge.tree = before
                self._lose() if leaf is None else self.tree.append(leaf)
            return faults
        healed = before.copy()
        healed.append(leaf)
        if receipt is None:  # the message is all there is
            self._judge.tree, self._judge.in_step = healed, True
        elif healed.root() == receipt.mmr_root:
            self._judge.tree, self._judge.in_step = healed, True
            return [fault for fault in faults if fault.check is not EntryCheck.ROOT]
        elif {EntryCheck.HUB_SIG, EntryCheck.CLIENT_SIG} & {fault.check for fault in faults} == {EntryCheck.HUB_SIG}:
            self._judge.in_step = True  # that root is nobody's word, and the message is its client's
        return faults

    def _lose(self) -> None:
        """The tree cannot go on: a place is kept in it, and roots mean nothing from here on."""
        self.tree.append(bytes(HASH_BYTES))
        self._judge.in_step = False

    def _note(self, said: bytes, found: bytes, size: int) -> None:
        self.hashes.append(said)
        self.rehashed.append(found)
        self.size_bytes += size


def start(source: ChunkSource, hub_metadata: HubMetadata, piece: Piece) -> ChunkVerifier:
    """A verifier at the beginning of the piece's chunk."""
    size = piece.chunk.start_seq - 1
    peaks: tuple[bytes, ...] | None = piece.peaks
    if peaks is None:
        try:
            peaks = source.peaks(piece.chunk.label, size) if size else ()
        except (Malformed, Unverified):
            peaks = None
    return ChunkVerifier(hub_metadata, piece.chunk, piece.first, peaks)


def judged(source: ChunkSource, verifier: ChunkVerifier, piece: Piece) -> Iterator[VerifiedEntry]:
    """The entries of a piece, each judged. After one that ends what can be read there is none."""
    seq, chunk = piece.chunk.start_seq, piece.chunk
    try:
        for data, at in source.blocks(chunk):
            pos = at
            while pos < len(data) and seq <= piece.last:
                entry, end, header = _read(data, pos)
                if entry.stream_seq != seq and _place(entry) != seq:
                    raise Malformed("entry", f"it says it is {entry.stream_seq}")
                if seq < piece.first:
                    verifier.pass_by(entry, end - pos)
                else:
                    yield verifier.judge(entry, end - pos, header)
                seq, pos = seq + 1, end
            if seq > piece.last and not (piece.last == chunk.end_seq and chunk.closed):
                return
            if pos < len(data):
                raise Malformed("chunk", f"it goes on behind entry {chunk.end_seq}")
        if seq <= piece.last:
            raise Malformed("chunk", f"it ends with entry {seq - 1}")
    except (Malformed, Unverified) as error:
        yield VerifiedEntry(seq, 0, failures=(Failure(EntryCheck.FRAME, str(error)),))


def _read(data: Data, pos: int) -> tuple[LogEntry, int, Failure | None]:
    """The entry at `pos`, also where its header does not say how long it is."""
    try:
        entry, end = frame.read_unhashed(data, pos)
        if frame.entry_hash(entry.msg, entry.receipt) == entry.entry_hash:
            return entry, end, None
    except Malformed as error:
        told: Malformed | None = error
    else:
        told = None
    try:
        whole, behind = frame.read_by_content(data, pos)
    except Malformed:
        if told is not None:
            raise told from None
        return entry, end, Failure(EntryCheck.HASH, "its bytes are not those of its hash")
    return whole, behind, Failure(EntryCheck.HASH, "its header is not what it was written with")


def _place(entry: LogEntry) -> int:
    """Where the receipt says it belongs; 0 where it cannot be read."""
    try:
        return Receipt.decode(entry.receipt).stream_seq
    except Malformed:
        return 0


def _readable(entry: LogEntry) -> tuple[Msg | None, Receipt | None]:
    message: Msg | None = None
    receipt: Receipt | None = None
    try:
        message = Msg.decode(entry.msg)
    except Malformed:
        message = None
    try:
        receipt = Receipt.decode(entry.receipt)
    except Malformed:
        receipt = None
    return message, receipt


def _nobody_yet(client_id: bytes) -> None:
    """No client has written before a label's first entry."""


NAMES = Folders(Path())  # what things are called, wherever the directory is


@dataclass(frozen=True, slots=True)
class Flaw:
    """An artifact that does not say what the chunk says."""

    name: str
    what: str


def names_beside(chunk: Chunk) -> tuple[str, str, str]:
    """Summary, peak snapshot and checkpoint of a closed chunk."""
    label, start, end = chunk.label, chunk.start_seq, chunk.end_seq
    return NAMES.summary(label, start, end).name, NAMES.peaks(label, end).name, NAMES.checkpoint(label, end).name


def check_beside(
    source: DirectoryChunks, hub_metadata: HubMetadata, chunk: Chunk, verifier: ChunkVerifier
) -> tuple[list[Flaw], BoundCheckpoint | None]:
    """What is wrong with them, and the row of the checkpoint in the binding, where it holds."""
    summary, snapshot, checkpoint = names_beside(chunk)
    flaws = [*_packing(source, chunk), *_compare(source, summary, _summaries(chunk, verifier), "the chunk")]
    peaks = PeakSnapshot(chunk.label, chunk.end_seq, tuple(verifier.tree.peaks)).encode()
    flaws += _compare(source, snapshot, {peaks}, "the tree")
    try:
        signed = source.artifact(checkpoint)
        bound = check_checkpoint(signed, hub_metadata, chunk.label, chunk.end_seq, mmr.root_of(verifier.tree.peaks))
    except (Malformed, Unverified) as error:
        return [*flaws, Flaw(checkpoint, str(error))], None
    return flaws, bound


def _packing(source: DirectoryChunks, chunk: Chunk) -> Iterator[Flaw]:
    """A compressed chunk is, byte for byte, what was written; unpacking alone does not notice every flipped bit."""
    try:
        source.check_packing(chunk)
    except Malformed as error:
        yield Flaw(chunk.name, str(error))


def _summaries(chunk: Chunk, verifier: ChunkVerifier) -> set[bytes]:
    """What the summary may be: where an entry and its hash disagree, it was made when one of the two was right."""
    root = mmr.root_of(verifier.tree.peaks)

    def made(hashes: Mmr) -> bytes:
        counted = (chunk.entries, verifier.size_bytes, hashes.root())
        return ChunkSummary(chunk.label, chunk.start_seq, chunk.end_seq, root, *counted).encode()

    return {made(verifier.hashes), made(verifier.rehashed)}


def _compare(source: DirectoryChunks, name: str, expected: set[bytes], of: str) -> Iterator[Flaw]:
    try:
        if source.artifact(name) not in expected:
            yield Flaw(name, f"it does not say what {of} says")
    except Malformed as error:
        yield Flaw(name, error.reason)
