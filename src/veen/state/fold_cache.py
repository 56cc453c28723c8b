"""Caches of folds in a client directory or in memory, and rows layered over them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import merge
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import lmdb

from veen.client import ClientDir, local_files
from veen.client.reader import Entry as ReadEntry
from veen.core import Malformed, Unverified
from veen.overlays import At, Overlay
from veen.overlays.kept_fold import KeptRows, MemoryRows, Timeline, extend
from veen.overlays.kept_fold_lmdb import Cache, discard, folder_of
from veen.state.entry_source import folded


class LayeredRows:
    """An ordered map over another one. Writes stay in memory and never change the rows below."""

    def __init__(self, below: KeptRows) -> None:
        self._below = below
        self._above = MemoryRows()
        self._deleted: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        if key in self._deleted:
            return None
        own = self._above.get(key)
        return self._below.get(key) if own is None else own

    def put(self, key: bytes, row: bytes) -> None:
        self._deleted.discard(key)
        self._above.put(key, row)

    def delete(self, key: bytes) -> None:
        self._above.delete(key)
        self._deleted.add(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        below = self._not_deleted(self._below.scan(prefix, start))
        return _first_of_each(merge(self._above.scan(prefix, start), below, key=_key))

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        below = self._not_deleted(self._below.back(prefix, end))
        return _first_of_each(merge(self._above.back(prefix, end), below, key=_key, reverse=True))

    def _not_deleted(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return (row for row in rows if row[0] not in self._deleted)


def _key(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def _first_of_each(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Drop the second of two rows with one key. The upper layer comes first."""
    last = None
    for row in rows:
        if row[0] != last:
            yield row
        last = row[0]


S = TypeVar("S")
M = TypeVar("M")

FOLDER = "overlays"
_LOCK_SUFFIX = ".lock"


class FoldKeeper(Protocol[S, M]):
    """Storage of a fold."""

    def reading(self) -> AbstractContextManager[Timeline[S, M]]:
        """A snapshot of the fold; later additions do not change it."""
        ...

    def append(self, page: Sequence[ReadEntry]) -> None:
        """Append verified entries in order. Entries that are already folded must be the same."""
        ...

    def close(self) -> None: ...


class MemoryKeeper(Generic[S, M]):
    """A fold in memory."""

    def __init__(self, overlay: Overlay[S, M]) -> None:
        self._overlay = overlay
        self._rows = MemoryRows()

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        yield Timeline(self._overlay, self._rows)

    def append(self, page: Sequence[ReadEntry]) -> None:
        fresh = fresh_of(page, Timeline(self._overlay, self._rows))
        if fresh:
            extend(self._overlay, self._rows, map(folded, fresh), fresh[-1].receipt.mmr_root)

    def close(self) -> None:
        pass


class CacheKeeper(Generic[S, M]):
    """A fold in the reader's client directory. Keepers of one folder share one LMDB environment per process."""

    _shared: ClassVar[dict[Path, tuple[Cache[Any, Any], int]]] = {}
    _guard: ClassVar[Lock] = Lock()

    def __init__(self, folder: Path, overlay: Overlay[S, M]) -> None:
        """Raises `Malformed` if the folder is not a cache of this overlay."""
        self.folder = folder
        self._cache: Cache[S, M] = self._opened(overlay)

    def _opened(self, overlay: Overlay[S, M]) -> Cache[S, M]:
        with self._guard:
            cache, count = self._shared.get(self.folder, (None, 0))
            if cache is None:
                local_files.DISK.make_folder(self.folder.parent, parents=True)
                cache = Cache(self.folder, overlay)
            self._shared[self.folder] = cache, count + 1
            return cache

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        try:
            with self._cache.reading() as timeline:
                yield timeline
        except lmdb.Error as error:
            raise Malformed("cache", str(error)) from None

    def append(self, page: Sequence[ReadEntry]) -> None:
        with local_files.locked(self.folder.with_name(self.folder.name + _LOCK_SUFFIX), str(self.folder), wait=True):
            with self._cache.reading() as timeline:
                fresh = fresh_of(page, timeline)
            if fresh:
                self._cache.extend(map(folded, fresh), fresh[-1].receipt.mmr_root)

    def close(self) -> None:
        with self._guard:
            cache, count = self._shared.pop(self.folder)
            if count > 1:
                self._shared[self.folder] = cache, count - 1
            else:
                cache.close()


def fresh_of(page: Sequence[ReadEntry], timeline: Timeline[S, M]) -> Sequence[ReadEntry]:
    """The entries of a page that are not folded yet. Raises `Unverified` if the fold is of another log."""
    upto = timeline.upto()
    if upto is None:
        return page
    for number, entry in enumerate(page):
        at = At(entry.epoch, entry.stream_seq)
        if at == upto and timeline.tree(at.epoch).root() != entry.receipt.mmr_root:
            raise Unverified("cache", f"it was built from another log up to entry {at.stream_seq}")
        if at > upto:
            return page[number:]
    return ()


def cache_folder(folder: ClientDir, hub_id: bytes, overlay: Overlay[S, M], stream_id: bytes) -> Path:
    """The cache folder of a stream's fold, by hub, overlay, settings and rules version."""
    base = folder_of(folder.path.resolve() / FOLDER / hub_id.hex(), overlay, stream_id)
    return base.with_name(f"{base.name}-v{overlay.VERSION}")


def drop_cache(folder: ClientDir, hub_id: bytes, overlay: Overlay[S, M], stream_id: bytes) -> bool:
    """Delete a cache so that it is rebuilt from the log. Returns whether there was one."""
    path = cache_folder(folder, hub_id, overlay, stream_id)
    with CacheKeeper._guard:
        if path in CacheKeeper._shared:
            raise ValueError("the cache is in use")
    existed = path.exists()
    discard(path)
    return existed
