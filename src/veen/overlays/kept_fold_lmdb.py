"""The reader's own cache: a timeline in an LMDB environment, in a directory of the reader's. The one module with I/O.

Anything here can be made again from the log, and nothing here is believed against it: `check` refuses a cache whose
root the log no longer has, and whoever wants a new one says so with `discard`.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import lmdb

from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.overlays.entry import At, FoldEntry
from veen.overlays.kept_fold import RootAt, Timeline, extend
from veen.overlays.overlay import Overlay

S = TypeVar("S")
M = TypeVar("M")

MAP_BYTES = 1 << 40  # address space, not disk
_PRIVATE = 0o700


class LmdbRows:
    """One transaction as ordered rows."""

    __slots__ = ("_txn",)

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def get(self, key: bytes) -> bytes | None:
        row = self._txn.get(key)
        return None if row is None else bytes(row)

    def put(self, key: bytes, row: bytes) -> None:
        self._txn.put(key, row)

    def delete(self, key: bytes) -> None:
        self._txn.delete(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        cursor = self._txn.cursor()
        found = cursor.set_range(prefix + start)
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.next()

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._txn.cursor()
        # `set_range` stops at the first key that is not less, which may be one beyond.
        found = cursor.set_range(prefix + end)
        if not found:
            found = cursor.last()
        elif bytes(cursor.key()) != prefix + end:
            found = cursor.prev()
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.prev()


class Cache(Generic[S, M]):
    """The kept fold of one overlay over one stream."""

    def __init__(self, folder: Path, overlay: Overlay[S, M]) -> None:
        """Open or begin the cache in `folder`. Raises `Malformed` where it is of another overlay or cannot be read."""
        self.overlay = overlay
        try:
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            self._env = lmdb.open(str(folder), map_size=MAP_BYTES, readahead=False, max_spare_txns=4)
            _lengthen(self._env, folder)
            self._env.reader_check()  # readers that were killed keep their seats until someone looks
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise Malformed("cache", str(error)) from None
        except (lmdb.Error, OSError) as error:
            raise Unavailable(f"the cache in {folder} cannot be opened: {error}") from None
        try:
            with self.reading():
                pass
        except Malformed:
            self._env.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._env.close()

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        """The timeline as it is now, whatever is added meanwhile."""
        try:
            with self._env.begin() as txn:
                yield Timeline(self.overlay, LmdbRows(txn))
        except lmdb.Error as error:
            raise Malformed("cache", str(error)) from None

    def check(self, root_at: RootAt) -> None:
        """Refuse the cache unless the log still has the roots it was made under. See `Timeline.check`."""
        with self.reading() as timeline:
            timeline.check(root_at)

    def extend(self, entries: Iterable[FoldEntry], mmr_root: bytes) -> At | None:
        """Take in what follows, all of it or none: see `extension.extend`. Returns the last place."""
        try:
            with self._env.begin(write=True) as txn:
                return extend(self.overlay, LmdbRows(txn), entries, mmr_root)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
            raise Malformed("cache", str(error)) from None
        except lmdb.Error as error:
            raise Unavailable(f"the cache cannot be written: {error}") from None


def folder_of(base: Path, overlay: Overlay[S, M], stream_id: bytes) -> Path:
    """Where in a reader's directory the fold of one stream is kept: one folder per overlay, setting and stream."""
    settings = overlay.settings()
    set_to = f"-{h(settings).hex()[:16]}" if settings else ""
    return base / f"{overlay.CLASS}{set_to}-{stream_id.hex()}"


def discard(folder: Path) -> None:
    """Forget a cache, so that a new one can be made from the log."""
    shutil.rmtree(folder, ignore_errors=True)


def _lengthen(env: lmdb.Environment, folder: Path) -> None:
    """Make the file reach to its last page: a page that is not there would take the process down when it is touched.

    A whole file may end before it. In one that was cut short, pages of zeros come to be where others were, and those
    are found to be of the wrong type.
    """
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    with (folder / "data.mdb").open("r+b") as file:
        if os.fstat(file.fileno()).st_size < needed:
            os.posix_fallocate(file.fileno(), 0, needed)  # adds and never cuts, whoever else writes meanwhile
