"""Protection against a damaged LMDB file, which can crash the process that maps it."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb

from plumbing.durable import PLAIN_FILE, Disk
from veen.core import Malformed, Unavailable
from veen.storage import safe_open
from veen.storage.index_probe import UNREADABLE
from veen.storage.paths import Folders

_LENGTH_CHECKS, _LENGTH_CHECK_DELAY_S = 20, 0.005
_LOCK_BYTES = 8192  # enough for LMDB's default number of readers
_MODE = 0o755  # the mode that LMDB uses
_LEAST_ROW_BYTES = 16


def check_files(folder: Path) -> None:
    """Raise `Malformed` if a file is a link or FIFO: LMDB opens by name, and would follow or block."""
    for name in ("data.mdb", "lock.mdb"):
        safe_open.check_file(folder / name)


def needed_bytes(env: lmdb.Environment) -> int:
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def reserve_lock(folder: Path) -> None:
    """Allocate the lock file. LMDB writes it through a map, so a full disk would crash the process."""
    folder.mkdir(_MODE, exist_ok=True)
    fd = os.open(folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def most_rows(env: lmdb.Environment) -> int:
    """An upper bound for the rows of all tables in an undamaged file."""
    return needed_bytes(env) // _LEAST_ROW_BYTES


def extend_file(env: lmdb.Environment, path: Path) -> None:
    """Extend the file to its last page: LMDB never writes a page that it allocated and freed in one transaction.

    A file that is too short was therefore truncated, unless a crash came right before this. In both cases the index
    is rebuilt.
    """
    needed = needed_bytes(env)
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)


def check_length(env: lmdb.Environment, folder: Path) -> None:
    """Raise `Malformed` if the file ends before its last page: touching that page would crash the process."""
    for _ in range(_LENGTH_CHECKS):
        needed, size = needed_bytes(env), (folder / "data.mdb").stat().st_size
        if size >= needed:
            return
        time.sleep(_LENGTH_CHECK_DELAY_S)  # its writer may be about to extend it
    env.close()
    raise Malformed("index", f"data.mdb has {size} bytes of {needed}")


_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def probe(disk: Disk, folders: Folders) -> None:
    """Read parts of the index in another process; record a fault if that crashes. The caller holds the lock."""
    if not safe_open.is_file(folders.index / "data.mdb"):
        return
    command = [sys.executable, "-m", "veen.storage.index_probe", str(folders.index)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if -done.returncode in _FATAL:
        record_fault(disk, folders, f"reading the index ended a process: {signal.Signals(-done.returncode).name}\n")
    elif done.returncode == UNREADABLE:
        record_fault(disk, folders, f"the index cannot be read: {done.stdout.decode(errors='replace')}\n")


def record_fault(disk: Disk, folders: Folders, what: str) -> None:
    """Record a fault, so that the next start rebuilds the index. The caller holds the lock."""
    try:
        fd = disk.open_append(folders.fault)
        try:
            disk.write(fd, what.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise Unavailable(f"the index is damaged, and the fault cannot be recorded: {error.strerror}") from error


def fault_recorded(folders: Folders) -> bool:
    """Whether a fault was recorded since the index was built."""
    try:
        return folders.fault.lstat().st_size > 0
    except FileNotFoundError:
        return False


def clear_fault(disk: Disk, folders: Folders) -> None:
    """Forget recorded faults after a rebuild. Truncates the file: a running process may have it open."""
    if fault_recorded(folders):
        fd = disk.open_append(folders.fault)
        try:
            disk.truncate(fd, 0)
        finally:
            os.close(fd)


class FatalSignalRecorder:
    """Records fatal signals through faulthandler until closed, unless the process already uses faulthandler."""

    def __init__(self, folders: Folders) -> None:
        self._path = folders.fault
        self._fd = -1
        if faulthandler.is_enabled():
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | safe_open.SAFE_FLAGS, PLAIN_FILE)
        except OSError:
            return  # an unwritable disk is reported elsewhere
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
