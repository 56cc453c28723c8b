"""The state of a stream under an overlay, now and at any place, from a verifying source.

async with StateView.of(client, "settings", KV) as view, view.reading() as reading:
    get(reading.states, b"door")

The fold is cached, so the next reading fetches only new entries. Before a cache is used, its roots are compared with
the source; the cache is rejected if the log has other roots.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client.client import Client
from veen.client.reader import Entry as ReadEntry
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
    """An async context manager that closes the cache on exit."""

    def __init__(
        self, source: EntrySource, stream: str | bytes, overlay: Overlay[S, M], *, cached: bool = True
    ) -> None:
        """Without `cached` the fold is kept in memory only. Raises `Unavailable` without a reader key."""
        self.source = source
        self.stream_id = stream_id_of(stream)
        self.overlay = overlay
        need_key(source, self.stream_id)
        self._keeper: FoldKeeper[S, M] = CacheKeeper(self._folder(), overlay) if cached else MemoryKeeper(overlay)
        self._checked: set[LogPrefix] = set()
        self._open: list[ReadEntry] = []  # entries of unsettled epochs; not cached, folded on top at each reading

    @classmethod
    def of(cls, client: Client, stream: str | bytes, overlay: Overlay[S, M], *, cached: bool = True) -> Self:
        """The view of a stream at the hub of a connected client."""
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
        """Fold new entries. Raises `Unverified` if the cache is of another log."""
        await self._check_kept()
        with self._keeper.reading() as timeline:
            upto = timeline.upto()
            tree = timeline.tree(upto.epoch) if upto else Mmr()
        epochs = await self.source.epochs(self.stream_id, upto.epoch if upto else None)
        now = self.source.now()  # before reading, so that all entries of epochs settled by then are read
        later: list[ReadEntry] = []
        for epoch in epochs:
            after = tree if upto is not None and upto.epoch == epoch else Mmr()
            async for page in self.source.read(self.stream_id, epoch, after):
                if self.is_settled(epoch, now):
                    self.append(page)
                else:
                    later += page
        self._open = later

    def is_settled(self, epoch: int, now: int) -> bool:
        """Whether no entry can be added to an earlier epoch any more."""
        known = self.source.known
        return closed_before(known.profile, known.limits.max_epoch_skew_sec, epoch, now)

    def present_epoch(self) -> int:
        """The hub's current epoch by its known time; 0 if the hub has no epochs."""
        return self.source.known.profile.epoch(self.source.now())

    def earliest_epoch(self) -> int:
        """The first epoch that may have an entry that is not cached."""
        known = self.source.known
        around = known.profile.epochs_around(self.source.now(), known.limits.max_epoch_skew_sec)
        return min([around.start, *(entry.epoch for entry in self._open)])

    def append(self, page: list[ReadEntry]) -> None:
        """Add verified entries of a settled epoch to the cache."""
        self._keeper.append(page)
        last = page[-1].receipt
        self._checked.add(LogPrefix(last.label, page[-1].epoch, last.stream_seq, last.mmr_root))

    def kept(self) -> AbstractContextManager[Timeline[S, M]]:
        """The cached fold, without contacting the source. Use `reading` for answers."""
        return self._keeper.reading()

    @asynccontextmanager
    async def reading(self, at: At | None = None, *, fresh: bool = True) -> AsyncIterator[StateAt[S, M]]:
        """The state after the entry at a place, or at the end of the log.

        Without `fresh`, new entries are not fetched. Raises `Unavailable` if the log is shorter than `at`.
        """
        if fresh:
            await self.sync()
        await self._check_kept()
        with self._keeper.reading() as timeline:
            reading = StateAt(self._whole(timeline), at)
            if at is not None and at > reading.upto:
                end = reading.upto
                raise Unavailable(f"the stream ends with entry {shown(end)}; there is no entry {shown(at)} yet")
            reading.now = await self._now(reading.at, at is None)
            yield reading

    async def _now(self, at: At, is_present: bool) -> int:
        """The hub time of a reading. For a copy it is the time of its last entry."""
        if is_present and not self.source.may_lag:
            return self.source.now()
        return (await self.source.receipt(self.stream_id, at)).hub_ts if at.stream_seq else 0

    def _whole(self, timeline: Timeline[S, M]) -> Timeline[S, M]:
        """The cached fold with the entries of unsettled epochs on top."""
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
        """Compare the roots of the cache with the source, except those already compared."""
        while True:
            with self._keeper.reading() as timeline:
                unchecked = [prefix for prefix in timeline.prefixes() if prefix not in self._checked]
            if not unchecked:
                return
            for prefix in unchecked:
                found = await self.source.root_at(self.stream_id, prefix)
                if found is None and self.source.may_lag and prefix.label == self._label(prefix):
                    self._keeper.close()  # the copy is older than the cache, so the cache cannot be used for it
                    self._keeper = MemoryKeeper(self.overlay)
                    return
                if found != prefix.mmr_root:
                    where = f"entry {prefix.upto_seq} of label {prefix.label.hex()}"
                    raise Unverified("cache", f"the log has another root at {where} than when this cache was built")
                self._checked.add(prefix)

    def _label(self, prefix: LogPrefix) -> bytes:
        return self.source.label(self.stream_id, prefix.epoch)

    def _folder(self) -> Path:
        hub_id = self.source.known.identity.hub_id
        return cache_folder(self.source.folder, hub_id, self.overlay, self.stream_id)


def shown(at: At) -> str:
    """A place in its written form: `seq` or `epoch:seq`."""
    return f"{at.epoch}:{at.stream_seq}" if at.epoch else str(at.stream_seq)


async def read_states(
    source: EntrySource, stream: str | bytes, overlay: Overlay[S, M], *, cached: bool = True
) -> dict[bytes, S]:
    """All current states of an overlay on one stream, verified."""
    async with StateView(source, stream, overlay, cached=cached) as view, view.reading() as reading:
        return dict(reading.states)
