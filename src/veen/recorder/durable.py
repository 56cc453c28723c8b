"""Durable writes of the recorder: append, replace atomically, lock.

Appended data survives the process, even if it is killed. With `sync` it also survives a power cut.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from veen.client.durable import DISK, PRIVATE_FILE, PRIVATE_FOLDER, named

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_GROW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC


def make_folder(path: Path) -> None:
    """Create a private folder and its parents."""
    with named(path):
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    DISK.write_file(path, data)
    DISK.sync_folder(path.parent)


def append_line(path: Path, line: bytes, max_bytes: int) -> bool:
    """Append a line durably, completely or not at all. Returns False if the file has reached `max_bytes`."""
    with named(path):
        fd = os.open(path, _GROW, PRIVATE_FILE)
        try:
            size = os.fstat(fd).st_size
            if size >= max_bytes:
                return False
            _extend(fd, line, size)
        finally:
            os.close(fd)
    return True


def _extend(fd: int, data: bytes, size: int, *, sync: bool = False) -> None:
    """Append to a file of `size` bytes; on failure truncate it to that size."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fdatasync(fd)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise


class AppendFile:
    """A new file that one process appends to and keeps locked: see `is_abandoned`."""

    def __init__(self, path: Path) -> None:
        with named(path):
            self._fd = os.open(path, _CREATE, PRIVATE_FILE)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.path = path
        self.size = 0

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """Append with one write, so that a reader sees all of it or, after a crash, a truncated tail.

        On failure the file is truncated to its previous size. That may fail too, so the caller must close the file:
        later data could follow a partial write.
        """
        with named(self.path):
            _extend(self._fd, data, self.size, sync=sync)
        self.size += len(data)

    def close(self) -> None:
        os.close(self._fd)


def is_abandoned(path: Path) -> bool:
    """Whether the process that appended to a file is gone."""
    with named(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
