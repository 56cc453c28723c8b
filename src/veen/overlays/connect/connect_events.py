"""The steps of a connection, as events on a stream of the client. 001, spec-5 §7.

The specification defines the result of each phase but not where it is stored. Here it is a log sealed for its owner, so
a connection is derived like any other state, is the same on all devices of its owner, and can be proved.
"""

from dataclasses import dataclass
from typing import ClassVar

from veen.core import naming
from veen.core.cbor import Bool, Bstr, ListOf, Nested, Text, Uint
from veen.overlays.discovery.descriptors import MAX_DESCRIPTOR_BYTES, MAX_NAMES, ServiceEndpoint
from veen.overlays.event import Event
from veen.overlays.fields import body

MAX_NAME_BYTES = 256


def _name() -> Text:
    return Text("name", MAX_NAME_BYTES)


def _texts(name: str) -> ListOf:
    return ListOf(name, Text(name, MAX_DESCRIPTOR_BYTES), most=MAX_NAMES)


def _streams(name: str) -> ListOf:
    return ListOf(name, Bstr(name), most=MAX_NAMES)


class ConnectEvent(Event):
    """A step of the connection `name`."""

    __slots__ = ()
    name: str


@dataclass(frozen=True, slots=True)
class HubChosen(ConnectEvent):
    """Phase 1. `trusted` is the client's own decision to trust the hub key; it never comes from the directory."""

    name: str
    hub_id: bytes
    hub_pk: bytes
    profile_id: bytes
    endpoint: ServiceEndpoint
    trusted: bool
    expires_at: int

    SCHEMA: ClassVar = naming.schema_id("connect.hub.v1")
    LAYOUT: ClassVar = body(
        "connect.hub.v1",
        _name(),
        Bstr("hub_id"),
        Bstr("hub_pk"),
        Bstr("profile_id"),
        Nested("endpoint", ServiceEndpoint),
        Bool("trusted"),
        Uint("expires_at"),
    )


@dataclass(frozen=True, slots=True)
class ServiceChosen(ConnectEvent):
    """Phase 2. `auth_mode` is the mode of the service's auth policy."""

    name: str
    service_id: bytes
    overlay_id: bytes
    methods: tuple[str, ...]
    stream_ids: tuple[bytes, ...]
    required_caps: tuple[str, ...]
    auth_mode: str
    expires_at: int

    SCHEMA: ClassVar = naming.schema_id("connect.service.v1")
    LAYOUT: ClassVar = body(
        "connect.service.v1",
        _name(),
        Bstr("service_id"),
        Bstr("overlay_id"),
        _texts("methods"),
        _streams("stream_ids"),
        _texts("required_caps"),
        Text("auth_mode", MAX_DESCRIPTOR_BYTES),
        Uint("expires_at"),
    )


@dataclass(frozen=True, slots=True)
class Planned(ConnectEvent):
    """Phase 3, first half: the source of the capability. `wait_until` is the last second to wait for a token."""

    name: str
    route: str
    issuer_service: bytes | None = None
    wait_until: int | None = None

    SCHEMA: ClassVar = naming.schema_id("connect.plan.v1")
    LAYOUT: ClassVar = body(
        "connect.plan.v1",
        _name(),
        Text("route", MAX_NAME_BYTES),
        Bstr("issuer_service", optional=True),
        Uint("wait_until", optional=True),
    )


@dataclass(frozen=True, slots=True)
class Authorized(ConnectEvent):
    """Phase 3, second half: the hub accepted a token. A repeated event renews it."""

    name: str
    auth_ref: bytes
    expires_at: int

    SCHEMA: ClassVar = naming.schema_id("connect.authorize.v1")
    LAYOUT: ClassVar = body("connect.authorize.v1", _name(), Bstr("auth_ref"), Uint("expires_at"))


@dataclass(frozen=True, slots=True)
class ServiceBound(ConnectEvent):
    """Phase 4: the streams to write requests or other events to, and the streams of replies."""

    name: str
    request_streams: tuple[bytes, ...]
    reply_streams: tuple[bytes, ...]

    SCHEMA: ClassVar = naming.schema_id("connect.bind.v1")
    LAYOUT: ClassVar = body("connect.bind.v1", _name(), _streams("request_streams"), _streams("reply_streams"))


@dataclass(frozen=True, slots=True)
class ConnectionEnded(ConnectEvent):
    """The client ends the connection."""

    name: str
    reason: str | None = None

    SCHEMA: ClassVar = naming.schema_id("connect.end.v1")
    LAYOUT: ClassVar = body("connect.end.v1", _name(), Text("reason", MAX_DESCRIPTOR_BYTES, optional=True))
