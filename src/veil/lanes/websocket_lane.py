"""The WebSocket lane: one binary message per message, over TLS, for networks that allow only HTTPS. RFC 6455."""

import asyncio
from collections import deque

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from plumbing.background import Tasks
from veil import veil_limits
from veil.lanes.certificate import Certificate
from veil.lanes.lane import AcceptLink, Endpoint, LaneLink
from veil.lanes.tls_lane import TlsLane, close_writer, peer_pin, remote_of
from veil.veil_errors import Malformed, Unavailable

_READ_BYTES = 65_536
_DEFAULT_PATH = "/veil"


class WebSocketLane(TlsLane):
    """Listens for WebSockets at any path, if configured. A proxy in front may use paths to share the port."""

    name = "wss"

    def __init__(
        self, certificate: Certificate, listen: Endpoint | None = None, announce: tuple[Endpoint, ...] = ()
    ) -> None:
        super().__init__(certificate, listen, announce)
        # Connections in the WebSocket handshake.
        self._handshaking = Tasks()

    async def stop(self) -> None:
        await super().stop()
        await self._handshaking.stop()

    async def _dialled(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> LaneLink:
        link = WebSocketLink(reader, writer, WSConnection(ConnectionType.CLIENT), peer_pin(writer))
        await link.request_handshake(Request(host=endpoint.host, target=endpoint.path or _DEFAULT_PATH))
        return link

    def _on_connection(self, accept: AcceptLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._handshaking) >= veil_limits.MAX_UNAUTHENTICATED:
            writer.transport.abort()
            return
        self._handshaking.start(self._handshake(accept, reader, writer))

    async def _handshake(self, accept: AcceptLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = WebSocketLink(reader, writer, WSConnection(ConnectionType.SERVER), self._certificate.pin)
        try:
            async with asyncio.timeout(veil_limits.HANDSHAKE_SECONDS):
                await link.accept_handshake()
        except (Malformed, Unavailable, TimeoutError):
            await link.close()
            return
        except BaseException:
            await link.close()
            raise
        accept(link)


class WebSocketLink:
    """Messages over a WebSocket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: WSConnection, binding: bytes
    ) -> None:
        self.binding = binding
        self.remote = remote_of(writer)
        self._reader = reader
        self._writer = writer
        self._wire = wire
        self._events: deque[Event] = deque()
        self._head_bytes = 0

    async def request_handshake(self, request: Request) -> None:
        """The client side of the WebSocket handshake."""
        await self._send_event(request)
        if not isinstance(await self._next_event(), AcceptConnection):
            await self.close()
            raise Unavailable("link", "the server does not accept WebSockets")

    async def accept_handshake(self) -> None:
        """The server side of the WebSocket handshake."""
        if not isinstance(await self._next_event(), Request):
            raise Malformed("link", "not a WebSocket request")
        await self._send_event(AcceptConnection())

    async def send(self, message: bytes) -> None:
        await self._send_event(BytesMessage(data=message))

    async def receive(self) -> bytes:
        held = bytearray()
        while True:
            event = await self._next_event()
            if isinstance(event, BytesMessage):
                held += event.data
                if len(held) > veil_limits.MAX_MESSAGE_BYTES:
                    raise Malformed("message", f"more than {veil_limits.MAX_MESSAGE_BYTES} bytes")
                if event.message_finished:
                    if not held:
                        raise Malformed("message", "empty")
                    return bytes(held)
            elif isinstance(event, TextMessage):
                raise Malformed("message", "text, not binary")
            elif isinstance(event, Ping):
                await self._send_event(event.response())
            elif isinstance(event, CloseConnection | RejectConnection):
                raise Unavailable("link", "closed")
            elif not isinstance(event, Pong):
                raise Malformed("message", type(event).__name__)

    async def close(self) -> None:
        await close_writer(self._writer)

    async def _send_event(self, event: Event) -> None:
        try:
            self._writer.write(self._wire.send(event))
            await self._writer.drain()
        except (OSError, LocalProtocolError) as error:
            raise Unavailable("link", str(error) or "connection lost") from None

    async def _next_event(self) -> Event:
        while not self._events:
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError as error:
                raise Unavailable("link", str(error) or "connection lost") from None
            if not data:
                raise Unavailable("link", "connection lost")
            try:
                self._wire.receive_data(data)
                self._events.extend(self._wire.events())
            except RemoteProtocolError as error:
                raise Malformed("message", str(error)) from None
        return self._events.popleft()
