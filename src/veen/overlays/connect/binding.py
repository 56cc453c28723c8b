"""Phase 4: from what was chosen to messages that can be sent. 001, spec-5 §7.4.

Of the streams of a service that is called, the first is for requests and the others for replies; a service with one
stream takes both there. Of any other service the client writes to all of them, as the overlay's documentation says.
"""

from dataclasses import dataclass

from veen.overlays.connect.connect_events import ServiceBound, ServiceChosen
from veen.overlays.connect.connect_overlay import ServiceConnection
from veen.overlays.rpc import CallRequest


class NotBound(Exception):
    """A call that a connection does not allow, and why."""


def binding(name: str, service: ServiceChosen) -> ServiceBound:
    """The event that binds a connection to its service."""
    if service.methods:
        return ServiceBound(name, service.stream_ids[:1], service.stream_ids[1:] or service.stream_ids[:1])
    return ServiceBound(name, service.stream_ids, ())


@dataclass(frozen=True, slots=True)
class CallRoute:
    """How a call is sent: to which hub, on which stream, under which capability, and where the reply will be."""

    hub_id: bytes
    hub_pk: bytes
    url: str
    stream_id: bytes
    reply_stream: bytes
    auth_ref: bytes | None


def call_route(connection: ServiceConnection, now: int) -> CallRoute:
    """The way of a call at a time. Raises `NotBound` where the client must not send."""
    hub, bound = connection.hub, connection.bound
    if hub is None or bound is None or connection.service is None:
        raise NotBound(f"the connection is {connection.phase}, not bound")
    if not connection.usable(now):
        raise NotBound("; ".join(connection.lapsed(now)))
    if not bound.reply_streams:
        raise NotBound("the service is not one that is called")
    auth_ref = connection.authorized.auth_ref if connection.authorized else None
    return CallRoute(
        hub.hub_id, hub.hub_pk, hub.endpoint.url, bound.request_streams[0], bound.reply_streams[0], auth_ref
    )


def call(
    connection: ServiceConnection,
    method: str,
    args: bytes,
    now: int,
    *,
    timeout_ms: int | None = None,
    idem: int | None = None,
) -> CallRequest:
    """The request of a call, whose method is one of the service's. `args` is one CBOR value."""
    at = call_route(connection, now)
    if connection.service is None or method not in connection.service.methods:
        raise NotBound(f"the service has no method {method}")
    reply_to = None if at.reply_stream == at.stream_id else at.reply_stream
    return CallRequest(method, args, timeout_ms, reply_to, idem)
