"""Disks that fail: at a given call, by losing unsynced data, by being full, or by failing to sync."""

import errno
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from lab.disk import Died, Fault, Platter, RemovalsSurvive, SimulatedDisk, Survival, at_call
from tests.storage.hubs import QuickDisk


class Last(Enum):
    """How much of the last call was done when the process died."""

    LOST = "lost"
    HALF = "half"
    DONE = "done"


class DyingDisk(QuickDisk):
    """Dies at call number `n` and at every later call."""

    def __init__(self, n: int | None = None, last: Last = Last.LOST) -> None:
        self._n = n
        self._last = last
        self.calls = 0

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        fd = -1

        def act() -> None:
            nonlocal fd
            fd = super(DyingDisk, self).open_append(path, mode)

        try:
            self._call(act)
        except Died:
            if fd >= 0:
                os.close(fd)
            raise
        return fd

    def write(self, fd: int, data: bytes) -> None:
        half = data[: len(data) // 2]
        self._call(lambda: super(DyingDisk, self).write(fd, data), lambda: super(DyingDisk, self).write(fd, half))

    def open_update(self, path: Path, mode: int = 0o644) -> int:
        fd = -1

        def act() -> None:
            nonlocal fd
            fd = super(DyingDisk, self).open_update(path, mode)

        try:
            self._call(act)
        except Died:
            if fd >= 0:
                os.close(fd)
            raise
        return fd

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        half = data[: len(data) // 2]
        self._call(
            lambda: super(DyingDisk, self).write_at(fd, data, at), lambda: super(DyingDisk, self).write_at(fd, half, at)
        )

    def truncate(self, fd: int, size: int) -> None:
        self._call(lambda: super(DyingDisk, self).truncate(fd, size))

    def sync(self, fd: int) -> None:
        self._call(lambda: super(DyingDisk, self).sync(fd))

    def sync_folder(self, folder: Path) -> None:
        self._call(lambda: super(DyingDisk, self).sync_folder(folder))

    def sync_filesystem(self, folder: Path) -> None:
        self._call(lambda: super(DyingDisk, self).sync_filesystem(folder))

    def replace(self, source: Path, target: Path) -> None:
        self._call(lambda: super(DyingDisk, self).replace(source, target))

    def unlink(self, path: Path) -> None:
        self._call(lambda: super(DyingDisk, self).unlink(path))

    def _call(self, act: Callable[[], None], half: Callable[[], None] | None = None) -> None:
        if self._last is Last.HALF and half is None and self.calls < (self._n or 0):
            act()  # only a write can be half done; other calls are not counted
            return
        self.calls += 1
        if self._n is None or self.calls < self._n:
            act()
            return
        if self.calls == self._n and self._last is Last.DONE:
            act()
        elif self.calls == self._n and self._last is Last.HALF and half:
            half()
        raise Died


class ForgetfulDisk(SimulatedDisk):
    """Dies at call number `n`. A power cut then leaves only synced data."""

    survival = Survival()

    def __init__(self, root: Path, n: int | None = None) -> None:
        super().__init__(Platter(root), at_call(n, Fault.DIE_BEFORE) if n else None)

    def lose_power(self) -> None:
        self.cut_power(self.survival)


class HastyDisk(ForgetfulDisk):
    """A power cut keeps unsynced removals and loses unsynced new names: the worst order."""

    survival = RemovalsSurvive()


class RefusingDisk(QuickDisk):
    """Fails the next calls of one kind, like a full or broken disk. A failed write leaves half of the data."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}  # kind of call -> errno

    def write(self, fd: int, data: bytes) -> None:
        if "write" in self.refused:
            super().write(fd, data[: len(data) // 2])
        self._check("write")
        super().write(fd, data)

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        if "write_at" in self.refused:
            super().write_at(fd, data[: len(data) // 2], at)
        self._check("write_at")
        super().write_at(fd, data, at)

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        self._check("open_append")
        return super().open_append(path, mode)

    def open_update(self, path: Path, mode: int = 0o644) -> int:
        self._check("open_update")
        return super().open_update(path, mode)

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate")
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._check("sync")
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._check("sync_folder")
        super().sync_folder(folder)

    def sync_filesystem(self, folder: Path) -> None:
        self._check("sync_filesystem")
        super().sync_filesystem(folder)

    def replace(self, source: Path, target: Path) -> None:
        self._check("replace")
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        super().unlink(path)

    def fail(self, kind: str, number: int = errno.ENOSPC) -> None:
        self.refused[kind] = number

    def heal(self) -> None:
        self.refused.clear()

    def _check(self, kind: str) -> None:
        if kind in self.refused:
            raise OSError(self.refused[kind], os.strerror(self.refused[kind]))


class FailingFrom(QuickDisk):
    """Fails all calls that need space, from call number `n` on until healed. A failed write may be half done."""

    def __init__(self, n: int | None, number: int = errno.ENOSPC) -> None:
        self.n = n
        self.number = number
        self.calls = 0

    def _check(self) -> None:
        self.calls += 1
        if self.n is not None and self.calls >= self.n:
            raise OSError(self.number, os.strerror(self.number))

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        self._check()
        return super().open_append(path, mode)

    def write(self, fd: int, data: bytes) -> None:
        if self.n is not None and self.calls + 1 >= self.n and self.number == errno.ENOSPC:
            super().write(fd, data[: len(data) // 2])
        self._check()
        super().write(fd, data)

    def open_update(self, path: Path, mode: int = 0o644) -> int:
        self._check()
        return super().open_update(path, mode)

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        if self.n is not None and self.calls + 1 >= self.n and self.number == errno.ENOSPC:
            super().write_at(fd, data[: len(data) // 2], at)
        self._check()
        super().write_at(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        if self.number == errno.EROFS:  # truncating works on a full disk
            self._check()
        super().truncate(fd, size)

    def sync_folder(self, folder: Path) -> None:
        self._check()
        super().sync_folder(folder)

    def replace(self, source: Path, target: Path) -> None:
        self._check()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        if self.number == errno.EROFS:
            self._check()
        super().unlink(path)

    def make_folder(self, path: Path, mode: int = 0o700) -> None:
        self._check()
        super().make_folder(path, mode)

    def heal(self) -> None:
        self.n = None
