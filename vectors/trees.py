"""mmr.json: roots, peaks and proofs of trees over plain leaves."""

from collections.abc import Iterable
from dataclasses import replace

from vectors.form import Doc
from veen.core import Mmr, MmrProof, ProofStep, mmr, proof

MOST = 64
INCLUSION_SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 16, 21)
SMALL_PAIRS = tuple((old, new) for new in range(1, 10) for old in range(1, new + 1))
LARGE_PAIRS = ((1, 64), (32, 64), (33, 64), (37, 64), (63, 64), (31, 63), (32, 63), (62, 63), (42, 43))


def leaf(number: int) -> bytes:
    """Leaf `number`, counted from 1: 32 bytes of that value."""
    return bytes((number,)) * 32


def _nodes(leaves: Iterable[bytes]) -> list[bytes]:
    tree, nodes = Mmr(), []
    for one in leaves:
        nodes += tree.append(one)
    return nodes


NODES = _nodes(leaf(number) for number in range(1, MOST + 1))


def _prove(stream_seq: int, size: int) -> MmrProof:
    return proof.prove(_node, stream_seq, size)


def _root(size: int) -> bytes:
    return mmr.root_of(mmr.peaks_at(_node, size))


def trees() -> Doc:
    return {
        "about": "Merkle mountain ranges over plain leaves: leaf i is 32 bytes of value i, from 1.",
        "leaves": [leaf(number) for number in range(1, MOST + 1)],
        "empty_root": mmr.root(()),
        "trees": [
            {"size": size, "mmr_root": _root(size), "peaks": mmr.peaks_at(_node, size)} for size in range(1, MOST + 1)
        ],
        "inclusion": [_inclusion(seq, size) for size in INCLUSION_SIZES for seq in range(1, size + 1)],
        "consistency": [_consistency(old, new) for old, new in (*SMALL_PAIRS, *LARGE_PAIRS)],
        "refused_inclusion": _refused_inclusion(),
        "refused_consistency": _refused_consistency(),
    }


def _inclusion(stream_seq: int, size: int) -> Doc:
    made = _prove(stream_seq, size)
    return {
        "stream_seq": stream_seq,
        "size": size,
        "mmr_root": _root(size),
        "path": [{"dir": step.dir, "sib": step.sib} for step in made.path],
        "peaks_after": made.peaks_after,
        "cbor": made.encode(),
    }


def _consistency(old: int, new: int) -> Doc:
    return {
        "old_size": old,
        "new_size": new,
        "old_root": _root(old),
        "new_root": _root(new),
        "cbor": _prove(old, new).encode(),
    }


def _refused_inclusion() -> list[Doc]:
    """Leaf 5 of 11: a path of three steps to the largest of three peaks."""
    good = _prove(5, 11)
    first, second, third = good.path
    low, high = good.peaks_after
    damaged = [
        ("a sibling altered", replace(good, path=(replace(first, sib=leaf(99)), second, third))),
        ("a step that turns the other way", replace(good, path=(replace(first, dir=1), second, third))),
        ("two steps swapped", replace(good, path=(second, first, third))),
        ("the last step missing", replace(good, path=(first, second))),
        ("one step too many", replace(good, path=(*good.path, ProofStep(0, low)))),
        ("a peak missing", replace(good, peaks_after=(low,))),
        ("the peaks by decreasing height", replace(good, peaks_after=(high, low))),
        ("a peak altered", replace(good, peaks_after=(low, leaf(99)))),
        ("the leaf's own peak listed too", replace(good, peaks_after=(low, high, mmr.peaks_at(_node, 11)[2]))),
        ("a peak twice", replace(good, peaks_after=(low, low))),
        ("another leaf", replace(good, leaf_hash=leaf(6))),
        ("the proof of the leaf beside it", _prove(6, 11)),
        ("the proof in a larger tree", _prove(5, 13)),
        ("the proof in a smaller tree", _prove(5, 8)),
    ]
    cases: list[Doc] = [{"name": name, "size": 11, "stream_seq": 5, "cbor": bad.encode()} for name, bad in damaged]
    misread = [
        ("stream_seq 0", 0, 11),
        ("stream_seq one less", 4, 11),
        ("stream_seq one more", 6, 11),
        ("stream_seq beyond the tree", 12, 11),
        ("a size of one less", 5, 10),
        ("a size of one more", 5, 12),
    ]
    cases += [{"name": name, "size": size, "stream_seq": seq, "cbor": good.encode()} for name, seq, size in misread]
    # The root is always the signed root of the tree of 11; the leaf is always the fifth.
    return [{**case, "leaf_hash": leaf(5), "mmr_root": _root(11)} for case in cases]


def _refused_consistency() -> list[Doc]:
    forked = _nodes([leaf(1), leaf(2), leaf(99), *(leaf(number) for number in range(4, 12))])
    fork_root = mmr.root_of(mmr.peaks_at(forked.__getitem__, 11))
    fork_proof = proof.prove(forked.__getitem__, 6, 11)
    sixth, fifth = _prove(6, 11), _prove(5, 11)
    cases = [
        ("the newer tree has another third leaf", 6, 11, _root(6), fork_root, fork_proof),
        ("the older tree has another third leaf", 6, 11, fork_root, _root(11), sixth),
        ("the proof of another leaf than the last old one", 6, 11, _root(6), _root(11), fifth),
        ("old_size one less", 5, 11, _root(6), _root(11), sixth),
        ("the older root of another size", 6, 11, _root(5), _root(11), sixth),
        ("the tree shrinks", 11, 6, _root(11), _root(6), sixth),
        ("same size, another root", 6, 6, fork_root, _root(6), _prove(6, 6)),
    ]
    return [
        {"name": name, "old_size": old, "new_size": new, "old_root": was, "new_root": now, "cbor": made.encode()}
        for name, old, new, was, now, made in cases
    ]


def _node(position: int) -> bytes:
    return NODES[position]
