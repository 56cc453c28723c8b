"""The state of a stream under an overlay, now and at any place, from a verifying source.

async with StateView.of(client, "settings", KV) as view, view.reading() as reading:
    get(reading.states, b"door")

The fold is cached in the client directory, so the next reading fetches only new entries. Before a cache is used, its
roots are compared with the source; the cache is rejected if the log has other roots.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client import ClientDir, local_files
from veen.client.client import Client
from veen.client.reader import Entry as ReadEntry
from veen.core import Mmr, Unavailable, Unverified
from veen.overlays import At, EventFault, FoldStep, MergeOverlay, Overlay, state_hash
from veen.overlays.kept_fold import KeptFold, LogPrefix, MemoryRows, Timeline, extend
from veen.overlays.kept_fold_lmdb import Cache, discard, folder_of
from veen.state.entry_source import EntrySource, HubSource, closed_before, folded, need_key, stream_id_of

S = TypeVar("S")
M = TypeVar("M")

FOLDER = "overlays"
START = At(0, 0)


class StateAt(Generic[S, M]):
    """The state after the entry at `at`, or at the end of the log. Valid until its `async with` ends."""

    def __init__(self, timeline: Timeline[S, M], at: At | None, now: int = 0) -> None:
        """`at` must not be after the end of the log."""
        self.now = now  # the hub's current time, or the hub time of the entry at `at`
        self._timeline = timeline
        self._at = at
        self.upto = timeline.upto() or START  # the end of the log
        self.at = self.upto if at is None else at

    @property
    def overlay(self) -> Overlay[S, M]:
        return self._timeline.overlay

    def state(self, part: bytes) -> S:
        """The state of a part, in O(log n); the overlay's initial state if no entry touched it."""
        return self._timeline.state(part, self._at)

    def known(self, part: bytes, key: bytes) -> At | None:
        found = self._timeline.known(part, key)
        return found if found is not None and found <= self.at else None

    @property
    def states(self) -> Mapping[bytes, S]:
        """All touched parts, in the order of their first entry. Each state is computed on access."""
        return self._timeline.states(self._at)

    def live(self) -> Iterator[tuple[bytes, S]]:
        """The live parts, in the order of their first entry."""
        if self._at is None:
            return self._timeline.live()
        return ((part, state) for part, state in self.states.items() if self.overlay.live(state))

    def history(self, part: bytes) -> Iterator[FoldStep]:
        """The steps applied to a part, in order."""
        return self._timeline.history(part, last=self.at)

    def faults(self, first: At | None = None) -> Iterator[EventFault]:
        """The entries that were not applied, in order, with their reasons."""
        return self._timeline.faults(first, self.at)

    def faults_at(self, place: At) -> tuple[EventFault, ...]:
        """The faults of one entry; empty if it was applied."""
        return tuple(takewhile(lambda fault: fault.place == place, self._timeline.faults(place, place)))

    def state_hash(self, *parts: bytes) -> bytes:
        """The hash of the whole state, or of these parts."""
        states = self.states
        if parts:
            return state_hash(self.overlay, {part: states[part] for part in parts if part in states})
        return state_hash(self.overlay, states)

    def ends(self) -> tuple[At, ...]:
        """The last place of each epoch with entries, up to `at`."""
        prefixes = [prefix for prefix in self._timeline.prefixes() if prefix.epoch <= self.at.epoch]
        return tuple(min(At(prefix.epoch, prefix.upto_seq), self.at) for prefix in prefixes)

    def determining(self, part: bytes) -> tuple[FoldStep, ...]:
        """The steps that determine a part's state, without those that later steps make irrelevant."""
        steps = tuple(self.history(part))
        overlay = self.overlay
        if not isinstance(overlay, MergeOverlay):
            return steps
        kept: list[FoldStep] = []
        summed = overlay.EMPTY
        for step in reversed(steps):
            more = overlay.merge(overlay.lift(step), summed)
            if more != summed:
                kept.append(step)
                summed = more
        return tuple(reversed(kept))


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
        self._kept: KeptFold[S, M] = _open_cache(self._folder(), overlay) if cached else KeptFold(overlay)
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
        self._kept.close()

    async def sync(self) -> None:
        """Fold new entries. Raises `Unverified` if the cache is of another log."""
        await self._check_kept()
        with self._kept.reading() as timeline:
            upto = timeline.upto()
            tree = timeline.tree(upto.epoch) if upto else Mmr()
        now = self.source.now()  # first, so that all entries of epochs settled by then are listed and read
        epochs = await self.source.epochs(self.stream_id, upto.epoch if upto else None)
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
        with self._locked():
            with self._kept.reading() as timeline:
                fresh = fresh_of(page, timeline)
            if fresh:
                self._kept.extend(map(folded, fresh), fresh[-1].receipt.mmr_root)
        last = page[-1].receipt
        self._checked.add(LogPrefix(last.label, page[-1].epoch, last.stream_seq, last.mmr_root))

    def kept(self) -> AbstractContextManager[Timeline[S, M]]:
        """The cached fold, without contacting the source. Use `reading` for answers."""
        return self._kept.reading()

    @asynccontextmanager
    async def reading(self, at: At | None = None, *, fresh: bool = True) -> AsyncIterator[StateAt[S, M]]:
        """The state after the entry at a place, or at the end of the log.

        Without `fresh`, new entries are not fetched. Raises `Unavailable` if the log is shorter than `at`.
        """
        if fresh:
            await self.sync()
        await self._check_kept()
        with self._kept.reading() as timeline:
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
        rows = MemoryRows(timeline.rows)
        for label in dict.fromkeys(entry.receipt.label for entry in above):
            page = [entry for entry in above if entry.receipt.label == label]
            extend(self.overlay, rows, map(folded, page), page[-1].receipt.mmr_root)
        return Timeline(self.overlay, rows)

    async def _check_kept(self) -> None:
        """Compare the roots of the cache with the source, except those already compared."""
        while True:
            with self._kept.reading() as timeline:
                unchecked = [prefix for prefix in timeline.prefixes() if prefix not in self._checked]
            if not unchecked:
                return
            for prefix in unchecked:
                found = await self.source.root_at(self.stream_id, prefix)
                if found is None and self.source.may_lag and prefix.label == self._label(prefix):
                    self._kept.close()  # the copy is older than the cache, so the cache cannot be used for it
                    self._kept = KeptFold(self.overlay)
                    return
                prefix.check(found)
                self._checked.add(prefix)

    def _label(self, prefix: LogPrefix) -> bytes:
        return self.source.label(self.stream_id, prefix.epoch)

    def _locked(self) -> AbstractContextManager[object]:
        """Between two processes, appending to a cache is exclusive."""
        if not isinstance(self._kept, Cache):
            return nullcontext()
        folder = self._kept.folder
        return local_files.locked(folder.with_name(f"{folder.name}.lock"), str(folder), wait=True)

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


def _open_cache(folder: Path, overlay: Overlay[S, M]) -> Cache[S, M]:
    """Raises `Malformed` if the folder is not a cache of this overlay."""
    local_files.DISK.make_folder(folder.parent, parents=True)
    return Cache(folder, overlay)


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
    if Cache.in_use(path):
        raise ValueError("the cache is in use")
    existed = path.exists()
    discard(path)
    return existed
