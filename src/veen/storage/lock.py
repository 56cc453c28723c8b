"""Who may use a data directory: one hub, or any number of those who only read.

Two things are locked: the directory itself, which nobody can remove and make again by its name while it is held, and
the file `lock` in it, which shows others that there is something to ask for, and counts where a file system locks no
folders. Locks end with the process that has them, so none is ever stale, and removing the file frees nothing.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veen.core import Malformed, Unavailable
from veen.storage import safe_open
from veen.storage.durable import PRIVATE_FILE

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Lock:
    """A data directory that is held until this is closed."""

    __slots__ = ("_fds", "_root")

    def __init__(self, root: Path, *fds: int) -> None:
        """The first of the descriptors is the directory's."""
        self._root = root
        self._fds = fds

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raise `Malformed` where the directory's path has come to mean another one: writing there would mix the two.

        `Unavailable` where there is none: it may come back.
        """
        held = os.fstat(self._fds[0])
        try:
            there = os.stat(self._root)
        except OSError as error:
            raise Unavailable(f"the data directory is not at {self._root} any more: {error.strerror}") from None
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            what = f"another one stands at {self._root} than the one this process holds"
            raise Malformed("data directory", f"{what}; end everything that uses it before it is replaced")

    def close(self) -> None:
        """Let go of it. Once is enough."""
        fds, self._fds = self._fds, ()
        for fd in reversed(fds):
            os.close(fd)


def locked(path: Path) -> Lock:
    """The data directory of a lock file, held for one alone."""
    return _held(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, "locked", "another hub is running on this data directory")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold it for a while."""
    with locked(path):
        yield


@contextmanager
def undisturbed(path: Path) -> Iterator[None]:
    """While no hub runs on the directory. Works where nothing can be written."""
    busy = "a hub is running on this data directory: stop it, or use a snapshot of it"
    with _held(path, os.O_RDONLY, fcntl.LOCK_SH, "read", busy):
        yield


def is_held(path: Path) -> bool:
    """Whether a hub, or anyone else, holds the directory for himself."""
    try:
        with undisturbed(path):
            return False
    except Malformed:
        return False  # no hub starts on it
    except Unavailable as error:
        return isinstance(error.__cause__, BlockingIOError)


def _held(path: Path, flags: int, how: int, what: str, busy: str) -> Lock:
    """`busy` is what is said where someone else has it."""
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
        return  # a file system that locks files only, as some that reach over a network


def _open(path: Path, folder: int, flags: int) -> int | None:
    """None where there is none, and none is to be made: the directory is locked, so nobody makes one now."""
    try:
        return os.open(path.name, flags | safe_open.SAFELY, PRIVATE_FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise safe_open.as_malformed(path.name, error) or error from None
