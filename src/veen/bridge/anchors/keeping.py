"""Anchors on disk, beside their checkpoints: one file each, which holds both. 001, ANCHOR0.2."""

from collections.abc import Iterator
from pathlib import Path

from veen.bridge.anchors.statement import KIND, MAX_ANCHOR_BYTES, Anchored
from veen.client import durable
from veen.client.durable import DISK
from veen.core import Malformed
from veen.core.hashing import h

SUFFIX = ".anchor"


class AnchorStore:
    """A folder of anchored checkpoints, by label, number and backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, anchored: Anchored) -> Path:
        """Keep one. The same again is the same file."""
        data = anchored.encode()
        checkpoint = anchored.checkpoint
        place = f"{checkpoint.label_curr.hex()}-{checkpoint.upto_seq:020}"
        path = self.folder / f"{place}-{anchored.ref.kind}-{h(data).hex()[:16]}{SUFFIX}"
        DISK.make_folder(self.folder)
        DISK.write_file(path, data)
        DISK.sync_folder(self.folder)
        return path

    def __iter__(self) -> Iterator[tuple[Path, Anchored]]:
        """All of them, by label and number. Raises `Malformed` where one is none."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            yield path, read(path)

    def last(self, label: bytes, kind: str) -> Anchored | None:
        """The anchor of a label at that kind of backend that reaches furthest."""
        paths = sorted(self.folder.glob(f"{label.hex()}-*-{kind}-*{SUFFIX}"))
        return read(paths[-1]) if paths else None


def read(path: Path) -> Anchored:
    try:
        return Anchored.decode(durable.read_file(path, 2 * MAX_ANCHOR_BYTES))
    except Malformed as error:
        raise Malformed(f"{path} ({KIND})", error.reason) from None
