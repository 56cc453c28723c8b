"""The tree nodes of a label in a flat file, 32 bytes each by position, so that any proof is O(log n) reads."""

import os
from pathlib import Path

from veen.core import Malformed, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import safe_open
from veen.storage.label_head import LabelHead


class NodeFile:
    """The node file of one label, for reading. Nodes that are not in the log yet are not in it."""

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
    """Raise `Malformed` if a label's nodes do not match the peaks of its head. O(log n) reads."""
    try:
        with NodeFile(path) as nodes:
            found = mmr.peaks_at(nodes.read, head.size)
    except FileNotFoundError:
        raise Malformed("index", f"{path.name} is missing") from None
    except OSError:
        return  # unreadable now, which does not mean that it is wrong
    except Malformed as error:
        raise Malformed("index", error.reason) from None
    if found != head.peaks:
        raise Malformed("index", f"{path.name} does not match the peaks of the label's head")
