"""Replay: the events of a stream by range or time, in order, each with its receipt. 001, products-spec-1 §3.2.5.

`audit` compares every event with the producers and types in the settings: who wrote what. §3.4, I3.

Ranges and time windows include both ends. `hub_ts` never decreases within a label, so a window is a range, and binary
search finds its ends with O(log n) requests.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from veen.client.reader import Entry as ReadEntry
from veen.client.tree_follower import LabelTree, last_place, next_proof
from veen.core import Mmr, MmrProof, Receipt, naming
from veen.overlays import At, EventFault, FoldEntry, record
from veen.recorder.routes import required_profile
from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource, HubSource, NoEntry, folded, stream_id_of
from veen.state.state_view import read_states


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """Entries of one epoch of one stream, both ends included."""

    epoch: int
    from_seq: int
    to_seq: int


@dataclass(frozen=True, slots=True)
class ReplayedEvent:
    """An entry at its place. `event` is set if it is a recorder event; otherwise `flaw` is the reason."""

    entry: FoldEntry
    receipt: Receipt
    proof: MmrProof  # for the tree that ends with this entry
    event: record.RecordEvent | None
    flaw: str | None = None


class Replayer:
    """Reads one stream from a hub or a data directory. Every entry is verified."""

    def __init__(self, source: EntrySource, stream: str | bytes) -> None:
        self.source = source
        self.stream_id = stream_id_of(stream)

    async def last_seq(self, epoch: int) -> int:
        """The last entry of an epoch."""
        return await last_place(lambda seq: self._receipt(epoch, seq))

    async def window(self, start: int, end: int) -> list[ReplaySpan]:
        """The entries whose `hub_ts` is in [start, end], by epoch."""
        if end < start:
            raise ValueError(f"a window from {start} to {end} ends before it begins")
        spans = []
        for epoch in await self.source.epochs(self.stream_id, None):
            last = await self.last_seq(epoch)
            first = await self._first_from(epoch, last, start)
            after = await self._first_from(epoch, last, end + 1)
            if first < after:
                spans.append(ReplaySpan(epoch, first, after - 1))
        return spans

    async def _first_from(self, epoch: int, last: int, hub_ts: int) -> int:
        """The first place with `hub_ts` or later; one after the last if there is none."""
        low, high = 1, last + 1
        while low < high:
            middle = (low + high) // 2
            receipt = await self._receipt(epoch, middle)
            if receipt is None:
                raise NoEntry(f"the log ends before entry {middle}, which existed a moment ago")
            low, high = (low, middle) if receipt.hub_ts >= hub_ts else (middle + 1, high)
        return low

    async def _receipt(self, epoch: int, stream_seq: int) -> Receipt | None:
        try:
            return await self.source.receipt(self.stream_id, At(epoch, stream_seq))
        except NoEntry:
            return None

    async def replay(self, span: ReplaySpan) -> AsyncGenerator[ReplayedEvent, None]:
        """The entries of a span in order. Raises `NoEntry` if the log does not have all of them."""
        if not 1 <= span.from_seq <= span.to_seq:
            raise ValueError(f"{span.from_seq} to {span.to_seq} is not a range of a stream")
        tree = await self._tree(span.epoch, span.from_seq - 1)
        after = Mmr(tree.size, tree.peaks)
        async with aclosing(self.source.read(self.stream_id, span.epoch, after)) as pages:
            async for page in pages:
                for entry in page:
                    if tree.size == span.to_seq:
                        return
                    proof = next_proof(tree, entry.receipt.leaf_hash)
                    tree.add(entry.receipt)
                    yield replayed(entry, proof)
                if tree.size == span.to_seq:
                    return
        if tree.size < span.to_seq:
            raise NoEntry(f"the log ends with entry {tree.size}, before the requested entry {span.to_seq}")

    async def _tree(self, epoch: int, size: int) -> LabelTree:
        if size and await self._receipt(epoch, size) is None:
            raise NoEntry(f"the log has no entry {size + 1} yet")
        if isinstance(self.source, HubSource):
            return await self.source.client.follower(self.stream_id, epoch).tree_at(size)
        assert isinstance(self.source, DirectorySource)
        peaks = self.source.tree_at(self.stream_id, At(epoch, size)).peaks
        return LabelTree(self.source.label(self.stream_id, epoch), size, tuple(peaks))


def replayed(read: ReadEntry, proof: MmrProof) -> ReplayedEvent:
    """The event of an entry, or the reason why it is none."""
    entry = folded(read)
    steps = record.RECORD_TALLIES.read(entry)
    if isinstance(steps, EventFault):
        return ReplayedEvent(entry, read.receipt, proof, None, steps.reason)
    if not steps:
        return ReplayedEvent(entry, read.receipt, proof, None, "it is not a recorder event")
    event = steps[0].event
    assert isinstance(event, record.RecordEvent)
    return ReplayedEvent(entry, read.receipt, proof, event)


@dataclass(frozen=True, slots=True)
class TypeUse:
    """How many events a key wrote for an origin to a stream; `producer` if the key belongs to one."""

    principal_id: bytes
    producer: str | None
    stream: str
    origin: str
    events: int


@dataclass(frozen=True, slots=True)
class Stray:
    """An entry that the settings do not allow."""

    stream: str
    epoch: int
    stream_seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class EventAudit:
    """The uses of all keys, the stray entries, and the number of copies of other events."""

    uses: tuple[TypeUse, ...]
    strays: tuple[Stray, ...]
    copies: int


async def audit(source: EntrySource) -> EventAudit:
    """Read every stream of the recorder. Raises `NotSetUp` without a recorder, `Unavailable` without a key."""
    states = await read_states(source, record.CHANGES, record.RECORDER_CHANGES, cached=False)
    profile = required_profile(states)
    counts: Counter[tuple[bytes, str, str]] = Counter()
    strays: list[Stray] = []
    places: set[bytes] = set()
    copies = 0
    for stream in profile.streams:
        if stream == record.CHANGES:
            continue
        async for one in _entries(source, stream):
            if one.event is not None:
                place = record.place_key(one.event)
                copies += place in places
                places |= {place} if place else set()
                counts[one.entry.client_id, stream, one.event.origin] += 1
            reason = _stray(states, stream, one)
            if reason is not None:
                strays.append(Stray(stream, one.entry.epoch, one.entry.stream_seq, reason))
    uses = [
        TypeUse(
            client_id, found.name if (found := record.producer_of(states, client_id)) else None, stream, origin, events
        )
        for (client_id, stream, origin), events in sorted(counts.items())
    ]
    return EventAudit(tuple(uses), tuple(strays), copies)


async def _entries(source: EntrySource, stream: str) -> AsyncGenerator[ReplayedEvent, None]:
    replayer = Replayer(source, stream)
    for epoch in await source.epochs(naming.stream_id(stream), None):
        last = await replayer.last_seq(epoch)
        if last:
            async with aclosing(replayer.replay(ReplaySpan(epoch, 1, last))) as entries:
                async for one in entries:
                    yield one


def _stray(states: record.States, stream: str, one: ReplayedEvent) -> str | None:
    event: record.RecordEvent | None = one.event
    if event is None:
        return one.flaw
    producer = record.producer_of(states, one.entry.client_id)
    if producer is None:
        return f"key {one.entry.client_id.hex()[:16]}… belongs to no producer"
    if event.origin not in producer.origins:
        return f"{producer.name} records for {', '.join(producer.origins)}, not for {event.origin}"
    if stream not in producer.streams:
        return f"{producer.name} may not write to this stream"
    return None
