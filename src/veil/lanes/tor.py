"""The Tor lane: TLS through a SOCKS5 proxy to an onion service or any other listener of the TLS lane.

Outgoing connections use the proxy, which learns only the host name of the peer. For incoming connections the lane
listens on a local port, to which an onion service forwards; `announce` is the onion address. TLS is end-to-end, so
certificate and handshake work as on other lanes, and a Tor exit sees only ciphertext.
"""

import asyncio
import os
from collections.abc import Generator

from veil.lanes import lane_limits
from veil.lanes.byte_stream import close_writer
from veil.lanes.certificate import Certificate, client_context
from veil.lanes.endpoint import Endpoint
from veil.lanes.tls_lane import TlsLane
from veil.veil_errors import Malformed, Unavailable

_VERSION, _CONNECT, _RESERVED = 5, 1, 0
_NO_AUTH, _PASSWORD, _NONE_FITS = 0, 2, 0xFF
_IPV4, _NAME, _IPV6 = 1, 3, 4
_PASSWORD_VERSION = 1
_REFUSALS = {
    1: "general failure of the proxy",
    2: "not allowed by the proxy",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "timed out",
    7: "the proxy does not support CONNECT",
    8: "the proxy does not support the address type",
}
_MAX_LENGTH = 255

# Yields bytes to send and the number of bytes to read, and receives those bytes.
Steps = Generator[tuple[bytes, int], bytes, None]


def connect(host: str, port: int, isolation: str = "") -> Steps:
    """The SOCKS5 dialogue for a connection. Tor uses separate circuits for different `isolation` values."""
    name = host.encode("idna") if not host.isascii() else host.encode()
    if not 0 < len(name) <= _MAX_LENGTH:
        raise Malformed("endpoint", f"the host name has {len(name)} bytes, not 1 to {_MAX_LENGTH}")
    method = _PASSWORD if isolation else _NO_AUTH
    chosen = yield bytes((_VERSION, 1, method)), 2
    if chosen[0] != _VERSION:
        raise Unavailable("proxy", "not a SOCKS5 proxy")
    if chosen[1] != method:
        raise Unavailable("proxy", "it requires another authentication method")
    if isolation:
        credential = isolation.encode()[:_MAX_LENGTH]
        sent = bytes((_PASSWORD_VERSION, len(credential))) + credential + bytes((len(credential),)) + credential
        accepted = yield sent, 2
        if accepted[1] != 0:
            raise Unavailable("proxy", "it rejected the user name")
    request = bytes((_VERSION, _CONNECT, _RESERVED, _NAME, len(name))) + name + port.to_bytes(2, "big")
    version, reply, _, kind = yield request, 4
    if version != _VERSION:
        raise Unavailable("proxy", "not a SOCKS5 proxy")
    if reply != 0:
        raise Unavailable(host, _REFUSALS.get(reply, f"the proxy answered with code {reply}"))
    yield from _bound_address(kind)


def _bound_address(kind: int) -> Steps:
    """Read and ignore the bound address of the proxy."""
    if kind == _NAME:
        length = (yield b"", 1)[0]
    elif kind in (_IPV4, _IPV6):
        length = 4 if kind == _IPV4 else 16
    else:
        raise Unavailable("proxy", f"it answered with the unknown address type {kind}")
    yield b"", length + 2


# Building a circuit is slow.
TOR_DIAL_SECONDS = 60.0


class TorLane(TlsLane):
    """The TLS lane through a SOCKS5 proxy. With `isolate`, every connection has its own circuit."""

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
            reader, writer = await asyncio.open_connection(*self._proxy, limit=lane_limits.MAX_MESSAGE_BYTES)
        except OSError as error:
            refused = Unavailable("proxy", f"{self._proxy[0]}:{self._proxy[1]} does not answer: {error.strerror}")
            refused.add_note("start Tor, or give the address of its SOCKS5 port")
            raise refused from None
        try:
            steps = connect(endpoint.host, endpoint.port, os.urandom(8).hex() if self._isolate else "")
            await _run_steps(steps, reader, writer)
            await writer.start_tls(client_context(), server_hostname="", ssl_handshake_timeout=TOR_DIAL_SECONDS)
        except BaseException:
            await close_writer(writer)
            raise
        return reader, writer


async def _run_steps(steps: Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    output, length = next(steps)
    while True:
        writer.write(output)
        await writer.drain()
        received = await reader.readexactly(length)
        try:
            output, length = steps.send(received)
        except StopIteration:
            return
