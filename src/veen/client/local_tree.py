"""The local copy of a label's tree, which must grow consistently with the hub's signatures. Spec §5, §9.

Receipts with valid signatures advance the tree. There are four cases:

    the next entry            append its leaf; the root must be the signed one
    a later entry             others wrote in between: a proof in its own tree gives the peaks there, and a consistency
                              proof connects them with ours
    the current entry         the root must be the same, or the hub has signed two
    an earlier entry          a consistency proof from it to our tree

This module sends no requests; callers pass the proofs. A receipt that does not fit raises `Contradiction`.
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
    """All peaks of the tree that ends with a receipt's leaf, from the proof of that leaf in this tree."""
    proof.verify_in_receipt(shown, head)
    peak = head.leaf_hash
    for step in shown.path:
        # The last leaf of a tree is a right child on every level; `verify_in_receipt` has checked that.
        peak = _node(step.sib, peak)
    return (peak, *shown.peaks_after)


def _node(left: bytes, right: bytes) -> bytes:
    pair = Mmr(1, [left])
    return pair.append(right)[1]


class LabelTree:
    """The size and peaks of one label's tree, and the signed statement that proves them."""

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
        """Add the next entry. If the receipt does not fit, the tree stays unchanged."""
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
        statements = (self.head, receipt) if self.head else (receipt,)
        return Contradiction(
            Lie.ROOT,
            f"the signed root of entry {receipt.stream_seq} is not the root of the tree that ends with it",
            statements,
            peaks=tuple(peaks),
        )

    def jump(self, receipt: Receipt, own: MmrProof, growth: MmrProof | None) -> None:
        """Advance to a later entry. `own` proves it in its own tree, `growth` that our tree is a prefix of that tree.

        `growth` may be None only if our tree is empty.
        """
        try:
            peaks = peaks_from(own, receipt)
        except Unverified as error:
            raise Contradiction(
                Lie.SEQ_GAP,
                f"the hub has no valid proof for the tree of {receipt.stream_seq} entries that the receipt signs: "
                f"{error.reason}",
                (receipt,),
            ) from None
        self.check_prefix_of(receipt, growth)
        self._tip = Mmr(receipt.stream_seq, peaks)
        self.head = receipt

    def check_prefix_of(self, later: Head, growth: MmrProof | None) -> None:
        """Raise `Contradiction` unless our tree is a prefix of the tree that `later` signs."""
        if self.head is None:
            return
        if growth is None:
            raise ValueError("a tree with entries needs a consistency proof")
        self._check_consistent(self.head, later, growth)

    def check_behind(self, earlier: Head, growth: MmrProof) -> None:
        """Raise `Contradiction` unless the tree that `earlier` signs is a prefix of ours."""
        if self.head is None:
            raise ValueError("an empty tree has no earlier entries")
        self._check_consistent(earlier, self.head, growth)

    def check_here(self, head: Head) -> None:
        """Raise `Contradiction` unless a signed root for our size equals our root."""
        if size_of(head) != self.size:
            raise ValueError(f"the signed root is for {size_of(head)} entries, not {self.size}")
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
    """Raise `Contradiction` if two receipts of one label have contradicting times. A checkpoint has no time."""
    clash = time_clash(one, other) if isinstance(one, Receipt) and isinstance(other, Receipt) else None
    if clash:
        assert one is not None
        raise Contradiction(Lie.TIME, clash, (one, other))


def next_proof(tree: LabelTree, leaf_hash: bytes) -> MmrProof:
    """The proof of the next leaf in its own tree, before it is appended. The peaks contain all of it."""
    peaks, size = tree.peaks, tree.size
    joins = (size ^ (size + 1)).bit_length() - 1
    return MmrProof(leaf_hash, tuple(ProofStep(proof.RIGHT, peak) for peak in peaks[:joins]), peaks[joins:])


def forked(known: Head | None, other: Head) -> Contradiction:
    """The contradiction of two roots for one size."""
    reason = f"two roots are signed for the log of {size_of(other)} entries"
    return Contradiction(Lie.FORKED_HISTORY, reason, (known, other) if known else (other,))


def same_place(known: Receipt, other: Receipt) -> Contradiction:
    """The contradiction of two receipts for one place."""
    reason = f"two different entries are signed as entry {other.stream_seq}"
    return Contradiction(Lie.DUPLICATE_SEQ, reason, (known, other))


def decode_head(data: bytes) -> Head:
    """Decode a stored receipt or checkpoint. They differ in their third field."""
    try:
        return Receipt.decode(data)
    except Malformed:
        return Checkpoint.decode(data)
