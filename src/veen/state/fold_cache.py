"""Rows laid over other rows: what is written stays in memory, and what is below is never touched."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import merge
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import lmdb

from veen.client import ClientDir, durable
from veen.client.entry import Entry as ReadEntry
from veen.core import Malformed, Unverified
from veen.overlays import At, Overlay
from veen.overlays.kept_fold import KeptRows, MemoryRows, Timeline, extend
from veen.overlays.kept_fold_lmdb import Cache, discard, folder_of
from veen.state.entry_source import folded


class LayeredRows:
    """An ordered map that begins as another one."""

    def __init__(self, below: KeptRows) -> None:
        self._below = below
        self._above = MemoryRows()
        self._gone: set[bytes] = set()

    def get(self, key: bytes) -> bytes | None:
        if key in self._gone:
            return None
        own = self._above.get(key)
        return self._below.get(key) if own is None else own

    def put(self, key: bytes, row: bytes) -> None:
        self._gone.discard(key)
        self._above.put(key, row)

    def delete(self, key: bytes) -> None:
        self._above.delete(key)
        self._gone.add(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        both = merge(self._above.scan(prefix, start), self._kept(self._below.scan(prefix, start)), key=_key)
        return _first_of_each(both)

    def back(self, prefix: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        below = self._kept(self._below.back(prefix, end))
        return _first_of_each(merge(self._above.back(prefix, end), below, key=_key, reverse=True))

    def _kept(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return (row for row in rows if row[0] not in self._gone)


def _key(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def _first_of_each(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Of two rows with one key the upper one, which comes first."""
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
    """A fold that is kept somewhere."""

    def reading(self) -> AbstractContextManager[Timeline[S, M]]:
        """The fold as it is now, whatever is taken in meanwhile."""
        ...

    def take(self, page: Sequence[ReadEntry]) -> None:
        """Take in entries that were verified, in order; those that are there already must be the same."""
        ...

    def close(self) -> None: ...


class MemoryKeeper(Generic[S, M]):
    """A fold that is gone when the process is."""

    def __init__(self, overlay: Overlay[S, M]) -> None:
        self._overlay = overlay
        self._rows = MemoryRows()

    @contextmanager
    def reading(self) -> Iterator[Timeline[S, M]]:
        yield Timeline(self._overlay, self._rows)

    def take(self, page: Sequence[ReadEntry]) -> None:
        fresh = fresh_of(page, Timeline(self._overlay, self._rows))
        if fresh:
            extend(self._overlay, self._rows, map(folded, fresh), fresh[-1].receipt.mmr_root)

    def close(self) -> None:
        pass


class CacheKeeper(Generic[S, M]):
    """A fold in the reader's client directory."""

    _shared: ClassVar[dict[Path, tuple[Cache[Any, Any], int]]] = {}
    _guard: ClassVar[Lock] = Lock()

    def __init__(self, folder: Path, overlay: Overlay[S, M]) -> None:
        """Raises `Malformed` where what is there is not a cache of this overlay."""
        self.folder = folder
        self._cache: Cache[S, M] = self._opened(overlay)

    def _opened(self, overlay: Overlay[S, M]) -> Cache[S, M]:
        with self._guard:
            cache, count = self._shared.get(self.folder, (None, 0))
            if cache is None:
                with durable.named(self.folder):
                    self.folder.parent.mkdir(durable.PRIVATE_FOLDER, parents=True, exist_ok=True)
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

    def take(self, page: Sequence[ReadEntry]) -> None:
        with durable.locked(self.folder.with_name(self.folder.name + _LOCK_SUFFIX), str(self.folder), wait=True):
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
    """The entries of a page that are not taken in yet. Raises `Unverified` where another log was."""
    upto = timeline.upto()
    if upto is None:
        return page
    for number, entry in enumerate(page):
        at = At(entry.epoch, entry.stream_seq)
        if at == upto and timeline.tree(at.epoch).root() != entry.receipt.mmr_root:
            raise Unverified("cache", f"it was made from another log up to entry {at.stream_seq}")
        if at > upto:
            return page[number:]
    return ()


def cache_folder(folder: ClientDir, hub_id: bytes, overlay: Overlay[S, M], stream_id: bytes) -> Path:
    """Where a reader keeps the fold of a stream: by hub, and by the rules it was folded under."""
    base = folder_of(folder.path.resolve() / FOLDER / hub_id.hex(), overlay, stream_id)
    return base.with_name(f"{base.name}-v{overlay.VERSION}")


def drop_cache(folder: ClientDir, hub_id: bytes, overlay: Overlay[S, M], stream_id: bytes) -> bool:
    """Drop a cache, because the reader wants it made again from the log. Whether there was one."""
    path = cache_folder(folder, hub_id, overlay, stream_id)
    with CacheKeeper._guard:
        if path in CacheKeeper._shared:
            raise ValueError("the cache is being looked into")
    there = path.exists()
    discard(path)
    return there
