"""The source of a shipper's events. Each has a source and a position, and is returned again until it is settled."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from veen.core.hashing import ht, u64be
from veen.overlays.record import RecordEvent

_SOURCE_BYTES = 16
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class FeedItem:
    """An event with its position; or, for invalid input, the flaw and the raw bytes."""

    source: str
    position: int
    event: RecordEvent | None
    flaw: str = ""
    raw: bytes = b""

    @property
    def mark(self) -> bytes:
        """The key of the event in the client's outbox."""
        return source_mark(self.source) + u64be(self.position)


def source_mark(source: str) -> bytes:
    return ht("veen/recorder-source", source.encode())[:_SOURCE_BYTES]


class EventFeed(ABC):
    """Events in order. Only settled positions are remembered; other events are returned again after a restart."""

    def __init__(self, *, follow: bool) -> None:
        """With `follow`, the feed waits for more events until `end` is called."""
        self._follows = follow

    def end(self) -> None:
        """Stop following: return what exists now, then end."""
        self._follows = False

    async def take(self, most: int) -> Sequence[FeedItem]:
        """Wait for the next events, at most `most`. Empty if the feed has ended."""
        while True:
            last = not self._follows
            found = await asyncio.to_thread(self._next, most, last)
            if found or last:
                return found
            await asyncio.sleep(_POLL_S)

    @abstractmethod
    def _next(self, most: int, last: bool) -> list[FeedItem]:
        """The next events that exist. `last` is set if the feed ends when there are none. Runs in a thread."""

    @abstractmethod
    def settle(self, items: Sequence[FeedItem]) -> None:
        """Store durably that these events, the last taken ones, are in the log or set aside."""

    def close(self) -> None:  # noqa: B027  most feeds keep no file open
        """Close open files."""
