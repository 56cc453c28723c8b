"""A link over a byte stream. Each message follows its length, a 4-byte big-endian number."""

import asyncio
import ssl
from contextlib import suppress

from veil.lanes import lane_limits
from veil.lanes.certificate import pin_of
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
            if not 0 < length <= lane_limits.MAX_MESSAGE_BYTES:
                raise Malformed("message", f"{length} bytes, not 1 to {lane_limits.MAX_MESSAGE_BYTES}")
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
