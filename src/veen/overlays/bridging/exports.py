"""What left a zone: every bundle that was made there, as `bridge/online/log` says."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from veen.core import cbor
from veen.overlays.bridging.events import Exported
from veen.overlays.entry import Entry
from veen.overlays.event import Event
from veen.overlays.overlay import Step, WalkOverlay

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # first and last, ascending, none touching the next


class Exports(WalkOverlay[Exported | None]):
    """A part per bundle: what was said of it first."""

    CLASS = "bridge.export"
    EVENTS = (Exported,)
    INITIAL = None

    def parts(self, entry: Entry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Exported)
        return (event.bundle_id,)

    def refusal(self, state: Exported | None, step: Step) -> str | None:
        return None if state is None else "this bundle is in the log already"

    def apply(self, state: Exported | None, step: Step) -> Exported | None:
        assert isinstance(step.event, Exported)
        return step.event

    def encode_state(self, state: Exported | None) -> bytes:
        return cbor.encode(None) if state is None else state.encode()

    def decode_state(self, part: bytes, data: bytes) -> Exported | None:
        return None if data == cbor.encode(None) else Exported.decode(data)

    def plain(self, part: bytes, state: Exported | None) -> Mapping[str, cbor.Value]:
        if state is None:
            return {"bundle_id": part}
        return {name: getattr(state, name) for name in _SHOWN}


_SHOWN = tuple(kind.name for kind in Exported.LAYOUT.kinds)
EXPORTS = Exports()
ExportStates: TypeAlias = Mapping[bytes, Exported | None]


def exported_ranges(states: ExportStates) -> dict[tuple[bytes, str, int], Ranges]:
    """What has left of each (hub, stream, epoch)."""
    found: dict[tuple[bytes, str, int], list[tuple[int, int]]] = defaultdict(list)
    for state in states.values():
        if state is not None:
            key = state.source_hub_id, state.export_stream, state.epoch
            found[key].append((state.export_seq_from, state.export_seq_to))
    return {key: joined(ranges) for key, ranges in found.items()}


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same numbers in the fewest ranges, ascending."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)
