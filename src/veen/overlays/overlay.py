"""The base classes of overlays: pure folds that turn a stream's events into state. Spec §11.

The state consists of **parts**, each under its own key: a register, a wallet, a request. An event names the parts it
touches, and each part applies or refuses it independently. So one part can be read, stored or computed on another
machine without the others.

    read      entry -> steps, or a fault                       total and deterministic
    keys      step -> identifiers; a repeated one is a copy     mirrored events count once
    refusal   state, step -> reason, or None                   the same check before sending and when folding
    apply     state, step -> next state                        only for steps that are not refused
    lift      step -> summary;  merge  summary, summary -> summary     associative, `EMPTY` is the identity
    run       state, summary -> state, or None                 None: apply the steps one by one instead

Subclass `MergeOverlay` if the state is its own summary, `WalkOverlay` if the summary is the list of steps, and
`Overlay` itself if a summary is a function of the state.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from veen.core import Malformed, Unavailable, Unverified, cbor
from veen.core.cbor import Wire
from veen.overlays.event import At, Event, EventFault, FaultKind, FoldEntry

S = TypeVar("S")
M = TypeVar("M")

NULL = cbor.encode(None)
SEALED_REASON = "the payload could not be opened"


@dataclass(frozen=True, slots=True)
class FoldStep:
    """One event, as it applies to one part."""

    part: bytes
    entry: FoldEntry
    event: Event

    @property
    def at(self) -> At:
        return self.entry.at


class Overlay(ABC, Generic[S, M]):
    """States have type S, summaries type M. Both are immutable values."""

    CLASS: ClassVar[str]
    VERSION: ClassVar[int] = 1  # of the fold rules: a cache built with another version is rejected
    EVENTS: ClassVar[tuple[type[Event], ...]]
    PART: ClassVar[str] = ""  # the field of the events that names their part, unless `parts` is overridden
    STATE: ClassVar[type[Wire]]  # only for an overlay whose INITIAL is None; by default it is the class of INITIAL
    INITIAL: S
    EMPTY: M

    def settings(self) -> bytes:
        """The canonical encoding of this instance's parameters. A cache belongs to one setting."""
        return b""

    @cached_property
    def schemas(self) -> Mapping[bytes, tuple[type[Event], ...]]:
        """The event classes of each schema that this overlay reads."""
        forms: dict[bytes, list[type[Event]]] = defaultdict(list)
        for event in self.EVENTS:
            forms[event.SCHEMA].append(event)
        return {schema: tuple(listed) for schema, listed in forms.items()}

    def read(self, entry: FoldEntry) -> tuple[FoldStep, ...] | EventFault:
        """The steps of an entry; empty if its schema belongs to another overlay."""
        if entry.header is None or entry.body is None:
            return EventFault.at(entry.at, FaultKind.SEALED, SEALED_REASON)
        forms = self.schemas.get(entry.header.schema)
        if forms is None:
            return ()
        try:
            entry.header.check_cap_ref(entry.auth_ref)
            event = decode_body(forms, entry.body)
        except (Malformed, Unverified) as error:
            return EventFault.at(entry.at, FaultKind.MALFORMED, str(error))
        flaw = self.flaw(entry, event)
        if flaw is not None:
            return EventFault.at(entry.at, FaultKind.MALFORMED, flaw)
        return tuple(FoldStep(part, entry, event) for part in dict.fromkeys(self.parts(entry, event)))

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        """Why a decoded event is invalid in this entry regardless of state, such as a reply without a request."""
        return None

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        """The parts that an event touches."""
        return (getattr(event, self.PART),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """The identifiers of a step within its part. A step is applied only if each of them is new."""
        return (step.entry.origin,)

    def refusal(self, state: S, step: FoldStep) -> str | None:
        """Why a step does not apply, or None if it does."""
        return None

    @abstractmethod
    def apply(self, state: S, step: FoldStep) -> S:
        """The state after a step that `refusal` allows."""

    def live(self, state: S) -> bool:
        """Whether a part still needs attention. A cache lists live parts without scanning the others."""
        return True

    @abstractmethod
    def lift(self, step: FoldStep) -> M:
        """One step as a summary."""

    @abstractmethod
    def merge(self, a: M, b: M) -> M:
        """The summary of the steps of `a` followed by those of `b`. Associative."""

    @abstractmethod
    def run(self, state: S, summary: M) -> S | None:
        """The state after the summarised steps, or None if one of them would be refused from this state."""

    def encode_state(self, state: S) -> bytes:
        """The canonical encoding of a state. Override both methods if a state is neither a wire object nor None."""
        return NULL if state is None else cast(Wire, state).encode()

    def decode_state(self, part: bytes, data: bytes) -> S:
        if self.INITIAL is None:
            return self.INITIAL if data == NULL else cast(S, self.STATE.decode(data))
        return cast(type[Any], type(self.INITIAL)).decode(data)  # type: ignore[no-any-return]

    @abstractmethod
    def encode_summary(self, summary: M) -> bytes:
        """The canonical encoding of a summary, for storage and transfer."""

    @abstractmethod
    def decode_summary(self, part: bytes, data: bytes) -> M: ...

    @abstractmethod
    def plain(self, part: bytes, state: S) -> Mapping[str, cbor.Value]:
        """The state as names and plain values, for display and JSON."""


class MergeOverlay(Overlay[S, S]):
    """An overlay whose state is its own summary. Set EMPTY; INITIAL is the same value."""

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
    """An overlay whose summary is the list of steps, for parts with few events each, such as a request or a task."""

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
    """The step of an encoded entry for one part."""
    if not isinstance(data, bytes):
        raise Malformed("step", "not an encoded entry")
    steps = overlay.read(FoldEntry.decode(data))
    for step in steps if isinstance(steps, tuple) else ():
        if step.part == part:
            return step
    raise Malformed("step", "the entry has no step for this part")


def decode_body(forms: tuple[type[Event], ...], body: bytes) -> Event:
    """Decode the body as the first form that fits. Raises `Malformed` with the reason of every form."""
    faults = []
    for form in forms:
        try:
            return form.decode(body)
        except Malformed as error:
            faults.append(error)
    raise faults[0] if len(faults) == 1 else Malformed("body", "; ".join(map(str, faults)))


ENTRY_POINT_GROUP = "veen.overlays"

AnyOverlay: TypeAlias = Overlay[Any, Any]


class Registry:
    """Overlays by class and by schema. Several overlays may read one schema."""

    def __init__(self, overlays: Iterable[AnyOverlay]) -> None:
        self._by_class: dict[str, AnyOverlay] = {}
        by_schema: dict[bytes, list[AnyOverlay]] = defaultdict(list)
        for overlay in overlays:
            if overlay.CLASS in self._by_class:
                raise Unavailable(
                    f"two installed overlays have the class {overlay.CLASS}: uninstall one of their distributions"
                )
            self._by_class[overlay.CLASS] = overlay
            for schema in overlay.schemas:
                by_schema[schema].append(overlay)
        self._by_schema = {schema: tuple(listed) for schema, listed in by_schema.items()}

    def __iter__(self) -> Iterator[AnyOverlay]:
        return iter(self._by_class.values())

    def of_class(self, name: str) -> AnyOverlay | None:
        return self._by_class.get(name)

    def of_schema(self, schema: bytes) -> tuple[AnyOverlay, ...]:
        return self._by_schema.get(schema, ())


def installed_overlays() -> Iterator[AnyOverlay]:
    """The overlays of other distributions, ordered by entry point name."""
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        try:
            overlay = point.load()
        except Exception as error:
            raise Unavailable(f"the overlay {point.name} ({point.value}) cannot be loaded: {error}") from error
        if not isinstance(overlay, Overlay):
            raise Unavailable(f"the entry point {point.name} ({point.value}) is not an Overlay object")
        yield overlay
