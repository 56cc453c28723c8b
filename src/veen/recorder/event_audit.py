"""Audit who wrote what: compare every event with the producers and types in the settings. §3.4, I3."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from veen.core import naming
from veen.overlays.record import (
    CHANGES,
    RECORDER_CHANGES,
    RecorderSetting,
    RecordEvent,
    States,
    place_key,
    producer_of,
    profile_of,
)
from veen.recorder.replay import ReplayedEvent, Replayer, ReplaySpan
from veen.recorder.routes import NotSetUp
from veen.state.entry_source import EntrySource
from veen.state.state_view import StateView


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
    states = await _states(source)
    profile = profile_of(states)
    if profile is None:
        raise NotSetUp
    counts: Counter[tuple[bytes, str, str]] = Counter()
    strays: list[Stray] = []
    places: set[bytes] = set()
    copies = 0
    for stream in profile.streams:
        if stream == CHANGES:
            continue
        async for one in _entries(source, stream):
            if one.event is not None:
                place = place_key(one.event)
                copies += place in places
                places |= {place} if place else set()
                counts[one.entry.client_id, stream, one.event.origin] += 1
            reason = _stray(states, stream, one)
            if reason is not None:
                strays.append(Stray(stream, one.entry.epoch, one.entry.stream_seq, reason))
    uses = [
        TypeUse(client_id, found.name if (found := producer_of(states, client_id)) else None, stream, origin, events)
        for (client_id, stream, origin), events in sorted(counts.items())
    ]
    return EventAudit(tuple(uses), tuple(strays), copies)


async def _states(source: EntrySource) -> dict[bytes, RecorderSetting]:
    async with StateView(source, CHANGES, RECORDER_CHANGES, cached=False) as view, view.reading() as reading:
        return dict(reading.states)


async def _entries(source: EntrySource, stream: str) -> AsyncGenerator[ReplayedEvent, None]:
    replayer = Replayer(source, stream)
    for epoch in await source.epochs(naming.stream_id(stream), None):
        last = await replayer.last_seq(epoch)
        if last:
            async with aclosing(replayer.replay(ReplaySpan(epoch, 1, last))) as entries:
                async for one in entries:
                    yield one


def _stray(states: States, stream: str, one: ReplayedEvent) -> str | None:
    event: RecordEvent | None = one.event
    if event is None:
        return one.flaw
    producer = producer_of(states, one.entry.client_id)
    if producer is None:
        return f"key {one.entry.client_id.hex()[:16]}… belongs to no producer"
    if event.origin not in producer.origins:
        return f"{producer.name} records for {', '.join(producer.origins)}, not for {event.origin}"
    if stream not in producer.streams:
        return f"{producer.name} may not write to this stream"
    return None
