"""Inclusion and consistency proofs: every valid one verifies, and every damaged one is rejected. Spec §5.2–5.4."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.trees import LABEL, NO_SIG, Tree, leaf
from veen.core import Checkpoint, Malformed, MmrProof, ProofStep, Receipt, Unverified, mmr, proof

EXHAUSTIVE = 64
TREE = Tree(700)


def flipped(hash_: bytes, bit: int) -> bytes:
    return (int.from_bytes(hash_, "big") ^ 1 << bit).to_bytes(len(hash_), "big")


# Inclusion.


@pytest.mark.parametrize("size", range(1, EXHAUSTIVE + 1))
def test_every_leaf_is_proved_in_every_later_tree(size: int) -> None:
    for seq in range(1, size + 1):
        found = TREE.prove(seq, size)
        proof.verify_inclusion(found, proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), TREE.checkpoint(size))
        proof.verify_inclusion(found, proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), TREE.receipt(size))
        assert MmrProof.decode(found.encode()) == found


@pytest.mark.parametrize("seq", range(1, EXHAUSTIVE + 1))
def test_a_receipt_proves_its_own_leaf(seq: int) -> None:
    proof.verify_in_receipt(TREE.prove(seq, seq), TREE.receipt(seq))


@given(size=st.integers(1, 700), data=st.data())
def test_a_random_leaf_is_proved_in_a_random_tree(size: int, data: st.DataObject) -> None:
    seq = data.draw(st.integers(1, size))
    proof.verify_inclusion(TREE.prove(seq, size), proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), TREE.checkpoint(size))


def test_known_proofs_at_the_leafs_own_size() -> None:
    tree = Tree()
    leaves = [bytes([number]) * 32 for number in range(1, 6)]
    for hash_ in leaves:
        tree.append(hash_)
    shapes = {seq: tree.prove(seq, seq) for seq in range(1, 6)}
    right = [ProofStep(proof.RIGHT, hash_) for hash_ in (leaves[0], leaves[2], tree.roots[1])]
    assert shapes[1] == MmrProof(leaves[0], (), ())
    assert shapes[2] == MmrProof(leaves[1], (right[0],), ())
    assert shapes[3] == MmrProof(leaves[2], (), (tree.roots[1],))
    assert shapes[4] == MmrProof(leaves[3], (right[1], right[2]), ())
    assert shapes[5] == MmrProof(leaves[4], (), (tree.roots[3],))


def test_a_proof_is_as_short_as_its_tree_allows() -> None:
    for size in range(1, EXHAUSTIVE + 1):
        for seq in range(1, size + 1):
            found = TREE.prove(seq, size)
            assert len(found.path) + len(found.peaks_after) <= size.bit_length() + size.bit_count()
            assert len(found.peaks_after) == size.bit_count() - 1


# Damage. Each function yields all damaged versions of one proof.

Damage = Callable[[MmrProof], Iterator[MmrProof]]


def bit_in_the_leaf(sound: MmrProof) -> Iterator[MmrProof]:
    for bit in (0, 7, 128, 255):
        yield replace(sound, leaf_hash=flipped(sound.leaf_hash, bit))


def bit_in_a_sibling(sound: MmrProof) -> Iterator[MmrProof]:
    for at, step in enumerate(sound.path):
        for bit in (0, 128, 255):
            yield replace(
                sound, path=(*sound.path[:at], ProofStep(step.dir, flipped(step.sib, bit)), *sound.path[at + 1 :])
            )


def bit_in_a_peak(sound: MmrProof) -> Iterator[MmrProof]:
    for at, peak in enumerate(sound.peaks_after):
        for bit in (0, 128, 255):
            peaks = (*sound.peaks_after[:at], flipped(peak, bit), *sound.peaks_after[at + 1 :])
            yield replace(sound, peaks_after=peaks)


def turned_step(sound: MmrProof) -> Iterator[MmrProof]:
    for at, step in enumerate(sound.path):
        yield replace(sound, path=(*sound.path[:at], ProofStep(step.dir ^ 1, step.sib), *sound.path[at + 1 :]))


def all_steps_turned(sound: MmrProof) -> Iterator[MmrProof]:
    if sound.path:
        yield replace(sound, path=tuple(ProofStep(step.dir ^ 1, step.sib) for step in sound.path))


def swapped_siblings(sound: MmrProof) -> Iterator[MmrProof]:
    for at in range(len(sound.path) - 1):
        path = list(sound.path)
        path[at], path[at + 1] = path[at + 1], path[at]
        yield replace(sound, path=tuple(path))
        first, second = sound.path[at : at + 2]
        exchanged = (ProofStep(first.dir, second.sib), ProofStep(second.dir, first.sib))
        yield replace(sound, path=(*sound.path[:at], *exchanged, *sound.path[at + 2 :]))


def swapped_peaks(sound: MmrProof) -> Iterator[MmrProof]:
    for at in range(len(sound.peaks_after) - 1):
        peaks = list(sound.peaks_after)
        peaks[at], peaks[at + 1] = peaks[at + 1], peaks[at]
        yield replace(sound, peaks_after=tuple(peaks))


def reversed_peaks(sound: MmrProof) -> Iterator[MmrProof]:
    if len(sound.peaks_after) > 1:
        yield replace(sound, peaks_after=sound.peaks_after[::-1])


def repeated_peak(sound: MmrProof) -> Iterator[MmrProof]:
    for at, peak in enumerate(sound.peaks_after):
        yield replace(sound, peaks_after=(*sound.peaks_after[:at], peak, *sound.peaks_after[at:]))
        if len(sound.peaks_after) > 1:
            yield replace(sound, peaks_after=(peak,) * len(sound.peaks_after))


def missing_step(sound: MmrProof) -> Iterator[MmrProof]:
    for at in range(len(sound.path)):
        yield replace(sound, path=(*sound.path[:at], *sound.path[at + 1 :]))


def missing_peak(sound: MmrProof) -> Iterator[MmrProof]:
    for at in range(len(sound.peaks_after)):
        yield replace(sound, peaks_after=(*sound.peaks_after[:at], *sound.peaks_after[at + 1 :]))


def redundant_step(sound: MmrProof) -> Iterator[MmrProof]:
    for direction in (proof.LEFT, proof.RIGHT):
        yield replace(sound, path=(*sound.path, ProofStep(direction, bytes(32))))
        yield replace(sound, path=(ProofStep(direction, sound.leaf_hash), *sound.path))


def redundant_peak(sound: MmrProof) -> Iterator[MmrProof]:
    yield replace(sound, peaks_after=(*sound.peaks_after, bytes(32)))
    yield replace(sound, peaks_after=(bytes(32), *sound.peaks_after))


def peak_as_step(sound: MmrProof) -> Iterator[MmrProof]:
    if sound.peaks_after:
        for direction in (proof.LEFT, proof.RIGHT):
            path = (*sound.path, ProofStep(direction, sound.peaks_after[0]))
            yield MmrProof(sound.leaf_hash, path, sound.peaks_after[1:])


def inner_node_as_leaf(sound: MmrProof) -> Iterator[MmrProof]:
    """An inner node, presented as a leaf one step up."""
    if sound.path:
        step = sound.path[0]
        pair = sound.leaf_hash + step.sib if step.dir == proof.LEFT else step.sib + sound.leaf_hash
        yield replace(sound, leaf_hash=sha256(mmr.LOG.node + pair).digest(), path=sound.path[1:])


DAMAGES: list[Damage] = [
    bit_in_the_leaf,
    bit_in_a_sibling,
    bit_in_a_peak,
    turned_step,
    all_steps_turned,
    swapped_siblings,
    swapped_peaks,
    reversed_peaks,
    repeated_peak,
    missing_step,
    missing_peak,
    redundant_step,
    redundant_peak,
    peak_as_step,
    inner_node_as_leaf,
]
DAMAGED_SIZES = [1, 2, 3, 7, 8, 11, 21, 42, 63, 64, 100]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_proof_is_refused(damage: Damage) -> None:
    tried = 0
    for size in DAMAGED_SIZES:
        head = TREE.checkpoint(size)
        for seq in range(1, size + 1):
            for bad in damage(TREE.prove(seq, size)):
                tried += 1
                with pytest.raises(Unverified):
                    proof.verify_inclusion(bad, proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), head)
                # An attacker may also change the claimed leaf.
                if bad.leaf_hash != TREE.leaves[seq - 1]:
                    with pytest.raises(Unverified):
                        proof.verify_inclusion(bad, proof.Leaf(LABEL, bad.leaf_hash, seq), head)
    assert tried > 10


@pytest.mark.parametrize("size", DAMAGED_SIZES)
def test_a_proof_does_not_hold_at_another_place(size: int) -> None:
    head = TREE.checkpoint(size)
    for seq in range(1, size + 1):
        found = TREE.prove(seq, size)
        for other in {0, seq - 1, seq + 1, size, size + 1} - {seq}:
            with pytest.raises(Unverified):
                proof.verify_inclusion(found, proof.Leaf(LABEL, TREE.leaves[seq - 1], other), head)


@pytest.mark.parametrize("size", DAMAGED_SIZES)
def test_a_proof_does_not_hold_for_another_message(size: int) -> None:
    with pytest.raises(Unverified, match="differs from the message"):
        proof.verify_inclusion(TREE.prove(size, size), proof.Leaf(LABEL, leaf(-1), size), TREE.checkpoint(size))


@pytest.mark.parametrize("size", [size for size in DAMAGED_SIZES if size > 1])
def test_a_proof_does_not_hold_at_the_size_before_or_after(size: int) -> None:
    for seq in range(1, size):
        found = TREE.prove(seq, size)
        for other in (size - 1, size + 1):
            with pytest.raises(Unverified):
                proof.verify_inclusion(found, proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), TREE.checkpoint(other))


SAME_PEAK_COUNT = [(3, 5), (5, 6), (6, 9), (7, 11), (12, 20), (33, 34), (42, 56), (2, 4), (8, 16)]


@pytest.mark.parametrize(("size", "other"), SAME_PEAK_COUNT)
def test_a_proof_does_not_hold_at_another_size_with_as_many_peaks(size: int, other: int) -> None:
    """The number of peaks does not determine the size; only the signed object does."""
    assert size.bit_count() == other.bit_count()
    for seq in range(1, size + 1):
        found = TREE.prove(seq, size)
        with pytest.raises(Unverified):
            proof.verify_inclusion(found, proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), TREE.checkpoint(other))


@pytest.mark.parametrize(("size", "other"), SAME_PEAK_COUNT)
def test_a_true_root_under_a_false_size_of_as_many_peaks_is_refused(size: int, other: int) -> None:
    """If the leaf's tree or place differs between the sizes, even the right root does not verify."""
    lying = replace(TREE.checkpoint(size), upto_seq=other)
    for seq in range(1, size + 1):
        if proof._tree_of(seq - 1, size)[0] == proof._tree_of(seq - 1, other)[0]:
            continue
        with pytest.raises(Unverified):
            proof.verify_inclusion(TREE.prove(seq, size), proof.Leaf(LABEL, TREE.leaves[seq - 1], seq), lying)


def test_a_receipt_refuses_a_proof_of_an_earlier_leaf() -> None:
    with pytest.raises(Unverified):
        proof.verify_in_receipt(TREE.prove(3, 7), TREE.receipt(7))


@pytest.mark.parametrize("direction", [2, 3, 23, 24, 255])
def test_a_direction_other_than_left_or_right_does_not_decode(direction: int) -> None:
    sound = TREE.prove(2, 2).encode()
    turned = sound.replace(bytes.fromhex("a20101025820"), bytes.fromhex("a201") + uint(direction) + b"\x02\x58\x20")
    assert turned != sound
    with pytest.raises(Malformed):
        MmrProof.decode(turned)


def uint(number: int) -> bytes:
    return bytes([number]) if number < 24 else bytes([0x18, number])


def test_a_proof_with_too_long_a_path_does_not_decode() -> None:
    longest = MmrProof(bytes(32), (ProofStep(0, bytes(32)),) * 64, ())
    assert MmrProof.decode(longest.encode()) == longest
    step = ProofStep(0, bytes(32)).encode()
    too_long = longest.encode().replace(b"\x98\x40" + step, b"\x98\x41" + step + step)
    with pytest.raises(Malformed):
        MmrProof.decode(too_long)


def test_proving_a_missing_leaf_is_a_value_error() -> None:
    for seq, size in ((0, 5), (6, 5), (1, 0)):
        with pytest.raises(ValueError, match="no leaf"):
            TREE.prove(seq, size)


# Consistency.


@pytest.mark.parametrize("new", range(1, EXHAUSTIVE + 1))
def test_every_tree_is_consistent_with_every_later_one(new: int) -> None:
    for old in range(1, new + 1):
        found = TREE.prove(old, new)
        proof.verify_consistency(found, TREE.checkpoint(old), TREE.checkpoint(new))
        proof.verify_consistency(found, TREE.receipt(old), TREE.receipt(new))
        proof.verify_consistency(found, TREE.receipt(old), TREE.checkpoint(new))


@given(new=st.integers(2, 700), data=st.data())
def test_random_trees_are_consistent(new: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, new))
    proof.verify_consistency(TREE.prove(old, new), TREE.checkpoint(old), TREE.checkpoint(new))


@given(new=st.integers(1, 200), data=st.data())
def test_a_rewritten_history_has_no_consistency_proof(new: int, data: st.DataObject) -> None:
    """A hub that changed one old leaf can build proofs from both histories; none verifies."""
    old = data.draw(st.integers(1, new))
    changed = data.draw(st.integers(0, old - 1))
    forked = Tree()
    for number in range(new):
        forked.append(leaf(-1) if number == changed else leaf(number))
    for offered in (forked.prove(old, new), TREE.prove(old, new)):
        with pytest.raises(Unverified):
            proof.verify_consistency(offered, TREE.checkpoint(old), forked.checkpoint(new))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_consistency_proof_is_refused(damage: Damage) -> None:
    tried = 0
    for new in (5, 11, 42, 64):
        for old in range(1, new + 1):
            for bad in damage(TREE.prove(old, new)):
                tried += 1
                with pytest.raises(Unverified):
                    proof.verify_consistency(bad, TREE.checkpoint(old), TREE.checkpoint(new))
    assert tried > 10


@given(old=st.integers(1, 64), new=st.integers(1, 64), claimed=st.integers(1, 64))
def test_consistency_at_a_false_size_is_refused(old: int, new: int, claimed: int) -> None:
    assume(old <= new and claimed != old)
    lying = replace(TREE.checkpoint(old), upto_seq=claimed)
    with pytest.raises(Unverified):
        proof.verify_consistency(TREE.prove(old, new), lying, TREE.checkpoint(new))


def test_a_smaller_tree_is_not_consistent_with_a_larger_old_one() -> None:
    with pytest.raises(Unverified, match="older tree has 7"):
        proof.verify_consistency(TREE.prove(3, 5), TREE.checkpoint(7), TREE.checkpoint(5))


def test_trees_of_two_labels_are_never_consistent() -> None:
    foreign = replace(TREE.receipt(5), label=leaf(-2))
    with pytest.raises(Unverified, match="labels"):
        proof.verify_consistency(TREE.prove(3, 5), TREE.receipt(3), foreign)


def test_an_old_receipt_must_be_for_the_leaf_the_proof_starts_from() -> None:
    other = Receipt(LABEL, 3, leaf(-3), TREE.roots[2], 0, NO_SIG)
    with pytest.raises(Unverified, match="older receipt"):
        proof.verify_consistency(TREE.prove(3, 5), other, TREE.checkpoint(5))


def test_an_old_root_that_never_was_is_refused() -> None:
    invented = Checkpoint(LABEL, LABEL, 3, leaf(-4), 0, NO_SIG)
    with pytest.raises(Unverified, match="prefix"):
        proof.verify_consistency(TREE.prove(3, 5), invented, TREE.checkpoint(5))


def test_a_head_of_another_label_is_refused() -> None:
    foreign = replace(TREE.checkpoint(7), label_curr=leaf(-5))
    with pytest.raises(Unverified, match="another label"):
        proof.verify_inclusion(TREE.prove(3, 7), proof.Leaf(LABEL, TREE.leaves[2], 3), foreign)


def test_a_size_is_written_with_a_singular() -> None:
    assert [proof.entries_text(count) for count in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
