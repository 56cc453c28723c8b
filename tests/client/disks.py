"""Disks that fail: the process dies at a given call, or the disk is full from a given call on."""

import errno
import os
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import TypeVar

from plumbing.durable import PRIVATE_FILE
from veen.client.local_files import Disk, named

T = TypeVar("T")


class Died(BaseException):
    """The process ends here. No code under test may catch it."""


class Last(Enum):
    """Whether the call in which the process died took effect."""

    LOST = "lost"
    DONE = "done"


class FailingDisk(Disk):
    """Counts every call and passes it to `_call`."""

    def __init__(self) -> None:
        self.calls = 0

    def make_folder(self, path: Path, *, parents: bool = False) -> None:
        self._call(path, lambda: super(FailingDisk, self).make_folder(path, parents=parents))

    def make_scaffold(self, beside: Path) -> Path:
        return self._call(beside, lambda: super(FailingDisk, self).make_scaffold(beside))

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        self._call(path, lambda: super(FailingDisk, self).write_file(path, data, mode))

    def sync_folder(self, folder: Path) -> None:
        self._call(folder, lambda: super(FailingDisk, self).sync_folder(folder))

    def replace(self, source: Path, target: Path) -> None:
        self._call(target, lambda: super(FailingDisk, self).replace(source, target))

    def remove_folder(self, path: Path) -> None:
        self._call(path, lambda: super(FailingDisk, self).remove_folder(path))

    def _call(self, path: Path, act: Callable[[], T]) -> T:
        self.calls += 1
        return act()


class DyingDisk(FailingDisk):
    """Dies at call number `n` and at every later call."""

    def __init__(self, n: int, last: Last) -> None:
        super().__init__()
        self._n = n
        self._last = last

    def _call(self, path: Path, act: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self._n and self._last is Last.DONE:
            act()
        if self.calls >= self._n:
            raise Died
        return act()


class FullDisk(FailingDisk):
    """Is full from call number `n` on; removing still works."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    def remove_folder(self, path: Path) -> None:
        Disk.remove_folder(self, path)

    def _call(self, path: Path, act: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls >= self._n:
            with named(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return act()
