"""The directory: what is advertised, retired and expired, as a fold of discovery streams. 001, spec-5 §5.2, §8.2.

The last advertisement of an id replaces the one before it, and what was retired with it. A retirement marks what is
there; only another advertisement takes the mark away. Expiry is not a change of state: an advertisement says until when
it holds, and whoever asks says what time it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from veen.core import Malformed, cbor
from veen.core.cbor import Bool, Bstr, DeferredFaults, FieldType, Nested, Text, Uint, Wire, heads
from veen.core.hashing import U64_MAX
from veen.overlays.discovery.descriptors import (
    ADVERTISE,
    MAX_DESCRIPTOR_BYTES,
    Descriptor,
    DescriptorKind,
    DirectoryEvent,
    HubAdvertise,
    HubRetire,
    OverlayAdvertise,
    OverlayRetire,
    ServiceAdvertise,
    ServiceRetire,
)
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import ValueItem, body
from veen.overlays.overlay import FoldStep, MergeOverlay

_PREFIX = {DescriptorKind.HUB: b"h", DescriptorKind.OVERLAY: b"o", DescriptorKind.SERVICE: b"s"}
_FIRST_KEYS = {kind: cbor.encode(wire.LAYOUT.kinds[0].name) for kind, wire in ADVERTISE.items()}
UNPINNED = "its publisher is not one of those that are pinned"
RETIRED = "it is already retired"


class AnyDescriptor(FieldType):
    """A descriptor of any of the three kinds. Its first key says which."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[Descriptor, int]:
        _, start = heads.read_count(self.name, heads.MAP, data, pos)
        for kind, key in _FIRST_KEYS.items():
            if data.startswith(key, start):
                return ADVERTISE[kind].read(data, pos, late)
        raise Malformed("cbor", f"{self.name} at byte {pos} is no descriptor")

    def write(self, field: Descriptor) -> bytes:
        return field.encode()


@dataclass(frozen=True, slots=True)
class Advertised(Wire):
    """A descriptor in its place. A mirrored one was signed by the bridge: `publisher` is the bridge's then."""

    epoch: int
    stream_seq: int
    publisher: bytes
    mirrored: bool
    expires_at: int  # the last second in which it holds
    descriptor: Descriptor

    LAYOUT: ClassVar = body(
        "advertised",
        Uint("epoch"),
        Uint("stream_seq"),
        Bstr("publisher"),
        Bool("mirrored"),
        Uint("expires_at"),
        AnyDescriptor("descriptor"),
    )


@dataclass(frozen=True, slots=True)
class Retired(Wire):
    """A retirement in its place."""

    epoch: int
    stream_seq: int
    publisher: bytes
    reason: str | None = None

    LAYOUT: ClassVar = body(
        "retired",
        Uint("epoch"),
        Uint("stream_seq"),
        Bstr("publisher"),
        Text("reason", MAX_DESCRIPTOR_BYTES, optional=True),
    )


@dataclass(frozen=True, slots=True)
class DirectoryRecord(Wire):
    """What is known under one id: the latest advertisement, and its retirement where there is one."""

    advertised: Advertised | None = None
    retired: Retired | None = None

    LAYOUT: ClassVar = body(
        "record", Nested("advertised", Advertised, optional=True), Nested("retired", Retired, optional=True)
    )

    def live(self, now: int) -> bool:
        """Whether it is to be found at a time, in seconds as `hub_ts` counts them."""
        return self.advertised is not None and self.retired is None and now <= self.advertised.expires_at


NOTHING = DirectoryRecord()
States: TypeAlias = Mapping[bytes, DirectoryRecord]


class Discovery(MergeOverlay[DirectoryRecord]):
    """One part per hub, overlay and service. With `publishers`, only what these clients wrote counts."""

    CLASS = "discovery"
    EVENTS: ClassVar[tuple[type[Event], ...]] = (
        HubAdvertise,
        HubRetire,
        OverlayAdvertise,
        OverlayRetire,
        ServiceAdvertise,
        ServiceRetire,
    )
    EMPTY = NOTHING

    def __init__(self, publishers: Iterable[bytes] | None = None) -> None:
        self._publishers = None if publishers is None else frozenset(publishers)

    def settings(self) -> bytes:
        return b"" if self._publishers is None else cbor.encode(sorted(self._publishers))

    def flaw(self, entry: FoldEntry, event: Event) -> str | None:
        size = len(entry.body or b"")
        return None if size <= MAX_DESCRIPTOR_BYTES else f"it has {size} bytes, above {MAX_DESCRIPTOR_BYTES}"

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, DirectoryEvent)
        return (part_of(event.KIND, event.id),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """What an unpinned publisher wrote must not pass for the first of several copies."""
        return () if self._foreign(step) else super().keys(step)

    def refusal(self, state: DirectoryRecord, step: FoldStep) -> str | None:
        if self._foreign(step):
            return UNPINNED
        again = state.retired is not None and isinstance(step.event, HubRetire | OverlayRetire | ServiceRetire)
        return RETIRED if again else None

    def lift(self, step: FoldStep) -> DirectoryRecord:
        event, entry = step.event, step.entry
        if self._foreign(step):
            return NOTHING
        if isinstance(event, HubRetire | OverlayRetire | ServiceRetire):
            return DirectoryRecord(retired=Retired(*step.at, entry.client_id, event.reason))
        assert isinstance(event, HubAdvertise | OverlayAdvertise | ServiceAdvertise)
        mirrored = entry.origin != entry.msg_id
        return DirectoryRecord(
            Advertised(*step.at, entry.client_id, mirrored, _expires_at(entry, event.ttl_sec), event)
        )

    def merge(self, a: DirectoryRecord, b: DirectoryRecord) -> DirectoryRecord:
        if b.advertised is not None:
            return b
        return a if b == NOTHING or a.retired is not None else replace(a, retired=b.retired)

    def live(self, state: DirectoryRecord) -> bool:
        return state.advertised is not None and state.retired is None

    def encode_state(self, state: DirectoryRecord) -> bytes:
        return state.encode()

    def decode_state(self, part: bytes, data: bytes) -> DirectoryRecord:
        record = DirectoryRecord.decode(data)
        if record.advertised is not None:
            found = record.advertised.descriptor
            if part_of(found.KIND, found.id) != part:
                raise Malformed("record", "its descriptor is of another part")
        return record

    def plain(self, part: bytes, state: DirectoryRecord) -> Mapping[str, cbor.Value]:
        kind, id_ = kind_and_id(part)
        shown: dict[str, cbor.Value] = {"kind": str(kind), "id": id_, "retired": state.retired is not None}
        if state.advertised is not None:
            known = state.advertised
            shown |= {"publisher": known.publisher, "mirrored": known.mirrored, "expires_at": known.expires_at}
            shown |= {"stream_seq": known.stream_seq, "descriptor": plain_wire(known.descriptor)}
        if state.retired is not None:
            shown |= {"retired_by": state.retired.publisher, "reason": state.retired.reason}
        return shown

    def _foreign(self, step: FoldStep) -> bool:
        return self._publishers is not None and step.entry.client_id not in self._publishers


DISCOVERY = Discovery()


def part_of(kind: DescriptorKind, id_: bytes) -> bytes:
    """The part of a hub, an overlay or a service."""
    return _PREFIX[kind] + id_


def kind_and_id(part: bytes) -> tuple[DescriptorKind, bytes]:
    """What a part is of."""
    for kind, prefix in _PREFIX.items():
        if part.startswith(prefix):
            return kind, part[1:]
    raise Malformed("part", "it is of no hub, overlay or service")


def live_advertisements(states: States, kind: DescriptorKind, now: int) -> Iterator[Advertised]:
    """What is advertised, neither retired nor expired, ascending by id: the map of one kind in §5.2."""
    prefix = _PREFIX[kind]
    for part in sorted(part for part in states if part.startswith(prefix)):
        record = states[part]
        if record.advertised is not None and record.live(now):
            yield record.advertised


def find(states: States, kind: DescriptorKind, id_: bytes, now: int) -> Advertised | None:
    """One descriptor, None where it is not there, retired or expired."""
    record = states.get(part_of(kind, id_), NOTHING)
    return record.advertised if record.live(now) else None


def join(directories: Iterable[States], now: int) -> dict[bytes, DirectoryRecord]:
    """Several directories as one: of one id, the first that has it live counts, so name the nearest first."""
    joined: dict[bytes, DirectoryRecord] = {}
    for states in directories:
        for part, record in states.items():
            if part not in joined or (record.live(now) and not joined[part].live(now)):
                joined[part] = record
    return joined


def plain_wire(wire: Wire) -> dict[str, cbor.Value]:
    """An event or a descriptor for people and for JSON; what is absent is left out."""
    shown: dict[str, cbor.Value] = {}
    for kind in wire.LAYOUT.kinds:
        found = getattr(wire, kind.name)
        if found is not None:
            shown[kind.name] = cbor.decode(found) if isinstance(kind, ValueItem) else _plain(found)
    return shown


def _plain(found: object) -> cbor.Value:
    match found:
        case tuple():
            return tuple(_plain(one) for one in found)
        case Wire():
            return plain_wire(found)
        case bytes() | str() | int():
            return found
    raise AssertionError(found)


def _expires_at(entry: FoldEntry, ttl_sec: int) -> int:
    """The hub's time and the ttl decide; the end in the header can only make it earlier."""
    ends = min(entry.hub_ts + ttl_sec, U64_MAX)
    header_end = entry.header.expires_at if entry.header else None
    return ends if header_end is None else min(ends, header_end)
