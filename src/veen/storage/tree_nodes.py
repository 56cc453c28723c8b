"""The nodes of a label's tree in a flat file, 32 bytes each by position, so that any proof is O(log n) reads."""

import os
from pathlib import Path

from veen.core import Malformed, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import safe_open
from veen.storage.label_head import LabelHead


class NodeFile:
    """One label's nodes, for reading. Nodes that the log has not caught up with yet are the caller's."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = safe_open.open_file(path)

    def __enter__(self) -> "NodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, position: int) -> bytes:
        node = os.pread(self._fd, HASH_BYTES, position * HASH_BYTES)
        if len(node) != HASH_BYTES:
            raise Malformed("nodes", f"{self._path.name} ends before node {position}")
        return node


def check_peaks(path: Path, head: LabelHead) -> None:
    """Raise `Malformed` where a label's nodes do not lead to its head: O(log n) reads."""
    try:
        with NodeFile(path) as nodes:
            found = mmr.peaks_at(nodes.read, head.size)
    except FileNotFoundError:
        raise Malformed("index", f"{path.name} is missing") from None
    except OSError:
        return  # it cannot be looked at now, which says nothing of it
    except Malformed as error:
        raise Malformed("index", error.reason) from None
    if found != head.peaks:
        raise Malformed("index", f"{path.name} does not have the peaks of its label's head")
