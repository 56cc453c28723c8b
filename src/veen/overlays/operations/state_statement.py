"""State checkpoints: logged hashes of a state at a place of the log, and their verification. 001, spec-3 §7.

    state_hash  Ht("veen/state-" || state_class, [ [part, state], … ])

A checkpoint covers one part of an overlay's state if `state_id` is that part, otherwise the whole state.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from veen.core import Mmr, cbor
from veen.core.cbor import Bstr, Nested, Uint, Wire, text_map
from veen.core.hashing import u64be
from veen.overlays.event import Event, FoldEntry, plain_wire
from veen.overlays.fold import Fold, state_hash
from veen.overlays.operations import rules
from veen.overlays.operations.operation_events import StateCheckpoint
from veen.overlays.operations.operation_index import LoggedOperation, of_kind, own_id
from veen.overlays.overlay import FoldStep, MergeOverlay, Registry


@text_map("kept")
class LatestCheckpoint(Wire):
    """The latest checkpoint of one state at one place, and the number of checkpoints."""

    checkpoints: Annotated[int, Uint()] = 0
    operation_id: Annotated[bytes | None, Bstr(optional=True)] = None
    epoch: Annotated[int, Uint()] = 0
    stream_seq: Annotated[int, Uint()] = 0
    latest: Annotated[StateCheckpoint | None, Nested(StateCheckpoint, optional=True)] = None


NOTHING = LatestCheckpoint()


class Snapshots(MergeOverlay[LatestCheckpoint]):
    """One part per state and place. The latest checkpoint counts. S1."""

    CLASS = "state.checkpoint"
    EVENTS = (StateCheckpoint,)
    EMPTY = NOTHING

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, StateCheckpoint)
        return (snapshot_part(event.state_id, event.upto_stream_seq),)

    def lift(self, step: FoldStep) -> LatestCheckpoint:
        assert isinstance(step.event, StateCheckpoint)
        return LatestCheckpoint(1, own_id(step.entry, step.event), *step.at, step.event)

    def merge(self, a: LatestCheckpoint, b: LatestCheckpoint) -> LatestCheckpoint:
        return a if b == NOTHING else replace(b, checkpoints=a.checkpoints + b.checkpoints)

    def plain(self, part: bytes, state: LatestCheckpoint) -> Mapping[str, cbor.Value]:
        shown = {} if state.latest is None else plain_wire(state.latest)
        return {**shown, "checkpoints": state.checkpoints, "stream_seq": state.stream_seq}


SNAPSHOTS = Snapshots()


def snapshot_part(state_id: bytes, upto_stream_seq: int) -> bytes:
    return state_id + u64be(upto_stream_seq)


class LogStates:
    """Roots and states of a log at any place, computed from all of its entries.

    Ask for places in ascending order, so that each entry is folded once.
    """

    def __init__(self, entries: Iterable[FoldEntry], overlays: Registry) -> None:
        self._overlays = overlays
        self._labels: dict[bytes, list[FoldEntry]] = {}
        self._trees: dict[bytes, Mmr] = {}
        self._folds: dict[tuple[bytes, str], Fold[Any, Any]] = {}
        for entry in entries:
            line = self._labels.setdefault(entry.label, [])
            if entry.stream_seq == len(line) + 1:  # entries after a gap cannot be used
                line.append(entry)

    def root_at(self, place: rules.LogPlace) -> bytes | None:
        """The root of the log after a place, or None if the log is shorter."""
        if not self._reaches(place):
            return None
        tree = self._trees.get(place.label)
        if tree is None or tree.size > place.stream_seq:
            tree = self._trees[place.label] = Mmr()
        for entry in self._labels[place.label][tree.size : place.stream_seq]:
            tree.append(entry.msg_id)
        return tree.root()

    def state_at(self, state_class: str, state_id: bytes, place: rules.LogPlace) -> bytes | None:
        """The state hash after a place, or None if no overlay has the class.

        The overlay's schemas are the filter. §7.4.
        """
        overlay = self._overlays.of_class(state_class)
        if overlay is None or not self._reaches(place):
            return None
        key = (place.label, state_class)
        folded = self._folds.get(key)
        if folded is None or (folded.upto is not None and folded.upto.stream_seq > place.stream_seq):
            folded = self._folds[key] = Fold(overlay)
        start = 0 if folded.upto is None else folded.upto.stream_seq
        folded.extend(self._labels[place.label][start : place.stream_seq])
        states = folded.states
        return state_hash(overlay, {state_id: states[state_id]} if state_id in states else states)

    def _reaches(self, place: rules.LogPlace) -> bool:
        return 1 <= place.stream_seq <= len(self._labels.get(place.label, ()))


def check(known: Iterable[LoggedOperation], facts: rules.ExternalFacts) -> Iterator[rules.RuleFinding]:
    """Check S1 and S2 for every checkpoint."""
    firsts: dict[bytes, LoggedOperation] = {}
    for one, event in of_kind(known, StateCheckpoint):
        first = firsts.setdefault(snapshot_part(event.state_id, event.upto_stream_seq), one)
        fault = f"entry {first.at.stream_seq} has a checkpoint for this place"
        yield rules.repeat_finding(rules.Rule.SNAPSHOT_S1, one, first, fault)
        yield _checked(one, event, facts)


def _checked(one: LoggedOperation, event: StateCheckpoint, facts: rules.ExternalFacts) -> rules.RuleFinding:
    place = rules.LogPlace(one.entry.label, event.upto_stream_seq)
    if event.upto_stream_seq >= one.entry.stream_seq:
        return rules.rule_finding(rules.Rule.SNAPSHOT_S2, one, "upto_stream_seq is not before its own entry")
    root = None if facts.root_at is None else facts.root_at(place)
    state = None if facts.state_at is None else facts.state_at(event.state_class, event.state_id, place)
    if root is not None and root != event.mmr_root:
        return rules.rule_finding(rules.Rule.SNAPSHOT_S2, one, "mmr_root differs from the log")
    if state is not None and state != event.state_hash:
        return rules.rule_finding(
            rules.Rule.SNAPSHOT_S2, one, f"state_hash differs from the state of {event.state_class}"
        )
    if root is None or state is None:
        missing = "the log" if root is None else f"an overlay of class {event.state_class}"
        return rules.open_finding(rules.Rule.SNAPSHOT_S2, one, f"{missing} is not available")
    return rules.rule_finding(rules.Rule.SNAPSHOT_S2, one, None)
