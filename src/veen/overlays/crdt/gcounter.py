"""Grow-only counters, CRDT0.3: a shard is the sum of its deltas, the counter is the sum of its shards."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from veen.core import cbor
from veen.core.cbor import Bstr, Uint
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event, event
from veen.overlays.fields import number_of, number_value
from veen.overlays.overlay import FoldStep, MergeOverlay


@event("crdt.gcnt.v1")
class Increment(Event):
    """`crdt.gcnt.v1`."""

    shard: Annotated[bytes, Bstr()]
    delta: Annotated[int, Uint()]


class GCounter(MergeOverlay[int]):
    """One part per shard: its sum, which may exceed 64 bits."""

    CLASS = "crdt.gcnt"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (Increment,)
    EMPTY = 0

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Increment)
        return (event.shard,)

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
