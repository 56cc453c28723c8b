"""Subscribers: each receives the entries of one label from a place on, in order and without gaps, as they commit."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from veen.core import Refused
from veen.hub.read_api import PageMemoryBudget, item
from veen.hub.read_executor import BoundedQueue, QueuedJob
from veen.storage.commit_group import AcceptedEntry
from veen.storage.store import Lookup

_PAGE_ITEMS = 64
PAGE_BYTES = 1 << 18  # a page ends with the entry that reaches this size
_RETRY_S = 1.0
_TOO_MANY = 1013  # WebSocket close code: try again later
_INTERNAL = 1011


RecordError = Callable[[Exception, str], None]


class Subscriptions:
    """The subscribers of one hub, by label. On the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, lookup: Lookup, most: int, record_error: RecordError
    ) -> None:
        """`record_error` is called with the error and the endpoint if a page cannot be read."""
        self.loop = loop
        self.record_error = record_error
        self.lookup = lookup
        self.page_memory = PageMemoryBudget()  # separate from that of page requests
        self._queue = BoundedQueue(loop, executor, 1, most)  # one read per subscriber, so it is never full
        self._most = most
        self._by_label: dict[bytes, set[Subscriber]] = {}
        self.count = 0

    def full(self) -> bool:
        return self.count >= self._most

    def join(self, subscriber: "Subscriber") -> None:
        self._by_label.setdefault(subscriber.label, set()).add(subscriber)
        self.count += 1

    def leave(self, subscriber: "Subscriber") -> None:
        found = self._by_label.get(subscriber.label, set())
        if subscriber in found:
            found.discard(subscriber)
            self.count -= 1
            if not found:
                del self._by_label[subscriber.label]

    def read(self, subscriber: "Subscriber", from_seq: int) -> None:
        self._queue.put(QueuedJob(lambda: subscriber.read(from_seq), subscriber, subscriber.is_lost))

    def committed(self, records: Iterable[AcceptedEntry]) -> None:
        """Wake the subscribers of these labels."""
        if not self._by_label:
            return
        for label in {record.label for record in records}:
            for subscriber in tuple(self._by_label.get(label, ())):
                subscriber.wake()


class Subscriber:
    """One WebSocket. It reads through the log, so a slow one delays nothing else."""

    def __init__(self, subscriptions: Subscriptions, label: bytes, from_seq: int) -> None:
        self.label = label
        self._subscriptions = subscriptions
        self._next = from_seq
        self._ready: deque[tuple[int, bytes]] = deque()
        self._held = 0  # bytes that are ready or being sent
        self._reading = False
        self._again = False
        self._blocked = False
        self._send: Callable[[bytes], bool] | None = None
        self._close: Callable[[int], None] | None = None

    def on_open(self, send: Callable[[bytes], bool], close: Callable[[int], None]) -> None:
        self._send, self._close = send, close
        if self._subscriptions.full():
            close(_TOO_MANY)
            return
        self._subscriptions.join(self)
        self.wake()

    def on_message(self, data: bytes) -> None:
        """Messages of subscribers are ignored."""

    def on_full(self) -> None:
        self._blocked = True

    def on_drain(self) -> None:
        self._blocked = False
        self._deliver()

    def on_close(self) -> None:
        self._send = None
        self._ready.clear()
        self._hold(0)
        self._subscriptions.leave(self)

    def is_lost(self) -> bool:
        return self._send is None

    def wake(self) -> None:
        """Read on: there may be new entries."""
        if self._reading or self._blocked or self._send is None:
            self._again = True
            return
        self._reading, self._again = True, False
        self._subscriptions.read(self, self._next)

    def read(self, first: int) -> None:
        """On the thread pool: read the next page."""
        loop = self._subscriptions.loop
        page: deque[tuple[int, bytes]] = deque()
        size = 0
        try:
            self._subscriptions.page_memory.check()
            for entry in self._subscriptions.lookup.entries(self.label, first, first + _PAGE_ITEMS - 1):
                page.append((entry.stream_seq, item(entry, with_receipt=True)))
                size += entry.size
                if size >= PAGE_BYTES:
                    break
        except Refused:  # the page memory is used up for now
            loop.call_soon_threadsafe(loop.call_later, _RETRY_S, self._retry)
        except Exception as error:  # noqa: BLE001  close the subscriber and log the error
            loop.call_soon_threadsafe(self._failed, error)
        else:
            more = len(page) == _PAGE_ITEMS or size >= PAGE_BYTES
            loop.call_soon_threadsafe(self._got, page, more)

    def _got(self, page: deque[tuple[int, bytes]], more: bool) -> None:
        self._reading = False
        if self._send is None:
            return
        self._again = self._again or more
        self._ready = page
        self._hold(sum(len(data) for _, data in page))
        self._deliver()

    def _retry(self) -> None:
        self._reading = False
        self.wake()

    def _failed(self, error: Exception) -> None:
        self._reading = False
        self._subscriptions.record_error(error, "/tooling/subscribe")
        if self._close:
            self._close(_INTERNAL)

    def _deliver(self) -> None:
        while self._ready and not self._blocked and self._send is not None:
            seq, data = self._ready[0]
            if self._send(data):
                self._next = seq + 1
                self._ready.popleft()
            else:
                self._blocked = True
        if self._blocked:
            return
        self._hold(0)
        if self._again:
            self.wake()

    def _hold(self, size: int) -> None:
        self._subscriptions.page_memory.add(size - self._held)
        self._held = size
