"""Verifying a proof in a tree of a million leaves, in units of one node hash."""

import os
from hashlib import sha256

from bench.call_times import microseconds, per_call
from veen.bench.bench_report import BenchReport, BenchRow
from veen.core import Checkpoint, Mmr, MmrProof, Receipt, mmr, proof

SIZE = 1 << 20
SEQ = 500_001


def grown_tree() -> tuple[list[bytes], dict[int, bytes]]:
    """Every node of a tree of 2^20 + 1 leaves, and the roots at the sizes measured."""
    tree, nodes, roots = Mmr(), [], {}
    for number in range(SIZE + 1):
        nodes += tree.append(sha256(b"%d" % number).digest())
        if tree.size >= SIZE - 1:
            roots[tree.size] = tree.root()
    return nodes, roots


def measure() -> BenchReport:
    nodes, roots = grown_tree()
    left, right, label = os.urandom(32), os.urandom(32), bytes(32)
    leaf = nodes[mmr.leaf_position(SEQ - 1)]
    heads = {size: Checkpoint(label, label, size, root, 0, bytes(64)) for size, root in roots.items()}
    proofs = {size: proof.prove(nodes.__getitem__, SEQ, size) for size in roots}
    last = Receipt(label, SIZE, nodes[mmr.leaf_position(SIZE - 1)], roots[SIZE], 0, bytes(64))
    own = proof.prove(nodes.__getitem__, SIZE, SIZE)
    encoded = proofs[SIZE].encode()
    times = per_call(
        {
            "one node hash": lambda: sha256(mmr.LOG.node + left + right).digest(),
            "verify at 2^20": lambda: proof.verify_inclusion(proofs[SIZE], proof.Leaf(label, leaf, SEQ), heads[SIZE]),
            "verify at 2^20, the last leaf": lambda: proof.verify_in_receipt(own, last),
            "verify at 2^20 - 1 (20 peaks)": lambda: proof.verify_inclusion(
                proofs[SIZE - 1], proof.Leaf(label, leaf, SEQ), heads[SIZE - 1]
            ),
            "verify at 2^20 + 1": lambda: proof.verify_inclusion(
                proofs[SIZE + 1], proof.Leaf(label, leaf, SEQ), heads[SIZE + 1]
            ),
            "make at 2^20": lambda: proof.prove(nodes.__getitem__, SEQ, SIZE),
            "decode": lambda: MmrProof.decode(encoded),
        }
    )
    hash_ = times["one node hash"]
    shown = [name for name in times if name.startswith("verify")]
    rows = [BenchRow.of(name, [times[name] / hash_], "node hashes", most=40) for name in shown]
    return BenchReport("prove", (*microseconds(times), *rows))
