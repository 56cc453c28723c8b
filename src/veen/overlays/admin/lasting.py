"""Records that hold for a time: which of several hold when.

Records stand in a rank that starts with their time. Where two hold at once the lower one counts, so a record that a
lower one leaves no second to never counts: it is not kept, and refused when it comes.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from veen.core.hashing import U64_MAX
from veen.overlays.admin.records import Record, RecordOverlay, Records
from veen.overlays.event import Event
from veen.overlays.overlay import Step

FOREVER = 2 * (U64_MAX + 1)  # later than any `ts + ttl`


class Lasting(Event):
    """An event that holds from `ts` on until `end`, that second excluded; for ever without one."""

    __slots__ = ()
    ts: int

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The first second in which it no longer holds; None where it holds for ever."""


L = TypeVar("L", bound=Lasting)


@dataclass(frozen=True, slots=True)
class Slot(Generic[L]):
    """The time in which a record counts; without `end`, for ever."""

    start: int
    end: int | None
    record: Record[L]

    def has(self, now: int) -> bool:
        return self.start <= now and (self.end is None or now < self.end)


class LastingOverlay(RecordOverlay[L]):
    """Give EVENTS, `parts`, `rank` and `plain`."""

    @abstractmethod
    def rank(self, record: Record[L]) -> tuple[Any, ...]:
        """By which of several records counts, the least first. Its first item is `ts`."""

    def keys(self, step: Step) -> tuple[bytes, ...]:
        """None: a record twice holds when it held once, and nobody can keep one out by naming it as an original."""
        return ()

    def standing(self, records: Records[L]) -> Records[L]:
        """Without those that no second is left to: ascending by rank, and by when they end."""
        kept, covered = [], 0
        for record in sorted(records, key=self.rank):
            # What ranks before this one starts no later, so it only has to last as long.
            end = _end(record)
            if end > max(record.said.ts, covered):
                kept.append(record)
                covered = end
        return tuple(kept)

    def merge(self, a: Records[L], b: Records[L]) -> Records[L]:
        # As records come in life: each later than those before it, and none of them in another's way.
        if a and b and a[-1].said.ts < b[0].said.ts and _end(a[-1]) < _end(b[0]):
            return (*a, *b)
        return super().merge(a, b)

    def idle(self, standing: Records[L], record: Record[L]) -> str:
        if _end(record) == record.said.ts:
            return "it holds at no time"
        before = next(one for one in standing if _end(one) >= _end(record))
        return f"entry {before.stream_seq} holds for all of its time"


def slots(standing: Records[L]) -> Iterator[Slot[L]]:
    """Which record counts when, ascending. Each counts once the one before it has ended."""
    free = 0
    for record in standing:
        yield Slot(max(record.said.ts, free), record.said.end, record)
        free = _end(record)


def holding(standing: Records[L], now: int) -> Record[L] | None:
    """The record that counts at a time."""
    return next((slot.record for slot in slots(standing) if slot.has(now)), None)


def _end(record: Record[L]) -> int:
    end = record.said.end
    return FOREVER if end is None else end
