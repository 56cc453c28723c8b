"""Disks with one fault that the test switches on. Everything else is the real disk."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from threading import Event, current_thread

from plumbing.durable import Disk
from tests.hub.client import PATIENCE_S


class QuickDisk(Disk):
    """Never syncs: for tests that are not about power cuts."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass

    def sync_filesystem(self, folder: Path) -> None:
        pass


class JournalDisk(Disk):
    """Tracks which descriptors belong to the journal."""

    def __init__(self) -> None:
        self._journal: set[int] = set()

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        fd = super().open_append(path, mode)
        self._journal.discard(fd)
        return fd

    def open_update(self, path: Path, mode: int = 0o644) -> int:
        fd = super().open_update(path, mode)
        (self._journal.add if path.suffix == ".wal" else self._journal.discard)(fd)
        return fd

    def is_journal(self, fd: int) -> bool:
        return fd in self._journal


class GatedDisk(JournalDisk):
    """Blocks every journal sync while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()
        self.gate.set()
        self.waiting = Event()

    def sync(self, fd: int) -> None:
        if self.is_journal(fd):
            if not self.gate.is_set():
                self.waiting.set()
            self.gate.wait(PATIENCE_S)
        super().sync(fd)


class WatchedDisk(JournalDisk):
    """Records which threads synced the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str] = []

    def sync(self, fd: int) -> None:
        if self.is_journal(fd):
            self.by.append(current_thread().name)
        super().sync(fd)


class FullDisk(JournalDisk):
    """Has no space for the journal while `full`; half of each write is done."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        if self.full and self.is_journal(fd):
            os.pwrite(fd, data[: len(data) // 2], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(fd, data, at)


class GatedFullDisk(FullDisk):
    """Reports that it is full only when the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()
        self.waiting = Event()

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        if self.full and self.is_journal(fd):
            self.waiting.set()
            self.gate.wait(PATIENCE_S)
        super().write_at(fd, data, at)


class FailingDisk(JournalDisk):
    """Fails one sync of the journal on command; like Linux, it reports the failure only once."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_next = False

    def sync(self, fd: int) -> None:
        if self.fail_next and self.is_journal(fd):
            self.fail_next = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


class NoLogDisk(Disk):
    """Accepts only journal writes while `full`: the log cannot catch up."""

    def __init__(self) -> None:
        self.full = True

    def open_append(self, path: Path, mode: int = 0o644) -> int:
        if self.full and path.suffix != ".wal":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open_append(path, mode)

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = 0o644) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_file(path, data, mode)
