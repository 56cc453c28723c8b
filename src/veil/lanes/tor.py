"""The Tor lane: TLS through a SOCKS5 proxy to an onion service or any other listener of the TLS lane.

Out, it dials through the proxy; the name of the peer is all the proxy is told. In, it listens on a local port, to
which an onion service is set to forward; `announce` is then the onion address. TLS goes all the way, so the same
certificate and handshake hold as on any other lane, and an exit between sees nothing.
"""

import asyncio
import os

from veil.errors import Unavailable
from veil.lanes import bounds, socks
from veil.lanes.certificate import Certificate, dialling
from veil.lanes.endpoint import Endpoint
from veil.lanes.streams import close_writer
from veil.lanes.tls import TlsLane

# Building a circuit takes its time.
TOR_DIAL_SECONDS = 60.0


class TorLane(TlsLane):
    """The TLS lane, dialled through a proxy. Each dial asks for a circuit of its own where `isolate` is set."""

    name = "tor"
    shares_addresses = True

    def __init__(
        self,
        certificate: Certificate,
        proxy: tuple[str, int],
        listen: Endpoint | None = None,
        announce: tuple[Endpoint, ...] = (),
        *,
        isolate: bool = False,
    ) -> None:
        super().__init__(certificate, listen, announce)
        self._proxy = proxy
        self._isolate = isolate

    @property
    def dial_seconds(self) -> float:
        return TOR_DIAL_SECONDS

    async def _connect(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            reader, writer = await asyncio.open_connection(*self._proxy, limit=bounds.MAX_MESSAGE_BYTES)
        except OSError as error:
            refused = Unavailable("proxy", f"{self._proxy[0]}:{self._proxy[1]} does not answer: {error.strerror}")
            refused.add_note("start Tor, or give the address of its SOCKS5 port")
            raise refused from None
        try:
            steps = socks.connect(endpoint.host, endpoint.port, os.urandom(8).hex() if self._isolate else "")
            await _walk(steps, reader, writer)
            await writer.start_tls(dialling(), server_hostname="", ssl_handshake_timeout=TOR_DIAL_SECONDS)
        except BaseException:
            await close_writer(writer)
            raise
        return reader, writer


async def _walk(steps: socks.Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said, length = next(steps)
    while True:
        writer.write(said)
        await writer.drain()
        heard = await reader.readexactly(length)
        try:
            said, length = steps.send(heard)
        except StopIteration:
            return
