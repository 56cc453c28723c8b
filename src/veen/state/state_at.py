"""A snapshot of a stream's state at one place. Later entries do not change it."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Generic, TypeVar

from veen.overlays import At, EventFault, FoldStep, MergeOverlay, Overlay, state_hash
from veen.overlays.kept_fold import Timeline

S = TypeVar("S")
M = TypeVar("M")

START = At(0, 0)


class StateAt(Generic[S, M]):
    """The state after the entry at `at`, or at the end of the log. Valid until its `async with` ends."""

    def __init__(self, timeline: Timeline[S, M], at: At | None, now: int = 0) -> None:
        """`at` must not be after the end of the log."""
        self.now = now  # the hub's current time, or the hub time of the entry at `at`
        self._timeline = timeline
        self._at = at
        self.upto = timeline.upto() or START  # the end of the log
        self.at = self.upto if at is None else at

    @property
    def overlay(self) -> Overlay[S, M]:
        return self._timeline.overlay

    def state(self, part: bytes) -> S:
        """The state of a part, in O(log n); the overlay's initial state if no entry touched it."""
        return self._timeline.state(part, self._at)

    def known(self, part: bytes, key: bytes) -> At | None:
        found = self._timeline.known(part, key)
        return found if found is not None and found <= self.at else None

    @property
    def states(self) -> Mapping[bytes, S]:
        """All touched parts, in the order of their first entry. Each state is computed on access."""
        return self._timeline.states(self._at)

    def live(self) -> Iterator[tuple[bytes, S]]:
        """The live parts, in the order of their first entry."""
        if self._at is None:
            return self._timeline.live()
        return ((part, state) for part, state in self.states.items() if self.overlay.live(state))

    def history(self, part: bytes) -> Iterator[FoldStep]:
        """The steps applied to a part, in order."""
        return self._timeline.history(part, last=self.at)

    def faults(self, first: At | None = None) -> Iterator[EventFault]:
        """The entries that were not applied, in order, with their reasons."""
        return self._timeline.faults(first, self.at)

    def faults_at(self, place: At) -> tuple[EventFault, ...]:
        """The faults of one entry; empty if it was applied."""
        return tuple(takewhile(lambda fault: fault.place == place, self._timeline.faults(place, place)))

    def state_hash(self, *parts: bytes) -> bytes:
        """The hash of the whole state, or of these parts."""
        states = self.states
        if parts:
            return state_hash(self.overlay, {part: states[part] for part in parts if part in states})
        return state_hash(self.overlay, states)

    def ends(self) -> tuple[At, ...]:
        """The last place of each epoch with entries, up to `at`."""
        prefixes = [prefix for prefix in self._timeline.prefixes() if prefix.epoch <= self.at.epoch]
        return tuple(min(At(prefix.epoch, prefix.upto_seq), self.at) for prefix in prefixes)

    def determining(self, part: bytes) -> tuple[FoldStep, ...]:
        """The steps that determine a part's state, without those that later steps make irrelevant."""
        steps = tuple(self.history(part))
        overlay = self.overlay
        if not isinstance(overlay, MergeOverlay):
            return steps
        kept: list[FoldStep] = []
        summed = overlay.EMPTY
        for step in reversed(steps):
            more = overlay.merge(overlay.lift(step), summed)
            if more != summed:
                kept.append(step)
                summed = more
        return tuple(reversed(kept))
