"""The source of a shipper's events. Each has a source and a position, and is returned again until it is settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from veen.core.hashing import ht, u64be
from veen.overlays.record import RecordEvent

_SOURCE_BYTES = 16


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


class EventFeed(Protocol):
    """Events in order. Only settled positions are remembered; other events are returned again after a restart."""

    async def take(self, most: int) -> Sequence[FeedItem]:
        """Wait for the next events, at most `most`. Empty if the feed has ended."""
        ...

    def settle(self, items: Sequence[FeedItem]) -> None:
        """Store durably that these events, the last taken ones, are in the log or set aside."""
        ...

    def close(self) -> None: ...
