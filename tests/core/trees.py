"""Trees built by the definition of spec §5.1, slowly, and a store of nodes for proofs."""

from hashlib import sha256

from veen.core import Checkpoint, Mmr, MmrProof, Receipt, proof

LABEL = bytes(32)
NO_SIG = bytes(64)


def leaf(number: int) -> bytes:
    return sha256(b"leaf %d" % number).digest()


def slow_peaks(leaves: list[bytes]) -> list[bytes]:
    """Cut the leaves into perfect trees from the left, hash each, and list the tops by increasing height."""
    tops: list[bytes] = []
    rest = leaves
    while rest:
        width = 1 << (len(rest).bit_length() - 1)
        level, rest = rest[:width], rest[width:]
        while len(level) > 1:
            level = [
                sha256(b"veen/mmr-node\0" + left + right).digest()
                for left, right in zip(level[::2], level[1::2], strict=True)
            ]
        tops.insert(0, level[0])
    return tops


def slow_root(leaves: list[bytes]) -> bytes:
    peaks = slow_peaks(leaves)
    return peaks[0] if len(peaks) == 1 else sha256(b"veen/mmr-root\0" + b"".join(peaks)).digest()


class Tree:
    """A tree with every node and every root, as a hub stores it."""

    def __init__(self, size: int = 0) -> None:
        self.mmr = Mmr()
        self.nodes: list[bytes] = []
        self.leaves: list[bytes] = []
        self.roots: list[bytes] = []
        for number in range(size):
            self.append(leaf(number))

    def append(self, hash_: bytes) -> None:
        self.nodes += self.mmr.append(hash_)
        self.leaves.append(hash_)
        self.roots.append(self.mmr.root())

    def prove(self, stream_seq: int, size: int) -> MmrProof:
        return proof.prove(self.nodes.__getitem__, stream_seq, size)

    def receipt(self, stream_seq: int) -> Receipt:
        return Receipt(LABEL, stream_seq, self.leaves[stream_seq - 1], self.roots[stream_seq - 1], 0, NO_SIG)

    def checkpoint(self, size: int) -> Checkpoint:
        return Checkpoint(LABEL, LABEL, size, self.roots[size - 1], 0, NO_SIG)
