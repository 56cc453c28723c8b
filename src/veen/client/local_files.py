"""Files, folders and locks of a client. Errors are `Unavailable` and name the file.

`plumbing.durable` says what each write leaves after a power cut. LMDB syncs its own commits. Tests use a disk that
fails at every call in turn.
"""

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbing import durable
from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER
from veen.core import Malformed, Unavailable

SCAFFOLD_INFIX = ".scaffold-"
SHARED_FOLDER = 0o755
_OTHERS = 0o077
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*|)", re.DOTALL)


class Busy(Unavailable):
    """Another process holds the lock. `pid` is the last process that recorded itself, None if unknown."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class Disk:
    """The file system, for files that several processes may write."""

    files: durable.Disk | None = None  # by default the one that is in use at the time of the call

    def _files(self) -> durable.Disk:
        return self.files or durable.in_use()

    def make_folder(self, path: Path, *, parents: bool = False) -> None:
        """Make a folder if it is missing. When this returns, its name is on disk."""
        with named(path):
            if not parents and not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._files().make_durable_folder(path, PRIVATE_FOLDER)

    def make_scaffold(self, beside: Path) -> Path:
        """A new folder beside `beside`, on the same file system, so that `replace` can rename it."""
        made = beside.with_name(f".{beside.name}{SCAFFOLD_INFIX}{os.urandom(8).hex()}")
        with named(beside):
            self._files().make_folder(made, PRIVATE_FOLDER)
        return made

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        """Write a file atomically, from one part or many. The caller syncs the folder."""
        with named(path):
            self._files().write_shared_file(path, data, mode)

    def sync_folder(self, folder: Path) -> None:
        """When this returns, names that were created, replaced or removed in the folder are on disk."""
        with named(folder):
            self._files().sync_folder(folder)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file or folder. A folder can only replace an empty folder."""
        with named(target):
            self._files().replace(source, target)

    def copy_name(self, source: Path, target: Path) -> None:
        """Give a file a name in another folder too. The caller syncs that folder, and then removes the old name."""
        with named(target):
            self._files().copy_name(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists. The caller syncs the folder."""
        with named(path):
            self._files().unlink(path)

    def make_shared_folder(self, path: Path) -> None:
        """As `make_folder` with `parents`, for content that others may read."""
        with named(path):
            self._files().make_durable_folder(path, SHARED_FOLDER)

    def remove_folder(self, path: Path) -> None:
        """Remove an unpublished folder with its content. Errors are ignored."""
        self._files().remove_tree(path)


DISK = Disk()


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    DISK.write_file(path, data)
    DISK.sync_folder(path.parent)


def read_file(path: Path, most: int) -> bytes:
    """A whole file of at most `most` bytes."""
    with named(path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unavailable(f"{path} is longer than {most} bytes, the limit for files of its kind")
    return data


def check_local(path: Path) -> None:
    """Raise `Malformed` for a URL, which as a path would name a local folder such as `https:`."""
    found = _URL.fullmatch(str(path))
    if found:
        scheme, rest = found[1], found[2] or "/"  # Path merges the two slashes
        is_file = scheme.lower() == "file"
        error = Malformed(f"{scheme}:/{'/' if is_file else ''}{rest}", "URLs are not supported, only local paths")
        hint = f"give the path alone: {rest}" if is_file else "give a path, for instance where that storage is mounted"
        error.add_note(hint)
        raise error


def check_private(path: Path) -> None:
    """Raise `Unavailable` if anyone but the owner can read or change the file."""
    with named(path):
        mode = path.stat().st_mode
    if mode & _OTHERS:
        wanted = PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE
        raise Unavailable(
            f"{path} contains secrets but is accessible to others (mode {mode & 0o777:o}): run chmod {wanted:o} on it"
        )


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock, which ends with this process. Raises `Busy` if another process holds it."""
    with named(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(fd)
            raise Busy(f"{what} is in use by process {pid or 'unknown'}", pid) from None
        with named(path):
            # For the error message of other processes only. It does not claim the lock, so it need not be durable.
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, until the block or this process ends. Raises `Busy` if another process holds it."""
    with named(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{folder} is in use by another process", None) from None
        yield
    finally:
        os.close(fd)


def _pid_in(fd: int) -> int | None:
    text = os.pread(fd, 20, 0)
    return int(text) if text.isdigit() else None


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Convert `OSError` into `Unavailable` with the path."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from None


@contextmanager
def scaffold(path: Path, disk: Disk) -> Iterator[Path]:
    """Build a folder in a temporary place. It moves to `path` when the block ends, and is removed if the block raises.

    `path` must not exist or be an empty folder. A killed process leaves its temporary folder behind; the next call for
    the same `path` removes it. A lock protects temporary folders that are still in use.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        raise Unavailable(f"cannot create {path}: there is no folder {path.parent}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Unavailable(f"{path} exists and is not an empty folder")
    _remove_old(path, disk)
    folder = disk.make_scaffold(path)
    try:
        with locked_folder(folder):
            yield folder
            disk.sync_folder(folder)
            disk.replace(folder, path)
            disk.sync_folder(path.parent)
    except BaseException:
        disk.remove_folder(folder)
        raise


def _remove_old(path: Path, disk: Disk) -> None:
    for folder in path.parent.iterdir():
        if folder.name.startswith(f".{path.name}{SCAFFOLD_INFIX}"):
            try:
                with locked_folder(folder):
                    disk.remove_folder(folder)
            except Busy:
                continue
