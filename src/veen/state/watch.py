"""Follow a stream and report the outcome of each entry."""

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client.reader import Entry as ReadEntry
from veen.overlays import At, Fold, FoldEntry, Outcome
from veen.state.entry_source import HubSource, folded
from veen.state.state_view import START, StateView

S = TypeVar("S")
M = TypeVar("M")

_FLUSH_EVERY = 256  # entries folded in memory before they are moved to the cache


@dataclass(frozen=True, slots=True)
class WatchedEntry(Generic[S]):
    """One entry and its outcome for each part it touches."""

    entry: FoldEntry
    outcomes: tuple[Outcome[S], ...]


class _Base(Generic[S, M]):
    """The cached fold up to a place. Each lookup opens a short cache transaction, so that none stays open."""

    def __init__(self, view: StateView[S, M], upto: At) -> None:
        self._view = view
        self._upto = upto

    def state(self, part: bytes) -> S:
        with self._view.kept() as timeline:
            return timeline.state(part, self._upto)

    def known(self, part: bytes, key: bytes) -> At | None:
        with self._view.kept() as timeline:
            found = timeline.known(part, key)
        return found if found is not None and found <= self._upto else None


async def watch(view: StateView[S, M], *, after: At | None = None) -> AsyncGenerator[WatchedEntry[S], None]:
    """Yield the entries after a place, or after the end, with their outcomes. Never ends by itself.

    At the end of an epoch an entry may arrive after entries of the next epoch. Its outcome is that of its own place.
    """
    source = view.source
    if not isinstance(source, HubSource):
        raise ValueError("only a hub can be followed, not a data directory")
    async with view.reading() as reading:
        wanted = reading.upto if after is None else after
    with view.kept() as timeline:
        epochs = [prefix.epoch for prefix in timeline.prefixes()]
        kept = timeline.upto() or At(view.earliest_epoch(), 0)
    wanted = max(wanted, At(epochs[0] if epochs else kept.epoch, 0))
    start = min(wanted, kept)  # entries that are not cached yet are folded again but not yielded
    watched = _WatchFold(view, start)
    entries = source.client.read(view.stream_id, start.stream_seq + 1, follow=True, epoch=start.epoch)
    async with aclosing(entries) as coming:
        async for entry in coming:
            seen = watched.add(entry)
            if seen.entry.at > wanted:
                yield seen


class _WatchFold(Generic[S, M]):
    """A fold in memory on top of the cache."""

    def __init__(self, view: StateView[S, M], base: At) -> None:
        self._view = view
        self._begin(base, [])

    def _begin(self, base: At, above: list[ReadEntry]) -> None:
        """Start a fold after `base`, which the cache must reach."""
        self._base = base
        self._above = above  # ordered by place
        self._fold: Fold[S, M] = Fold(self._view.overlay, _Base(self._view, base))
        self._fold.extend(map(folded, above))

    def add(self, read: ReadEntry) -> WatchedEntry[S]:
        entry, last = folded(read), self._above[-1:]
        insort(self._above, read, key=_place)
        if last and entry.at < _place(last[0]):
            self._fold = Fold(self._view.overlay, _Base(self._view, self._base))
            outcomes = {_place(one): self._fold.add(folded(one)) for one in self._above}[entry.at]
        else:
            outcomes = self._fold.add(entry)
        if len(self._above) % _FLUSH_EVERY == 0:
            self._flush()
        return WatchedEntry(entry, outcomes)

    def _flush(self) -> None:
        """Move settled entries to the cache, so that memory stays bounded."""
        now = self._view.source.now()
        settled = [one for one in self._above if self._view.is_settled(one.epoch, now)]
        for _, page in groupby(settled, lambda one: one.epoch):
            self._view.append(list(page))
        if settled:
            self._begin(_place(settled[-1]), self._above[len(settled) :])


def _place(entry: ReadEntry) -> At:
    return At(entry.epoch, entry.stream_seq)


class Wake(Generic[S, M]):
    """Waits for the next entry of a stream. An async context manager."""

    def __init__(self, view: StateView[S, M]) -> None:
        self._view = view
        self._event = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Fix the start place before the caller reads the state, so that no later entry is missed."""
        await self._view.sync()
        with self._view.kept() as timeline:
            self._coming = watch(self._view, after=timeline.upto() or START)
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _listen(self) -> None:
        async with aclosing(self._coming) as coming:
            async for _ in coming:
                self._event.set()

    def clear(self) -> None:
        """Forget earlier entries. Call this before reading the state, then `wait` if there is nothing to do."""
        self._event.clear()

    async def wait(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for an entry; returns whether one arrived. Re-raises the error that ended the watch."""
        waiter = asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait([waiter, self._task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and not self._event.is_set():
                self._task.result()
            return self._event.is_set()
        finally:
            waiter.cancel()
