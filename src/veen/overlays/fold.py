"""Folding entry by entry: the exact state after every place, and every entry that changed nothing.

The log is already written, so a fold answers and never raises: what is sealed, malformed, a copy or refused is listed
as a `Fault` and changes no state.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from veen.core.cbor import heads
from veen.core.hashing import ht
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import EventFault, FaultKind
from veen.overlays.overlay import FoldStep, Overlay

S = TypeVar("S")
M = TypeVar("M")


def encode_states(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """The canonical state."""
    pairs = [
        heads.write_head(heads.ARRAY, 2) + heads.write_bstr(part) + overlay.encode_state(states[part])
        for part in sorted(states)
    ]
    return heads.write_head(heads.ARRAY, len(pairs)) + b"".join(pairs)


def state_hash(overlay: Overlay[S, M], states: Mapping[bytes, S]) -> bytes:
    """What a snapshot of these states says."""
    return ht(f"veen/state-{overlay.CLASS}", encode_states(overlay, states))


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Applied(Generic[S]):
    """A step that was taken, and what it changed."""

    step: FoldStep
    before: S
    after: S


Outcome: TypeAlias = Applied[S] | EventFault


class FoldLookup(Protocol[S_co]):
    """Where a fold looks up what it already knows."""

    def state(self, part: bytes) -> S_co: ...

    def known(self, part: bytes, key: bytes) -> At | None:
        """Where a key was met first in a part, None where it is new."""
        ...


class KeyRecorder(Protocol):
    """Where a fold keeps a key that it met."""

    def __call__(self, part: bytes, key: bytes, at: At) -> None: ...


def fold_entry(
    overlay: Overlay[S, M], entry: FoldEntry, book: FoldLookup[S], note: KeyRecorder
) -> Iterator[Outcome[S]]:
    """What an entry does to each part it touches. The caller takes over each `after` before it asks on."""
    found = overlay.read(entry)
    if isinstance(found, EventFault):
        yield found
        return
    at = entry.at
    for step in found:
        earlier = None
        for key in overlay.keys(step):
            first = book.known(step.part, key)
            # Every key is met, also after one that shows a copy: which step is first must not depend on the others.
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
    """What would become of an entry if it came next. Nothing is kept: ask this before sending."""
    return tuple(fold_entry(overlay, entry, book, _forget))


def _forget(part: bytes, key: bytes, at: At) -> None:
    pass


def copy_reason(at: At, earlier: At) -> str:
    """Where the first of several copies is, as a fault says it."""
    of_epoch = "" if earlier.epoch == at.epoch else f" of epoch {earlier.epoch}"
    return f"a copy of entry {earlier.stream_seq}{of_epoch}"


class Fold(Generic[S, M]):
    """A fold in memory. Entries come in order; all of a stream's, or those of the overlay's schemas only.

    With `base`, such as the timeline of a cache, it goes on from there, and `states` has only what changed since.
    """

    def __init__(self, overlay: Overlay[S, M], base: FoldLookup[S] | None = None) -> None:
        self.overlay = overlay
        self.states: dict[bytes, S] = {}
        self.faults: list[EventFault] = []
        self.upto: At | None = None
        self._base = base
        self._firsts: dict[tuple[bytes, bytes], At] = {}

    def add(self, entry: FoldEntry) -> tuple[Outcome[S], ...]:
        """Fold one entry; what became of it, part by part."""
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
        """The state of a part; the initial one where nothing has touched it."""
        if part in self.states:
            return self.states[part]
        return self.overlay.INITIAL if self._base is None else self._base.state(part)

    def known(self, part: bytes, key: bytes) -> At | None:
        first = self._firsts.get((part, key))
        return first if first is not None or self._base is None else self._base.known(part, key)

    def _note(self, part: bytes, key: bytes, at: At) -> None:
        self._firsts[part, key] = at


def fold(overlay: Overlay[S, M], entries: Iterable[FoldEntry]) -> Fold[S, M]:
    """Everything at once."""
    folded = Fold(overlay)
    folded.extend(entries)
    return folded
