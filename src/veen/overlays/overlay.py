"""An overlay: what a stream's events mean, as a pure fold. Spec §11.

The state of an overlay is in **parts**, each under its own key: a register, a wallet, a request. An event names the
parts it touches, and each part takes or refuses it by itself. So one part can be read, kept, or worked out on another
machine without the rest.

    read      entry -> the steps it takes, or a fault                     total, the same for everybody
    keys      step -> what it is known by; a second one is a copy          mirrored events count once
    refusal   state, step -> why it changes nothing, or None               the same before sending and when folding
    apply     state, step -> the next state                                only for what is not refused
    lift      step -> summary;  merge  summary, summary -> summary          associative, `EMPTY` changes nothing
    run       state, summary -> the state after it, or None                None: walk its steps one by one instead

Write one by subclassing `MergeOverlay` (the state is its own summary) or `WalkOverlay` (the summary is the list of
steps); subclass `Overlay` itself where a summary is a function of the state it meets.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from veen.core import Malformed, Unverified, cbor
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event, EventFault, FaultKind

S = TypeVar("S")
M = TypeVar("M")

SEALED_REASON = "the payload could not be opened"


@dataclass(frozen=True, slots=True)
class FoldStep:
    """One event as one part of the state meets it."""

    part: bytes
    entry: FoldEntry
    event: Event

    @property
    def at(self) -> At:
        return self.entry.at


class Overlay(ABC, Generic[S, M]):
    """States are of type S, summaries of type M. Both are plain values that nobody changes in place."""

    CLASS: ClassVar[str]
    VERSION: ClassVar[int] = 1  # of the rules below: a cache made under another is refused
    EVENTS: ClassVar[tuple[type[Event], ...]]
    INITIAL: S
    EMPTY: M

    def settings(self) -> bytes:
        """What this instance was told beyond its class, in one spelling: a cache is for one setting."""
        return b""

    @cached_property
    def schemas(self) -> Mapping[bytes, tuple[type[Event], ...]]:
        """The forms of each schema this overlay reads."""
        forms: dict[bytes, list[type[Event]]] = defaultdict(list)
        for event in self.EVENTS:
            forms[event.SCHEMA].append(event)
        return {schema: tuple(listed) for schema, listed in forms.items()}

    def read(self, entry: FoldEntry) -> tuple[FoldStep, ...] | EventFault:
        """The steps an entry takes; none where it is of another overlay."""
        if entry.header is None or entry.body is None:
            return EventFault.at(entry.at, FaultKind.SEALED, SEALED_REASON)
        forms = self.schemas.get(entry.header.schema)
        if forms is None:
            return ()
        try:
            entry.header.check_cap_ref(entry.auth_ref)
            event = _decode(forms, entry.body)
        except (Malformed, Unverified) as error:
            return EventFault.at(entry.at, FaultKind.MALFORMED, str(error))
        flaw = self.flaw(entry, event)
        if flaw is not None:
            return EventFault.at(entry.at, FaultKind.MALFORMED, flaw)
        return tuple(FoldStep(part, entry, event) for part in dict.fromkeys(self.parts(entry, event)))

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        """Why an event that decodes is none in this entry, whatever the state: a reply that names no request."""
        return None

    @abstractmethod
    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        """The parts of the state that an event is for."""

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """What a step is known by, within its part. A step counts only if it is the first with each of its keys."""
        return (step.entry.origin,)

    def refusal(self, state: S, step: FoldStep) -> str | None:
        """Why a step changes nothing, or None where it applies."""
        return None

    @abstractmethod
    def apply(self, state: S, step: FoldStep) -> S:
        """The state after a step that is not refused."""

    def live(self, state: S) -> bool:
        """Whether a part is still to be looked at: a cache lists the live ones without passing by the rest."""
        return True

    @abstractmethod
    def lift(self, step: FoldStep) -> M:
        """One step as a summary."""

    @abstractmethod
    def merge(self, a: M, b: M) -> M:
        """The summary of what `a` sums up followed by what `b` does. Associative."""

    @abstractmethod
    def run(self, state: S, summary: M) -> S | None:
        """The state after all that was summed up; None where some of it is refused from this state on."""

    @abstractmethod
    def encode_state(self, state: S) -> bytes:
        """The one encoding of a state."""

    @abstractmethod
    def decode_state(self, part: bytes, data: bytes) -> S: ...

    @abstractmethod
    def encode_summary(self, summary: M) -> bytes:
        """The one encoding of a summary, so that it can be kept and sent."""

    @abstractmethod
    def decode_summary(self, part: bytes, data: bytes) -> M: ...

    @abstractmethod
    def plain(self, part: bytes, state: S) -> Mapping[str, cbor.Value]:
        """The state for people and for JSON: names and plain values."""


class MergeOverlay(Overlay[S, S]):
    """The state is its own summary: two runs of events join by what each came to. Set EMPTY; it is INITIAL too."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "EMPTY" in vars(cls):
            cls.INITIAL = cls.EMPTY

    def apply(self, state: S, step: FoldStep) -> S:
        return self.merge(state, self.lift(step))

    def run(self, state: S, summary: S) -> S | None:
        return self.merge(state, summary)

    def encode_summary(self, summary: S) -> bytes:
        return self.encode_state(summary)

    def decode_summary(self, part: bytes, data: bytes) -> S:
        return self.decode_state(part, data)


Walk = tuple[FoldStep, ...]


class WalkOverlay(Overlay[S, Walk]):
    """The summary is the steps themselves: for parts that meet few events each, such as one request or one task."""

    EMPTY: Walk = ()

    def lift(self, step: FoldStep) -> Walk:
        return (step,)

    def merge(self, a: Walk, b: Walk) -> Walk:
        return a + b

    def run(self, state: S, summary: Walk) -> S | None:
        for step in summary:
            if self.refusal(state, step) is None:
                state = self.apply(state, step)
        return state

    def encode_summary(self, summary: Walk) -> bytes:
        return cbor.encode([step.entry.encode() for step in summary])

    def decode_summary(self, part: bytes, data: bytes) -> Walk:
        listed = cbor.decode(data, "summary")
        if not isinstance(listed, tuple):
            raise Malformed("summary", "not a list of entries")
        return tuple(step_of(self, part, entry) for entry in listed)


def step_of(overlay: Overlay[S, M], part: bytes, data: cbor.Value) -> FoldStep:
    """The step that an encoded entry takes in one part."""
    if not isinstance(data, bytes):
        raise Malformed("step", "not an encoded entry")
    steps = overlay.read(FoldEntry.decode(data))
    for step in steps if isinstance(steps, tuple) else ():
        if step.part == part:
            return step
    raise Malformed("step", "the entry takes no step in this part")


def _decode(forms: tuple[type[Event], ...], body: bytes) -> Event:
    """The body as the first form that it fits. Raises `Malformed` with what every form says against it."""
    faults = []
    for form in forms:
        try:
            return form.decode(body)
        except Malformed as error:
            faults.append(error)
    raise faults[0] if len(faults) == 1 else Malformed("body", "; ".join(map(str, faults)))
