"""CRDT0: registers, counters and sets. 001, spec-1 §25.

A last-writer-wins register (CRDT0.1) holds the write with the greatest (ts, place). An element is in an observed-remove
set (CRDT0.2) while one of its add ids is not removed. The shard of a grow-only counter (CRDT0.3) is the sum of its
deltas, the counter is the sum of its shards.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from veen.core import Malformed, cbor, naming
from veen.core.cbor import Bstr, Bytes, ListOf, Uint, Wire, text_map
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.event import At, Event, FoldEntry, ascending, event, number_of, number_value
from veen.overlays.overlay import FoldStep, MergeOverlay


@event("crdt.lww.v1")
class Write(Event):
    """`crdt.lww.v1`. Clocks are optional: with equal `ts` the later place wins."""

    key: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    ts: Annotated[int, Uint()]
    value: Annotated[bytes, Bytes(MAX_BODY_BYTES)]


@text_map("register")
class Register(Wire):
    """The winning write so far. `value` is None after a deletion; stream_seq is 0 before the first write."""

    ts: Annotated[int, Uint()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    value: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)]

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    def beats(self, other: "Register") -> bool:
        return (self.ts, self.at) > (other.ts, other.at)


NOTHING = Register(0, 0, 0, None)


class Lww(MergeOverlay[Register]):
    """One part per key."""

    CLASS = "crdt.lww"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Write,)
    PART = "key"
    EMPTY = NOTHING

    def lift(self, step: FoldStep) -> Register:
        event = step.event
        assert isinstance(event, Write)
        return Register(event.ts, *step.at, event.value)

    def merge(self, a: Register, b: Register) -> Register:
        return b if b.beats(a) else a

    def plain(self, part: bytes, state: Register) -> Mapping[str, cbor.Value]:
        return {"key": part, "value": state.value, "ts": state.ts, "stream_seq": state.stream_seq}


LWW = Lww()


@event("crdt.gcnt.v1")
class Increment(Event):
    """`crdt.gcnt.v1`."""

    shard: Annotated[bytes, Bstr()]
    delta: Annotated[int, Uint()]


class GCounter(MergeOverlay[int]):
    """One part per shard: its sum, which may exceed 64 bits."""

    CLASS = "crdt.gcnt"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Increment,)
    PART = "shard"
    EMPTY = 0

    def lift(self, step: FoldStep) -> int:
        assert isinstance(step.event, Increment)
        return step.event.delta

    def merge(self, a: int, b: int) -> int:
        return a + b

    def encode_state(self, state: int) -> bytes:
        return cbor.encode(number_value(state))

    def decode_state(self, part: bytes, data: bytes) -> int:
        return number_of(cbor.decode(data, "counter"))

    def plain(self, part: bytes, state: int) -> Mapping[str, cbor.Value]:
        return {"shard": part, "sum": number_value(state)}


G_COUNTER = GCounter()


def total(states: Mapping[bytes, int]) -> int:
    """The value of the counter: the sum of all shards."""
    return sum(states[part] for part in states)


_NAME = "crdt.orset.v1"
_SCHEMA = naming.schema_id(_NAME)
_ELEMENT, _ID = b"e", b"i"

Ids = frozenset[bytes]
DEAD: Ids = frozenset({b""})  # the state of a removed id
NONE: Ids = frozenset()


@text_map("crdt.orset.v1 add")
class Add(Event):
    """`crdt.orset.v1`, the add form."""

    id: Annotated[bytes, Bstr()]
    elem: Annotated[bytes, Bytes(MAX_BODY_BYTES)]

    NAME: ClassVar = _NAME
    SCHEMA: ClassVar = _SCHEMA


@text_map("crdt.orset.v1 remove")
class Remove(Event):
    """`crdt.orset.v1`, the remove form: lists the add ids that the remover has seen."""

    tomb: Annotated[tuple[bytes, ...], ListOf(Bstr(name="id"), most=MAX_BODY_BYTES)]

    NAME: ClassVar = _NAME
    SCHEMA: ClassVar = _SCHEMA


class OrSet(MergeOverlay[Ids]):
    """The add ids per element, and the removed mark per id."""

    CLASS = "crdt.orset"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Add, Remove)
    EMPTY = NONE

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        if isinstance(event, Add):
            return (_ELEMENT + event.elem,)
        assert isinstance(event, Remove)
        return tuple(_ID + one for one in event.tomb)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """No keys: adds and removes are idempotent."""
        return ()

    def lift(self, step: FoldStep) -> Ids:
        return frozenset({step.event.id}) if isinstance(step.event, Add) else DEAD

    def merge(self, a: Ids, b: Ids) -> Ids:
        return a | b

    def encode_state(self, state: Ids) -> bytes:
        return cbor.encode(sorted(state))

    def decode_state(self, part: bytes, data: bytes) -> Ids:
        listed = cbor.decode(data, "ids")
        ids = [one for one in listed if isinstance(one, bytes)] if isinstance(listed, tuple) else []
        if not isinstance(listed, tuple) or len(ids) != len(listed) or not ascending(ids):
            raise Malformed("ids", "not an ascending list of ids")
        return frozenset(ids)

    def plain(self, part: bytes, state: Ids) -> Mapping[str, cbor.Value]:
        if part[:1] == _ID:
            return {"id": part[1:], "removed": state == DEAD}
        return {"elem": part[1:], "ids": sorted(state)}


OR_SET = OrSet()


def live_ids(states: Mapping[bytes, Ids], elem: bytes) -> tuple[bytes, ...]:
    """The ids that keep an element in the set. A `Remove` of the element lists them."""
    return tuple(one for one in sorted(states.get(_ELEMENT + elem, NONE)) if _ID + one not in states)


def has(states: Mapping[bytes, Ids], elem: bytes) -> bool:
    return bool(live_ids(states, elem))


def elements(states: Mapping[bytes, Ids]) -> Iterator[bytes]:
    """The elements of the set, ascending."""
    for part in sorted(part for part in states if part[:1] == _ELEMENT):
        if has(states, part[1:]):
            yield part[1:]
