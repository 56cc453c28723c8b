"""The local tree: what it accepts, what it rejects, and that a rejection leaves it unchanged."""

import os
from dataclasses import replace

import pytest

from tests.client.hostile import START, HostileHub, Log
from veen.client.contradiction import Contradiction, Lie
from veen.client.tree_follower import LabelTree, forked, next_proof, peaks_from
from veen.core import Malformed, ProofStep, Receipt, Unverified, proof
from veen.core.proof import decode_head, label_of, size_of

LABEL = b"l" * 32


def a_log(count: int) -> tuple[HostileHub, Log]:
    hub = HostileHub()
    log = hub.log(LABEL)
    for _ in range(count):
        log.append(hub.key, hub.forged(LABEL), START)
    return hub, log


def grown(log: Log, size: int) -> LabelTree:
    tree = LabelTree(LABEL)
    for _, receipt in log.entries[:size]:
        tree.add(receipt)
    return tree


def receipt(log: Log, seq: int) -> Receipt:
    return log.entries[seq - 1][1]


def test_a_tree_that_follows_is_the_hubs_tree() -> None:
    _, log = a_log(40)
    for size in range(41):
        tree = grown(log, size)
        assert (tree.size, list(tree.peaks), tree.root()) == (size, log.cut(size).tree.peaks, log.cut(size).tree.root())
        assert tree.head == (receipt(log, size) if size else None)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_wrong_root_leaves_the_tree_as_it_was(size: int) -> None:
    hub, log = a_log(size + 1)
    tree = grown(log, size)
    before = (tree.size, tuple(tree.peaks), tree.head)
    with pytest.raises(Contradiction) as caught:
        tree.add(hub.signed(receipt(log, size + 1), mmr_root=os.urandom(32)))
    assert caught.value.lie is Lie.ROOT
    assert (tree.size, tuple(tree.peaks), tree.head) == before
    assert caught.value.peaks == tuple(tree.peaks)
    tree.add(receipt(log, size + 1))


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_only_the_next_entry_is_appended(seq: int) -> None:
    _, log = a_log(5)
    tree = grown(log, 3)
    with pytest.raises(ValueError, match="not the next"):
        tree.add(receipt(log, seq))


@pytest.mark.parametrize("start", [0, 1, 3, 6, 8])
def test_a_jump_lands_where_appending_would(start: int) -> None:
    _, log = a_log(20)
    for seq in range(start + 1, 21):
        tree = grown(log, start)
        growth = log.prove(start, seq) if start else None
        tree.jump(receipt(log, seq), log.prove(seq, seq), growth)
        same = grown(log, seq)
        assert (tree.size, tuple(tree.peaks), tree.head) == (same.size, tuple(same.peaks), same.head)


def test_a_jump_needs_proofs_that_hold() -> None:
    hub, log = a_log(12)
    tree = grown(log, 5)
    own, growth = log.prove(12, 12), log.prove(5, 12)
    with pytest.raises(Contradiction) as caught:
        tree.jump(receipt(log, 12), log.prove(11, 12), growth)
    assert caught.value.lie is Lie.SEQ_GAP
    with pytest.raises(Contradiction) as caught:
        tree.jump(receipt(log, 12), own, log.prove(6, 12))
    assert caught.value.lie is Lie.FORKED_HISTORY
    with pytest.raises(ValueError, match="needs a consistency proof"):
        tree.jump(receipt(log, 12), own, None)
    hub.fork(LABEL, 3)
    other = hub.log(LABEL)
    with pytest.raises(Contradiction) as caught:
        tree.jump(other.entries[11][1], other.prove(12, 12), other.prove(5, 12))
    assert caught.value.lie is Lie.FORKED_HISTORY
    assert tree.size == 5


def test_an_earlier_entry_is_checked_by_a_proof() -> None:
    hub, log = a_log(12)
    tree = grown(log, 9)
    tree.check_behind(receipt(log, 4), log.prove(4, 9))
    with pytest.raises(Contradiction):
        tree.check_behind(receipt(log, 4), log.prove(5, 9))
    with pytest.raises(Contradiction):
        tree.check_behind(hub.signed(receipt(log, 4), mmr_root=bytes(32)), log.prove(4, 9))
    with pytest.raises(ValueError, match="empty"):
        LabelTree(LABEL).check_behind(receipt(log, 4), log.prove(4, 9))


def test_two_roots_of_one_size_are_a_fork() -> None:
    hub, log = a_log(4)
    tree = grown(log, 4)
    tree.check_here(receipt(log, 4))
    tree.check_here(hub.checkpoint_of(log))
    for other in (hub.signed(receipt(log, 4), mmr_root=bytes(32)), hub.checkpoint_of(log, mmr_root=bytes(32))):
        with pytest.raises(Contradiction) as caught:
            tree.check_here(other)
        assert caught.value.lie is Lie.FORKED_HISTORY
        assert caught.value.statements == (receipt(log, 4), other)
    with pytest.raises(ValueError, match="not 4"):
        tree.check_here(receipt(log, 3))
    assert forked(None, receipt(log, 4)).statements == (receipt(log, 4),)


def test_the_proof_of_the_next_leaf_is_in_the_peaks() -> None:
    _, log = a_log(33)
    for seq in range(1, 34):
        made = next_proof(grown(log, seq - 1), receipt(log, seq).leaf_hash)
        assert made == log.prove(seq, seq)
        proof.verify_in_receipt(made, receipt(log, seq))
        assert peaks_from(made, receipt(log, seq)) == tuple(grown(log, seq).peaks)


def test_peaks_come_only_from_a_proof_that_holds() -> None:
    _, log = a_log(6)
    good = log.prove(6, 6)
    for bad in (
        replace(good, path=()),
        replace(good, path=(ProofStep(0, good.path[0].sib),)),
        replace(good, peaks_after=()),
        replace(good, leaf_hash=bytes(32)),
    ):
        with pytest.raises(Unverified):
            peaks_from(bad, receipt(log, 6))


def test_a_copy_goes_its_own_way() -> None:
    _, log = a_log(4)
    tree = grown(log, 3)
    other = tree.copy()
    other.add(receipt(log, 4))
    assert (tree.size, other.size) == (3, 4)


def test_a_head_is_kept_as_what_it_is() -> None:
    hub, log = a_log(3)
    for head in (receipt(log, 3), hub.checkpoint_of(log), hub.checkpoint_of(log).witnessed(hub.key)):
        assert decode_head(head.encode()) == head
        assert (label_of(head), size_of(head)) == (LABEL, 3)
    with pytest.raises(Malformed):
        decode_head(b"\x80")
