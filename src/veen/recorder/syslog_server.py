"""A syslog listener: UDP (RFC 5426), TCP with octet counting or lines (RFC 6587), and TLS (RFC 5425).

Messages are stored on disk before anything else. Neither transport confirms that to the sender: messages in transit
when this process ends are lost unless the sender repeats them.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from veen.core import Unavailable
from veen.recorder import syslog
from veen.recorder.connections import HANDSHAKE_S, Connection, Connections
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter
from veen.recorder.syslog import MAX_SYSLOG_BYTES

MAX_CONNECTIONS = 256
IDLE_S = 3_600.0  # between messages; long, since a sender loses the next message when its connection is closed
MESSAGE_S = 60.0  # for one whole message
_FULL_PAUSE_S = 0.2
_COUNT_DIGITS = 6
_MS = 1_000_000


class SyslogListener:
    """Listens on one address with either or both transports. An async context manager."""

    def __init__(
        self,
        writer: SpoolWriter,
        defaults: Defaults,
        host: str,
        port: int,
        *,
        udp: bool = True,
        tcp: bool = True,
        tls: ssl.SSLContext | None = None,
        notify: Callable[[str], None] = lambda text: None,
        idle_s: float = IDLE_S,
        message_s: float = MESSAGE_S,
        handshake_s: float = HANDSHAKE_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._writer = writer
        self._defaults = defaults
        self._address = host, port
        self._transports = udp and tls is None, tcp or tls is not None
        self._notify = notify
        self._timeouts = idle_s, message_s
        self._failing = False
        self._connections = Connections(
            self._serve, tls=tls, max_connections=max_connections, handshake_s=handshake_s, notify=notify
        )
        self._datagrams: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        host, port = self._address
        udp, tcp = self._transports
        if tcp:
            # Room for the longest message and its length prefix.
            await self._connections.start(host, port, MAX_SYSLOG_BYTES + 2)
            port = self._connections.port
        if udp:
            loop = asyncio.get_running_loop()
            self._datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self._store), local_addr=(host, port)
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._datagrams is not None:
            self._datagrams.close()
        if self._transports[1]:
            await self._connections.stop()

    @property
    def port(self) -> int:
        if self._transports[1]:
            return self._connections.port
        assert self._datagrams is not None
        return int(self._datagrams.get_extra_info("sockname")[1])

    def _store(self, data: bytes, again: bool = False) -> bool:
        """Store a message. Returns False if there is no room or the disk fails."""
        event, digest = syslog.event_of(data, self._defaults, time.time_ns() // _MS)
        try:
            kept = self._writer.append([event], digest, again=again)
            self._failing = False
            return kept
        except Unavailable as error:
            if not self._failing:  # report once, not for every message
                self._notify(str(error))
            self._failing = True
            return False

    async def _serve(self, connection: Connection) -> None:
        try:
            while (data := await _frame(connection.reader, *self._timeouts)) is not None:
                with connection.storing():
                    # While the spool is full, reading stops, so that the sender waits and nothing is lost.
                    while data and not self._store(data, again=True):
                        await asyncio.sleep(_FULL_PAUSE_S)
        except ValueError as error:
            self._notify(f"closed a syslog connection: {error}")


async def _frame(reader: asyncio.StreamReader, idle_s: float, message_s: float) -> bytes | None:
    """The next message of a connection; None at its end. Raises `ValueError` if it is too long or malformed."""
    async with asyncio.timeout(idle_s):
        first = await reader.read(1)
    if not first:
        return None
    async with asyncio.timeout(message_s):
        return await _rest(reader, first)


async def _rest(reader: asyncio.StreamReader, first: bytes) -> bytes | None:
    if not first.isdigit() or first == b"0":
        return await _line(reader, first)
    count = first
    while (digit := await reader.readexactly(1)) != b" ":
        count += digit
        if not digit.isdigit() or len(count) > _COUNT_DIGITS:
            raise ValueError(f"{count[:20]!r} is not an octet count")
    if int(count) > MAX_SYSLOG_BYTES:
        raise ValueError(f"message of {int(count)} bytes, the limit is {MAX_SYSLOG_BYTES}")
    return await reader.readexactly(int(count))


async def _line(reader: asyncio.StreamReader, first: bytes) -> bytes | None:
    if first == b"\n":
        return b""
    try:
        return (first + await reader.readuntil(b"\n")).rstrip(b"\r\n")
    except asyncio.IncompleteReadError as error:
        return (first + error.partial).rstrip(b"\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"line longer than {MAX_SYSLOG_BYTES} bytes") from None


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, store: Callable[[bytes], bool]) -> None:
        self._store = store

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data:
            self._store(data.rstrip(b"\r\n\x00") or data)
