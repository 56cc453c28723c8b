"""The steps of a connection, as events on a stream of the client. 001, spec-5 §7.

The specification defines the result of each phase but not where it is stored. Here it is a log sealed for its owner, so
a connection is derived like any other state, is the same on all devices of its owner, and can be proved.
"""

from typing import Annotated

from veen.core.cbor import Bool, Bstr, ListOf, Nested, Text, Uint
from veen.overlays.discovery.descriptors import MAX_DESCRIPTOR_BYTES, MAX_NAMES, ServiceEndpoint
from veen.overlays.event import Event, event

MAX_NAME_BYTES = 256


def _name() -> Text:
    return Text(MAX_NAME_BYTES, name="name")


def _texts(*, name: str = "") -> ListOf:
    return ListOf(Text(MAX_DESCRIPTOR_BYTES, name=name), name=name, most=MAX_NAMES)


def _streams(*, name: str = "") -> ListOf:
    return ListOf(Bstr(name=name), name=name, most=MAX_NAMES)


class ConnectEvent(Event):
    """A step of the connection `name`."""

    __slots__ = ()
    name: str


@event("connect.hub.v1")
class HubChosen(ConnectEvent):
    """Phase 1. `trusted` is the client's own decision to trust the hub key; it never comes from the directory."""

    name: Annotated[str, _name()]
    hub_id: Annotated[bytes, Bstr()]
    hub_pk: Annotated[bytes, Bstr()]
    profile_id: Annotated[bytes, Bstr()]
    endpoint: Annotated[ServiceEndpoint, Nested(ServiceEndpoint)]
    trusted: Annotated[bool, Bool()]
    expires_at: Annotated[int, Uint()]


@event("connect.service.v1")
class ServiceChosen(ConnectEvent):
    """Phase 2. `auth_mode` is the mode of the service's auth policy."""

    name: Annotated[str, _name()]
    service_id: Annotated[bytes, Bstr()]
    overlay_id: Annotated[bytes, Bstr()]
    methods: Annotated[tuple[str, ...], _texts()]
    stream_ids: Annotated[tuple[bytes, ...], _streams()]
    required_caps: Annotated[tuple[str, ...], _texts()]
    auth_mode: Annotated[str, Text(MAX_DESCRIPTOR_BYTES)]
    expires_at: Annotated[int, Uint()]


@event("connect.plan.v1")
class Planned(ConnectEvent):
    """Phase 3, first half: the source of the capability. `wait_until` is the last second to wait for a token."""

    name: Annotated[str, _name()]
    route: Annotated[str, Text(MAX_NAME_BYTES)]
    issuer_service: Annotated[bytes | None, Bstr(optional=True)] = None
    wait_until: Annotated[int | None, Uint(optional=True)] = None


@event("connect.authorize.v1")
class Authorized(ConnectEvent):
    """Phase 3, second half: the hub accepted a token. A repeated event renews it."""

    name: Annotated[str, _name()]
    auth_ref: Annotated[bytes, Bstr()]
    expires_at: Annotated[int, Uint()]


@event("connect.bind.v1")
class ServiceBound(ConnectEvent):
    """Phase 4: the streams to write requests or other events to, and the streams of replies."""

    name: Annotated[str, _name()]
    request_streams: Annotated[tuple[bytes, ...], _streams()]
    reply_streams: Annotated[tuple[bytes, ...], _streams()]


@event("connect.end.v1")
class ConnectionEnded(ConnectEvent):
    """The client ends the connection."""

    name: Annotated[str, _name()]
    reason: Annotated[str | None, Text(MAX_DESCRIPTOR_BYTES, optional=True)] = None
