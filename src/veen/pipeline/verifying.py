"""A chunk judged from the peaks before it: every entry, and at its end the artifacts that speak of it.

The checks are those of `veen.storage`. What is added here is how to go on behind damage, so that one wrong bit is one
failure and not all that follow: where a message does not lead to the root that the hub signed, the leaf that its
receipt names may; where the receipt itself is not the hub's word, the next one tells whether the tree is right.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from veen.core import Malformed, Mmr, Msg, Receipt, Unverified
from veen.core.hashing import HASH_BYTES
from veen.pipeline.planning import Piece
from veen.pipeline.sources import Chunk, Source
from veen.storage import frame
from veen.storage.directory import Papers
from veen.storage.frame import Data, Entry
from veen.storage.judge import Check, Failure, Judge
from veen.storage.record import Cursor

_DAMAGED_MESSAGE = {Check.FORM, Check.BINDING, Check.CLIENT_SIG}


@dataclass(frozen=True, slots=True)
class Judged:
    """An entry, as far as it can be read, and what is wrong with it."""

    stream_seq: int
    size: int
    entry: Entry | None = None
    message: Msg | None = None
    receipt: Receipt | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether nothing after it in the chunk can be read."""
        return any(failure.check is Check.FRAME for failure in self.failures)


class ChunkVerifier:
    """The entries of one chunk, one after the other."""

    def __init__(self, papers: Papers, chunk: Chunk, first: int, peaks: tuple[bytes, ...] | None) -> None:
        """`first` is the entry to judge first. `peaks` are those of the tree before the chunk, None if not known."""
        size = chunk.start_seq - 1
        self.anchored = peaks is not None
        tree = Mmr(size, peaks if peaks is not None else [bytes(HASH_BYTES)] * size.bit_count())
        known = _nobody_yet if first == 1 else None
        self._judge = Judge(papers, chunk.label, tree, 0, known, in_step=self.anchored)
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

    def pass_by(self, entry: Entry, size: int) -> None:
        """Take an entry into the tree without judging it: someone else does."""
        self._note(entry.entry_hash, entry.entry_hash, size)
        try:
            self.tree.append(Msg.decode(entry.msg).leaf_hash())
        except Malformed:
            try:
                self.tree.append(Receipt.decode(entry.receipt).leaf_hash)
            except Malformed:
                self._lose()

    def judge(self, entry: Entry, size: int, header: Failure | None) -> Judged:
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
            faults.append(Failure(Check.ANCHOR, "the tree before it is not known, so its root cannot be judged"))
        return Judged(seq, size, entry, message, receipt, (*failures, *faults))

    def _mended(
        self, before: Mmr, in_step: bool, message: Msg | None, receipt: Receipt | None, faults: list[Failure]
    ) -> list[Failure]:
        """Go on with the tree that the hub signed, where this entry is damaged and the tree is not."""
        if message is not None and receipt is not None and not any(fault.check is Check.ROOT for fault in faults):
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
            return [fault for fault in faults if fault.check is not Check.ROOT]
        elif {Check.HUB_SIG, Check.CLIENT_SIG} & {fault.check for fault in faults} == {Check.HUB_SIG}:
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


def start(source: Source, papers: Papers, piece: Piece) -> ChunkVerifier:
    """A verifier at the beginning of the piece's chunk."""
    size = piece.chunk.start_seq - 1
    peaks: tuple[bytes, ...] | None = piece.peaks
    if peaks is None:
        try:
            peaks = source.peaks(piece.chunk.label, size) if size else ()
        except (Malformed, Unverified):
            peaks = None
    return ChunkVerifier(papers, piece.chunk, piece.first, peaks)


def judged(source: Source, verifier: ChunkVerifier, piece: Piece) -> Iterator[Judged]:
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
        yield Judged(seq, 0, failures=(Failure(Check.FRAME, str(error)),))


def _read(data: Data, pos: int) -> tuple[Entry, int, Failure | None]:
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
        return entry, end, Failure(Check.HASH, "its bytes are not those of its hash")
    return whole, behind, Failure(Check.HASH, "its header is not what it was written with")


def _place(entry: Entry) -> int:
    """Where the receipt says it belongs; 0 where it cannot be read."""
    try:
        return Receipt.decode(entry.receipt).stream_seq
    except Malformed:
        return 0


def _readable(entry: Entry) -> tuple[Msg | None, Receipt | None]:
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
