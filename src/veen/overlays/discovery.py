"""Discovery: a directory of hubs, overlays and services. 001, spec-5 §4, §5, §8.2.

An advertisement replaces the previous one with the same id, including its retirement. A retired record stays retired
until it is advertised again. Expiry does not change the state: each advertisement has an expiry time, and queries pass
the current time. Results are hints: each client decides itself which keys it trusts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from veen.core import Malformed, cbor, naming
from veen.core.cbor import Bool, Bstr, DeferredFaults, FieldType, ListOf, Nested, Text, Uint, Wire, heads, text_map
from veen.core.hashing import U64_MAX, ht
from veen.overlays.event import Event, FoldEntry, ValueItem, event, plain_wire
from veen.overlays.overlay import FoldStep, MergeOverlay

# Bounds what a directory reader must store, and lets a page of results fit into one message.
MAX_DESCRIPTOR_BYTES = 16_384
MAX_NAMES = 256

HUBS_STREAM = naming.stream_id("disc.hubs.v1")
OVERLAYS_STREAM = naming.stream_id("disc.overlays.v1")
SERVICES_STREAM = naming.stream_id("disc.services.v1")


class DescriptorKind(StrEnum):
    HUB = "hub"
    OVERLAY = "overlay"
    SERVICE = "service"


def _text(*, name: str = "", optional: bool = False) -> Text:
    return Text(MAX_DESCRIPTOR_BYTES, name=name, optional=optional)


def _texts(*, name: str = "") -> ListOf:
    return ListOf(_text(name=name), name=name, most=MAX_NAMES)


def _ids(*, name: str = "") -> ListOf:
    return ListOf(Bstr(name=name), name=name, most=MAX_NAMES)


def overlay_id(name: str, version: str) -> bytes:
    """The default id of an overlay whose authors have not chosen one."""
    return ht("disc/overlay-id", name.encode() + b"\0" + version.encode())


def service_id(name: str) -> bytes:
    """The default id of a service whose operators have not chosen one."""
    return ht("disc/service-id", name.encode())


@text_map("endpoint")
class ServiceEndpoint(Wire):
    """An address of a hub. `kind` is http, https, quic, nats or another."""

    kind: Annotated[str, _text()]
    url: Annotated[str, _text()]


class DirectoryEvent(Event):
    """An event about one hub, overlay or service."""

    __slots__ = ()
    KIND: ClassVar[DescriptorKind]

    @property
    def id(self) -> bytes:
        """The id of the hub, overlay or service: the first field."""
        found: bytes = getattr(self, self.LAYOUT.kinds[0].name)
        return found


@event("disc.hub.advertise.v1")
class HubAdvertise(DirectoryEvent):
    """§4.1: a hub that clients may connect to."""

    hub_id: Annotated[bytes, Bstr()]
    hub_pk: Annotated[bytes, Bstr()]
    profile_id: Annotated[bytes, Bstr()]
    region: Annotated[str, _text()]
    tags: Annotated[tuple[str, ...], _texts()]
    endpoints: Annotated[tuple[ServiceEndpoint, ...], ListOf(Nested(ServiceEndpoint, name="endpoint"), most=MAX_NAMES)]
    overlays: Annotated[tuple[bytes, ...], _ids()]
    ttl_sec: Annotated[int, Uint()]
    version: Annotated[str, _text()]

    KIND: ClassVar = DescriptorKind.HUB


@event("disc.overlay.advertise.v1")
class OverlayAdvertise(DirectoryEvent):
    """§4.2: an overlay that clients may use."""

    overlay_id: Annotated[bytes, Bstr()]
    name: Annotated[str, _text()]
    version: Annotated[str, _text()]
    schemas: Annotated[tuple[bytes, ...], _ids()]
    docs_url: Annotated[str | None, _text(optional=True)]
    tags: Annotated[tuple[str, ...], _texts()]
    ttl_sec: Annotated[int, Uint()]

    KIND: ClassVar = DescriptorKind.OVERLAY


@text_map("auth_policy")
class AuthPolicy(Wire):
    """How a service authorizes clients. `mode` is cap_token, mtls, none or other; `details` depend on the overlay."""

    mode: Annotated[str, _text()]
    details: Annotated[bytes | None, ValueItem(optional=True)] = None


@text_map("operator")
class Operator(Wire):
    """The operator of a service."""

    org: Annotated[str | None, _text(optional=True)] = None
    contact: Annotated[str | None, _text(optional=True)] = None


@event("disc.service.advertise.v1")
class ServiceAdvertise(DirectoryEvent):
    """§4.3: a logical endpoint, not tied to one hub."""

    service_id: Annotated[bytes, Bstr()]
    name: Annotated[str, _text()]
    overlay_id: Annotated[bytes, Bstr()]
    methods: Annotated[tuple[str, ...], _texts()]
    stream_ids: Annotated[tuple[bytes, ...], _ids()]
    regions: Annotated[tuple[str, ...], _texts()]
    required_caps: Annotated[tuple[str, ...], _texts()]
    auth_policy: Annotated[AuthPolicy | None, Nested(AuthPolicy, optional=True)]
    operator: Annotated[Operator | None, Nested(Operator, optional=True)]
    tags: Annotated[tuple[str, ...], _texts()]
    ttl_sec: Annotated[int, Uint()]

    KIND: ClassVar = DescriptorKind.SERVICE


@event("disc.hub.retire.v1")
class HubRetire(DirectoryEvent):
    """§4.1: the hub is no longer offered."""

    hub_id: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, _text(optional=True)] = None

    KIND: ClassVar = DescriptorKind.HUB


@event("disc.overlay.retire.v1")
class OverlayRetire(DirectoryEvent):
    """§4.2: the overlay is no longer offered."""

    overlay_id: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, _text(optional=True)] = None

    KIND: ClassVar = DescriptorKind.OVERLAY


@event("disc.service.retire.v1")
class ServiceRetire(DirectoryEvent):
    """§4.3: the service is no longer offered."""

    service_id: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, _text(optional=True)] = None

    KIND: ClassVar = DescriptorKind.SERVICE


Descriptor: TypeAlias = HubAdvertise | OverlayAdvertise | ServiceAdvertise

ADVERTISE: dict[DescriptorKind, type[HubAdvertise] | type[OverlayAdvertise] | type[ServiceAdvertise]] = {
    DescriptorKind.HUB: HubAdvertise,
    DescriptorKind.OVERLAY: OverlayAdvertise,
    DescriptorKind.SERVICE: ServiceAdvertise,
}
RETIRE: dict[DescriptorKind, type[HubRetire] | type[OverlayRetire] | type[ServiceRetire]] = {
    DescriptorKind.HUB: HubRetire,
    DescriptorKind.OVERLAY: OverlayRetire,
    DescriptorKind.SERVICE: ServiceRetire,
}
_PREFIX = {DescriptorKind.HUB: b"h", DescriptorKind.OVERLAY: b"o", DescriptorKind.SERVICE: b"s"}
_FIRST_KEYS = {kind: cbor.encode(wire.LAYOUT.kinds[0].name) for kind, wire in ADVERTISE.items()}
UNPINNED = "the publisher is not pinned"
RETIRED = "the record is already retired"


class AnyDescriptor(FieldType):
    """A descriptor of any of the three kinds. Its first key identifies the kind."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[Descriptor, int]:
        _, start = heads.read_count(self.name, heads.MAP, data, pos)
        for kind, key in _FIRST_KEYS.items():
            if data.startswith(key, start):
                return ADVERTISE[kind].read(data, pos, late)
        raise Malformed("cbor", f"{self.name} at byte {pos} is not a descriptor")

    def write(self, field: Descriptor) -> bytes:
        return field.encode()


@text_map("advertised")
class Advertised(Wire):
    """A logged descriptor. If it is mirrored, `publisher` is the bridge's key."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    publisher: Annotated[bytes, Bstr()]
    mirrored: Annotated[bool, Bool()]
    expires_at: Annotated[int, Uint()]  # the last second in which it is valid
    descriptor: Annotated[Descriptor, AnyDescriptor()]


@text_map("retired")
class Retired(Wire):
    """A logged retirement."""

    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    publisher: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, Text(MAX_DESCRIPTOR_BYTES, optional=True)] = None


@text_map("record")
class DirectoryRecord(Wire):
    """The latest advertisement of one id, and its retirement if there is one."""

    advertised: Annotated[Advertised | None, Nested(Advertised, optional=True)] = None
    retired: Annotated[Retired | None, Nested(Retired, optional=True)] = None

    def live(self, now: int) -> bool:
        """Whether queries find the record at `now`, in seconds of hub time."""
        return self.advertised is not None and self.retired is None and now <= self.advertised.expires_at


NOTHING = DirectoryRecord()
States: TypeAlias = Mapping[bytes, DirectoryRecord]


class Discovery(MergeOverlay[DirectoryRecord]):
    """One part per hub, overlay and service. With `publishers`, only events of these clients are applied."""

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
        return None if size <= MAX_DESCRIPTOR_BYTES else f"the body has {size} bytes, more than {MAX_DESCRIPTOR_BYTES}"

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, DirectoryEvent)
        return (part_of(event.KIND, event.id),)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """No keys for events of unpinned publishers: they must not make a genuine event look like a copy."""
        return () if self._is_unpinned(step) else super().keys(step)

    def refusal(self, state: DirectoryRecord, step: FoldStep) -> str | None:
        if self._is_unpinned(step):
            return UNPINNED
        again = state.retired is not None and isinstance(step.event, HubRetire | OverlayRetire | ServiceRetire)
        return RETIRED if again else None

    def lift(self, step: FoldStep) -> DirectoryRecord:
        event, entry = step.event, step.entry
        if self._is_unpinned(step):
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
                raise Malformed("record", "the descriptor belongs to another part")
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

    def _is_unpinned(self, step: FoldStep) -> bool:
        return self._publishers is not None and step.entry.client_id not in self._publishers


DISCOVERY = Discovery()


def part_of(kind: DescriptorKind, id_: bytes) -> bytes:
    return _PREFIX[kind] + id_


def kind_and_id(part: bytes) -> tuple[DescriptorKind, bytes]:
    for kind, prefix in _PREFIX.items():
        if part.startswith(prefix):
            return kind, part[1:]
    raise Malformed("part", "not a hub, overlay or service part")


def live_advertisements(states: States, kind: DescriptorKind, now: int) -> Iterator[Advertised]:
    """The advertisements of a kind that are neither retired nor expired, ascending by id. §5.2."""
    prefix = _PREFIX[kind]
    for part in sorted(part for part in states if part.startswith(prefix)):
        record = states[part]
        if record.advertised is not None and record.live(now):
            yield record.advertised


def find(states: States, kind: DescriptorKind, id_: bytes, now: int) -> Advertised | None:
    """One advertisement, or None if it is absent, retired or expired."""
    record = states.get(part_of(kind, id_), NOTHING)
    return record.advertised if record.live(now) else None


def join(directories: Iterable[States], now: int) -> dict[bytes, DirectoryRecord]:
    """Join directories. For each id the first directory with a live record wins, so pass the preferred one first."""
    joined: dict[bytes, DirectoryRecord] = {}
    for states in directories:
        for part, record in states.items():
            if part not in joined or (record.live(now) and not joined[part].live(now)):
                joined[part] = record
    return joined


def _expires_at(entry: FoldEntry, ttl_sec: int) -> int:
    """The expiry is hub time plus ttl. The header's expiry can only make it earlier."""
    expires_at = min(entry.hub_ts + ttl_sec, U64_MAX)
    header_expiry = entry.header.expires_at if entry.header else None
    return expires_at if header_expiry is None else min(expires_at, header_expiry)
