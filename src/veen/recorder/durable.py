"""The recorder's files: appended to, replaced whole, and locked by whoever writes them.

What is appended outlives the process that did it, also one that is killed. It outlives a power cut from `sync` on.
"""

import fcntl
import os
from pathlib import Path

from veen.client.durable import DISK, PRIVATE_FILE, PRIVATE_FOLDER, named

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


def make_folder(path: Path) -> None:
    """A folder that only its owner can look into, with those it is in."""
    with named(path):
        path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new, never a mixture; the new for certain when this returns."""
    DISK.write_file(path, data)
    DISK.sync_folder(path.parent)


class Appended:
    """A new file that one process appends to. While it does, nobody else can lock it: see `is_abandoned`."""

    def __init__(self, path: Path) -> None:
        with named(path):
            self._fd = os.open(path, _CREATE, PRIVATE_FILE)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.path = path
        self.size = 0

    def append(self, data: bytes) -> None:
        """One write, so that a reader sees all of it or, after a crash in the middle, a beginning at the end."""
        with named(self.path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        self.size += len(data)

    def sync(self) -> None:
        with named(self.path):
            os.fdatasync(self._fd)

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
