"""Phase 4: bind a connection to the streams of its service and build calls. 001, spec-5 §7.4.

If a service has methods, its first stream is for requests and the others are for replies; a single stream serves both.
A client of a service without methods writes to all of its streams, as the overlay's documentation defines.
"""

from dataclasses import dataclass

from veen.overlays.connect.connect_events import ServiceBound, ServiceChosen
from veen.overlays.connect.connect_overlay import ServiceConnection
from veen.overlays.rpc import CallRequest


class NotBound(Exception):
    """The connection does not allow the call; the message says why."""


def binding(name: str, service: ServiceChosen) -> ServiceBound:
    """The event that binds a connection to its service."""
    if service.methods:
        return ServiceBound(name, service.stream_ids[:1], service.stream_ids[1:] or service.stream_ids[:1])
    return ServiceBound(name, service.stream_ids, ())


@dataclass(frozen=True, slots=True)
class CallRoute:
    """Where a call is sent: hub, stream, capability, and the stream of the reply."""

    hub_id: bytes
    hub_pk: bytes
    url: str
    stream_id: bytes
    reply_stream: bytes
    auth_ref: bytes | None


def call_route(connection: ServiceConnection, now: int) -> CallRoute:
    """The route of a call at a time. Raises `NotBound` if the client must not send."""
    hub, bound = connection.hub, connection.bound
    if hub is None or bound is None or connection.service is None:
        raise NotBound(f"the connection is in phase {connection.phase}, not bound")
    if not connection.usable(now):
        raise NotBound("; ".join(connection.lapsed(now)))
    if not bound.reply_streams:
        raise NotBound("the service has no methods to call")
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
    """The request of a call. The service must have the method; `args` is one CBOR value."""
    route = call_route(connection, now)
    if connection.service is None or method not in connection.service.methods:
        raise NotBound(f"the service has no method {method}")
    reply_to = None if route.reply_stream == route.stream_id else route.reply_stream
    return CallRequest(method, args, timeout_ms, reply_to, idem)
