"""Merkle Mountain Range: the append-only tree of one label. Spec §5.1.

Leaves are in stream order. A tree of `size` leaves consists of perfect trees, one per set bit of `size`, with the
largest leftmost. `peaks` lists their tops by increasing height, so the rightmost comes first.

Nodes are numbered in the order of their creation. So a flat file of 32-byte records stores a tree, and a proof needs
only a few reads:

    height 2        6
    height 1    2       5       9
    height 0  0   1   3   4   7   8   10
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from veen.core.hashing import HASH_BYTES, tag_prefix

NodeReader = Callable[[int], bytes]


class Tags:
    """The domain tags of a tree for nodes and roots."""

    __slots__ = ("node", "root")

    def __init__(self, node: str, root: str) -> None:
        self.node = tag_prefix(node)
        self.root = tag_prefix(root)


LOG = Tags("veen/mmr-node", "veen/mmr-root")
ATTACHMENTS = Tags("veen/att-node", "veen/att-root")


def root_of(peaks: tuple[bytes, ...] | list[bytes], tags: Tags = LOG) -> bytes:
    """The peak if there is one, else the hash of all peaks by increasing height."""
    return peaks[0] if len(peaks) == 1 else sha256(tags.root + b"".join(peaks)).digest()


class Mmr:
    """The size and the peaks of a tree, which suffice to append to it."""

    __slots__ = ("_tags", "peaks", "size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = (), tags: Tags = LOG) -> None:
        self.size = size
        self.peaks = list(peaks)
        self._tags = tags
        if len(self.peaks) != size.bit_count() or set(map(len, self.peaks)) - {HASH_BYTES}:
            raise ValueError(f"a tree of {size} leaves cannot have these {len(self.peaks)} peaks")

    def append(self, leaf: bytes) -> list[bytes]:
        """Add a leaf. Returns the new nodes in order of position: the leaf, then each parent above it."""
        made = [leaf]
        node = leaf
        joins = (self.size ^ (self.size + 1)).bit_length() - 1
        for peak in self.peaks[:joins]:
            node = sha256(self._tags.node + peak + node).digest()
            made.append(node)
        self.peaks[:joins] = [node]
        self.size += 1
        return made

    def root(self) -> bytes:
        return root_of(self.peaks, self._tags)

    def copy(self) -> "Mmr":
        """A copy that grows on its own. Its peaks were checked already."""
        made = Mmr.__new__(Mmr)
        made.size, made.peaks, made._tags = self.size, self.peaks.copy(), self._tags
        return made


def node_count(size: int) -> int:
    """The number of nodes of a tree with `size` leaves."""
    return 2 * size - size.bit_count()


def leaf_position(index: int) -> int:
    """The position of the leaf with this 0-based index. All nodes of the tree before it precede it."""
    return node_count(index)


def trees(size: int) -> Iterator[tuple[int, int]]:
    """`(height, first leaf index)` of each perfect tree, by increasing height."""
    first = size
    while size:
        height = (size & -size).bit_length() - 1
        size &= size - 1
        first -= 1 << height
        yield height, first


def top_position(first: int, height: int) -> int:
    """The position of the top of the perfect tree with that height and leftmost leaf index `first`."""
    return node_count(first) + (2 << height) - 2


def peaks_at(node: NodeReader, size: int) -> list[bytes]:
    """The peaks that the tree had with `size` leaves, read from its nodes."""
    return [node(top_position(first, height)) for height, first in trees(size)]


def root(leaves: Iterable[bytes], tags: Tags = LOG) -> bytes:
    """The root over a sequence of leaves. Without leaves, the hash of no peaks."""
    tree = Mmr(tags=tags)
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()
