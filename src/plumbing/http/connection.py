"""The base of every connection: transport, registration, the timer, fair scheduling, and closing."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from ipaddress import ip_network
from itertools import count, islice

from plumbing.http.message import App, Report
from plumbing.http.peer_address import Network
from plumbing.http.request_head import BadHead

_KIB = 1 << 10
_MIB = 1 << 20
_TICKS_PER_TIMEOUT = 8
_MAX_TICK_S = 1.0
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The defaults suit a public server; tests use tiny values."""

    max_connections: int = 1024  # above it a connection gets a 503 and is closed
    makes_room: bool = False  # True: close the connection that has been idle for longest instead, if there is one
    max_connections_per_address: int = 128  # per IPv4 address, or per IPv6 /64 network
    uncounted_networks: tuple[Network, ...] = _LOOPBACK  # without a limit per address: a proxy serves many clients
    backlog: int = 1024
    max_header_bytes: int = 16 * _KIB
    max_headers: int = 100
    max_bodies_bytes: int = 256 * _MIB  # unfinished bodies of all connections, without the first 64 KiB of each
    max_pipelined: int = 64  # unanswered requests of one HTTP/1.1 connection
    max_turn_units: int = 16  # requests or small frames of one connection in one turn of the loop
    handshake_timeout_s: float = 10.0  # for TLS
    header_timeout_s: float = 10.0  # from the first byte of a head to its end
    body_timeout_s: float = 10.0  # to receive a body, plus its size / `min_bytes_per_s`
    write_timeout_s: float = 20.0  # for the peer to read a response, plus its size / `min_bytes_per_s`
    min_bytes_per_s: int = 8 * _KIB
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0  # how long input is discarded so that an early response reaches the peer
    write_high_bytes: int = 256 * _KIB  # above it reading pauses and a WebSocket's `send` returns False
    max_h2_streams: int = 128
    max_h2_resets: int = 100  # in a burst; the count decreases by one per tick
    h2_window_bytes: int = 1 * _MIB
    max_h2_upload_bytes: int = 64 * _MIB  # unfinished bodies of one connection, if there are several
    max_ws_message_bytes: int = 64 * _KIB

    @property
    def tick_s(self) -> float:
        shortest = min(
            self.header_timeout_s, self.body_timeout_s, self.write_timeout_s, self.idle_timeout_s, self.linger_s
        )
        return min(shortest / _TICKS_PER_TIMEOUT, _MAX_TICK_S)


CONNECTIONS_PER_TURN = 4
# A response without waiting also costs units for its bytes, because a long response takes long to build.
UNIT_BYTES = 512


class ConnectionTimer:
    """Time in whole intervals, so that a request needs no timer and no system call.

    The clock counts ticks, not seconds. If the loop was blocked, no time passed for peers that could not be served.
    """

    def __init__(self, interval_s: float, on_tick: Callable[[], None]) -> None:
        self.now = 0.0
        self.date = _date()
        self._interval_s = interval_s
        self._on_tick = on_tick
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def overdue(self, since: float, limit_s: float) -> bool:
        """Whether more than `limit_s` have certainly passed: a time stamp is up to one interval old."""
        return self.now - since > limit_s + self._interval_s

    def _tick(self) -> None:
        self.now += self._interval_s
        self.date = _date()
        self.start()
        self._on_tick()


def _date() -> bytes:
    return formatdate(usegmt=True).encode()


class FairScheduler:
    """Schedules the connections that have unprocessed input, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}
        self._due = False

    def wait(self, connection: "Connection") -> None:
        """Call `process_input` of the connection in a later turn; once, however often this is called."""
        self._waiting[connection] = None
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        for connection in tuple(islice(self._waiting, CONNECTIONS_PER_TURN)):
            del self._waiting[connection]
            try:
                connection.process_input()
            except Exception as error:  # noqa: BLE001  one faulty connection must not end the turns of the others
                connection.service.report("turn", error)
                connection.transport.abort()
        self._due = bool(self._waiting)
        if self._due:
            asyncio.get_running_loop().call_soon(self._run)


class Roster:
    """All connections, those in a handshake, and their number per caller."""

    def __init__(self) -> None:
        self.on_left: Callable[[bytes | None], None] = lambda caller: None
        self.arriving: dict[Connection, asyncio.Task[None]] = {}  # with the task of the handshake
        self.connections: set[Connection] = set()
        self.callers: Counter[bytes] = Counter()  # only those with connections
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self.arriving) + len(self.connections)

    def add(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self.empty.clear()

    def longest_idle(self) -> "Connection | None":
        """The idle connection with the oldest last request; without a request, its acceptance counts."""
        idle = (one for one in (*self.arriving, *self.connections) if not one.is_busy())
        return min(idle, key=lambda one: one.order, default=None)

    def count(self, caller: bytes | None) -> int:
        """The number of connections of a caller; 0 if they are not counted."""
        return 0 if caller is None else self.callers[caller]

    def left(self, caller: bytes | None) -> None:
        """A connection of a caller was removed."""
        if caller is not None:
            self.callers[caller] -= 1
            if not self.callers[caller]:
                del self.callers[caller]
        self.on_left(caller)

    def remove(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.empty.set()


class BodyMemoryLimit:
    """A memory limit for unfinished bodies of all connections. The first bytes of each body are not counted."""

    FREE_BYTES = 1 << 16

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        """Raises `BadHead` if the limit is reached."""
        if size > self._left:
            raise BadHead(503, "the server is receiving too many bytes at once")
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


@dataclass(frozen=True, slots=True)
class Service:
    """Shared by all connections of one server."""

    app: App
    settings: HttpSettings
    report: Report
    timer: ConnectionTimer
    body_memory: BodyMemoryLimit
    roster: Roster = field(default_factory=Roster)
    scheduler: FairScheduler = field(default_factory=FairScheduler)
    numbers: Iterator[int] = field(default_factory=count)


class Connection(asyncio.Protocol):
    """One peer. Subclasses implement a protocol; this class closes it, and drops a peer that does not read."""

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self.service = service
        self.caller: bytes | None = None  # the caller it is counted for
        self.order = next(service.numbers)  # of its acceptance, then of its last finished request
        self.lost = False
        self.peer = ""
        self.certificate: bytes | None = None
        self.write_paused = False
        self._leaving = False
        self._leaving_since = 0.0
        self._paused_since = 0.0
        self._unsent_bytes = 0

    def take_over(self, transport: asyncio.Transport, predecessor: "Connection | None" = None) -> None:
        """Take over `transport`, replacing `predecessor`."""
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) and name else ""
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.certificate = tls.getpeercert(True) if tls is not None else None
        self.service.roster.add(self)
        if predecessor is not None:
            self.write_paused = predecessor.write_paused
            self._paused_since = predecessor._paused_since
            self._unsent_bytes = predecessor._unsent_bytes
            transport.set_protocol(self)
            predecessor.lost = True
            self.caller = predecessor.caller
            self.order = predecessor.order
            self.service.roster.remove(predecessor)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.service.roster.remove(self)
        self.service.roster.left(self.caller)

    def eof_received(self) -> bool:
        """The peer closed its side."""
        self.leave()
        return False

    def pause_writing(self) -> None:
        self.write_paused = True
        self._paused_since = self.service.timer.now
        self._unsent_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self.write_paused = False

    def process_input(self) -> None:
        """Process remaining input. Called in a later turn, after `FairScheduler.wait`."""

    def drain(self) -> None:
        """Finish running requests, accept none, then close."""
        self.leave()

    def check_timeouts(self) -> None:
        """Called at each timer tick while the connection is in use."""

    def is_lost(self) -> bool:
        return self.lost

    def is_busy(self) -> bool:
        """Whether the app works on a complete request."""
        return False

    def is_leaving(self) -> bool:
        return self._leaving

    def leave(self) -> None:
        """Close when everything is written."""
        self._start_leaving()
        self.transport.close()

    def linger(self) -> None:
        """Close, but first read and discard input for a while.

        A socket that is closed with unread input is reset, and a reset can overtake the response that says why.
        """
        self._start_leaving()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()

    def on_tick(self) -> None:
        """One timer tick for this connection."""
        settings, timer = self.service.settings, self.service.timer
        if self._leaving:
            unsent = self.transport.get_write_buffer_size()
            limit_s = settings.write_timeout_s if unsent else settings.linger_s
            if timer.overdue(self._leaving_since, limit_s + self._unsent_bytes / settings.min_bytes_per_s):
                self.transport.abort()
        elif self.write_paused and timer.overdue(
            self._paused_since, settings.write_timeout_s + self._unsent_bytes / settings.min_bytes_per_s
        ):
            self.transport.abort()
        else:
            self.check_timeouts()

    def _start_leaving(self) -> None:
        if not self._leaving:
            self._leaving = True
            self._leaving_since = self.service.timer.now
            self._unsent_bytes = self.transport.get_write_buffer_size()


class BufferedConnection(Connection, ABC):
    """Processes a portion of the input per turn of the loop, and pauses reading until all of it is processed."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._buffer = b""
        self._at = 0  # processed up to here

    @abstractmethod
    def process(self, data: bytes, at: int) -> int:
        """Process a portion of `data` starting at `at`; returns where it ends."""

    def data_received(self, data: bytes) -> None:
        if self._buffer:  # TLS may deliver data it decrypted before the pause
            self._buffer = self._buffer[self._at :] + data
            self._at = 0
        else:
            self._process(data, 0)

    def process_input(self) -> None:
        if self._buffer and not self.lost and not self.write_paused:
            self._process(self._buffer, self._at)
            if not self._buffer and not self.write_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        # A peer that sends requests without reading responses must not fill our memory.
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._buffer:
            self.service.scheduler.wait(self)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _process(self, data: bytes, at: int) -> None:
        end = self.process(data, at)
        if end < len(data) and not self.lost:
            if not self._buffer:
                self.transport.pause_reading()
            self._buffer, self._at = data, end
            self.service.scheduler.wait(self)
        else:
            self._buffer, self._at = b"", 0
