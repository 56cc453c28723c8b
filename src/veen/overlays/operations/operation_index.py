"""All operations of a stream by operation id, and their dependencies. 001, spec-3 §1.1."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from veen.core import cbor
from veen.overlays.event import At, Event, EventFault, FoldEntry, plain_wire
from veen.overlays.operations import operation_events
from veen.overlays.operations.operation_events import Operation, operation_id
from veen.overlays.overlay import FoldStep, MergeOverlay

E = TypeVar("E", bound=Operation)

OPERATION_EVENTS: tuple[type[Operation], ...] = (
    operation_events.Paid,
    operation_events.AccessGrant,
    operation_events.Revoke,
    operation_events.Delegated,
    operation_events.Definition,
    operation_events.Confirmation,
    operation_events.Publication,
    operation_events.StateCheckpoint,
    operation_events.RecoveryRequest,
    operation_events.RecoveryApproval,
    operation_events.RecoveryExecution,
    operation_events.QueryAudit,
    operation_events.Mirror,
)
BY_NAME: Mapping[str, type[Operation]] = {event.NAME.removesuffix(".v1"): event for event in OPERATION_EVENTS}


def own_id(entry: FoldEntry, event: Event) -> bytes:
    """The operation id of an entry. A mirrored copy has the id of its original; a mirror record has its own."""
    return operation_id(entry.msg_id if isinstance(event, operation_events.Mirror) else entry.origin)


def copy_keys(step: FoldStep) -> tuple[bytes, ...]:
    """The deduplication key of an operation: the id of the original message."""
    return (step.entry.msg_id if isinstance(step.event, operation_events.Mirror) else step.entry.origin,)


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    operation_id: bytes
    entry: FoldEntry
    event: Operation

    @property
    def at(self) -> At:
        return self.entry.at

    @property
    def kind(self) -> str:
        """The name of its schema, without the version."""
        return self.event.NAME.removesuffix(".v1")


class Operations(MergeOverlay[FoldEntry | None]):
    """One part per operation: its entry. Only the first entry counts."""

    CLASS = "operation.index"
    EVENTS = OPERATION_EVENTS
    EMPTY = None
    STATE = FoldEntry

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        return (own_id(entry, event),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        return copy_keys(step)

    def lift(self, step: FoldStep) -> FoldEntry | None:
        return step.entry

    def merge(self, a: FoldEntry | None, b: FoldEntry | None) -> FoldEntry | None:
        return b if a is None else a

    def plain(self, part: bytes, state: FoldEntry | None) -> Mapping[str, cbor.Value]:
        found = None if state is None else logged(state)
        return {"operation_id": part} if found is None else plain(found)


OPERATIONS = Operations()
Following: TypeAlias = Callable[[bytes], Iterable[bytes]]


def logged(entry: FoldEntry) -> LoggedOperation | None:
    """The operation in an entry, or None if there is none or it does not decode."""
    found = OPERATIONS.read(entry)
    for step in () if isinstance(found, EventFault) else found:
        assert isinstance(step.event, Operation)
        return LoggedOperation(step.part, entry, step.event)
    return None


def operations(entries: Iterable[FoldEntry | None]) -> tuple[LoggedOperation, ...]:
    """The operations among entries in stream order, each once. Pass a whole log or the states of the index."""
    found: dict[bytes, LoggedOperation] = {}
    for entry in sorted((one for one in entries if one is not None), key=lambda one: one.at):
        one = logged(entry)
        if one is not None:
            found.setdefault(one.operation_id, one)
    return tuple(found.values())


def of_kind(known: Iterable[LoggedOperation], kind: type[E]) -> list[tuple[LoggedOperation, E]]:
    """The operations with a body of one class, with that body."""
    return [(one, one.event) for one in known if isinstance(one.event, kind)]


def plain(one: LoggedOperation) -> dict[str, cbor.Value]:
    """An operation as plain values, for display and JSON."""
    entry = one.entry
    return {
        "operation_id": one.operation_id,
        "kind": one.kind,
        "stream_seq": entry.stream_seq,
        "hub_ts": entry.hub_ts,
        "client_id": entry.client_id,
        "auth_ref": entry.auth_ref,
        "body": plain_wire(one.event),
    }


def references(event: Operation) -> tuple[bytes, ...]:
    """The operations that a body names: its parent, and the approvals of an execution."""
    named = event.approval_references if isinstance(event, operation_events.RecoveryExecution) else ()
    return (*(() if event.parent is None else (event.parent,)), *named)


@dataclass(frozen=True, slots=True)
class OperationLink:
    """One line of a trace. `distance` counts links before (negative) or after the traced operation.

    `found` is None if the stream does not contain the operation.
    """

    distance: int
    operation_id: bytes
    found: LoggedOperation | None


def trace(known: Iterable[LoggedOperation], start: bytes) -> tuple[OperationLink, ...]:
    """The causes and effects of an operation, causes first. Each operation appears once, at its shortest distance."""
    by_id = {one.operation_id: one for one in known}
    effects: dict[bytes, list[bytes]] = {}
    for one in by_id.values():
        for cause in references(one.event):
            effects.setdefault(cause, []).append(one.operation_id)

    def causes(of: bytes) -> Iterable[bytes]:
        return references(by_id[of].event) if of in by_id else ()

    back = list(_reach(start, causes))
    ahead = list(_reach(start, lambda of: effects.get(of, ())))
    before = [OperationLink(-far, one, by_id.get(one)) for far, one in reversed(back)]
    after = [
        OperationLink(far, one, by_id.get(one)) for far, one in ahead if far and one not in {seen for _, seen in back}
    ]
    return (*before, *after)


def _reach(start: bytes, following: Following) -> Iterator[tuple[int, bytes]]:
    """Breadth first, so that each operation has its shortest distance. Cycles in a malicious log are safe."""
    distance, edge, seen = 0, [start], {start}
    while edge:
        ahead: list[bytes] = []
        for one in edge:
            yield distance, one
            for other in following(one):
                if other not in seen:
                    seen.add(other)
                    ahead.append(other)
        distance, edge = distance + 1, ahead
