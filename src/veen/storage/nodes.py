"""The nodes of a label's tree in a flat file, 32 bytes each by position, so that any proof is O(log n) reads."""

import os
from pathlib import Path

from veen.core import Malformed
from veen.core.hashing import HASH_BYTES


class NodeFile:
    """One label's nodes, for reading. Nodes that the log has not caught up with yet are the caller's."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> "NodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, position: int) -> bytes:
        node = os.pread(self._fd, HASH_BYTES, position * HASH_BYTES)
        if len(node) != HASH_BYTES:
            raise Malformed("nodes", f"{self._path.name} ends before node {position}")
        return node
