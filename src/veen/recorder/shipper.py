"""Send the events of a feed to a hub, each exactly once, even if this process is killed at any time.

The outbox transaction that stores a message also stores a mark for its event. From then on the message is delivered
once, because the same bytes are sent until the hub answers. After a crash there are three kinds of events: settled
ones, which the feed does not return again; marked ones, which are skipped; and others, which are sent.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from plumbing.durable import append_line
from veen.client.client import Client
from veen.client.local_files import DISK, named
from veen.client.sender import Draft, Sent
from veen.core import Malformed, Refused, Unavailable, canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_JSON_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.feed import EventFeed, FeedItem, source_mark
from veen.recorder.json_lines import JsonLines
from veen.recorder.normalize import Defaults
from veen.recorder.routes import NotRecorded, Routes, routes_of
from veen.recorder.spool import MAX_BATCH_BYTES

REFUSED, RETRYING = "refused.jsonl", "retrying.jsonl"
_RETRYING_STATE = "retrying.place"
_MAX_LINE_BYTES = 8 * MAX_BATCH_BYTES  # an event as one JSON line with every character escaped
_EVENT_FIELDS = ("subject_id", "event_type", "event_time", "origin", "content")
BATCH = 256
MAP_REFRESH_S = 60.0  # interval for reading the event map again
MAP_RETRY_S = 1.0  # if an event does not match the map: it may just have been changed
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 30.0

Connect = Callable[[], AbstractAsyncContextManager[Client]]


@dataclass(slots=True)
class Count:
    """The events of a feed, counted by outcome."""

    sent: int = 0
    known: int = 0  # already in the outbox or log, from an earlier run
    refused: int = 0
    lost: int = 0  # refused events that could not be set aside for lack of room
    waits: int = 0  # times the hub did not answer


class SetAside:
    """Events that cannot be recorded, with the reason, as JSON lines for the operator."""

    def __init__(self, path: Path, max_bytes: int = MAX_JSON_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def add(self, item: FeedItem, reason: str) -> bool:
        """Append an event durably. Returns False if the file is full; bad input must not fill the disk."""
        row: dict[str, object] = {"source": item.source, "position": item.position, "reason": reason}
        if item.event is None:
            row |= normalize.raw_input(item.raw)
        else:
            row |= {name: getattr(item.event, name) for name in _EVENT_FIELDS}
        line = normalize.payload_of(row)
        DISK.make_folder(self.path.parent, parents=True)
        with named(self.path):
            return append_line(self.path, f"{line}\n".encode(), self._max_bytes)


class RetryFeed:
    """One pass over the set-aside events, which are sent again with their original source and position.

    Inputs append to `refused.jsonl`. While events are sent again, that file is named `retrying.jsonl`. An interrupted
    pass is finished first.
    """

    def __init__(self, folder: Path) -> None:
        """Call only while no other process sends for this client: an input might be writing to the file."""
        self._file, self._state = folder / RETRYING, folder / _RETRYING_STATE
        if not self._file.exists() and (folder / REFUSED).exists():
            self._state.unlink(missing_ok=True)  # it belongs to a removed file that may look the same
            DISK.replace(folder / REFUSED, self._file)
            DISK.sync_folder(folder)
        unused = Defaults("recorder", "recorder.refused")  # every line has its own values
        self.feed = JsonLines(
            self._file, self._state, unused, follow=False, read=retried_item, max_line_bytes=_MAX_LINE_BYTES
        )

    def finish(self) -> None:
        """Remove the file: every event was sent or set aside again."""
        self._file.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)


def retried_item(source: str, position: int, line: bytes, _: Defaults) -> FeedItem:
    """The event of a line, with its original place. An invalid line becomes a flaw at its place in this file."""
    try:
        return _set_aside_item(canonical_json.parse(line, "line", exact=True))
    except (Malformed, ValueError) as error:
        return FeedItem(source, position, None, str(error), line)


def _set_aside_item(found: Plain) -> FeedItem:
    """Read a line that `SetAside` wrote. Raw input is refused again: no event can be made of it."""
    match found:
        case {"source": str() as source, "position": int() as at, "reason": str() as reason} if 0 <= at <= U64_MAX:
            match found:
                case {"raw": str() as text}:
                    return FeedItem(source, at, None, reason, text.encode())
                case {"raw_hex": str() as text}:
                    return FeedItem(source, at, None, reason, bytes.fromhex(text))
                case {
                    "subject_id": str() as subject,
                    "event_type": str() as event_type,
                    "event_time": int() as event_time,
                    "origin": str() as origin,
                    "content": str() as payload,
                }:
                    event = RecordEvent(subject, event_type, event_time, origin, payload)
                    event.encode()  # raises `ValueError` if it is invalid
                    return FeedItem(source, at, event)
    raise Malformed("line", "it is not a line of a set-aside file")


@dataclass(slots=True)
class Shipper:
    """Sends one feed to one hub. `notify` receives messages for the operator."""

    connect: Connect
    feed: EventFeed
    aside: SetAside
    notify: Callable[[str], None] = lambda text: None
    count: Count = field(default_factory=Count)
    routes: Routes | None = None  # as last read

    async def run(self) -> Count:
        """Run until the feed ends. Raises `Refused` if the hub rejects this producer; no event is lost then."""
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
                self.notify(f"{error}; retrying in {pause:.1f} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)


class _Shipment:
    """Sends over one connection."""

    def __init__(self, client: Client, shipper: Shipper, routes: Routes) -> None:
        self._client = client
        self._shipper = shipper
        self._routes = shipper.routes = routes
        self._marks: dict[str, set[bytes]] = {}  # by source: events that an earlier run already sent
        self._routes_read_at = asyncio.get_running_loop().time()

    async def send(self, items: Sequence[FeedItem]) -> None:
        await self._refresh_routes(items)
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
        outcome_text = "is set aside" if kept else f"is lost because {aside.path} is full; move that file away"
        self._shipper.notify(f"{item.source} {item.position} {outcome_text}: {refused.message}")
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
        """Drop the marks of settled events, which the feed does not return again."""
        await asyncio.to_thread(self._client.dir.outbox.forget_marks, [item.mark for item in items])

    async def _refresh_routes(self, items: Sequence[FeedItem]) -> None:
        """Read the map again regularly, and soon if it does not cover an event. Not for every event."""
        now = asyncio.get_running_loop().time()
        known = all(item.event is None or self._routes.refusal(item.event) is None for item in items)
        if now < self._routes_read_at + (MAP_REFRESH_S if known else MAP_RETRY_S):
            return
        self._routes, self._routes_read_at = await routes_of(self._client), now
        self._shipper.routes = self._routes
