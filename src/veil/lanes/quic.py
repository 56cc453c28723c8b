"""The QUIC lane: one connection per peer and one unidirectional stream per message.

A lost packet therefore delays only one message. Certificates are pinned; see `certificate`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cryptography.hazmat.primitives.serialization import Encoding

from veil import veil_limits
from veil.lanes.certificate import ALPN, Certificate, ListeningLane, pin_of
from veil.lanes.lane import AcceptLink, Endpoint, LaneLink, ReceivedMessages, library
from veil.veil_errors import Malformed, Unavailable, VeilError

if TYPE_CHECKING:
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.asyncio.server import QuicServer
    from aioquic.quic.configuration import QuicConfiguration

# Buffered bytes of incomplete messages per connection.
_PARTIAL_BYTES = 2 * veil_limits.WINDOW_BYTES
_TOO_MUCH = 0x1


class QuicLane(ListeningLane):
    """Listens on a UDP port, if configured. Every outgoing connection has its own local port."""

    name = "quic"
    _server: "QuicServer | None" = None

    def __init__(
        self, certificate: Certificate, listen: Endpoint | None = None, announce: tuple[Endpoint, ...] = ()
    ) -> None:
        library("aioquic", self.name)
        super().__init__(certificate, listen, announce)

    async def start(self, accept: AcceptLink) -> None:
        if self._listen is None:
            return
        from aioquic.asyncio.server import serve

        configuration = _configuration(is_client=False)
        configuration.load_cert_chain(self._certificate.path)
        make = _protocol(lambda link: accept(link), self._certificate.pin)
        try:
            # `retry` validates the address of a client before the server keeps state for it.
            self._server = await serve(
                self._listen.host, self._listen.port, configuration=configuration, create_protocol=make, retry=True
            )
        except OSError as error:
            raise Unavailable(str(self._listen), error.strerror or str(error)) from None
        transport = cast("asyncio.DatagramTransport", self._server._transport)
        self._port = transport.get_extra_info("sockname")[1]

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        try:
            async with asyncio.timeout(veil_limits.DIAL_SECONDS):
                return await _dial(endpoint)
        except (OSError, TimeoutError) as error:
            raise Unavailable(str(endpoint), str(error) or "no answer") from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()


def _configuration(*, is_client: bool) -> "QuicConfiguration":
    from aioquic.quic.configuration import QuicConfiguration

    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[ALPN],
        idle_timeout=veil_limits.SILENCE_SECONDS,
        max_data=veil_limits.WINDOW_BYTES,
        max_stream_data=veil_limits.MAX_MESSAGE_BYTES,
        verify_mode=ssl.CERT_NONE,
    )


async def _dial(endpoint: Endpoint) -> LaneLink:
    from aioquic.quic.connection import QuicConnection

    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)
    family, _, _, _, address = found[0]
    local = "::" if family == socket.AF_INET6 else "0.0.0.0"
    waiting: asyncio.Future[QuicLink] = loop.create_future()
    make = _protocol(waiting.set_result, None)
    connection = QuicConnection(configuration=_configuration(is_client=True))
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: make(connection), local_addr=(local, 0), family=family
    )
    try:
        protocol.connect(address)
        await protocol.wait_connected()
        link = await waiting
    except BaseException:
        protocol.close()
        transport.close()
        raise
    link.transport = transport
    return link


class QuicLink(ReceivedMessages):
    """Messages over one connection."""

    def __init__(self, protocol: "QuicConnectionProtocol", binding: bytes, remote: str) -> None:
        super().__init__()
        self.binding = binding
        self.remote = remote
        self.transport: asyncio.BaseTransport | None = None
        self._protocol = protocol
        self._partial: dict[int, bytearray] = {}
        self._partial_bytes = 0

    async def send(self, message: bytes) -> None:
        if self.gone is not None:
            raise self.gone
        quic = self._protocol._quic
        quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), message, end_stream=True)
        self._protocol._transmit_soon()
        # The window of the session bounds the data buffered here.
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.fail(Unavailable("link", "closed"))
        self._protocol.close()
        if self.transport is not None:
            self.transport.close()

    def on_data(self, stream_id: int, data: bytes, ended: bool) -> None:
        """Data of a stream. Close the connection if a message is too long or too much is buffered."""
        if self.gone is not None:
            return
        held = self._partial.setdefault(stream_id, bytearray())
        held += data
        self._partial_bytes += len(data)
        too_long = len(held) > veil_limits.MAX_MESSAGE_BYTES or (ended and not held)
        if too_long or self._partial_bytes > _PARTIAL_BYTES or self.is_full():
            self.fail(
                Malformed("message", f"more than {veil_limits.MAX_MESSAGE_BYTES} bytes, empty, or too many at once")
            )
            self._protocol.close(_TOO_MUCH, "too much")
        elif ended:
            self._partial_bytes -= len(held)
            self.arrived(bytes(self._partial.pop(stream_id)))

    def on_reset(self, stream_id: int) -> None:
        """The peer reset a stream."""
        self._partial_bytes -= len(self._partial.pop(stream_id, b""))

    def fail(self, error: VeilError) -> None:
        super().fail(error)
        self._partial.clear()


def _protocol(opened: Callable[[QuicLink], None], own_pin: bytes | None) -> Callable[..., "QuicConnectionProtocol"]:
    """A protocol factory. It passes a link to `opened` after the TLS handshake. `own_pin` is for servers."""
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic import events

    class Protocol(QuicConnectionProtocol):
        link: QuicLink | None = None

        def quic_event_received(self, event: events.QuicEvent) -> None:
            if isinstance(event, events.HandshakeCompleted):
                address = self._quic._network_paths[0].addr
                binding = _peer_pin(self) if own_pin is None else own_pin
                self.link = QuicLink(self, binding, f"{address[0]}:{address[1]}")
                opened(self.link)
            elif self.link is None:
                return
            elif isinstance(event, events.StreamDataReceived):
                self.link.on_data(event.stream_id, event.data, event.end_stream)
            elif isinstance(event, events.StreamReset):
                self.link.on_reset(event.stream_id)
            elif isinstance(event, events.ConnectionTerminated):
                self.link.fail(Unavailable("link", event.reason_phrase or "connection lost"))
                if self.link.transport is not None:
                    self.link.transport.close()

    return Protocol


def _peer_pin(protocol: "QuicConnectionProtocol") -> bytes:
    found = protocol._quic.tls._peer_certificate
    if found is None:
        raise Unavailable("link", "the peer presented no certificate")
    return pin_of(found.public_bytes(Encoding.DER))
