"""Subscribers: each gets the entries of one label from a place on, as they commit, in order and without gaps."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from veen.hub.reads import item
from veen.storage.lookup import Lookup
from veen.storage.record import Record

_PAGE = 64
_TOO_MANY = 1013  # try again later
_INTERNAL = 1011


class Subscriptions:
    """The subscribers of one hub, by label. On the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, lookup: Lookup, most: int) -> None:
        self.loop = loop
        self.executor = executor
        self.lookup = lookup
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

    def committed(self, records: list[Record]) -> None:
        """Wake who waits for these labels."""
        if not self._by_label:
            return
        for label in {record.label for record in records}:
            for subscriber in tuple(self._by_label.get(label, ())):
                subscriber.wake()


class Subscriber:
    """One WebSocket. It reads the log like anyone else, so it can be slow without holding anything up."""

    def __init__(self, subscriptions: Subscriptions, label: bytes, from_seq: int) -> None:
        self.label = label
        self._subscriptions = subscriptions
        self._next = from_seq
        self._ready: list[tuple[int, bytes]] = []
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
        """Subscribers have nothing to say."""

    def on_drain(self) -> None:
        self._blocked = False
        self._deliver()

    def on_close(self) -> None:
        self._send = None
        self._subscriptions.leave(self)

    def wake(self) -> None:
        """There may be something new."""
        if self._reading or self._blocked or self._send is None:
            self._again = True
            return
        self._reading, self._again = True, False
        self._subscriptions.executor.submit(self._read, self._next)

    def _read(self, first: int) -> None:
        """On the executor."""
        loop = self._subscriptions.loop
        try:
            entries = self._subscriptions.lookup.entries(self.label, first, first + _PAGE - 1)
            page = [(entry.stream_seq, item(entry, with_receipt=True)) for entry in entries]
        except Exception:
            loop.call_soon_threadsafe(self._failed)
            raise
        loop.call_soon_threadsafe(self._got, page)

    def _got(self, page: list[tuple[int, bytes]]) -> None:
        self._reading = False
        self._again = self._again or len(page) == _PAGE
        self._ready = page
        self._deliver()

    def _failed(self) -> None:
        self._reading = False
        if self._close:
            self._close(_INTERNAL)

    def _deliver(self) -> None:
        while self._ready and self._send is not None:
            seq, data = self._ready[0]
            if not self._send(data):
                self._blocked = True
                return
            self._next = seq + 1
            self._ready.pop(0)
        if self._again:
            self.wake()
