"""What the parts of a stream's state are at one place, as one look: nothing that comes later changes it."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Generic, TypeVar

from veen.overlays import At, EventFault, FoldStep, MergeOverlay, Overlay, state_hash
from veen.overlays.kept_fold import Timeline

S = TypeVar("S")
M = TypeVar("M")

START = At(0, 0)


class StateAt(Generic[S, M]):
    """The state after the entry at `at`, or at the end of the log. Usable until its `async with` ends."""

    def __init__(self, timeline: Timeline[S, M], at: At | None, now: int = 0) -> None:
        """`at` is not beyond the end."""
        self.now = now  # the hub's time that it is told for: its present, or that of the entry at `at`
        self._timeline = timeline
        self._at = at
        self.upto = timeline.upto() or START  # the end of the log
        self.at = self.upto if at is None else at

    @property
    def overlay(self) -> Overlay[S, M]:
        return self._timeline.overlay

    def state(self, part: bytes) -> S:
        """The state of a part, in O(log n); the overlay's initial one where nothing touched it."""
        return self._timeline.state(part, self._at)

    def known(self, part: bytes, key: bytes) -> At | None:
        found = self._timeline.known(part, key)
        return found if found is not None and found <= self.at else None

    @property
    def states(self) -> Mapping[bytes, S]:
        """Every part that was touched, in that order; each state is worked out when it is asked for."""
        return self._timeline.states(self._at)

    def live(self) -> Iterator[tuple[bytes, S]]:
        """The parts that still matter, in the order in which they were first touched."""
        if self._at is None:
            return self._timeline.live()
        return ((part, state) for part, state in self.states.items() if self.overlay.live(state))

    def history(self, part: bytes) -> Iterator[FoldStep]:
        """The steps that a part took, in order."""
        return self._timeline.history(part, last=self.at)

    def faults(self, first: At | None = None) -> Iterator[EventFault]:
        """The entries that changed nothing, in order, each with its reason."""
        return self._timeline.faults(first, self.at)

    def faults_at(self, place: At) -> tuple[EventFault, ...]:
        """What is wrong with one entry; nothing where all it says was taken."""
        return tuple(takewhile(lambda fault: fault.place == place, self._timeline.faults(place, place)))

    def state_hash(self, *parts: bytes) -> bytes:
        """The hash of the whole state, or of these parts alone."""
        states = self.states
        if parts:
            return state_hash(self.overlay, {part: states[part] for part in parts if part in states})
        return state_hash(self.overlay, states)

    def ends(self) -> tuple[At, ...]:
        """The end of each epoch that has entries, as far as they count here."""
        found = [At(bound.epoch, bound.upto_seq) for bound in self._timeline.prefixes() if bound.epoch <= self.at.epoch]
        return tuple(min(end, self.at) for end in found)

    def determining(self, part: bytes) -> tuple[FoldStep, ...]:
        """The steps that a part's state follows from. Where later ones alone say it all, the earlier are left out."""
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
