"""Durable writes. No other module syncs files.

After a power cut, by operation:

    write, write_at   any part of it, or nothing, until the file is synced
    truncate          done or not, until the file is synced
    sync              all writes before it
    replace           the old file or the new one, never a mixture; which of the two, until the folder is synced
    write_file        the old file or the new one, never a mixture; which of the two, until the folder is synced
    unlink            the file or none, until the folder is synced

No write through a `Disk` follows a symlink, so that the content of a data directory cannot make a hub write elsewhere.
Every error is an `OSError`. Tests substitute a disk that fails at every call in turn: code without a parameter for it
writes to the disk `in_use`.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
PLAIN_FILE = 0o644
_DRAFT_BYTES = 8


class Disk:
    """The real disk."""

    def open_append(self, path: Path, mode: int = PLAIN_FILE) -> int:
        """A descriptor that appends to the file; the file is created if missing."""
        return _open(path, os.O_APPEND, mode)

    def open_update(self, path: Path, mode: int = PLAIN_FILE) -> int:
        """A descriptor for `write_at`; the file is created if missing."""
        return _open(path, 0, mode)

    def open_new(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        """A descriptor that appends to a new file. Raises `FileExistsError`."""
        return _open(path, os.O_APPEND | os.O_EXCL, mode)

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        """Write all of `data` at an offset. After an `OSError` any part of it may be in the file."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, at)
            view = view[written:]
            at += written

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`. After an `OSError` any part of it may be in the file."""
        _write_all(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """When this returns, everything written to the file is on disk."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """When this returns, created, replaced and removed names in the folder are on disk."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_filesystem(self, folder: Path) -> None:
        """Sync all files of the folder's file system: cheaper than one sync per file when there are many."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _SYNCFS(fd) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        finally:
            os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        path.mkdir(mode=mode, parents=True, exist_ok=True)

    def copy_name(self, source: Path, target: Path) -> None:
        """Give a file its name in another folder. The caller syncs that folder, and then removes the old name.

        A rename between two folders is two changes: a power cut could leave the removal alone.
        """
        draft = target.with_name(f".{target.name}.draft")
        self.unlink(draft)
        if target.exists() and target.samefile(source):
            return  # done before a crash; a rename between two names of one file would do nothing
        try:
            self.link(source, draft)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            self.replace(source, target)  # a file system without hard links
            return
        self.replace(draft, target)

    def make_durable_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        """Make a folder. When this returns, its name and those of new folders above it are on disk.

        The name of a folder that exists is synced too: a killed process may have made it without syncing it.
        """
        made = [path, *(one for one in path.parents if not one.exists())]
        self.make_folder(path, mode)
        for one in reversed(made):
            with suppress(PermissionError):  # a parent of another owner, who made the folder
                self.sync_folder(one.parent)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder that nothing needs, with its content. Errors are ignored, so any part of it may stay."""
        shutil.rmtree(path, ignore_errors=True)

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PLAIN_FILE) -> None:
        """Write a file atomically, from one part or many. The caller syncs the folder.

        The draft has a fixed name, so the next write replaces what a crash left. Only one process may write the file.
        """
        draft = path.with_name(path.name + ".draft")
        try:
            fd = _open(draft, os.O_EXCL, mode)
        except FileExistsError:
            # Left by an earlier run, or planted as a link to elsewhere: remove it without following it.
            draft.unlink()
            fd = _open(draft, os.O_EXCL, mode)
        try:
            for part in (data,) if isinstance(data, bytes) else data:
                self.write(fd, part)
            self.sync(fd)
        finally:
            os.close(fd)
        self.replace(draft, path)

    def write_shared_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        """As `write_file`, for a file that several processes may write: each draft has a name of its own.

        Draft names start with a dot. A failed write removes its draft; a killed process leaves it.
        """
        draft = path.with_name(f".{path.name}.{os.urandom(_DRAFT_BYTES).hex()}.draft")
        fd = self.open_new(draft, mode)
        try:
            try:
                os.fchmod(fd, mode)  # whatever the umask is
                for part in (data,) if isinstance(data, bytes) else data:
                    self.write(fd, part)
                self.sync(fd)
            finally:
                os.close(fd)
            self.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                self.unlink(draft)
            raise


_disk = Disk()


def in_use() -> Disk:
    """The disk of code that does not get one as a parameter."""
    return _disk


@contextmanager
def used(disk: Disk) -> Iterator[None]:
    """Use another disk while the block runs."""
    global _disk
    before, _disk = _disk, disk
    try:
        yield
    finally:
        _disk = before


def replace_file(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Replace a file atomically and durably, also if other processes write it."""
    disk = in_use()
    disk.write_shared_file(path, data, mode)
    disk.sync_folder(path.parent)


class AppendFile:
    """A new file that one process appends to and keeps locked: see `is_abandoned`.

    Appended data survives the process, even if it is killed. With `sync` it also survives a power cut.
    """

    def __init__(self, path: Path) -> None:
        self._fd = in_use().open_new(path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.path = path
        self.size = 0

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """Append with one write, so that a reader sees all of it or, after a crash, a truncated tail.

        On failure the file is truncated to its previous size. That may fail too, so the caller must close the file:
        later data could follow a partial write.
        """
        if sync and not self.size:
            in_use().sync_folder(self.path.parent)  # the name of the new file, before any data depends on it
        extend(self._fd, data, self.size, sync=sync)
        self.size += len(data)

    def close(self) -> None:
        os.close(self._fd)


def is_abandoned(path: Path) -> bool:
    """Whether the process that appended to a file is gone."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def append_line(path: Path, line: bytes, max_bytes: int) -> bool:
    """Append a line durably, completely or not at all. Returns False if the file has reached `max_bytes`.

    A crash may leave the beginning of a line. It was never confirmed, and the next call removes it.
    """
    disk = in_use()
    fd = disk.open_append(path, PRIVATE_FILE)
    try:
        size = os.fstat(fd).st_size
        if size >= max_bytes:
            return False
        complete = _complete_lines(path)
        if complete != size:
            disk.truncate(fd, complete)
        if not complete:
            disk.sync_folder(path.parent)  # the name of the new file, before any data depends on it
        extend(fd, line, complete, sync=True)
    finally:
        os.close(fd)
    return True


def _complete_lines(path: Path) -> int:
    """The size of a file without an incomplete last line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return 0
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return file.tell()
        file.seek(0)
        return file.read().rfind(b"\n") + 1


def extend(fd: int, data: bytes, size: int, *, sync: bool = False) -> None:
    """Append to a file of `size` bytes; on failure truncate it to that size."""
    disk = in_use()
    try:
        disk.write(fd, data)
        if sync:
            disk.sync(fd)
    except BaseException:
        with suppress(OSError):
            disk.truncate(fd, size)
        raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _open(path: Path, flags: int, mode: int) -> int:
    """Open a file for writing, creating it if missing. Never follows a symlink and never opens a FIFO."""
    safely = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | safely | flags, mode)
    except OSError as error:
        what = {errno.ELOOP: "a link, not a file", errno.ENXIO: "not a file"}.get(error.errno or 0)
        if what is None:
            raise
        raise OSError(error.errno, f"{path.name} is {what}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{path.name} is not a file")
    return fd


def remove_all(path: Path) -> None:
    """Remove a file, link or folder tree. The target of a link is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _syncfs() -> "ctypes._NamedFuncPointer | _SyncAll":
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        return _SyncAll()


class _SyncAll:
    """Fallback if the C library has no syncfs: sync every file system."""

    def __call__(self, fd: int) -> int:
        os.sync()
        return 0


_SYNCFS = _syncfs()
