"""The TLS lane: TCP with TLS 1.3. A Tor onion service forwards to the same listener."""

import asyncio
import functools

from veil.lanes import lane_limits
from veil.lanes.byte_stream import StreamLink, peer_pin
from veil.lanes.certificate import Certificate, client_context
from veil.lanes.endpoint import Endpoint
from veil.lanes.lane import AcceptLink, LaneLink
from veil.veil_errors import Unavailable


class TlsLane:
    """Listens on `listen`, if set. `announce` replaces the endpoint for contacts, for example behind a forwarder."""

    name = "tls"
    shares_addresses = False
    pinned = True

    def __init__(
        self, certificate: Certificate, listen: Endpoint | None = None, announce: tuple[Endpoint, ...] = ()
    ) -> None:
        self._certificate = certificate
        self._listen = listen
        self._announce = announce
        self._server: asyncio.Server | None = None

    async def start(self, accept: AcceptLink) -> None:
        if self._listen is None:
            return
        taken = functools.partial(self._on_connection, accept)
        context = self._certificate.server_context()
        try:
            self._server = await asyncio.start_server(
                taken,
                self._listen.host,
                self._listen.port,
                ssl=context,
                ssl_handshake_timeout=lane_limits.HANDSHAKE_SECONDS,
                limit=lane_limits.MAX_MESSAGE_BYTES,
            )
        except OSError as error:
            raise Unavailable(str(self._listen), error.strerror or str(error)) from None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        if self._announce or self._server is None or self._listen is None:
            return self._announce
        return (self._listen.at(self._server.sockets[0].getsockname()[1]),)

    @property
    def dial_seconds(self) -> float:
        return lane_limits.DIAL_SECONDS

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        try:
            async with asyncio.timeout(self.dial_seconds):
                reader, writer = await self._connect(endpoint)
        except (OSError, EOFError, TimeoutError) as error:
            raise Unavailable(str(endpoint), str(error) or "no answer") from None
        return StreamLink(reader, writer, peer_pin(writer))

    async def _connect(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=client_context(), server_hostname="", limit=lane_limits.MAX_MESSAGE_BYTES
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _on_connection(self, accept: AcceptLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept(StreamLink(reader, writer, self._certificate.pin))
