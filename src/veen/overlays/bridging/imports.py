"""What came into a zone: how far each bundle has got, as `bridge/offline/log` says."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from veen.core import cbor
from veen.core.cbor import Array, Bstr, ListOf, Nested, Text, Uint, Wire
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.bridging.events import MAX_RANGES, Imported, Intake, Result, TargetRange
from veen.overlays.bridging.exports import Ranges, joined
from veen.overlays.entry import Entry
from veen.overlays.event import Event
from veen.overlays.overlay import Step, WalkOverlay


@dataclass(frozen=True, slots=True)
class Standing(Wire):
    """How far a bundle has got. `announced` is how many origins its intake has named so far."""

    source_hub_id: bytes | None = None  # None where only failures are known of it
    export_stream: str = ""
    epoch: int = 0
    export_seq_from: int = 0
    export_seq_to: int = 0
    event_count: int = 0
    import_stream: str = ""
    announced: int = 0
    imported: int = 0  # successes: 0 or 1
    targets: tuple[TargetRange, ...] = ()
    excluded: tuple[int, ...] = ()
    failures: int = 0
    error_code: str = ""
    reason: str = ""

    LAYOUT: ClassVar = Array(
        "standing",
        Bstr("source_hub_id", nullable=True),
        Text("export_stream", MAX_TEXT_BYTES),
        Uint("epoch"),
        Uint("export_seq_from"),
        Uint("export_seq_to"),
        Uint("event_count"),
        Text("import_stream", MAX_TEXT_BYTES),
        Uint("announced"),
        Uint("imported", most=1),
        ListOf("targets", Nested("target range", TargetRange), most=MAX_RANGES),
        ListOf("excluded", Uint("seq"), most=MAX_BODY_BYTES),
        Uint("failures"),
        Text("error_code", MAX_TEXT_BYTES),
        Text("reason", MAX_TEXT_BYTES),
    )

    @property
    def is_partial(self) -> bool:
        """Begun, and not ended well."""
        return self.announced > 0 and not self.imported


NOTHING = Standing()
_NAMED = (
    "source_hub_id",
    "export_stream",
    "epoch",
    "export_seq_from",
    "export_seq_to",
    "event_count",
    "import_stream",
)


class Imports(WalkOverlay[Standing]):
    """A part per bundle."""

    CLASS = "bridge.import"
    EVENTS = (Intake, Imported)
    INITIAL = NOTHING

    def parts(self, entry: Entry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Intake | Imported)
        return (event.bundle_id,)

    def flaw(self, entry: Entry, event: Event) -> str | None:
        if not isinstance(event, Imported):
            return None
        if event.result == Result.FAILURE and (event.error_code is None or event.reason is None):
            return "a failure says what is wrong"
        return None if (event.excluded is None) == (event.policy is None) else "what is left out names the policy"

    def refusal(self, state: Standing, step: Step) -> str | None:
        event = step.event
        if isinstance(event, Intake):
            return _intake_refusal(state, event)
        assert isinstance(event, Imported)
        if event.result != Result.SUCCESS:
            return None
        if state.imported:
            return "this bundle is imported already"
        if state.announced < max(state.event_count, 1):
            return "no intake says all that it consists of"
        excluded = len(event.excluded or ())
        if event.event_count + excluded != state.event_count:
            return f"{event.event_count} events and {excluded} excluded are not the {state.event_count} of the bundle"
        return None

    def apply(self, state: Standing, step: Step) -> Standing:
        event = step.event
        if isinstance(event, Intake):
            named = {name: getattr(event, name) for name in _NAMED}
            return replace(state, **named, announced=state.announced + len(event.origins))
        assert isinstance(event, Imported)
        if event.result == Result.SUCCESS:
            return replace(state, imported=1, targets=event.targets, excluded=event.excluded or ())
        return replace(state, failures=state.failures + 1, error_code=event.error_code or "", reason=event.reason or "")

    def live(self, state: Standing) -> bool:
        return not state.imported

    def encode_state(self, state: Standing) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> Standing:
        return Standing.decode(data)

    def plain(self, part: bytes, state: Standing) -> Mapping[str, cbor.Value]:
        shown = {kind.name: getattr(state, kind.name) for kind in Standing.LAYOUT.kinds}
        targets = tuple((one.epoch, one.seq_from, one.seq_to) for one in state.targets)
        return {"bundle_id": part, **shown, "targets": targets}


IMPORTS = Imports()
ImportStates: TypeAlias = Mapping[bytes, Standing]


def imported_ranges(states: ImportStates) -> dict[tuple[bytes, str, int], Ranges]:
    """What has come in of each (source hub, export stream, epoch)."""
    found: dict[tuple[bytes, str, int], list[tuple[int, int]]] = defaultdict(list)
    for state in states.values():
        if state.imported and state.source_hub_id is not None:
            key = state.source_hub_id, state.export_stream, state.epoch
            found[key].append((state.export_seq_from, state.export_seq_to))
    return {key: joined(ranges) for key, ranges in found.items()}


def _intake_refusal(state: Standing, event: Intake) -> str | None:
    if event.position != state.announced + 1:
        return f"its origins begin at {event.position}, where {state.announced} are known"
    if state.announced and any(getattr(state, name) != getattr(event, name) for name in _NAMED):
        return "the intake before it says otherwise of the same bundle"
    return None
