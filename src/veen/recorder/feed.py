"""What a shipper takes events from: each has a source and a place in it, and is asked for again until it is settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from veen.core.hashing import ht, u64be
from veen.overlays.record import RecordEvent

_SOURCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class FeedItem:
    """One event in its place; or, where there is none to be made of what is there, why not and what it was."""

    source: str
    position: int
    event: RecordEvent | None
    flaw: str = ""
    raw: bytes = b""

    @property
    def mark(self) -> bytes:
        """What the client's outbox knows it by."""
        return source_mark(self.source) + u64be(self.position)


def source_mark(source: str) -> bytes:
    return ht("veen/recorder-source", source.encode())[:_SOURCE_BYTES]


class EventFeed(Protocol):
    """Events in order. A place is remembered only once it is settled, so what was not is given again."""

    async def take(self, most: int) -> Sequence[FeedItem]:
        """The next few, waited for; none where there will be no more."""
        ...

    def settle(self, items: Sequence[FeedItem]) -> None:
        """These, the last that were taken, are in the log or set aside: durable when this returns."""
        ...

    def close(self) -> None: ...
