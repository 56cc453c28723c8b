"""mmr_proof: a leaf is at one place of a tree, and a tree is an extension of an older one. Spec §5.2–5.4.

The shape of a proof (length of its path, direction of each step, number of other peaks) follows from the leaf's place
and the tree's size. Both must come from a signed object, never from the proof: two sizes can have the same number of
peaks.

One proof serves both claims. The path of leaf m in a tree of n leaves passes every peak that the tree had at m leaves,
so the proof that includes the last old leaf also proves that the old tree is a prefix of the new one.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, TypeAlias

from veen.core import mmr
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Malformed, Unverified
from veen.core.limits import MAX_PEAKS, MAX_PROOF_PATH
from veen.core.mmr import LOG, NodeReader
from veen.core.msg import Msg
from veen.core.receipt import Receipt

LEFT, RIGHT = 0, 1
Head: TypeAlias = Receipt | Checkpoint  # signs a root and the size of its tree


@int_map("path step")
class ProofStep(Wire):
    """One step up: the running hash was the left (0) or right (1) child, and `sib` is the other child."""

    dir: Annotated[int, Uint(most=1)]
    sib: Annotated[bytes, Bstr()]


@int_map("mmr_proof", VersionField())
class MmrProof(Wire):
    """A leaf, the siblings on its path up to its peak, and the other peaks by increasing height."""

    leaf_hash: Annotated[bytes, Bstr()]
    path: Annotated[tuple[ProofStep, ...], ListOf(Nested(ProofStep, name="path step"), most=MAX_PROOF_PATH)]
    peaks_after: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), most=MAX_PEAKS - 1)]


def prove(node: NodeReader, stream_seq: int, size: int) -> MmrProof:
    """The proof that the leaf at `stream_seq` is in the tree of the first `size` leaves."""
    index = stream_seq - 1
    height, first, rank = _tree_of(index, size)
    path = []
    for level in range(height):
        local = (index - first) >> level
        sibling = first + ((local ^ 1) << level)
        path.append(ProofStep(local & 1, node(mmr.top_position(sibling, level))))
    peaks = mmr.peaks_at(node, size)
    del peaks[rank]
    return MmrProof(node(mmr.leaf_position(index)), tuple(path), tuple(peaks))


@dataclass(frozen=True, slots=True)
class Leaf:
    """The claim of an inclusion proof: this message is at this place of this label."""

    label: bytes
    leaf_hash: bytes
    stream_seq: int

    @classmethod
    def of(cls, receipt: Receipt) -> "Leaf":
        return cls(receipt.label, receipt.leaf_hash, receipt.stream_seq)

    @classmethod
    def of_msg(cls, message: Msg, stream_seq: int) -> "Leaf":
        return cls(message.label, message.leaf_hash(), stream_seq)


def verify_inclusion(proof: MmrProof, leaf: Leaf, head: Head) -> None:
    """Verify that the leaf is in the tree of `head`. The caller must have verified the signature of `head`."""
    if leaf.label != label_of(head):
        raise Unverified("mmr_proof", "the signed root has another label than the leaf")
    _verify(proof, leaf.leaf_hash, leaf.stream_seq, size_of(head), head.mmr_root)


def verify_in_receipt(proof: MmrProof, receipt: Receipt) -> None:
    """Verify that a receipt's leaf is the last of its tree. The caller must have verified the receipt's signature."""
    verify_inclusion(proof, Leaf.of(receipt), receipt)


def verify_leaf(proof: MmrProof, leaf_hash: bytes, place: int, size: int, root: bytes) -> None:
    """Verify that a leaf has a place, counted from 1, in a tree that is not a log. The caller must trust the root."""
    _verify(proof, leaf_hash, place, size, root)


def verify_consistency(proof: MmrProof, old: Head, new: Head) -> None:
    """Verify that the tree of `new` is the tree of `old` with leaves appended, and none changed.

    The caller must have verified both signatures.
    """
    if size_of(old) > size_of(new):
        sizes = f"{size_of(old)} leaves, more than the newer with {size_of(new)}"
        raise Unverified("mmr_proof", f"the older tree has {sizes}")
    if label_of(old) != label_of(new):
        raise Unverified("mmr_proof", "the two signed roots have different labels")
    verify_prefix(proof, old, size_of(new), new.mmr_root)


def verify_prefix(proof: MmrProof, old: Head, new_size: int, new_root: bytes) -> None:
    """Verify that the tree of `old` is a prefix of a tree with that size and root, which must come from a signature."""
    if isinstance(old, Receipt) and proof.leaf_hash != old.leaf_hash:
        raise Unverified("mmr_proof", "its leaf_hash differs from the older receipt's")
    verify_extension(proof, size_of(old), old.mmr_root, new_size, new_root)


def verify_extension(proof: MmrProof, old_size: int, old_root: bytes, new_size: int, new_root: bytes) -> None:
    """Verify that a tree is a prefix of another. Both sizes and roots must come from signatures."""
    _verify(proof, proof.leaf_hash, old_size, new_size, new_root)
    if mmr.root_of(_old_peaks(proof, old_size, new_size)) != old_root:
        raise Unverified("mmr_proof", "the older tree is not a prefix of the newer")


def size_of(head: Head) -> int:
    """The size of the tree whose root is signed."""
    return head.stream_seq if isinstance(head, Receipt) else head.upto_seq


def entries_text(count: int) -> str:
    """The size of a tree in messages: `1 entry`, or `2 entries`."""
    return "1 entry" if count == 1 else f"{count} entries"


def label_of(head: Head) -> bytes:
    return head.label if isinstance(head, Receipt) else head.label_curr


def decode_head(data: bytes) -> Head:
    """Decode a receipt or a checkpoint. They differ in their third field."""
    try:
        return Receipt.decode(data)
    except Malformed:
        return Checkpoint.decode(data)


def _tree_of(index: int, size: int) -> tuple[int, int, int]:
    """`(height, first leaf, rank among the peaks)` of the perfect tree that holds the leaf."""
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} among {size}")
    return next((height, first, rank) for rank, (height, first) in enumerate(mmr.trees(size)) if index >= first)


def _verify(proof: MmrProof, leaf_hash: bytes, stream_seq: int, size: int, root: bytes) -> None:
    """Verify that the leaf is at that place of a tree. Size and root must come from a verified signature."""
    if not 1 <= stream_seq <= size:
        raise Unverified("mmr_proof", f"stream_seq {stream_seq} is not within 1..{size}")
    index = stream_seq - 1
    height, _, rank = _tree_of(index, size)
    if len(proof.path) != height:
        raise Unverified("mmr_proof", f"its path has {len(proof.path)} steps, expected {height}")
    others = size.bit_count() - 1
    if len(proof.peaks_after) != others:
        raise Unverified("mmr_proof", f"it has {len(proof.peaks_after)} other peaks, expected {others}")
    if proof.leaf_hash != leaf_hash:
        raise Unverified("mmr_proof", "its leaf_hash differs from the message's")
    peak = _climb(proof.path, leaf_hash, index)
    peaks = [*proof.peaks_after[:rank], peak, *proof.peaks_after[rank:]]
    if len(set(peaks)) != len(peaks):
        raise Unverified("mmr_proof", "it contains a peak twice")
    if mmr.root_of(peaks) != root:
        raise Unverified("mmr_proof", "its root differs from the signed root")


def _climb(path: tuple[ProofStep, ...], leaf_hash: bytes, index: int) -> bytes:
    """The peak above the leaf. A perfect tree starts at a multiple of its size, so step k has bit k of the index."""
    node_tag = LOG.node
    node = leaf_hash
    for step in path:
        if step.dir != index & 1:
            raise Unverified("mmr_proof", "a step has the wrong direction for the leaf's place")
        index >>= 1
        node = sha256(node_tag + node + step.sib if step.dir == LEFT else node_tag + step.sib + node).digest()
    return node


def _old_peaks(proof: MmrProof, old_size: int, new_size: int) -> list[bytes]:
    """The peaks of the tree that ended with the proof's leaf. The proof must have been verified."""
    _, _, rank = _tree_of(old_size - 1, new_size)
    joined = (old_size & -old_size).bit_length() - 1
    smallest = _climb(proof.path[:joined], proof.leaf_hash, old_size - 1)
    passed = [step.sib for step in proof.path[joined:] if step.dir == RIGHT]
    return [smallest, *passed, *proof.peaks_after[rank:]]
