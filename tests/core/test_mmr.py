"""The tree grows as spec §5.1 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.trees import Tree, leaf, slow_peaks, slow_root
from veen.core import Mmr, mmr

EXHAUSTIVE = 64


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(4 * EXHAUSTIVE + 1)


def test_roots_of_known_trees() -> None:
    three = [bytes([byte]) * 32 for byte in (0x11, 0x22, 0x33)]
    assert mmr.root(three[:1]) == three[0]
    assert mmr.root(three[:2]).hex() == "139bd55e8a333c11b9bc6d84b339c81fba08e30f4cf5ad6d9c9838cc40583a4f"
    assert mmr.root(three).hex() == "0d7f9fccb684b29acfe6d51aa0f445eef662a75f2d8225337bdaadd9550149a5"


@pytest.mark.parametrize("size", range(1, EXHAUSTIVE + 1))
def test_peaks_and_root_are_those_of_the_definition(tree: Tree, size: int) -> None:
    leaves = tree.leaves[:size]
    assert mmr.peaks_at(tree.nodes.__getitem__, size) == slow_peaks(leaves)
    assert mmr.root(leaves) == slow_root(leaves) == tree.roots[size - 1]


@given(size=st.integers(1, 3000))
def test_a_random_size_has_the_definitions_root(size: int) -> None:
    leaves = [leaf(number) for number in range(size)]
    assert mmr.root(leaves) == slow_root(leaves)


def test_every_prefix_has_its_own_root(tree: Tree) -> None:
    assert len(set(tree.roots)) == len(tree.roots)


def test_the_tip_alone_is_enough_to_go_on(tree: Tree) -> None:
    for size in range(EXHAUSTIVE):
        resumed = Mmr(size, mmr.peaks_at(tree.nodes.__getitem__, size))
        for number in range(size, EXHAUSTIVE):
            resumed.append(tree.leaves[number])
        assert resumed.root() == tree.roots[EXHAUSTIVE - 1]


def test_nodes_come_at_consecutive_positions() -> None:
    growing = Mmr()
    for index in range(EXHAUSTIVE):
        before = mmr.node_count(index)
        made = growing.append(leaf(index))
        assert mmr.leaf_position(index) == before
        assert mmr.node_count(index + 1) == before + len(made)


def test_a_trees_top_is_the_last_node_made_for_its_last_leaf() -> None:
    for height in range(6):
        for first in range(0, EXHAUSTIVE, 1 << height):
            last = first + (1 << height) - 1
            assert mmr.top_position(first, height) == mmr.leaf_position(last) + height


def test_a_copy_grows_alone() -> None:
    original = Mmr()
    original.append(leaf(0))
    copy = original.copy()
    copy.append(leaf(1))
    assert (original.size, copy.size) == (1, 2)
    assert original.root() == leaf(0)


def test_a_large_tree_has_one_peak_per_set_bit() -> None:
    size = (1 << 40) + 5
    assert [height for height, _ in mmr.trees(size)] == [0, 2, 40]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_peaks_is_a_value_error(count: int) -> None:
    with pytest.raises(ValueError, match="peaks"):
        Mmr(3, [leaf(number) for number in range(count)])


def test_a_short_peak_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="peaks"):
        Mmr(1, [bytes(31)])


def test_attachments_hash_in_their_own_domain() -> None:
    leaves = [leaf(number) for number in range(3)]
    assert mmr.root(leaves, mmr.ATTACHMENTS) != mmr.root(leaves)
    assert mmr.root(leaves[:1], mmr.ATTACHMENTS) == leaves[0]
