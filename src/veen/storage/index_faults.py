"""The file behind an LMDB environment, which must reach to its last page."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb

from veen.core import Malformed, Unavailable
from veen.storage import safe_open
from veen.storage.durable import PLAIN_FILE, Disk
from veen.storage.index_probe import UNREADABLE
from veen.storage.paths import Folders

_LOOKS, _LOOK_EVERY_S = 20, 0.005
_LOCK_BYTES = 8192  # for the readers there may be at once, unless told otherwise
_MODE = 0o755  # as LMDB makes them
_LEAST_ROW_BYTES = 16


def check_files(folder: Path) -> None:
    """Raise `Malformed` where LMDB, which opens by name, would follow a link or wait for the other end of a FIFO."""
    for name in ("data.mdb", "lock.mdb"):
        safe_open.check_file(folder / name)


def needed_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def reserve_lock(folder: Path) -> None:
    """LMDB writes its seats through a map: without room for them that would be the end of the process."""
    folder.mkdir(_MODE, exist_ok=True)
    fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def most_rows(env: lmdb.Environment) -> int:
    """How many rows there can be in all, if no two tables and no two pages share any."""
    return needed_bytes(env) // _LEAST_ROW_BYTES


def lengthen(env: lmdb.Environment, path: Path) -> None:
    """Let the file reach to its last page again: LMDB never writes one that it took and gave back in one go.

    So a file that is too short was cut, unless a crash came right here: either way the index is made again.
    """
    needed = needed_bytes(env)
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)


def check_length(env: lmdb.Environment, folder: Path) -> None:
    """A file that ends before its last page would take the process down when that page is touched."""
    for _ in range(_LOOKS):
        needed, size = needed_bytes(env), (folder / "data.mdb").stat().st_size
        if size >= needed:
            return
        time.sleep(_LOOK_EVERY_S)  # its writer may be about to lengthen it
    env.close()
    raise Malformed("index", f"data.mdb has {size} bytes of {needed}")


_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def probe(disk: Disk, folders: Folders) -> None:
    """Have another process read some of the index; note it where that ends the process. The lock is held."""
    if not safe_open.is_file(folders.index / "data.mdb"):
        return
    command = [sys.executable, "-m", "veen.storage.index_probe", str(folders.index)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if -done.returncode in _FATAL:
        note(disk, folders, f"reading the index ended a process: {signal.Signals(-done.returncode).name}\n")
    elif done.returncode == UNREADABLE:
        note(disk, folders, f"the index cannot be read: {done.stdout.decode(errors='replace')}\n")


def note(disk: Disk, folders: Folders, what: str) -> None:
    """Have the next start make the index again. The lock is held."""
    try:
        fd = disk.open_append(folders.fault)
        try:
            disk.write(fd, what.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise Unavailable(f"the index is damaged, and cannot be made again: {error.strerror}") from error


def is_noted(folders: Folders) -> bool:
    """Whether a fault ended a process on this directory since its index was made."""
    try:
        return folders.fault.lstat().st_size > 0
    except FileNotFoundError:
        return False


def clear(disk: Disk, folders: Folders) -> None:
    """The index is a new one. The file itself may be watched, so it stays."""
    if is_noted(folders):
        fd = disk.open_append(folders.fault)
        try:
            disk.truncate(fd, 0)
        finally:
            os.close(fd)


class IndexWatch:
    """Takes note of fatal signals until it is closed, unless someone else in this process does."""

    def __init__(self, folders: Folders) -> None:
        self._path = folders.fault
        self._fd = -1
        if faulthandler.is_enabled():
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | safe_open.SAFELY, PLAIN_FILE)
        except OSError:
            return  # a disk that cannot be written to is told of by others
        faulthandler.enable(self._fd, all_threads=False)

    def close(self) -> None:
        if self._fd < 0:
            return
        faulthandler.disable()
        empty = os.fstat(self._fd).st_size == 0
        os.close(self._fd)
        self._fd = -1
        if empty:
            self._path.unlink(missing_ok=True)
