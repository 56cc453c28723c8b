"""The file behind an LMDB environment, which must reach to its last page."""

import os
import time
from pathlib import Path

import lmdb

from veen.core import Malformed
from veen.storage import openings

_LOOKS, _LOOK_EVERY_S = 20, 0.005
_LOCK_BYTES = 8192  # for the readers there may be at once, unless told otherwise
_MODE = 0o755  # as LMDB makes them
_LEAST_ROW_BYTES = 16


def check_files(folder: Path) -> None:
    """Raise `Malformed` where LMDB, which opens by name, would follow a link or wait for the other end of a FIFO."""
    for name in ("data.mdb", "lock.mdb"):
        openings.check_file(folder / name)


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
