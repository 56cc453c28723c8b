"""Records that hold for a time: which of several hold when.

Records stand in a rank that starts with their time. Where two hold at once the lower one counts, so a record that a
lower one leaves no second to never counts: it is not kept, and refused when it comes.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, cast

from veen.core import Malformed, cbor
from veen.core.cbor import Bstr, DeferredFaults, FieldType, ListOf, Map, Nested, Uint
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import At
from veen.overlays.event import Event
from veen.overlays.overlay import FoldStep, MergeOverlay

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class AdminRecord(Generic[E]):
    """An event in the log: its place, its time by the hub's clock, who wrote it, what it says."""

    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    event: E

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def where(self) -> dict[str, cbor.Value]:
        """Its place, time and writer, for people and for JSON."""
        return {"stream_seq": self.stream_seq, "hub_ts": self.hub_ts, "client_id": self.client_id}


Records: TypeAlias = tuple[AdminRecord[E], ...]
States: TypeAlias = Mapping[bytes, tuple[AdminRecord[E], ...]]


class RecordOverlay(MergeOverlay[tuple[AdminRecord[E], ...]], Generic[E]):
    """One kind of event. Give EVENTS, `parts`, `standing` and `plain`."""

    EMPTY = ()

    @abstractmethod
    def effective(self, records: Records[E]) -> Records[E]:
        """Those of the records that count, in one order, whichever order they came in."""

    def refusal(self, state: Records[E], step: FoldStep) -> str | None:
        record = self._record(step)
        after = self.merge(state, self.effective((record,)))
        kept = any(one is record for one in reversed(after))
        return None if kept else self.ignored_reason(after, record)

    def ignored_reason(self, standing: Records[E], record: AdminRecord[E]) -> str:
        """Why a record never counts beside those that do."""
        return f"entry {standing[0].stream_seq} counts instead" if standing else "it never counts"

    def lift(self, step: FoldStep) -> Records[E]:
        return self.effective((self._record(step),))

    def merge(self, a: Records[E], b: Records[E]) -> Records[E]:
        return self.effective((*a, *b)) if a and b else a or b

    def encode_state(self, state: Records[E]) -> bytes:
        return self._kind.write(state)

    def decode_state(self, part: bytes, data: bytes) -> Records[E]:
        late = DeferredFaults()
        records, end = self._kind.read(data, 0, late)
        late.raise_first()
        if end != len(data) or self.effective(records) != records:
            raise Malformed("records", "not the records that count, in their order")
        return records

    def _record(self, step: FoldStep) -> AdminRecord[E]:
        entry, said = step.entry, cast(E, step.event)  # an overlay reads only what is of its EVENTS
        return AdminRecord(entry.epoch, entry.stream_seq, entry.hub_ts, entry.client_id, said)

    @cached_property
    def _kind(self) -> ListOf:
        return ListOf("records", _OneRecord(self.EVENTS[0]), most=MAX_BODY_BYTES)


class _OneRecord(FieldType):
    """A record as a map."""

    __slots__ = ("_layout",)

    def __init__(self, event: type[Event]) -> None:
        super().__init__("record")
        self._layout = Map(
            "record",
            {
                "epoch": Uint("epoch"),
                "stream_seq": Uint("stream_seq", least=1),
                "hub_ts": Uint("hub_ts"),
                "client_id": Bstr("client_id"),
                "said": Nested("event", event),
            },
        )

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[AdminRecord[Any], int]:
        fields, end = self._layout.read(data, pos, late)
        return AdminRecord(*fields), end

    def write(self, field: AdminRecord[Any]) -> bytes:
        return self._layout.write(self._layout.fields_of(field))


def only(states: States[E], part: bytes) -> AdminRecord[E] | None:
    """The record of a part that has at most one."""
    records = states.get(part)
    return records[0] if records else None


FOREVER = 2 * (U64_MAX + 1)  # later than any `ts + ttl`


class TimedEvent(Event):
    """An event that holds from `ts` on until `end`, that second excluded; for ever without one."""

    __slots__ = ()
    ts: int

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The first second in which it no longer holds; None where it holds for ever."""


L = TypeVar("L", bound=TimedEvent)


@dataclass(frozen=True, slots=True)
class Slot(Generic[L]):
    """The time in which a record counts; without `end`, for ever."""

    start: int
    end: int | None
    record: AdminRecord[L]

    def has(self, now: int) -> bool:
        return self.start <= now and (self.end is None or now < self.end)


class TimedOverlay(RecordOverlay[L]):
    """Give EVENTS, `parts`, `rank` and `plain`."""

    @abstractmethod
    def rank(self, record: AdminRecord[L]) -> tuple[Any, ...]:
        """By which of several records counts, the least first. Its first item is `ts`."""

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """None: a record twice holds when it held once, and nobody can keep one out by naming it as an original."""
        return ()

    def effective(self, records: Records[L]) -> Records[L]:
        """Without those that no second is left to: ascending by rank, and by when they end."""
        kept, covered = [], 0
        for record in sorted(records, key=self.rank):
            # What ranks before this one starts no later, so it only has to last as long.
            end = _end(record)
            if end > max(record.event.ts, covered):
                kept.append(record)
                covered = end
        return tuple(kept)

    def merge(self, a: Records[L], b: Records[L]) -> Records[L]:
        # As records come in life: each later than those before it, and none of them in another's way.
        if a and b and a[-1].event.ts < b[0].event.ts and _end(a[-1]) < _end(b[0]):
            return (*a, *b)
        return super().merge(a, b)

    def ignored_reason(self, standing: Records[L], record: AdminRecord[L]) -> str:
        if _end(record) == record.event.ts:
            return "it holds at no time"
        before = next(one for one in standing if _end(one) >= _end(record))
        return f"entry {before.stream_seq} holds for all of its time"


def slots(standing: Records[L]) -> Iterator[Slot[L]]:
    """Which record counts when, ascending. Each counts once the one before it has ended."""
    free = 0
    for record in standing:
        yield Slot(max(record.event.ts, free), record.event.end, record)
        free = _end(record)


def record_at(standing: Records[L], now: int) -> AdminRecord[L] | None:
    """The record that counts at a time."""
    return next((slot.record for slot in slots(standing) if slot.has(now)), None)


def _end(record: AdminRecord[L]) -> int:
    end = record.event.end
    return FOREVER if end is None else end
