"""Overlays whose state is the records that count: the last one, the first one, or all that hold at some time.

A state is a tuple of records, in the order of the rule that keeps them. Which of several records count is a choice
that can be made in any grouping, so a state is its own summary. A record that would never count is refused.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, cast

from veen.core import Malformed, cbor
from veen.core.cbor import Bstr, Kind, Late, ListOf, Map, Nested, Uint
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import At
from veen.overlays.event import Event
from veen.overlays.fields import body
from veen.overlays.overlay import MergeOverlay, Step

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Record(Generic[E]):
    """An event in the log: its place, its time by the hub's clock, who wrote it, what it says."""

    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    said: E

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def where(self) -> dict[str, cbor.Value]:
        """Its place, time and writer, for people and for JSON."""
        return {"stream_seq": self.stream_seq, "hub_ts": self.hub_ts, "client_id": self.client_id}


Records: TypeAlias = tuple[Record[E], ...]
States: TypeAlias = Mapping[bytes, tuple[Record[E], ...]]


class RecordOverlay(MergeOverlay[tuple[Record[E], ...]], Generic[E]):
    """One kind of event. Give EVENTS, `parts`, `standing` and `plain`."""

    EMPTY = ()

    @abstractmethod
    def standing(self, records: Records[E]) -> Records[E]:
        """Those of the records that count, in one order, whichever order they came in."""

    def refusal(self, state: Records[E], step: Step) -> str | None:
        record = self._record(step)
        after = self.merge(state, self.standing((record,)))
        kept = any(one is record for one in reversed(after))
        return None if kept else self.idle(after, record)

    def idle(self, standing: Records[E], record: Record[E]) -> str:
        """Why a record never counts beside those that do."""
        return f"entry {standing[0].stream_seq} counts instead" if standing else "it never counts"

    def lift(self, step: Step) -> Records[E]:
        return self.standing((self._record(step),))

    def merge(self, a: Records[E], b: Records[E]) -> Records[E]:
        return self.standing((*a, *b)) if a and b else a or b

    def encode_state(self, state: Records[E]) -> bytes:
        return self._kind.write(state)

    def decode_state(self, part: bytes, data: bytes) -> Records[E]:
        late = Late()
        records, end = self._kind.read(data, 0, late)
        late.judge()
        if end != len(data) or self.standing(records) != records:
            raise Malformed("records", "not the records that count, in their order")
        return records

    def _record(self, step: Step) -> Record[E]:
        entry, said = step.entry, cast(E, step.event)  # an overlay reads only what is of its EVENTS
        return Record(entry.epoch, entry.stream_seq, entry.hub_ts, entry.client_id, said)

    @cached_property
    def _kind(self) -> ListOf:
        return ListOf("records", _OneRecord(self.EVENTS[0]), most=MAX_BODY_BYTES)


class _OneRecord(Kind):
    """A record as a map."""

    __slots__ = ("_layout",)

    def __init__(self, event: type[Event]) -> None:
        super().__init__("record")
        self._layout: Map = body(
            "record",
            Uint("epoch"),
            Uint("stream_seq", least=1),
            Uint("hub_ts"),
            Bstr("client_id"),
            Nested("said", event),
        )

    def read(self, data: bytes, pos: int, late: Late) -> tuple[Record[Any], int]:
        fields, end = self._layout.read(data, pos, late)
        return Record(*fields), end

    def write(self, field: Record[Any]) -> bytes:
        return self._layout.write(self._layout.fields_of(field))


def only(states: States[E], part: bytes) -> Record[E] | None:
    """The record of a part that has at most one."""
    records = states.get(part)
    return records[0] if records else None
