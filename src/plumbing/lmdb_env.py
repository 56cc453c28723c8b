"""LMDB environments. All are opened here, so that the lab can put a model in memory in their place."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

_DATA = "data.mdb"
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
