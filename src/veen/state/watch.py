"""What becomes of the entries of a stream as they come."""

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client.entry import Entry as ReadEntry
from veen.overlays import At, Fold, FoldEntry, Outcome
from veen.state.entry_source import folded
from veen.state.hub_source import HubSource
from veen.state.state_at import START
from veen.state.state_view import StateView

S = TypeVar("S")
M = TypeVar("M")

_KEPT_AT_ONCE = 256  # entries that are folded in memory before they are kept


@dataclass(frozen=True, slots=True)
class WatchedEntry(Generic[S]):
    """One entry, and what it did to each part it is for."""

    entry: FoldEntry
    outcomes: tuple[Outcome[S], ...]


class _Base(Generic[S, M]):
    """What is kept, up to a place: looked up when it is asked for, so that no look at the cache is held open."""

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
    """Entries from a place on, or from the end on, with what became of each. Ends only where its consumer does.

    Around the end of an epoch one may come that belongs before others: its outcome is told for its own place.
    """
    source = view.source
    if not isinstance(source, HubSource):
        raise ValueError("a data directory is read, not followed")
    async with view.reading() as reading:
        wanted = reading.upto if after is None else after
    with view.kept() as timeline:
        begun = [bound.epoch for bound in timeline.prefixes()]
        kept = timeline.upto() or At(view.earliest_epoch(), 0)
    wanted = max(wanted, At(begun[0] if begun else kept.epoch, 0))
    start = min(wanted, kept)  # what is not kept yet is met again, and not told
    watched = _Watched(view, start)
    entries = source.client.read(view.stream_id, start.stream_seq + 1, follow=True, epoch=start.epoch)
    async with aclosing(entries) as coming:
        async for entry in coming:
            seen = watched.meet(entry)
            if seen.entry.at > wanted:
                yield seen


class _Watched(Generic[S, M]):
    """The fold on top of what is kept."""

    def __init__(self, view: StateView[S, M], base: At) -> None:
        self._view = view
        self._begin(base, [])

    def _begin(self, base: At, above: list[ReadEntry]) -> None:
        """Fold from a place on that what is kept reaches."""
        self._base = base
        self._above = above  # in the order of their places
        self._fold: Fold[S, M] = Fold(self._view.overlay, _Base(self._view, base))
        self._fold.extend(map(folded, above))

    def meet(self, read: ReadEntry) -> WatchedEntry[S]:
        entry, last = folded(read), self._above[-1:]
        insort(self._above, read, key=_place)
        if last and entry.at < _place(last[0]):
            self._fold = Fold(self._view.overlay, _Base(self._view, self._base))
            outcomes = {_place(one): self._fold.add(folded(one)) for one in self._above}[entry.at]
        else:
            outcomes = self._fold.add(entry)
        if len(self._above) % _KEPT_AT_ONCE == 0:
            self._keep()
        return WatchedEntry(entry, outcomes)

    def _keep(self) -> None:
        """Hand over what is settled, so that memory does not grow with the watch."""
        now = self._view.source.now()
        settled = [one for one in self._above if self._view.is_settled(one.epoch, now)]
        for _, page in groupby(settled, lambda one: one.epoch):
            self._view.take(list(page))
        if settled:
            self._begin(_place(settled[-1]), self._above[len(settled) :])


def _place(entry: ReadEntry) -> At:
    return At(entry.epoch, entry.stream_seq)


class Wake(Generic[S, M]):
    """Wakes whoever waits for the next entry of a stream. An async context manager."""

    def __init__(self, view: StateView[S, M]) -> None:
        self._view = view
        self._event = asyncio.Event()

    async def __aenter__(self) -> Self:
        """From here on no entry is missed: the place is fixed before anyone looks."""
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
        """From here on entries count: to be called before the look that finds nothing to do."""
        self._event.clear()

    async def wait(self, seconds: float | None) -> bool:
        """Wait for an entry, for so long at most; whether one came. Raises what ended the listening."""
        waiter = asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait([waiter, self._task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done() and not self._event.is_set():
                self._task.result()
            return self._event.is_set()
        finally:
            waiter.cancel()
