"""What an overlay makes of a stream: the state now and at any place, from a source that verifies.

async with View.of(client, "settings", KV) as view, view.reading() as reading:
    get(reading.states, b"door")

What was read once is kept, so the next look takes only what came since. What is kept holds under the roots it was made
under: it is checked against the source before it is used, and refused where the log has others.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client.client import Client
from veen.client.entry import Entry as ReadEntry
from veen.core import Mmr, Unavailable, Unverified
from veen.overlays import At, Overlay
from veen.overlays.kept_fold import LogPrefix, Timeline, extend
from veen.state.entry_source import EntrySource, closed_before, folded, need_key, stream_id_of
from veen.state.fold_cache import CacheKeeper, FoldKeeper, LayeredRows, MemoryKeeper, cache_folder
from veen.state.hub_source import HubSource
from veen.state.state_at import StateAt

S = TypeVar("S")
M = TypeVar("M")


class StateView(Generic[S, M]):
    """An async context manager, so that what is kept is closed."""

    def __init__(
        self, source: EntrySource, stream: str | bytes, overlay: Overlay[S, M], *, cached: bool = True
    ) -> None:
        """Without `cached` the fold is made in memory, each time anew. Raises `Unavailable` without a reader key."""
        self.source = source
        self.stream_id = stream_id_of(stream)
        self.overlay = overlay
        need_key(source, self.stream_id)
        self._keeper: FoldKeeper[S, M] = CacheKeeper(self._folder(), overlay) if cached else MemoryKeeper(overlay)
        self._checked: set[LogPrefix] = set()
        self._open: list[ReadEntry] = []  # of epochs before which something may still come: folded on top, each time

    @classmethod
    def of(cls, client: Client, stream: str | bytes, overlay: Overlay[S, M], *, cached: bool = True) -> Self:
        """The view of a stream at the hub that a client has met."""
        return cls(HubSource(client), stream, overlay, cached=cached)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._keeper.close()

    async def sync(self) -> None:
        """Take in what came since. Raises `Unverified` where what is kept is of another log."""
        await self._check_kept()
        with self._keeper.reading() as timeline:
            upto = timeline.upto()
            tree = timeline.tree(upto.epoch) if upto else Mmr()
        epochs = await self.source.epochs(self.stream_id, upto.epoch if upto else None)
        now = self.source.now()  # before anything is read: what is settled by then will all be read
        later: list[ReadEntry] = []
        for epoch in epochs:
            after = tree if upto is not None and upto.epoch == epoch else Mmr()
            async for page in self.source.read(self.stream_id, epoch, after):
                if self.is_settled(epoch, now):
                    self.take(page)
                else:
                    later += page
        self._open = later

    def is_settled(self, epoch: int, now: int) -> bool:
        """Whether nothing can come before an epoch's entries any more."""
        known = self.source.known
        return closed_before(known.profile, known.limits.max_epoch_skew_sec, epoch, now)

    def present_epoch(self) -> int:
        """The hub's present epoch, as far as it can be told; 0 where there are none."""
        return self.source.known.profile.epoch(self.source.now())

    def earliest_epoch(self) -> int:
        """The first epoch that may have an entry which is not kept."""
        known = self.source.known
        around = known.profile.epochs_around(self.source.now(), known.limits.max_epoch_skew_sec)
        return min([around.start, *(entry.epoch for entry in self._open)])

    def take(self, page: list[ReadEntry]) -> None:
        """Keep entries that were verified."""
        self._keeper.take(page)
        last = page[-1].receipt
        self._checked.add(LogPrefix(last.label, page[-1].epoch, last.stream_seq, last.mmr_root))

    def kept(self) -> AbstractContextManager[Timeline[S, M]]:
        """What is kept now, without asking anyone: `reading` is for answers."""
        return self._keeper.reading()

    @asynccontextmanager
    async def reading(self, at: At | None = None, *, fresh: bool = True) -> AsyncIterator[StateAt[S, M]]:
        """A look at the state after the entry at a place, or at the end of the log.

        Without `fresh` the source is not asked what came since. Raises `Unavailable` where the log does not reach `at`.
        """
        if fresh:
            await self.sync()
        await self._check_kept()
        with self._keeper.reading() as timeline:
            reading = StateAt(self._whole(timeline), at)
            if at is not None and at > reading.upto:
                end = reading.upto
                raise Unavailable(f"the stream ends with entry {shown(end)}: there is no entry {shown(at)} yet")
            reading.now = await self._now(reading.at, at is None)
            yield reading

    async def _now(self, at: At, is_present: bool) -> int:
        """What time it was at a place: a copy knows no present but that of its last entry."""
        if is_present and not self.source.may_lag:
            return self.source.now()
        return (await self.source.receipt(self.stream_id, at)).hub_ts if at.stream_seq else 0

    def _whole(self, timeline: Timeline[S, M]) -> Timeline[S, M]:
        """What is kept, with the entries on top that cannot be kept yet."""
        upto = timeline.upto()
        above = [entry for entry in self._open if upto is None or At(entry.epoch, entry.stream_seq) > upto]
        if not above:
            return timeline
        rows = LayeredRows(timeline.rows)
        for label in dict.fromkeys(entry.receipt.label for entry in above):
            page = [entry for entry in above if entry.receipt.label == label]
            extend(self.overlay, rows, map(folded, page), page[-1].receipt.mmr_root)
        return Timeline(self.overlay, rows)

    async def _check_kept(self) -> None:
        """Hold what is kept against the log, wherever that was not done yet."""
        while True:
            with self._keeper.reading() as timeline:
                unknown = [bound for bound in timeline.prefixes() if bound not in self._checked]
            if not unknown:
                return
            for bound in unknown:
                found = await self.source.root_at(self.stream_id, bound)
                if found is None and self.source.may_lag and bound.label == self._label(bound):
                    self._keeper.close()  # a copy that is older than what is kept: nothing of that can be used
                    self._keeper = MemoryKeeper(self.overlay)
                    return
                if found != bound.mmr_root:
                    where = f"entry {bound.upto_seq} of label {bound.label.hex()}"
                    raise Unverified("cache", f"the log does not have the root this cache was made under, at {where}")
                self._checked.add(bound)

    def _label(self, bound: LogPrefix) -> bytes:
        return self.source.label(self.stream_id, bound.epoch)

    def _folder(self) -> Path:
        hub_id = self.source.known.identity.hub_id
        return cache_folder(self.source.folder, hub_id, self.overlay, self.stream_id)


def shown(at: At) -> str:
    """A place as people write it."""
    return f"{at.epoch}:{at.stream_seq}" if at.epoch else str(at.stream_seq)
