"""The local copy of a label's tree, which must grow exactly as the hub says it does. Spec §5, §9.

A tree is taken forward by receipts whose signatures hold. Four things can come:

    the next entry            append its leaf; the root must be the one that is signed
    an entry further on       others wrote in between: a proof at its own size gives the peaks there, and a proof of
                              consistency ties them to ours
    the entry we are at       the same root, or the hub has signed two
    an entry behind us        a proof of consistency from it to us

Nothing here asks anyone: proofs are handed in. Whatever does not fit is a `Contradiction` that names it.
"""

from veen.client.contradiction import Contradiction, Lie
from veen.core import Checkpoint, Malformed, Mmr, MmrProof, ProofStep, Receipt, Unverified, proof
from veen.core.proof import Head
from veen.core.receipt import time_clash


def size_of(head: Head) -> int:
    return head.stream_seq if isinstance(head, Receipt) else head.upto_seq


def label_of(head: Head) -> bytes:
    return head.label if isinstance(head, Receipt) else head.label_curr


def peaks_from(shown: MmrProof, head: Receipt) -> tuple[bytes, ...]:
    """All peaks of the tree that ends with a receipt's leaf, from the proof of that leaf at its own size."""
    proof.verify_in_receipt(shown, head)
    peak = head.leaf_hash
    for step in shown.path:
        # The last leaf of a tree is the right child all the way up; the verifier has checked that.
        peak = _node(step.sib, peak)
    return (peak, *shown.peaks_after)


def _node(left: bytes, right: bytes) -> bytes:
    pair = Mmr(1, [left])
    return pair.append(right)[1]


class LabelTree:
    """The tip of one label's tree, and the signed head that vouches for it."""

    __slots__ = ("_tip", "head", "label")

    def __init__(self, label: bytes, size: int = 0, peaks: tuple[bytes, ...] = (), head: Head | None = None) -> None:
        self.label = label
        self._tip = Mmr(size, peaks)
        self.head = head

    @property
    def size(self) -> int:
        return self._tip.size

    @property
    def peaks(self) -> tuple[bytes, ...]:
        return tuple(self._tip.peaks)

    def root(self) -> bytes:
        return self._tip.root()

    def copy(self) -> "LabelTree":
        return LabelTree(self.label, self._tip.size, self.peaks, self.head)

    def append(self, receipt: Receipt) -> None:
        """Grow by the next entry. Leaves the tree as it was where the receipt does not fit."""
        tip = self._tip
        if receipt.stream_seq != tip.size + 1:
            raise ValueError(f"entry {receipt.stream_seq} is not the next after {tip.size}")
        before = tip.peaks.copy()
        tip.append(receipt.leaf_hash)
        try:
            if tip.root() != receipt.mmr_root:
                raise self._bad_root(receipt, before)
            check_times(self.head, receipt)
        except Contradiction:
            self._tip = Mmr(tip.size - 1, before)
            raise
        self.head = receipt

    def _bad_root(self, receipt: Receipt, peaks: list[bytes]) -> Contradiction:
        said = (self.head, receipt) if self.head else (receipt,)
        return Contradiction(
            Lie.ROOT,
            f"the root signed for entry {receipt.stream_seq} is not that of the tree that ends with it",
            said,
            peaks=tuple(peaks),
        )

    def jump(self, receipt: Receipt, own: MmrProof, growth: MmrProof | None) -> None:
        """Go to an entry further on. `own` proves it at its own size, `growth` that our tree is a prefix of that.

        `growth` may be None only where our tree is empty.
        """
        try:
            peaks = peaks_from(own, receipt)
        except Unverified as error:
            raise Contradiction(
                Lie.SEQ_GAP,
                f"it shows no tree of {receipt.stream_seq} entries behind the receipt for entry {receipt.stream_seq}: "
                f"{error.reason}",
                (receipt,),
            ) from None
        self.check_prefix_of(receipt, growth)
        self._tip = Mmr(receipt.stream_seq, peaks)
        self.head = receipt

    def check_prefix_of(self, later: Head, growth: MmrProof | None) -> None:
        """Raise unless our tree is a prefix of the one that `later` signs."""
        if self.head is None:
            return
        if growth is None:
            raise ValueError("a tree that has entries needs proof that it was only added to")
        self._check_consistent(self.head, later, growth)

    def check_behind(self, earlier: Head, growth: MmrProof) -> None:
        """Raise unless the tree that `earlier` signs is a prefix of ours."""
        if self.head is None:
            raise ValueError("nothing is behind an empty tree")
        self._check_consistent(earlier, self.head, growth)

    def check_here(self, head: Head) -> None:
        """Raise unless what signs the size we are at signs our root."""
        if size_of(head) != self.size:
            raise ValueError(f"a head of {size_of(head)} entries, not of {self.size}")
        if head.mmr_root != self.root():
            raise forked(self.head, head)
        check_times(self.head, head)

    def _check_consistent(self, old: Head, new: Head, growth: MmrProof) -> None:
        try:
            proof.verify_consistency(growth, old, new)
        except Unverified as error:
            raise Contradiction(
                Lie.FORKED_HISTORY,
                f"the log of {size_of(new)} entries does not continue the log of {size_of(old)}: {error.reason}",
                (old, new),
            ) from None
        check_times(old, new)


def check_times(one: Head | None, other: Head) -> None:
    """Raise where two receipts of one label sign times that cannot both be true. A checkpoint has no time."""
    clash = time_clash(one, other) if isinstance(one, Receipt) and isinstance(other, Receipt) else None
    if clash:
        assert one is not None
        raise Contradiction(Lie.TIME, clash, (one, other))


def next_proof(tree: LabelTree, leaf_hash: bytes) -> MmrProof:
    """The proof of the leaf that is about to be appended, at its own size: all of it is in the peaks."""
    peaks, size = tree.peaks, tree.size
    joins = (size ^ (size + 1)).bit_length() - 1
    return MmrProof(leaf_hash, tuple(ProofStep(proof.RIGHT, peak) for peak in peaks[:joins]), peaks[joins:])


def forked(known: Head | None, other: Head) -> Contradiction:
    """Two heads of one size and two roots."""
    reason = f"two roots are signed for the log of {size_of(other)} entries"
    return Contradiction(Lie.FORKED_HISTORY, reason, (known, other) if known else (other,))


def same_place(known: Receipt, other: Receipt) -> Contradiction:
    """Two receipts for one place that do not agree."""
    reason = f"entry {other.stream_seq} is signed for as two different entries"
    return Contradiction(Lie.DUPLICATE_SEQ, reason, (known, other))


def decode_head(data: bytes) -> Head:
    """The receipt or checkpoint that a head was kept as. They differ in their third field."""
    try:
        return Receipt.decode(data)
    except Malformed:
        return Checkpoint.decode(data)
