"""Where the fold of one stream is kept: in a cache of the reader's, or in memory for as long as it is looked at.

A cache is an LMDB environment in the client directory. Any number of processes may have it open; whoever takes entries
in holds a lock beside it, and looks first how far another has come. Within one process an environment is opened once,
however many look into it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import lmdb

from veen.client import ClientDir, durable
from veen.client.entry import Entry as ReadEntry
from veen.core import Malformed, Unverified
from veen.overlays import At, Overlay
from veen.overlays.cache import Cache, discard, folder_of
from veen.overlays.extension import extend
from veen.overlays.rows import MemoryRows
from veen.overlays.timeline import Timeline
from veen.state.source import folded

S = TypeVar("S")
M = TypeVar("M")

FOLDER = "overlays"
_LOCK_SUFFIX = ".lock"


class Keeper(Protocol[S, M]):
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


def forget(folder: ClientDir, hub_id: bytes, overlay: Overlay[S, M], stream_id: bytes) -> bool:
    """Drop a cache, because the reader wants it made again from the log. Whether there was one."""
    path = cache_folder(folder, hub_id, overlay, stream_id)
    with CacheKeeper._guard:
        if path in CacheKeeper._shared:
            raise ValueError("the cache is being looked into")
    there = path.exists()
    discard(path)
    return there
