"""The TLS lane, TCP with TLS 1.3, and the Tor lane, which dials it through a SOCKS5 proxy.

Each message follows its length, a 4-byte big-endian number. Outgoing connections of the Tor lane use the proxy, which
learns only the host name of the peer. For incoming connections it listens on a local port, to which an onion service
forwards; `announce` is the onion address. TLS is end-to-end, so certificate and handshake work as on other lanes, and a
Tor exit sees only ciphertext.
"""

import asyncio
import functools
import os
import ssl
from collections.abc import Generator
from contextlib import suppress

from veil import veil_limits
from veil.lanes.certificate import Certificate, ListeningLane, client_context, pin_of
from veil.lanes.lane import AcceptLink, Endpoint, LaneLink
from veil.veil_errors import Malformed, Unavailable

_LENGTH_BYTES = 4


class StreamLink:
    """Messages over TCP with TLS, direct or through a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, binding: bytes) -> None:
        self.binding = binding
        self.remote = remote_of(writer)
        self._reader = reader
        self._writer = writer

    async def send(self, message: bytes) -> None:
        try:
            self._writer.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable("link", str(error) or "connection lost") from None

    async def receive(self) -> bytes:
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if not 0 < length <= veil_limits.MAX_MESSAGE_BYTES:
                raise Malformed("message", f"{length} bytes, not 1 to {veil_limits.MAX_MESSAGE_BYTES}")
            return await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Unavailable("link", str(error) or "connection lost") from None

    async def close(self) -> None:
        await close_writer(self._writer)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for a peer that may be gone."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    transport = writer.transport
    if transport is not None:
        transport.abort()


def remote_of(writer: asyncio.StreamWriter) -> str:
    found = writer.get_extra_info("peername")
    return f"{found[0]}:{found[1]}" if found else "?"


def peer_pin(writer: asyncio.StreamWriter) -> bytes:
    """The pin of the certificate that the peer presented."""
    tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls is not None else None
    if der is None:
        raise Unavailable("link", "the peer presented no certificate")
    return pin_of(der)


class TlsLane(ListeningLane):
    """Messages over TCP with TLS. Lanes with other messages or another way to connect derive from it."""

    name = "tls"
    dial_seconds = veil_limits.DIAL_SECONDS
    _server: asyncio.Server | None = None

    async def start(self, accept: AcceptLink) -> None:
        if self._listen is None:
            return
        try:
            self._server = await asyncio.start_server(
                functools.partial(self._on_connection, accept),
                self._listen.host,
                self._listen.port,
                ssl=self._certificate.server_context(),
                ssl_handshake_timeout=veil_limits.HANDSHAKE_SECONDS,
                limit=veil_limits.MAX_MESSAGE_BYTES,
            )
        except OSError as error:
            raise Unavailable(str(self._listen), error.strerror or str(error)) from None
        self._port = self._server.sockets[0].getsockname()[1]

    async def dial(self, endpoint: Endpoint, peer: bytes) -> LaneLink:
        try:
            async with asyncio.timeout(self.dial_seconds):
                return await self._dialled(endpoint, *await self._connect(endpoint))
        except (OSError, EOFError, TimeoutError) as error:
            raise Unavailable(str(endpoint), str(error) or "no answer") from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connect(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=client_context(), server_hostname="", limit=veil_limits.MAX_MESSAGE_BYTES
        )

    async def _dialled(
        self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> LaneLink:
        return StreamLink(reader, writer, peer_pin(writer))

    def _on_connection(self, accept: AcceptLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept(StreamLink(reader, writer, self._certificate.pin))


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
    dial_seconds = TOR_DIAL_SECONDS

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

    async def _connect(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            reader, writer = await asyncio.open_connection(*self._proxy, limit=veil_limits.MAX_MESSAGE_BYTES)
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
