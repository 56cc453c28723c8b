"""Last-writer-wins registers, CRDT0.1: the write with the greatest (ts, place) wins."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from veen.core import cbor, naming
from veen.core.cbor import Bytes, Uint
from veen.core.cbor.layout import Wire
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import body
from veen.overlays.overlay import FoldStep, MergeOverlay


@dataclass(frozen=True, slots=True)
class Write(Event):
    """`crdt.lww.v1`. Clocks are optional: with equal `ts` the later place wins."""

    key: bytes
    ts: int
    value: bytes

    SCHEMA: ClassVar = naming.schema_id("crdt.lww.v1")
    LAYOUT: ClassVar = body("crdt.lww.v1", Bytes("key", MAX_BODY_BYTES), Uint("ts"), Bytes("value", MAX_BODY_BYTES))


@dataclass(frozen=True, slots=True)
class Register(Wire):
    """The winning write so far. `value` is None after a deletion; stream_seq is 0 before the first write."""

    ts: int
    epoch: int
    stream_seq: int
    value: bytes | None

    LAYOUT: ClassVar = body(
        "register", Uint("ts"), Uint("epoch"), Uint("stream_seq"), Bytes("value", MAX_BODY_BYTES, optional=True)
    )

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
    EMPTY = NOTHING

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Write)
        return (event.key,)

    def lift(self, step: FoldStep) -> Register:
        event = step.event
        assert isinstance(event, Write)
        return Register(event.ts, *step.at, event.value)

    def merge(self, a: Register, b: Register) -> Register:
        return b if b.beats(a) else a

    def encode_state(self, state: Register) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> Register:
        return Register.decode(data)

    def plain(self, part: bytes, state: Register) -> Mapping[str, cbor.Value]:
        return {"key": part, "value": state.value, "ts": state.ts, "stream_seq": state.stream_seq}


LWW = Lww()
