"""A reader's cache: a kept fold in an LMDB environment. The only module of this package that does I/O.

A cache can always be rebuilt from the log and is never trusted over it: `check` rejects a cache if the log no longer
has its roots. A rejected cache is not rebuilt automatically; call `discard` first.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import ClassVar, Self, TypeVar

import lmdb

from plumbing import lmdb_env
from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.overlays.event import At, FoldEntry
from veen.overlays.kept_fold import KeptFold, Timeline, extend
from veen.overlays.overlay import Overlay

S = TypeVar("S")
M = TypeVar("M")

MAP_BYTES = 1 << 40  # address space, not disk
_PRIVATE = 0o700


class LmdbRows:
    """The rows of one LMDB transaction."""

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
        # `set_range` stops at the first key that is greater or equal, which may be beyond `end`.
        found = cursor.set_range(prefix + end)
        if not found:
            found = cursor.last()
        elif bytes(cursor.key()) != prefix + end:
            found = cursor.prev()
        while found and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.key()), bytes(cursor.value())
            found = cursor.prev()


class Cache(KeptFold[S, M]):
    """A kept fold in a directory. Caches of one folder share one LMDB environment, as LMDB requires in a process."""

    _shared: ClassVar[dict[Path, tuple[lmdb.Environment, int]]] = {}  # environments and their users
    _guard: ClassVar[Lock] = Lock()

    def __init__(self, folder: Path, overlay: Overlay[S, M]) -> None:
        """Open or create the cache in `folder`. Raises `Malformed` if it belongs to another overlay or is damaged."""
        super().__init__(overlay)
        self.folder = folder
        with self._guard:
            env, users = self._shared.get(folder) or (_environment(folder), 0)
            self._shared[folder] = env, users + 1
        self._env = env
        try:
            with self.reading():
                pass
        except Malformed:
            self.close()
            raise

    @classmethod
    def in_use(cls, folder: Path) -> bool:
        """Whether this process has the cache open."""
        with cls._guard:
            return folder in cls._shared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._guard:
            env, users = self._shared.pop(self.folder)
            if users > 1:
                self._shared[self.folder] = env, users - 1
            else:
                env.close()

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        try:
            with self._env.begin() as txn:
                yield Timeline(self.overlay, LmdbRows(txn))
        except lmdb.Error as error:
            raise Malformed("cache", str(error)) from None

    def extend(self, entries: Iterable[FoldEntry], mmr_root: bytes) -> At | None:
        """Append entries in one transaction."""
        try:
            with self._env.begin(write=True) as txn:
                return extend(self.overlay, LmdbRows(txn), entries, mmr_root)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
            raise Malformed("cache", str(error)) from None
        except lmdb.Error as error:
            raise Unavailable(f"the cache cannot be written: {error}") from None


def folder_of(base: Path, overlay: Overlay[S, M], stream_id: bytes) -> Path:
    """The folder of one cache below `base`: one per overlay, settings and stream."""
    settings = overlay.settings()
    suffix = f"-{h(settings).hex()[:16]}" if settings else ""
    return base / f"{overlay.CLASS}{suffix}-{stream_id.hex()}"


def discard(folder: Path) -> None:
    """Delete a cache, so that a new one can be built from the log."""
    shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> lmdb.Environment:
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        env = lmdb_env.open_environment(folder, map_size=MAP_BYTES, readahead=False, max_spare_txns=4)
        lmdb_env.extend_file(env, folder)
        env.reader_check()  # frees the reader slots of killed processes
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise Malformed("cache", str(error)) from None
    except (lmdb.Error, OSError) as error:
        raise Unavailable(f"the cache in {folder} cannot be opened: {error}") from None
    return env
