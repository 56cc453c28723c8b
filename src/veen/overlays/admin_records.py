"""Administrative records, and records that are valid for a period.

Records with a period are ordered by a rank that starts with their `ts`. If two are valid at once, the one with the
lower rank takes effect. A record whose whole period is covered by lower ranks never takes effect: it is refused, not
stored.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from veen.core import Malformed, cbor
from veen.core.cbor import Bstr, DeferredFaults, FieldType, ListOf, Map, Nested, Uint
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import At, Event
from veen.overlays.overlay import FoldStep, MergeOverlay

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class AdminRecord(Generic[E]):
    """A logged event with its place, hub time and writer."""

    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    event: E

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def where(self) -> dict[str, cbor.Value]:
        """Place, time and writer, for display and JSON."""
        return {"stream_seq": self.stream_seq, "hub_ts": self.hub_ts, "client_id": self.client_id}


Records: TypeAlias = tuple[AdminRecord[E], ...]
States: TypeAlias = Mapping[bytes, tuple[AdminRecord[E], ...]]


class RecordOverlay(MergeOverlay[tuple[AdminRecord[E], ...]], Generic[E]):
    """An overlay of one event class. Subclasses define EVENTS, `parts`, `effective` and `plain`."""

    EMPTY = ()
    BODY: ClassVar[FieldType | None] = None  # how a record encodes its event, if EVENTS has several classes

    @abstractmethod
    def effective(self, records: Records[E]) -> Records[E]:
        """The records that take effect, in canonical order. The result does not depend on the order of the input."""

    def refusal(self, state: Records[E], step: FoldStep) -> str | None:
        record = self._record(step)
        after = self.merge(state, self.effective((record,)))
        kept = any(one is record for one in reversed(after))
        return None if kept else self.ignored_reason(after, record)

    def ignored_reason(self, effective: Records[E], record: AdminRecord[E]) -> str:
        """Why a record never takes effect beside the effective ones."""
        return f"entry {effective[0].stream_seq} takes precedence" if effective else "the record never takes effect"

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
            raise Malformed("records", "not the effective records in canonical order")
        return records

    def _record(self, step: FoldStep) -> AdminRecord[E]:
        entry, event = step.entry, cast(E, step.event)  # read() yields only classes in EVENTS
        return AdminRecord(entry.epoch, entry.stream_seq, entry.hub_ts, entry.client_id, event)

    @cached_property
    def _kind(self) -> ListOf:
        body = self.BODY or Nested(self.EVENTS[0], name="event")
        return ListOf(_OneRecord(body), name="records", most=MAX_BODY_BYTES)


class _OneRecord(FieldType):
    """The encoding of a record."""

    __slots__ = ("_layout",)

    def __init__(self, event: FieldType) -> None:
        super().__init__(name="record")
        self._layout = Map(
            "record",
            {
                "epoch": Uint(name="epoch"),
                "stream_seq": Uint(name="stream_seq", least=1),
                "hub_ts": Uint(name="hub_ts"),
                "client_id": Bstr(name="client_id"),
                "said": event,
            },
        )

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[AdminRecord[Any], int]:
        fields, end = self._layout.read(data, pos, late)
        return AdminRecord(*fields), end

    def write(self, field: AdminRecord[Any]) -> bytes:
        return self._layout.write(self._layout.fields_of(field))


def only(states: States[E], part: bytes) -> AdminRecord[E] | None:
    """The record of a part with at most one record, or None."""
    records = states.get(part)
    return records[0] if records else None


FOREVER = 2 * (U64_MAX + 1)  # later than any `ts + ttl`


class TimedEvent(Event):
    """An event that is valid from `ts` until `end` (exclusive), or forever without `end`."""

    __slots__ = ()
    ts: int

    @property
    @abstractmethod
    def end(self) -> int | None:
        """The first second in which the event is no longer valid; None means forever."""


L = TypeVar("L", bound=TimedEvent)


@dataclass(frozen=True, slots=True)
class Slot(Generic[L]):
    """The period in which a record takes effect; forever without `end`."""

    start: int
    end: int | None
    record: AdminRecord[L]

    def has(self, now: int) -> bool:
        return self.start <= now and (self.end is None or now < self.end)


class TimedOverlay(RecordOverlay[L]):
    """An overlay of records with a period. Subclasses define EVENTS, `parts`, `rank` and `plain`."""

    @abstractmethod
    def rank(self, record: AdminRecord[L]) -> tuple[Any, ...]:
        """The precedence of a record, lowest first. Its first item must be `ts`."""

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """No keys: a repeated record changes nothing, and a forged `parent_id` must not suppress a real record."""
        return ()

    def effective(self, records: Records[L]) -> Records[L]:
        """Drop the records without a second of their own. The rest ascends by rank and by end."""
        kept, covered = [], 0
        for record in sorted(records, key=self.rank):
            # Lower ranks start no later, so this record is covered if one of them ends as late.
            end = _end(record)
            if end > max(record.event.ts, covered):
                kept.append(record)
                covered = end
        return tuple(kept)

    def merge(self, a: Records[L], b: Records[L]) -> Records[L]:
        # Fast path for the usual order: every record of b starts and ends later than those of a.
        if a and b and a[-1].event.ts < b[0].event.ts and _end(a[-1]) < _end(b[0]):
            return (*a, *b)
        return super().merge(a, b)

    def ignored_reason(self, effective: Records[L], record: AdminRecord[L]) -> str:
        if _end(record) == record.event.ts:
            return "its validity period is empty"
        before = next(one for one in effective if _end(one) >= _end(record))
        return f"entry {before.stream_seq} covers its whole period"


def slots(effective: Records[L]) -> Iterator[Slot[L]]:
    """The periods in which the records take effect, ascending. Each starts when the previous one has ended."""
    free = 0
    for record in effective:
        yield Slot(max(record.event.ts, free), record.event.end, record)
        free = _end(record)


def record_at(effective: Records[L], now: int) -> AdminRecord[L] | None:
    """The record in effect at a time, or None."""
    return next((slot.record for slot in slots(effective) if slot.has(now)), None)


def _end(record: AdminRecord[L]) -> int:
    end = record.event.end
    return FOREVER if end is None else end
