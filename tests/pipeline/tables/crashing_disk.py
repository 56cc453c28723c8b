"""Crash a writer of tables at each disk call in turn, to test what it leaves."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from veen.client.local_files import Disk
from veen.pipeline.tables import Tables

MOST_CALLS = 40


class DyingDisk(Disk):
    """Raises an error at its nth call."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _count(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1

    def write_file(self, path: Path, *given: Any) -> None:
        self._count()
        super().write_file(path, *given)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._count()
        super().sync_folder(folder)


def deaths(root: Path, place: Path, act: Callable[[Tables], object]) -> Iterator[Path]:
    """Copies of tables in which `act` crashed at its first disk call, its second, and so on until it completes."""
    for calls in range(MOST_CALLS):
        copied = place / f"copy {calls}"
        shutil.copytree(root, copied)
        try:
            act(Tables(copied, DyingDisk(calls)))
            return
        except KeyboardInterrupt:
            yield copied
