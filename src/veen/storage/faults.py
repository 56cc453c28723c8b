"""An index that ends the process that reads it, or says what was never written, and how the hub comes back.

LMDB believes its own pages: a wrong one can be a segmentation fault, which no handler of ours survives. Pages have no
checksums, and reading them all would make a start as long as the log. So there are three cheap guards:

    probe    a process of its own reads some of every table before the start does. Where that process is ended by a
             signal, or LMDB itself finds a fault, the index is made again.
    watch    while the directory is open, a fatal signal writes where it came from to `fault.txt` before the process
             ends. The next start finds it and makes the index again: a damaged page ends a hub once.
    note     rows that a hub meets and that are not those written (`index` says how that is known), and node files that
             are not those of their label, are written to the same file: the hub decides nothing by them.

A wrong page that reads as a sound one, and that nothing is decided by, is found by fsck, which compares every row.
"""

import faulthandler
import os
import signal
import subprocess
import sys

from veen.core import Unavailable
from veen.storage import openings
from veen.storage.durable import PLAIN_FILE, Disk
from veen.storage.folders import Folders
from veen.storage.probe import UNREADABLE

_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def probe(disk: Disk, folders: Folders) -> None:
    """Have another process read some of the index; note it where that ends the process. The lock is held."""
    if not openings.is_file(folders.index / "data.mdb"):
        return
    command = [sys.executable, "-m", "veen.storage.probe", str(folders.index)]
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


class Watch:
    """Takes note of fatal signals until it is closed, unless someone else in this process does."""

    def __init__(self, folders: Folders) -> None:
        self._path = folders.fault
        self._fd = -1
        if faulthandler.is_enabled():
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | openings.SAFELY, PLAIN_FILE)
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
