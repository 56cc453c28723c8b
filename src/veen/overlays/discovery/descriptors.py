"""Advertisements of hubs, overlays and services, and their retirement. 001, spec-5 §4, §5.1."""

from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from veen.core import naming
from veen.core.cbor import Bstr, ListOf, Nested, Text, Uint, Wire, text_map
from veen.core.hashing import ht
from veen.overlays.event import Event, event
from veen.overlays.fields import ValueItem

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
