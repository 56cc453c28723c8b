"""Fold a log entry by entry, or in pieces on several machines.

The log is already written, so a fold never raises on an entry: a sealed, malformed, copied or refused entry becomes an
`EventFault` and changes no state.

To fold in pieces, each piece becomes a summary on any machine, and summaries merge in order:

    1. first_places   the first place of each key in each piece; `merge_first_places` joins them
    2. summarise      lift and merge the steps of a piece that are not copies
    3. merge          merge neighbouring summaries
    4. run            run the whole summary from the initial state

Steps 1 and 2 can process the pieces in parallel. If a part's summary does not run because a step would be refused, fold
the entries of that part with `Fold`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeAlias, TypeVar

from veen.core import Malformed, Unverified
from veen.core.cbor import Bstr, Bytes, ListOf, Nested, Text, Uint, VersionField, Wire, array, heads
from veen.core.hashing import U32_MAX, ht
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import At, EventFault, FaultKind, FoldEntry, ascending
from veen.overlays.overlay import FoldStep, Overlay

S = TypeVar("S")
M = TypeVar("M")


def encode_states(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """The canonical encoding of a whole state."""
    pairs = [
        heads.write_head(heads.ARRAY, 2) + heads.write_bstr(part) + overlay.encode_state(states[part])
        for part in sorted(states)
    ]
    return heads.write_head(heads.ARRAY, len(pairs)) + b"".join(pairs)


def state_hash(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """The hash that a snapshot of these states contains."""
    return ht(f"veen/state-{overlay.CLASS}", encode_states(overlay, states))


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Applied(Generic[S]):
    """A step that was applied, with the part's state before and after."""

    step: FoldStep
    before: S
    after: S


Outcome: TypeAlias = Applied[S] | EventFault


class FoldLookup(Protocol[S_co]):
    """Lookup of the state and keys that a fold has processed so far."""

    def state(self, part: bytes) -> S_co: ...

    def known(self, part: bytes, key: bytes) -> At | None:
        """The place where a key first occurred in a part, or None."""
        ...


KeyRecorder: TypeAlias = Callable[[bytes, bytes, At], None]  # stores the place of a key's first occurrence in a part


def fold_entry(
    overlay: Overlay[S, M], entry: FoldEntry, book: FoldLookup[S], note: KeyRecorder
) -> Iterator[Outcome[S]]:
    """Yield the outcome of an entry for each part it touches.

    The caller must store each `after` before it requests the next outcome.
    """
    found = overlay.read(entry)
    if isinstance(found, EventFault):
        yield found
        return
    at = entry.at
    for step in found:
        earlier = None
        for key in overlay.keys(step):
            first = book.known(step.part, key)
            # Record every key, even after one shows a copy: a key's first place must not depend on other keys.
            if first is None:
                note(step.part, key, at)
            elif first != at:
                earlier = first if earlier is None else min(earlier, first)
        if earlier is not None:
            yield EventFault.at(at, FaultKind.COPY, copy_reason(at, earlier), step.part)
            continue
        before = book.state(step.part)
        reason = overlay.refusal(before, step)
        if reason is not None:
            yield EventFault.at(at, FaultKind.REFUSED, reason, step.part)
        else:
            yield Applied(step, before, overlay.apply(before, step))


def preview(overlay: Overlay[S, M], entry: FoldEntry, book: FoldLookup[S]) -> tuple[Outcome[S], ...]:
    """The outcomes of an entry if it were next in the log, for checks before sending. Nothing is stored."""
    return tuple(fold_entry(overlay, entry, book, _forget))


def _forget(part: bytes, key: bytes, at: At) -> None:
    pass


def copy_reason(at: At, earlier: At) -> str:
    """The fault reason of a copy: names the entry that it repeats."""
    of_epoch = "" if earlier.epoch == at.epoch else f" of epoch {earlier.epoch}"
    return f"a copy of entry {earlier.stream_seq}{of_epoch}"


class Fold(Generic[S, M]):
    """A fold in memory.

    Entries are added in order: all entries of a stream, or only those with the overlay's schemas. With `base`, such as
    the timeline of a cache, the fold continues from there and `states` holds only the parts changed since.
    """

    def __init__(self, overlay: Overlay[S, M], base: FoldLookup[S] | None = None) -> None:
        self.overlay = overlay
        self.states: dict[bytes, S] = {}
        self.faults: list[EventFault] = []
        self.upto: At | None = None
        self._base = base
        self._firsts: dict[tuple[bytes, bytes], At] = {}

    def add(self, entry: FoldEntry) -> tuple[Outcome[S], ...]:
        """Fold one entry and return its outcome for each part."""
        if self.upto is not None and entry.at <= self.upto:
            raise ValueError(f"entry {entry.at} does not come after {self.upto}")
        self.upto = entry.at
        outcomes = []
        for outcome in fold_entry(self.overlay, entry, self, self._note):
            if isinstance(outcome, EventFault):
                self.faults.append(outcome)
            else:
                self.states[outcome.step.part] = outcome.after
            outcomes.append(outcome)
        return tuple(outcomes)

    def extend(self, entries: Iterable[FoldEntry]) -> None:
        for entry in entries:
            self.add(entry)

    def state(self, part: bytes) -> S:
        """The state of a part; `INITIAL` if no entry has touched it."""
        if part in self.states:
            return self.states[part]
        return self.overlay.INITIAL if self._base is None else self._base.state(part)

    def known(self, part: bytes, key: bytes) -> At | None:
        first = self._firsts.get((part, key))
        return first if first is not None or self._base is None else self._base.known(part, key)

    def _note(self, part: bytes, key: bytes, at: At) -> None:
        self._firsts[part, key] = at


def fold(overlay: Overlay[S, M], entries: Iterable[FoldEntry]) -> Fold[S, M]:
    """Fold all entries in memory."""
    folded = Fold(overlay)
    folded.extend(entries)
    return folded


FirstPlaces: TypeAlias = Mapping[tuple[bytes, bytes], At]  # (part, key) -> first place
Earlier: TypeAlias = Callable[[bytes, bytes], At | None]  # (part, key) -> first place before the piece


@dataclass(frozen=True, slots=True)
class Summary(Generic[M]):
    """The summary of a run of entries, part by part, and the faults that do not depend on state."""

    parts: Mapping[bytes, M]
    faults: tuple[EventFault, ...] = ()


@dataclass(slots=True)
class StepKeys:
    """The keys of the steps in a piece of the log."""

    firsts: dict[tuple[bytes, bytes], At] = field(default_factory=dict)  # (part, key) -> first place
    without_key: list[tuple[bytes, At]] = field(default_factory=list)  # part and place of steps without a key


def summarise_piece(
    overlay: Overlay[S, M],
    entries: Iterable[FoldEntry],
    earlier: Earlier | None = None,
    within: Collection[bytes] | None = None,
) -> tuple[Summary[M], StepKeys]:
    """Summarise a piece of the log and collect the keys of its steps, in one pass.

    `earlier` finds the steps before the piece. With `within`, cover only these parts.
    """
    parts: dict[bytes, M] = {}
    faults: list[EventFault] = []
    met = StepKeys()
    for entry in entries:
        found = overlay.read(entry)
        if isinstance(found, EventFault):
            if within is None:
                faults.append(found)
            continue
        at = entry.at
        for step in found:
            part = step.part
            if within is not None and part not in within:
                continue
            keys, first = overlay.keys(step), at
            for key in keys:
                known = met.firsts.get((part, key))
                if known is None:
                    known = met.firsts[part, key] = (earlier(part, key) if earlier else None) or at
                first = min(first, known)
            if not keys:
                met.without_key.append((part, at))
            if first < at:
                faults.append(EventFault.at(at, FaultKind.COPY, copy_reason(at, first), part))
            else:
                parts[part] = overlay.merge(parts.get(part, overlay.EMPTY), overlay.lift(step))
    return Summary(parts, tuple(faults)), met


def first_places(overlay: Overlay[S, M], entries: Iterable[FoldEntry]) -> dict[tuple[bytes, bytes], At]:
    """The first place of each key in a piece of the log."""
    return summarise_piece(overlay, entries)[1].firsts


def merge_first_places(a: FirstPlaces, b: FirstPlaces) -> dict[tuple[bytes, bytes], At]:
    """The earlier place of each key. The order of the arguments does not matter."""
    return {key: min(a.get(key) or b[key], b.get(key) or a[key]) for key in a.keys() | b.keys()}


def summarise(overlay: Overlay[S, M], entries: Iterable[FoldEntry], known: FirstPlaces) -> Summary[M]:
    """The summary of a piece of the log. `known` has the first places of this piece and all earlier ones."""
    return summarise_piece(overlay, entries, lambda part, key: known[part, key])[0]


def merge(overlay: Overlay[S, M], a: Summary[M], b: Summary[M]) -> Summary[M]:
    """The summary of `a` followed by `b`."""
    return merge_all(overlay, (a, b))


def merge_all(overlay: Overlay[S, M], summaries: Iterable[Summary[M]]) -> Summary[M]:
    """The summary of neighbouring pieces, in order."""
    parts: dict[bytes, M] = {}
    faults: list[EventFault] = []
    for one in summaries:
        for part, later in one.parts.items():
            parts[part] = overlay.merge(parts[part], later) if part in parts else later
        faults += one.faults
    return Summary(parts, tuple(faults))


def run(
    overlay: Overlay[S, M], states: Mapping[bytes, S], summary: Summary[M]
) -> tuple[dict[bytes, S], tuple[bytes, ...]]:
    """The states after a summary, and the parts it could not run on.

    The latter are unchanged: fold their entries with `Fold`.
    """
    after = dict(states)
    stuck = []
    for part, summed in summary.parts.items():
        state = overlay.run(states.get(part, overlay.INITIAL), summed)
        if state is None:
            stuck.append(part)
        else:
            after[part] = state
    return after, tuple(sorted(stuck))


@array("summary part")
class SummaryPart(Wire):
    """One part of a shipped summary."""

    part: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    summary: Annotated[bytes, Bytes(U32_MAX)]


@array("shipped summary", VersionField())
class ShippedSummary(Wire):
    """A summary for transfer to another machine, with its overlay and the run of the log it covers. Spec §11.3."""

    class_name: Annotated[str, Text(MAX_TEXT_BYTES)]
    version: Annotated[int, Uint()]
    settings: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    first_seq: Annotated[int, Uint(least=1)]
    upto_seq: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]  # of the log up to `upto_seq`: the summary is valid only under this root
    parts: Annotated[tuple[SummaryPart, ...], ListOf(Nested(SummaryPart, name="part"), most=U32_MAX)]
    faults: Annotated[tuple[EventFault, ...], ListOf(Nested(EventFault, name="fault"), most=U32_MAX)]

    def flaw(self) -> str | None:
        if self.first_seq > self.upto_seq:
            return "first_seq is greater than upto_seq"
        if not ascending(part.part for part in self.parts):
            return "parts are not in ascending order"
        places = [fault.place for fault in self.faults]
        return None if places == sorted(places) else "faults are not in ascending order"


def ship(overlay: Overlay[S, M], summary: Summary[M], entries: Sequence[FoldEntry], mmr_root: bytes) -> ShippedSummary:
    """Wrap the summary of these entries, which must be consecutive and of one label."""
    first, last = entries[0], entries[-1]
    if last.label != first.label or last.stream_seq - first.stream_seq != len(entries) - 1:
        raise ValueError("the entries are not consecutive entries of one label")
    covered = (first.label, first.epoch, first.stream_seq, last.stream_seq, mmr_root)
    parts = encode_parts(overlay, summary)
    return ShippedSummary(overlay.CLASS, overlay.VERSION, overlay.settings(), *covered, parts, summary.faults)


def encode_parts(overlay: Overlay[S, M], summary: Summary[M]) -> tuple[SummaryPart, ...]:
    """The parts of a summary in the form that is shipped."""
    return tuple(SummaryPart(part, overlay.encode_summary(summary.parts[part])) for part in sorted(summary.parts))


def receive(overlay: Overlay[S, M], shipped: ShippedSummary) -> Summary[M]:
    """Unwrap a summary of this overlay. The caller must have compared label, places and root with the log."""
    made_by = (shipped.class_name, shipped.version, shipped.settings)
    if made_by != (overlay.CLASS, overlay.VERSION, overlay.settings()):
        ours = f"{overlay.CLASS} version {overlay.VERSION} with these settings"
        raise Unverified("summary", f"made by {shipped.class_name} version {shipped.version}, not by {ours}")
    try:
        parts = {part.part: overlay.decode_summary(part.part, part.summary) for part in shipped.parts}
    except Malformed as error:
        raise Malformed("summary", str(error)) from None
    return Summary(parts, shipped.faults)
