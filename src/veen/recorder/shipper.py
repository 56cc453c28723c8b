"""Sending what a feed gives, each event exactly once, whenever this process is killed.

An event is marked in the transaction that gives its message a place in the client's outbox. From there it is delivered
once, because the very same bytes are sent until the hub answers. So after a crash there are three kinds of event: those
the feed has settled; those with a mark, which are passed by; those without, which are sent.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from veen.client.client import Client
from veen.client.draft import Draft, Sent
from veen.core import Refused, Unavailable
from veen.core.limits import MAX_JSON_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import durable, normalize
from veen.recorder.feed import EventFeed, FeedItem, source_mark
from veen.recorder.routes import NotRecorded, Routes, routes_of

BATCH = 256
LOOK_AGAIN_S = 60.0  # at the map, beside the way of events
LOOK_ANEW_S = 1.0  # where an event does not fit it: the administrator may just have said so
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0

Connect = Callable[[], AbstractAsyncContextManager[Client]]


@dataclass(slots=True)
class Count:
    """What became of what was taken."""

    sent: int = 0
    known: int = 0  # had a place already, from a run before
    refused: int = 0
    lost: int = 0  # of those refused: there was no more room to set them aside
    waits: int = 0  # times the hub did not answer


class SetAside:
    """Events that cannot be recorded, and why: JSON lines, for whoever looks after the recorder."""

    def __init__(self, path: Path, max_bytes: int = MAX_JSON_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def add(self, item: FeedItem, reason: str) -> bool:
        """Whether it is kept, durably: the file has a bound, so that nonsense does not fill the disk."""
        told: dict[str, object] = {"source": item.source, "position": item.position, "reason": reason}
        if item.event is None:
            told |= normalize.as_it_came(item.raw)
        else:
            names = ("subject_id", "event_type", "event_time", "origin", "content")
            told |= {name: getattr(item.event, name) for name in names}
        line = normalize.payload_of(told)
        durable.make_folder(self.path.parent)
        return durable.append_line(self.path, f"{line}\n".encode(), self._max_bytes)


@dataclass(slots=True)
class Shipper:
    """One feed to one hub. `told` hears of what an operator should know."""

    connect: Connect
    feed: EventFeed
    aside: SetAside
    told: Callable[[str], None] = lambda text: None
    count: Count = field(default_factory=Count)
    routes: Routes | None = None  # as of the last look at the map

    async def run(self) -> Count:
        """Until the feed ends. Raises `Refused` where the hub takes nothing from this producer; all is kept then."""
        taken: Sequence[FeedItem] = ()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with self.connect() as client:
                    await client.recover()
                    shipment = _Shipment(client, self, await routes_of(client))
                    while taken or (taken := await self.feed.take(BATCH)):
                        await shipment.send(taken)
                        await asyncio.to_thread(self.feed.settle, taken)
                        await shipment.forget(taken)
                        taken, pause = (), _FIRST_PAUSE_S
                    return self.count
            except Unavailable as error:
                self.count.waits += 1
                self.told(f"{error}; the next try is in {pause:.1f} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Shipment:
    """What one connection sends."""

    def __init__(self, client: Client, shipper: Shipper, routes: Routes) -> None:
        self._client = client
        self._shipper = shipper
        self._routes = shipper.routes = routes
        self._marks: dict[str, set[bytes]] = {}  # of sources met so far: what had a place before this run
        self._looked_at = asyncio.get_running_loop().time()

    async def send(self, items: Sequence[FeedItem]) -> None:
        await self._look_again(items)
        count = self._shipper.count
        waiting: list[tuple[FeedItem, asyncio.Future[Sent]]] = []
        for item in items:
            if item.mark in self._placed(item.source):
                count.known += 1
                continue
            try:
                waiting.append((item, self._put(item)))
            except Refused as refused:
                self._set_aside(item, refused)
        outcomes = await asyncio.gather(*(future for _, future in waiting), return_exceptions=True)
        for (item, _), outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, Refused) and outcome.code == "E.SIZE":
                self._set_aside(item, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                count.sent += 1

    def _set_aside(self, item: FeedItem, refused: Refused) -> None:
        aside, count = self._shipper.aside, self._shipper.count
        kept = aside.add(item, refused.message)
        became = "is set aside" if kept else f"is lost, since {aside.path} is full and has to be moved away"
        self._shipper.told(f"{item.source} {item.position} {became}: {refused.message}")
        count.refused += 1
        count.lost += not kept

    def _put(self, item: FeedItem) -> "asyncio.Future[Sent]":
        if item.event is None:
            raise NotRecorded(item.flaw)
        event: RecordEvent = replace(item.event, source=item.source, position=item.position)
        stream = self._routes.stream(event)
        return self._client.sender(stream).put(Draft(event.encode(), event.SCHEMA, mark=item.mark))

    def _placed(self, source: str) -> set[bytes]:
        if source not in self._marks:
            self._marks[source] = set(self._client.dir.outbox.marks(source_mark(source)))
        return self._marks[source]

    async def forget(self, items: Sequence[FeedItem]) -> None:
        """The feed has settled these: they are not given again, and their marks are of no more use."""
        await asyncio.to_thread(self._client.dir.outbox.forget_marks, [item.mark for item in items])

    async def _look_again(self, items: Sequence[FeedItem]) -> None:
        """At the map, where it does not know a type, and from time to time: not on the way of every event."""
        now = asyncio.get_running_loop().time()
        known = all(item.event is None or self._routes.refusal(item.event) is None for item in items)
        if now < self._looked_at + (LOOK_AGAIN_S if known else LOOK_ANEW_S):
            return
        self._routes, self._looked_at = await routes_of(self._client), now
        self._shipper.routes = self._routes
