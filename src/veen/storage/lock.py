"""Locks of a data directory: one hub, or any number of readers.

Two things are locked: the directory itself, which cannot be replaced under its name without being noticed, and the file
`lock` in it, which other programs see and which works on file systems that cannot lock folders. A lock ends with its
process, so none is ever stale, and removing the file releases nothing.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbing.durable import PRIVATE_FILE
from veen.core import Malformed, Unavailable
from veen.storage import safe_open

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Lock:
    """Holds a data directory until closed."""

    __slots__ = ("_fds", "_root")

    def __init__(self, root: Path, *fds: int) -> None:
        """The first descriptor is that of the directory."""
        self._root = root
        self._fds = fds

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raise `Malformed` if the path now leads to another directory: writing would mix the two.

        Raises `Unavailable` if there is none: it may come back.
        """
        held = os.fstat(self._fds[0])
        try:
            there = os.stat(self._root)
        except OSError as error:
            raise Unavailable(f"the data directory {self._root} is gone: {error.strerror}") from None
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            what = f"{self._root} was replaced while this process had it locked"
            raise Malformed("data directory", f"{what}; stop all programs that use it before replacing it")

    def close(self) -> None:
        """Release the lock. May be called twice."""
        fds, self._fds = self._fds, ()
        for fd in reversed(fds):
            os.close(fd)


def lock_directory(path: Path) -> Lock:
    """Lock the data directory of a lock file exclusively."""
    used = "a hub is already running on this data directory"
    return _lock(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, "locked", used)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    with lock_directory(path):
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold a shared lock, so that no hub runs meanwhile. Works on read-only file systems."""
    busy = "a hub is running on this data directory: stop it, or use a snapshot of it"
    with _lock(path, os.O_RDONLY, fcntl.LOCK_SH, "read", busy):
        yield


def is_held(path: Path) -> bool:
    """Whether a hub or another program holds the directory exclusively."""
    try:
        with shared(path):
            return False
    except Malformed:
        return False  # no hub can run on it
    except Unavailable as error:
        return isinstance(error.__cause__, BlockingIOError)


def _lock(path: Path, flags: int, how: int, what: str, busy: str) -> Lock:
    """Take both locks. `busy` is the error message if another process holds one."""
    fds: list[int] = []
    try:
        fds.append(os.open(path.parent, _FOLDER))
        _lock_folder(fds[0], how)
        fd = _open(path, fds[0], flags)
        if fd is not None:
            fds.append(fd)
            safe_open.check(path.name, os.fstat(fd).st_mode, stat.S_IFREG)
            fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BaseException as error:
        for fd in reversed(fds):
            os.close(fd)
        if isinstance(error, BlockingIOError):
            raise Unavailable(busy) from error
        if isinstance(error, OSError):
            raise Unavailable(f"the data directory cannot be {what}: {error.strerror}") from None
        raise
    return Lock(path.parent, *fds)


def _lock_folder(fd: int, how: int) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # some network file systems cannot lock folders


def _open(path: Path, folder: int, flags: int) -> int | None:
    """Open the lock file; None if it is missing and not to be created. The locked directory prevents a race."""
    try:
        return os.open(path.name, flags | safe_open.SAFE_FLAGS, PRIVATE_FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise safe_open.as_malformed(path.name, error) or error from None
