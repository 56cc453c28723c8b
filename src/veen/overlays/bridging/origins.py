"""Where imported events come from: the receipt of each original, under its msg_id. 001, AGB0 J1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from veen.core import cbor
from veen.core.cbor import Array, Bstr, Nested, Wire
from veen.overlays.bridging.events import Intake, Origin
from veen.overlays.entry import Entry
from veen.overlays.event import Event
from veen.overlays.overlay import MergeOverlay, Step


@dataclass(frozen=True, slots=True)
class Traced(Wire):
    """An original, and the bundle it came in."""

    bundle_id: bytes
    origin: Origin

    LAYOUT: ClassVar = Array("traced", Bstr("bundle_id"), Nested("origin", Origin))


class Origins(MergeOverlay[Traced | None]):
    """A part per original message: what the first intake that names it says."""

    CLASS = "bridge.origins"
    EVENTS = (Intake,)
    EMPTY = None

    def parts(self, entry: Entry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Intake)
        return tuple(one.msg_id for one in event.origins)

    def lift(self, step: Step) -> Traced | None:
        assert isinstance(step.event, Intake)
        origin = next(one for one in step.event.origins if one.msg_id == step.part)
        return Traced(step.event.bundle_id, origin)

    def merge(self, a: Traced | None, b: Traced | None) -> Traced | None:
        return b if a is None else a

    def encode_state(self, state: Traced | None) -> bytes:
        return cbor.encode(None) if state is None else state.encode()

    def decode_state(self, part: bytes, data: bytes) -> Traced | None:
        return None if data == cbor.encode(None) else Traced.decode(data)

    def plain(self, part: bytes, state: Traced | None) -> Mapping[str, cbor.Value]:
        if state is None:
            return {"msg_id": part}
        origin, receipt = state.origin, state.origin.receipt
        return {
            "msg_id": part,
            "bundle_id": state.bundle_id,
            "client_id": origin.client_id,
            "client_seq": origin.client_seq,
            "label": receipt.label,
            "stream_seq": receipt.stream_seq,
            "hub_ts": receipt.hub_ts,
            "mmr_root": receipt.mmr_root,
        }


ORIGINS = Origins()
OriginStates: TypeAlias = Mapping[bytes, Traced | None]


def origin_of(states: OriginStates, parent_id: bytes | None) -> Traced | None:
    """The original of an imported event, by the `parent_id` it names; None where it is no imported event."""
    return None if parent_id is None else states.get(parent_id)
