"""The recorder's files: appended to, replaced whole, and locked by whoever writes them.

What is appended outlives the process that did it, also one that is killed. It outlives a power cut from `sync` on.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from veen.client.durable import DISK, PRIVATE_FILE, PRIVATE_FOLDER, named

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_GROW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC


def make_folder(path: Path) -> None:
    """A folder that only its owner can look into, with those it is in."""
    with named(path):
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new, never a mixture; the new for certain when this returns."""
    DISK.write_file(path, data)
    DISK.sync_folder(path.parent)


def append_line(path: Path, line: bytes, max_bytes: int) -> bool:
    """On disk when this returns, whole or not at all; False where the file has as many bytes as it may already."""
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
    """Append to a file of so many bytes, or cut it back to them."""
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


class Appended:
    """A new file that one process appends to. While it does, nobody else can lock it: see `is_abandoned`."""

    def __init__(self, path: Path) -> None:
        with named(path):
            self._fd = os.open(path, _CREATE, PRIVATE_FILE)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.path = path
        self.size = 0

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """One write, so that a reader sees all of it or, after a crash in the middle, a beginning at the end.

        Where it fails, the file is cut back to what it was. Whether that worked cannot be known: what is appended to it
        afterwards might stand behind half of this, so it is to be closed.
        """
        with named(self.path):
            _extend(self._fd, data, self.size, sync=sync)
        self.size += len(data)

    def close(self) -> None:
        os.close(self._fd)


def is_abandoned(path: Path) -> bool:
    """Whether whoever appended to a file is gone."""
    with named(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
