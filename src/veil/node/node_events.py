"""The numbered events of a node. A reader that missed some asks again from the last number it saw.

An event is stored in the same transaction as the change it reports, so a crash keeps both or neither. The container
is bounded in number and bytes; the oldest events are dropped.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from veil.node.config import Bounds
from veil.store import Store, Table

Value = str | int | float | bytes | None
_SEQ = struct.Struct(">Q")
_LAST = b"last_event"
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `data` may hold byte strings."""

    seq: int
    at: float
    kind: str
    data: Mapping[str, Value]

    def encode(self) -> bytes:
        """A line of JSON with the lengths of byte strings, followed by the byte strings."""
        plain = {key: [len(value)] if isinstance(value, bytes) else value for key, value in self.data.items()}
        line = _JSON.encode([self.at, self.kind, plain]).encode()
        return b"\n".join((line, b"".join(value for value in self.data.values() if isinstance(value, bytes))))

    @classmethod
    def decode(cls, seq: int, stored: bytes) -> "Event":
        line, _, rest = stored.partition(b"\n")
        at, kind, plain = json.loads(line)
        data: dict[str, Value] = {}
        for key, value in plain.items():
            if isinstance(value, list):
                data[key], rest = rest[: value[0]], rest[value[0] :]
            else:
                data[key] = value
        return cls(seq, at, kind, data)


class Events:
    """The stored events."""

    def __init__(self, store: Store, bounds: Bounds, listener: Callable[[Event], None] | None = None) -> None:
        self._store = store
        self._bounds = bounds
        self._sizes = {_SEQ.unpack(key)[0]: len(value) for key, value in store.items(Table.EVENTS)}
        self._bytes = sum(self._sizes.values())
        last = store.get(Table.META, _LAST)
        self.last_seq = _SEQ.unpack(last)[0] if last else 0
        # The last number on disk. A crash may reuse later numbers, so they are not shown outside.
        self.committed_seq = self.last_seq
        self.listener = listener
        self._unnotified: list[Event] = []

    @property
    def first_seq(self) -> int:
        """The oldest stored number, or `last_seq + 1` if there is none."""
        return next(iter(self._sizes), self.last_seq + 1)

    def add(self, at: float, kind: str, **data: Value) -> Event:
        self.last_seq += 1
        event = Event(self.last_seq, at, kind, data)
        stored = event.encode()
        self._store.put(Table.EVENTS, _SEQ.pack(event.seq), stored)
        self._store.put(Table.META, _LAST, _SEQ.pack(event.seq))
        self._sizes[event.seq] = len(stored)
        self._bytes += len(stored)
        while len(self._sizes) > self._bounds.events or (
            self._bytes > self._bounds.event_bytes and len(self._sizes) > 1
        ):
            oldest = next(iter(self._sizes))
            self._bytes -= self._sizes.pop(oldest)
            self._store.delete(Table.EVENTS, _SEQ.pack(oldest))
        if self.listener is not None:
            self._unnotified.append(event)
        return event

    def notify(self) -> None:
        """Pass committed events to the listener. Their numbers are never reused."""
        self.committed_seq = self.last_seq
        unnotified, self._unnotified = self._unnotified, []
        for event in unnotified:
            if self.listener is not None:
                self.listener(event)

    def since(self, seq: int, limit: int) -> tuple[Event, ...]:
        """Up to `limit` committed events after a number, in order."""
        found = []
        last = min(self.committed_seq, max(seq, self.first_seq - 1) + limit)
        for number in range(max(seq + 1, self.first_seq), last + 1):
            stored = self._store.get(Table.EVENTS, _SEQ.pack(number))
            if stored is not None:
                found.append(Event.decode(number, stored))
        return tuple(found)
