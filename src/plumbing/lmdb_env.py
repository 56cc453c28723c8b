"""LMDB environments. All are opened here, so that the lab can put a model in memory in their place.

As a program, `python -m plumbing.lmdb_env FOLDER` reads parts of an environment. A damaged one may crash it, so a hub
runs it in a process of its own at each start.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

UNREADABLE = 3  # exit status of the program if LMDB reports an error
_DATA = "data.mdb"
_MAX_PROBED_ROWS = 4096  # of each table
_MAX_PROBED_TABLES = 64
_open: Callable[..., lmdb.Environment] = lmdb.open


def open_environment(folder: Path, **options: Any) -> lmdb.Environment:
    """As `lmdb.open`."""
    return _open(str(folder), **options)


def is_mapped() -> bool:
    """Whether environments are mapped files, so that a damaged one can crash the process that reads it."""
    return _open is lmdb.open


@contextmanager
def opened_by(opener: Callable[..., lmdb.Environment]) -> Iterator[None]:
    """Open environments with another function while the block runs."""
    global _open
    before, _open = _open, opener
    try:
        yield
    finally:
        _open = before


def needed_bytes(env: lmdb.Environment) -> int:
    """The length of the file up to its last page."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def extend_file(env: lmdb.Environment, folder: Path) -> None:
    """Extend the file to its last page, because access to a mapped page behind the end kills the process with SIGBUS.

    An intact file may be shorter: LMDB never writes a page that it allocated and freed in one transaction. In a
    truncated file the extension adds pages of zeros, which LMDB detects as pages of the wrong type.
    """
    needed = needed_bytes(env)
    with (folder / _DATA).open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)  # only extends, also while other processes write


def probe(folder: Path) -> None:
    """Open every table and read its first rows and its last one."""
    with lmdb.open(str(folder), readonly=True, lock=False, max_dbs=_MAX_PROBED_TABLES, create=False) as env:
        with env.begin() as txn:
            names = [bytes(name) for name, _ in islice(txn.cursor(), _MAX_PROBED_TABLES)]
        for name in names:
            table = env.open_db(name, create=False)
            with env.begin(db=table) as txn, txn.cursor() as cursor:
                for _ in zip(range(_MAX_PROBED_ROWS), cursor, strict=False):
                    pass
                cursor.last()


if __name__ == "__main__":
    try:
        probe(Path(sys.argv[1]))
    except lmdb.Error as error:
        sys.stdout.write(str(error))
        sys.exit(UNREADABLE)
