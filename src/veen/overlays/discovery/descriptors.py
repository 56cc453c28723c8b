"""Advertisements of hubs, overlays and services, and their retirement. 001, spec-5 §4, §5.1."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from veen.core import naming
from veen.core.cbor import Bstr, ListOf, Nested, Text, Uint, Wire
from veen.core.hashing import ht
from veen.overlays.event import Event
from veen.overlays.fields import ValueItem, body

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


def _text(name: str, *, optional: bool = False) -> Text:
    return Text(name, MAX_DESCRIPTOR_BYTES, optional=optional)


def _texts(name: str) -> ListOf:
    return ListOf(name, _text(name), most=MAX_NAMES)


def _ids(name: str) -> ListOf:
    return ListOf(name, Bstr(name), most=MAX_NAMES)


def overlay_id(name: str, version: str) -> bytes:
    """The default id of an overlay whose authors have not chosen one."""
    return ht("disc/overlay-id", name.encode() + b"\0" + version.encode())


def service_id(name: str) -> bytes:
    """The default id of a service whose operators have not chosen one."""
    return ht("disc/service-id", name.encode())


@dataclass(frozen=True, slots=True)
class ServiceEndpoint(Wire):
    """An address of a hub. `kind` is http, https, quic, nats or another."""

    kind: str
    url: str

    LAYOUT: ClassVar = body("endpoint", _text("kind"), _text("url"))


class DirectoryEvent(Event):
    """An event about one hub, overlay or service."""

    __slots__ = ()
    KIND: ClassVar[DescriptorKind]

    @property
    def id(self) -> bytes:
        """The id of the hub, overlay or service: the first field."""
        found: bytes = getattr(self, self.LAYOUT.kinds[0].name)
        return found


@dataclass(frozen=True, slots=True)
class HubAdvertise(DirectoryEvent):
    """§4.1: a hub that clients may connect to."""

    hub_id: bytes
    hub_pk: bytes
    profile_id: bytes
    region: str
    tags: tuple[str, ...]
    endpoints: tuple[ServiceEndpoint, ...]
    overlays: tuple[bytes, ...]
    ttl_sec: int
    version: str

    KIND: ClassVar = DescriptorKind.HUB
    SCHEMA: ClassVar = naming.schema_id("disc.hub.advertise.v1")
    LAYOUT: ClassVar = body(
        "disc.hub.advertise.v1",
        Bstr("hub_id"),
        Bstr("hub_pk"),
        Bstr("profile_id"),
        _text("region"),
        _texts("tags"),
        ListOf("endpoints", Nested("endpoint", ServiceEndpoint), most=MAX_NAMES),
        _ids("overlays"),
        Uint("ttl_sec"),
        _text("version"),
    )


@dataclass(frozen=True, slots=True)
class OverlayAdvertise(DirectoryEvent):
    """§4.2: an overlay that clients may use."""

    overlay_id: bytes
    name: str
    version: str
    schemas: tuple[bytes, ...]
    docs_url: str | None
    tags: tuple[str, ...]
    ttl_sec: int

    KIND: ClassVar = DescriptorKind.OVERLAY
    SCHEMA: ClassVar = naming.schema_id("disc.overlay.advertise.v1")
    LAYOUT: ClassVar = body(
        "disc.overlay.advertise.v1",
        Bstr("overlay_id"),
        _text("name"),
        _text("version"),
        _ids("schemas"),
        _text("docs_url", optional=True),
        _texts("tags"),
        Uint("ttl_sec"),
    )


@dataclass(frozen=True, slots=True)
class AuthPolicy(Wire):
    """How a service authorizes clients. `mode` is cap_token, mtls, none or other; `details` depend on the overlay."""

    mode: str
    details: bytes | None = None

    LAYOUT: ClassVar = body("auth_policy", _text("mode"), ValueItem("details", optional=True))


@dataclass(frozen=True, slots=True)
class Operator(Wire):
    """The operator of a service."""

    org: str | None = None
    contact: str | None = None

    LAYOUT: ClassVar = body("operator", _text("org", optional=True), _text("contact", optional=True))


@dataclass(frozen=True, slots=True)
class ServiceAdvertise(DirectoryEvent):
    """§4.3: a logical endpoint, not tied to one hub."""

    service_id: bytes
    name: str
    overlay_id: bytes
    methods: tuple[str, ...]
    stream_ids: tuple[bytes, ...]
    regions: tuple[str, ...]
    required_caps: tuple[str, ...]
    auth_policy: AuthPolicy | None
    operator: Operator | None
    tags: tuple[str, ...]
    ttl_sec: int

    KIND: ClassVar = DescriptorKind.SERVICE
    SCHEMA: ClassVar = naming.schema_id("disc.service.advertise.v1")
    LAYOUT: ClassVar = body(
        "disc.service.advertise.v1",
        Bstr("service_id"),
        _text("name"),
        Bstr("overlay_id"),
        _texts("methods"),
        _ids("stream_ids"),
        _texts("regions"),
        _texts("required_caps"),
        Nested("auth_policy", AuthPolicy, optional=True),
        Nested("operator", Operator, optional=True),
        _texts("tags"),
        Uint("ttl_sec"),
    )


@dataclass(frozen=True, slots=True)
class HubRetire(DirectoryEvent):
    """§4.1: the hub is no longer offered."""

    hub_id: bytes
    reason: str | None = None

    KIND: ClassVar = DescriptorKind.HUB
    SCHEMA: ClassVar = naming.schema_id("disc.hub.retire.v1")
    LAYOUT: ClassVar = body("disc.hub.retire.v1", Bstr("hub_id"), _text("reason", optional=True))


@dataclass(frozen=True, slots=True)
class OverlayRetire(DirectoryEvent):
    """§4.2: the overlay is no longer offered."""

    overlay_id: bytes
    reason: str | None = None

    KIND: ClassVar = DescriptorKind.OVERLAY
    SCHEMA: ClassVar = naming.schema_id("disc.overlay.retire.v1")
    LAYOUT: ClassVar = body("disc.overlay.retire.v1", Bstr("overlay_id"), _text("reason", optional=True))


@dataclass(frozen=True, slots=True)
class ServiceRetire(DirectoryEvent):
    """§4.3: the service is no longer offered."""

    service_id: bytes
    reason: str | None = None

    KIND: ClassVar = DescriptorKind.SERVICE
    SCHEMA: ClassVar = naming.schema_id("disc.service.retire.v1")
    LAYOUT: ClassVar = body("disc.service.retire.v1", Bstr("service_id"), _text("reason", optional=True))


Descriptor: TypeAlias = HubAdvertise | OverlayAdvertise | ServiceAdvertise
Retirement: TypeAlias = HubRetire | OverlayRetire | ServiceRetire

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
STREAMS = {
    DescriptorKind.HUB: HUBS_STREAM,
    DescriptorKind.OVERLAY: OVERLAYS_STREAM,
    DescriptorKind.SERVICE: SERVICES_STREAM,
}
