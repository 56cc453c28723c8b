"""The one place of the client that makes bytes durable, and the locks between processes.

What a power cut leaves behind, by operation:

    write_file    the old file or the new one, never a mixture; the new one for certain once the folder is synced
    replace       the old name or the new one, never both; the new one for certain once the folder is synced

LMDB syncs its own commits. Tests put a disk here that dies at every call in turn.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veen.core import Malformed, Unavailable

SCAFFOLD_INFIX = ".scaffold-"
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
_OTHERS = 0o077
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*|)", re.DOTALL)


class Busy(Unavailable):
    """Another process holds the lock; `pid` is the one that said so last, None where it cannot be told."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class Disk:
    """The real disk. Its faults are `Unavailable` and name the file."""

    def make_folder(self, path: Path) -> None:
        with named(path):
            path.mkdir(PRIVATE_FOLDER, exist_ok=True)

    def make_scaffold(self, beside: Path) -> Path:
        """A new folder next to `beside`, on the same file system, for `replace` to put in its place."""
        with named(beside):
            return Path(tempfile.mkdtemp(prefix=f".{beside.name}{SCAFFOLD_INFIX}", dir=beside.parent))

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        """A whole file, of one part or many, there entirely or not at all. The folder is the caller's to sync."""
        with named(path):
            fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)
            draft = Path(name)
            try:
                try:
                    os.fchmod(fd, mode)
                    for part in (data,) if isinstance(data, bytes) else data:
                        view = memoryview(part)
                        while view:
                            view = view[os.write(fd, view) :]
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
                os.replace(draft, path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise

    def sync_folder(self, folder: Path) -> None:
        """Names made, replaced and removed in the folder are on disk when this returns."""
        with named(folder):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file or folder its name. A folder takes the place of an empty one, and of nothing else."""
        with named(target):
            os.replace(source, target)

    def remove_folder(self, path: Path) -> None:
        """The folder and all that is in it, as far as it goes: for what nobody has seen yet."""
        shutil.rmtree(path, ignore_errors=True)


DISK = Disk()


def read_file(path: Path, most: int) -> bytes:
    """A whole file of at most `most` bytes."""
    with named(path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unavailable(f"{path} is longer than {most} bytes, which no file of its kind is")
    return data


def check_local(path: Path) -> None:
    """Raise `Malformed` for a URL: as a path it would name a folder of this machine that is called like its scheme."""
    found = _URL.fullmatch(str(path))
    if found:
        scheme, rest = found[1], found[2] or "/"  # a path has lost one of the two slashes
        is_file = scheme.lower() == "file"
        error = Malformed(
            f"{scheme}:/{'/' if is_file else ''}{rest}", "it is a URL, and files are written to a folder only"
        )
        hint = f"give the path alone: {rest}" if is_file else "give a path, for instance where that storage is mounted"
        error.add_note(hint)
        raise error


def check_private(path: Path) -> None:
    """Raise where anyone but the owner could read or change what is there."""
    with named(path):
        mode = path.stat().st_mode
    if mode & _OTHERS:
        wanted = PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE
        raise Unavailable(
            f"{path} is open to others (mode {mode & 0o777:o}) and holds secrets: run chmod {wanted:o} on it"
        )


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock that ends with this process at the latest. Raises `Busy` where another has it."""
    with named(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(fd)
            raise Busy(f"{what} is in use by process {pid or 'unknown'}", pid) from None
        with named(path):
            # For whoever finds it locked. Never read as a claim to the lock, so it need not be durable.
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold a folder as ours, until this process ends at the latest. Raises `Busy` where another does."""
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
    """What the system says no to, as an error that names the file."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}") from None


@contextmanager
def scaffold(path: Path, disk: Disk) -> Iterator[Path]:
    """A folder to build in, which takes its place at `path` when the block ends, and is gone where it raises.

    `path` may be an empty folder, and nothing else that is there. A process that is killed leaves its scaffold behind;
    the next one to build here removes it. The lock tells one that is being built in from one that is not.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        raise Unavailable(f"there is no folder {path.parent} to make {path.name} in")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Unavailable(f"{path} is there already, and not an empty folder")
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
