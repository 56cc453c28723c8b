"""Last-writer-wins registers, CRDT0.1: the write with the greatest (ts, place) wins."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from veen.core import cbor
from veen.core.cbor import Bytes, Uint, text_map
from veen.core.cbor.layout import Wire
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event, event
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
