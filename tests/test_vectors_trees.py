"""Roots, peaks and proofs of the vector files verify, and invalid ones are rejected."""

from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from veen.core import Checkpoint, MmrProof, Receipt, Unverified, mmr, proof

LEAVES = [unhex(leaf) for leaf in load("mmr.json")["leaves"]]


def signed_head(size: int, root: str, leaf: bytes = bytes(32)) -> Receipt:
    return Receipt(bytes(32), size, leaf, unhex(root), 0, bytes(64))


def checkpoint_head(size: int, root: str) -> Checkpoint:
    return Checkpoint(bytes(32), bytes(32), size, unhex(root), 0, bytes(64))


def test_roots_and_peaks_match_at_every_size() -> None:
    tree = mmr.Mmr()
    for size, case in enumerate(entries("mmr.json", "trees"), 1):
        tree.append(LEAVES[size - 1])
        assert case["size"] == tree.size == size
        assert case["mmr_root"] == oracle.root(LEAVES[:size]).hex() == tree.root().hex()
        assert case["peaks"] == [peak.hex() for peak in oracle.peaks(LEAVES[:size])] == [p.hex() for p in tree.peaks]
    assert load("mmr.json")["empty_root"] == oracle.ht("veen/mmr-root").hex()


def test_every_inclusion_proof_verifies() -> None:
    for case in entries("mmr.json", "inclusion"):
        seq, size = case["stream_seq"], case["size"]
        expected = oracle.proof(LEAVES[:size], seq)
        assert unhex(case["cbor"]) == oracle.cbor(expected)
        assert case["path"] == [{"dir": step[1], "sib": step[2].hex()} for step in expected[3]]
        assert case["peaks_after"] == [peak.hex() for peak in expected[4]]
        assert case["mmr_root"] == oracle.root(LEAVES[:size]).hex()
        made = MmrProof.decode(unhex(case["cbor"]))
        head = signed_head(size, case["mmr_root"])
        proof.verify_inclusion(made, proof.Leaf(head.label, LEAVES[seq - 1], seq), head)


def test_every_consistency_proof_is_the_inclusion_proof_of_the_last_old_leaf() -> None:
    for case in entries("mmr.json", "consistency"):
        old, new = case["old_size"], case["new_size"]
        assert unhex(case["cbor"]) == oracle.cbor(oracle.proof(LEAVES[:new], old))
        roots = [oracle.root(LEAVES[:size]).hex() for size in (old, new)]
        assert [case["old_root"], case["new_root"]] == roots
        heads = checkpoint_head(old, roots[0]), checkpoint_head(new, roots[1])
        proof.verify_consistency(MmrProof.decode(unhex(case["cbor"])), *heads)


@pytest.mark.parametrize("case", entries("mmr.json", "refused_inclusion"), ids=lambda case: case["name"])
def test_a_damaged_or_misread_proof_is_rejected(case: dict[str, Any]) -> None:
    made, at = MmrProof.decode(unhex(case["cbor"])), signed_head(case["size"], case["mmr_root"])
    leaf = proof.Leaf(at.label, unhex(case["leaf_hash"]), case["stream_seq"])
    with pytest.raises(Unverified):
        proof.verify_inclusion(made, leaf, at)


@pytest.mark.parametrize("case", entries("mmr.json", "refused_consistency"), ids=lambda case: case["name"])
def test_a_tree_that_did_not_only_grow_is_rejected(case: dict[str, Any]) -> None:
    made = MmrProof.decode(unhex(case["cbor"]))
    heads = checkpoint_head(case["old_size"], case["old_root"]), checkpoint_head(case["new_size"], case["new_root"])
    with pytest.raises(Unverified):
        proof.verify_consistency(made, *heads)
