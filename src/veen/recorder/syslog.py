"""Syslog: messages of RFC 5424, and the listener that receives them.

Parsing is strict; messages that do not conform are recorded as raw text.

A message has no identity, so one that arrives twice is two events, unless its sender numbers messages: with a
`sequenceId` in the structured data `meta` (§7.3.1), a repeated message is recognized as a copy.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self, cast

from plumbing.background import Tasks
from veen.core import Unavailable
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_NOTIFY_EVERY_S = 60.0


@dataclass(eq=False, slots=True)
class Connection:
    """One connection, as its server sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    last_message: float  # on the loop's clock
    is_storing: bool = field(default=False, init=False)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Mark the connection as busy while a complete message is stored."""
        self.is_storing = True
        try:
            yield
        finally:
            self.is_storing = False
            self.last_message = asyncio.get_running_loop().time()


class Connections:
    """Listens, and runs `serve` for each connection. A `TimeoutError` from it closes the connection.

    A connection counts from the moment it is accepted, including its TLS handshake. If all slots are in use, the
    connection whose last message is oldest is closed for the new one; acceptance counts as a first message. A client
    that holds many connections and finishes nothing loses them first, whether it is silent or sends a byte now and
    then. A connection keeps its slot while a complete message from it is being stored.
    """

    def __init__(
        self,
        serve: Callable[[Connection], Awaitable[None]],
        *,
        tls: ssl.SSLContext | None,
        max_connections: int,
        handshake_s: float = HANDSHAKE_S,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._serve = serve
        self._tls = tls
        self._max = max_connections
        self._handshake_s = handshake_s
        self._notify = notify
        self._notified_at = float("-inf")
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._tasks = Tasks()  # including those closed to make room

    async def start(self, host: str, port: int, read_limit: int) -> None:
        self._server = await asyncio.start_server(self._accepted, host, port, limit=read_limit)

    async def stop(self) -> None:
        self._server.close()
        for connection in self._open:
            connection.writer.transport.abort()
        await self._tasks.stop()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called before any data is read. Pauses reading, so that TLS receives the first byte of the handshake."""
        if self._tls is not None:
            cast(asyncio.Transport, writer.transport).pause_reading()
        if len(self._open) >= self._max and not self._make_room():
            writer.transport.abort()
            return
        connection = Connection(reader, writer, asyncio.get_running_loop().time())
        self._open[connection] = self._tasks.start(self._run(connection))

    def _make_room(self) -> bool:
        """Close the oldest idle connection. Returns False if every connection is storing a message."""
        now = asyncio.get_running_loop().time()
        if now - self._notified_at >= _NOTIFY_EVERY_S:
            self._notified_at = now
            self._notify(f"all {self._max} connections are in use; each new one closes the one idle for longest")
        waiting = [one for one in self._open if not one.is_storing]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda one: one.last_message)
        self._open.pop(oldest).cancel()
        oldest.writer.transport.abort()
        return True

    async def _run(self, connection: Connection) -> None:
        writer = connection.writer
        try:
            if self._tls is not None:
                await writer.start_tls(self._tls, ssl_handshake_timeout=self._handshake_s)
            await self._serve(connection)
            writer.close()
            async with asyncio.timeout(_CLOSE_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer is gone or too slow, or we stop; complete messages are stored
        finally:
            self._open.pop(connection, None)
            with suppress(OSError):
                writer.transport.abort()


MAX_SYSLOG_BYTES = 65_536
_NIL = "-"
_BOM = b"\xef\xbb\xbf"
_PRINTABLE = r"[\x21-\x7e]"
_HEAD = re.compile(
    rf"<(?P<pri>\d{{1,3}})>(?P<version>[1-9]\d{{0,2}}) (?P<time>{_PRINTABLE}+) (?P<host>{_PRINTABLE}{{1,255}}) "
    rf"(?P<app>{_PRINTABLE}{{1,48}}) (?P<procid>{_PRINTABLE}{{1,128}}) (?P<msgid>{_PRINTABLE}{{1,32}}) ",
    re.ASCII,
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NAME = re.compile(r"[^\x00-\x20=\]\"\x7f-\U0010ffff]{1,32}")
_VALUE = re.compile(r'"((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_FACILITIES = 24
_SEVERITIES = 8


class NotSyslog(ValueError):
    """The input is not a message of RFC 5424; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class SyslogMessage:
    """One message. Nil fields are None."""

    facility: int
    severity: int
    version: int
    timestamp: str | None
    hostname: str | None
    app_name: str | None
    procid: str | None
    msgid: str | None
    message: str
    structured: dict[str, dict[str, str | list[str]]] = field(default_factory=dict)

    @property
    def sequence_id(self) -> str | None:
        found = self.structured.get("meta", {}).get("sequenceId")
        return found if isinstance(found, str) else None


def parse(data: bytes) -> SyslogMessage:
    """Parse a message from the wire. Raises `NotSyslog`."""
    head = _HEAD.match(data[:1_024].decode("latin-1"))
    if head is None:
        raise NotSyslog("it has no valid RFC 5424 header")
    pri, timestamp = int(head["pri"]), head["time"]
    if pri >= _FACILITIES * _SEVERITIES or (head["pri"] != str(pri)):
        raise NotSyslog(f"invalid priority {head['pri']}")
    if timestamp != _NIL and (not _TIME.fullmatch(timestamp) or normalize.milliseconds(timestamp) is None):
        raise NotSyslog(f"{timestamp!r} is not a valid timestamp")
    structured, rest = _structured(data[head.end() :])
    time, host, app, procid, msgid = (
        None if text == _NIL else str(text) for text in head.group("time", "host", "app", "procid", "msgid")
    )
    facility, severity = divmod(pri, _SEVERITIES)
    message = rest.removeprefix(b" ").removeprefix(_BOM).decode(errors="replace")
    return SyslogMessage(facility, severity, int(head["version"]), time, host, app, procid, msgid, message, structured)


def _structured(data: bytes) -> tuple[dict[str, dict[str, str | list[str]]], bytes]:
    """The structured data and the rest of the message."""
    if data == b"-" or data.startswith(b"- "):
        return {}, data[1:]
    if not data.startswith(b"["):
        raise NotSyslog("structured data is missing")
    text, pos = data.decode(errors="surrogateescape"), 0
    found: dict[str, dict[str, str | list[str]]] = {}
    while text.startswith("[", pos):
        name = _NAME.match(text, pos + 1)
        if name is None or name[0] in found:
            raise NotSyslog("an element of structured data has no unique name")
        found[name[0]], pos = _params(text, name.end())
    rest = text[pos:].encode(errors="surrogateescape")
    if rest and not rest.startswith(b" "):
        raise NotSyslog("unexpected text between structured data and message")
    return found, rest


def _params(text: str, pos: int) -> tuple[dict[str, str | list[str]], int]:
    found: dict[str, list[str]] = {}
    while not text.startswith("]", pos):
        name = _NAME.match(text, pos + 1) if text.startswith(" ", pos) else None
        value = _VALUE.match(text, name.end() + 1) if name and text.startswith("=", name.end()) else None
        if name is None or value is None:
            raise NotSyslog("an element of structured data is not terminated")
        found.setdefault(name[0], []).append(normalize.clean(_ESCAPED.sub(r"\1", value[1])))
        pos = value.end()
    # A name may be repeated, §6.3.3.
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}, pos + 1


def event_of(data: bytes, defaults: Defaults, now_ms: int) -> tuple[RecordEvent, bytes | None]:
    """The event of a message, and its digest if the sender numbers messages.

    A message that is not RFC 5424 is recorded as raw text, with the reason.
    """
    try:
        found = parse(data)
    except NotSyslog as error:
        return defaults.malformed(str(error), data, now_ms), None
    payload: dict[str, object] = {name: getattr(found, name) for name in SyslogMessage.__dataclass_fields__}
    if "raw_hex" in (raw := normalize.raw_input(data)):  # the decoded text is not the complete message
        payload |= raw
    event_time = normalize.milliseconds(found.timestamp) if found.timestamp else None
    subject = defaults.subject_id or found.hostname or ""
    numbered = found.sequence_id is not None and found.timestamp is not None
    event = defaults.event(payload, now_ms if event_time is None else event_time, subject=subject)
    return event, h(data) if numbered else None


MAX_CONNECTIONS = 256
IDLE_S = 3_600.0  # between messages; long, since a sender loses the next message when its connection is closed
MESSAGE_S = 60.0  # for one whole message
_FULL_PAUSE_S = 0.2
_COUNT_DIGITS = 6
_MS = 1_000_000


class SyslogListener:
    """Listens on one address: UDP (RFC 5426), TCP with octet counting or lines (RFC 6587), and TLS (RFC 5425).

    Messages are stored on disk before anything else. Neither transport confirms that to the sender: messages in transit
    when this process ends are lost unless the sender repeats them. An async context manager.
    """

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

    async def __aexit__(self, *_: object) -> None:
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
        event, digest = event_of(data, self._defaults, time.time_ns() // _MS)
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
