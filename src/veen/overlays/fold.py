"""Fold a log entry by entry into the exact state after each place, and list the entries that were not applied.

The log is already written, so a fold never raises on an entry: a sealed, malformed, copied or refused entry becomes an
`EventFault` and changes no state.
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


class KeyRecorder(Protocol):
    """Stores the place of a key's first occurrence."""

    def __call__(self, part: bytes, key: bytes, at: At) -> None: ...


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
