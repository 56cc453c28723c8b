"""The audit logs of a bridge, one stream per zone: exported bundles, imported bundles, origins. 001, AGB0 §4.5–4.6.

An imported message has exactly the payload bytes of the original and names the original as its `parent_id`. The intake,
which is logged before the message, contains the original's receipt and writer.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Self, TypeAlias

from veen.core import Msg, Receipt, cbor
from veen.core.cbor import Bstr, ListOf, Nested, Text, Uint, Wire, array
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.core.msg import leaf_hash
from veen.overlays.event import Event, FoldEntry, Ranges, event, join_ranges, plain_wire
from veen.overlays.overlay import FoldStep, MergeOverlay, WalkOverlay

ONLINE_LOG = "bridge/online/log"
OFFLINE_LOG = "bridge/offline/log"
MAX_RANGES = 1_000


class BridgeResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


@event("bridge.export.v1")
class BundleExported(Event):
    """`bridge.export.v1`: a bundle was made."""

    bundle_id: Annotated[bytes, Bstr()]
    bundle_hash: Annotated[bytes, Bstr()]  # of the whole file
    source_hub_id: Annotated[bytes, Bstr()]
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    epoch: Annotated[int, Uint()]
    export_seq_from: Annotated[int, Uint(least=1)]
    export_seq_to: Annotated[int, Uint(least=1)]
    event_count: Annotated[int, Uint(least=1)]
    export_checkpoint_id: Annotated[bytes, Bstr()]
    operator: Annotated[str, Text(MAX_TEXT_BYTES)]

    def flaw(self) -> str | None:
        return range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)


@array("origin")
class EventOrigin(Wire):
    """The receipt of an imported event's original, and the inputs of its leaf_hash.

    `client_id` is an input of `leaf_hash`, so the hub's signature on the receipt also covers the writer of the
    original.
    """

    receipt: Annotated[Receipt, Nested(Receipt)]
    profile_id: Annotated[bytes, Bstr()]
    client_id: Annotated[bytes, Bstr()]
    client_seq: Annotated[int, Uint()]
    ct_hash: Annotated[bytes, Bstr()]

    def flaw(self) -> str | None:
        found = leaf_hash(self.receipt.label, self.profile_id, self.ct_hash, self.client_id, self.client_seq)
        return None if found == self.receipt.leaf_hash else "the receipt does not match this client's message"

    @classmethod
    def of(cls, message: Msg, receipt: Receipt) -> Self:
        return cls(receipt, message.profile_id, message.client_id, message.client_seq, message.ct_hash)

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash


ORIGIN_BYTES = 400  # approximate encoded size of one origin
MAX_ORIGINS = MAX_BODY_BYTES // ORIGIN_BYTES


@event("bridge.intake.v1")
class BundleIntake(Event):
    """`bridge.intake.v1`: a bundle was verified and its events are about to be written. Lists some of their origins.

    `position` is the position of the first listed origin in the bundle, from 1. A bundle with a logged intake but no
    logged import is partially imported.
    """

    bundle_id: Annotated[bytes, Bstr()]
    source_hub_id: Annotated[bytes, Bstr()]
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    epoch: Annotated[int, Uint()]
    export_seq_from: Annotated[int, Uint(least=1)]
    export_seq_to: Annotated[int, Uint(least=1)]
    event_count: Annotated[int, Uint(least=1)]
    import_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    position: Annotated[int, Uint(least=1)]
    origins: Annotated[tuple[EventOrigin, ...], ListOf(Nested(EventOrigin, name="origin"), most=MAX_ORIGINS, least=1)]

    def flaw(self) -> str | None:
        flaw = range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)
        if flaw is not None:
            return flaw
        if self.position + len(self.origins) - 1 > self.event_count:
            return "there are more origins than events in the bundle"
        first = self.export_seq_from + self.position - 1
        seqs = [one.receipt.stream_seq for one in self.origins]
        return None if seqs == list(range(first, first + len(seqs))) else "the origins do not match position"


@array("target range")
class TargetRange(Wire):
    """The places of imported events in the import stream, in one epoch."""

    epoch: Annotated[int, Uint()]
    seq_from: Annotated[int, Uint(least=1)]
    seq_to: Annotated[int, Uint(least=1)]

    def flaw(self) -> str | None:
        return None if self.seq_from <= self.seq_to else "the range ends before it begins"


@event("bridge.import.v1")
class BundleImported(Event):
    """`bridge.import.v1`: the result of an import. A failure has the reason and the position of the failing event.

    `excluded` lists the source sequence numbers that the importer's `policy` left out.
    """

    bundle_id: Annotated[bytes, Bstr()]
    bundle_hash: Annotated[bytes, Bstr()]
    import_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    targets: Annotated[tuple[TargetRange, ...], ListOf(Nested(TargetRange, name="target range"), most=MAX_RANGES)]
    event_count: Annotated[int, Uint()]
    result: Annotated[str, Text(MAX_TEXT_BYTES)]
    operator: Annotated[str, Text(MAX_TEXT_BYTES)]
    error_code: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    reason: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    position: Annotated[int | None, Uint(least=1, optional=True)] = None
    excluded: Annotated[
        tuple[int, ...] | None, ListOf(Uint(name="seq", least=1), most=MAX_BODY_BYTES, least=1, optional=True)
    ] = None
    policy: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        if self.result not in BridgeResult.__members__.values():
            return f"unknown result {self.result!r}"
        if self.result == BridgeResult.SUCCESS and self.error_code is not None:
            return "a successful import must not have an error_code"
        if any(a >= b for a, b in pairwise(self.excluded or ())):
            return "excluded is not in ascending order"
        return None


def range_flaw(first: int, last: int, count: int) -> str | None:
    """Why a range of a stream is invalid, or None."""
    if first > last:
        return "the range ends before it begins"
    return None if last - first + 1 == count else f"event_count is {count}, but the range is {first} to {last}"


class Exports(WalkOverlay[BundleExported | None]):
    """One part per bundle. The first export event counts."""

    CLASS = "bridge.export"
    EVENTS = (BundleExported,)
    PART = "bundle_id"
    INITIAL = None
    STATE = BundleExported

    def refusal(self, state: BundleExported | None, step: FoldStep) -> str | None:
        return None if state is None else "this bundle is already logged"

    def apply(self, state: BundleExported | None, step: FoldStep) -> BundleExported | None:
        assert isinstance(step.event, BundleExported)
        return step.event

    def plain(self, part: bytes, state: BundleExported | None) -> Mapping[str, cbor.Value]:
        return {"bundle_id": part} if state is None else plain_wire(state)


EXPORTS = Exports()
ExportStates: TypeAlias = Mapping[bytes, BundleExported | None]


def exported_ranges(states: ExportStates) -> dict[tuple[bytes, str, int], Ranges]:
    """The exported ranges of each (hub, stream, epoch)."""
    found: dict[tuple[bytes, str, int], list[tuple[int, int]]] = defaultdict(list)
    for state in states.values():
        if state is not None:
            key = state.source_hub_id, state.export_stream, state.epoch
            found[key].append((state.export_seq_from, state.export_seq_to))
    return {key: join_ranges(ranges) for key, ranges in found.items()}


@array("standing")
class ImportStatus(Wire):
    """The import status of a bundle. `announced` counts the origins listed by its intakes so far."""

    source_hub_id: Annotated[bytes | None, Bstr(nullable=True)] = None  # None if only failures are logged
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)] = ""
    epoch: Annotated[int, Uint()] = 0
    export_seq_from: Annotated[int, Uint()] = 0
    export_seq_to: Annotated[int, Uint()] = 0
    event_count: Annotated[int, Uint()] = 0
    import_stream: Annotated[str, Text(MAX_TEXT_BYTES)] = ""
    announced: Annotated[int, Uint()] = 0
    imported: Annotated[int, Uint(most=1)] = 0  # successes: 0 or 1
    targets: Annotated[tuple[TargetRange, ...], ListOf(Nested(TargetRange, name="target range"), most=MAX_RANGES)] = ()
    excluded: Annotated[tuple[int, ...], ListOf(Uint(name="seq"), most=MAX_BODY_BYTES)] = ()
    failures: Annotated[int, Uint()] = 0
    error_code: Annotated[str, Text(MAX_TEXT_BYTES)] = ""
    reason: Annotated[str, Text(MAX_TEXT_BYTES)] = ""


NOTHING = ImportStatus()
_NAMED = (
    "source_hub_id",
    "export_stream",
    "epoch",
    "export_seq_from",
    "export_seq_to",
    "event_count",
    "import_stream",
)


class Imports(WalkOverlay[ImportStatus]):
    CLASS = "bridge.import"
    EVENTS = (BundleIntake, BundleImported)
    PART = "bundle_id"
    INITIAL = NOTHING

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        if not isinstance(event, BundleImported):
            return None
        if event.result == BridgeResult.FAILURE and (event.error_code is None or event.reason is None):
            return "a failed import needs error_code and reason"
        return (
            None if (event.excluded is None) == (event.policy is None) else "excluded and policy must be given together"
        )

    def refusal(self, state: ImportStatus, step: FoldStep) -> str | None:
        event = step.event
        if isinstance(event, BundleIntake):
            return _intake_refusal(state, event)
        assert isinstance(event, BundleImported)
        if event.result != BridgeResult.SUCCESS:
            return None
        if state.imported:
            return "this bundle is already imported"
        if state.announced < max(state.event_count, 1):
            return "the intake of this bundle is incomplete"
        excluded = len(event.excluded or ())
        if event.event_count + excluded != state.event_count:
            return f"{event.event_count} events and {excluded} excluded are not {state.event_count}, the bundle's count"
        return None

    def apply(self, state: ImportStatus, step: FoldStep) -> ImportStatus:
        event = step.event
        if isinstance(event, BundleIntake):
            named = {name: getattr(event, name) for name in _NAMED}
            return replace(state, **named, announced=state.announced + len(event.origins))
        assert isinstance(event, BundleImported)
        if event.result == BridgeResult.SUCCESS:
            return replace(state, imported=1, targets=event.targets, excluded=event.excluded or ())
        return replace(state, failures=state.failures + 1, error_code=event.error_code or "", reason=event.reason or "")

    def live(self, state: ImportStatus) -> bool:
        return not state.imported

    def plain(self, part: bytes, state: ImportStatus) -> Mapping[str, cbor.Value]:
        targets = tuple((one.epoch, one.seq_from, one.seq_to) for one in state.targets)
        return {"bundle_id": part, **plain_wire(state, absent=True), "targets": targets}


IMPORTS = Imports()
ImportStates: TypeAlias = Mapping[bytes, ImportStatus]


def _intake_refusal(state: ImportStatus, event: BundleIntake) -> str | None:
    if event.position != state.announced + 1:
        return f"position is {event.position}, expected {state.announced + 1}"
    if state.announced and any(getattr(state, name) != getattr(event, name) for name in _NAMED):
        return "an earlier intake describes this bundle differently"
    return None


@array("traced")
class Traced(Wire):
    """An original and the bundle that contained it."""

    bundle_id: Annotated[bytes, Bstr()]
    origin: Annotated[EventOrigin, Nested(EventOrigin)]


class OriginsOverlay(MergeOverlay[Traced | None]):
    """One part per original message. The first intake that lists it counts."""

    CLASS = "bridge.origins"
    EVENTS = (BundleIntake,)
    EMPTY = None
    STATE = Traced

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, BundleIntake)
        return tuple(one.msg_id for one in event.origins)

    def lift(self, step: FoldStep) -> Traced | None:
        assert isinstance(step.event, BundleIntake)
        origin = next(one for one in step.event.origins if one.msg_id == step.part)
        return Traced(step.event.bundle_id, origin)

    def merge(self, a: Traced | None, b: Traced | None) -> Traced | None:
        return b if a is None else a

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


ORIGINS = OriginsOverlay()
OriginStates: TypeAlias = Mapping[bytes, Traced | None]


def origin_of(states: OriginStates, parent_id: bytes | None) -> Traced | None:
    """The original of an imported event, by its `parent_id`; None if the event was not imported."""
    return None if parent_id is None else states.get(parent_id)
