"""What every connection has: a transport, a place on the roster, and an end."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from plumbing.http.connection_timer import Sweep
from plumbing.http.http_settings import HttpSettings
from plumbing.http.message import App, Report
from plumbing.http.peer_address import Callers
from plumbing.http.request_head import BadHead

if TYPE_CHECKING:
    pass


AT_ONCE = 4
# An answer that is given at once counts for its bytes, too: what is long took long to make.
UNIT_BYTES = 512


class Turns:
    """The connections that have something left, in the order in which they came."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}
        self._due = False

    def wait(self, connection: "Connection") -> None:
        """Have its `go_on` called in a turn to come; once, however often this is asked for."""
        self._waiting[connection] = None
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        for connection in tuple(islice(self._waiting, AT_ONCE)):
            del self._waiting[connection]
            try:
                connection.go_on()
            except Exception as error:  # noqa: BLE001  one faulty connection must not end the turns of the others
                connection.service.report("turn", error)
                connection.transport.abort()
        self._due = bool(self._waiting)
        if self._due:
            asyncio.get_running_loop().call_soon(self._take)


class Roster:
    """Who is connected, who is still shaking hands, and from where."""

    __slots__ = ("arriving", "callers", "connections", "empty", "on_left")

    def __init__(self) -> None:
        self.on_left: Callable[[bytes | None], None] = lambda caller: None
        self.arriving: set[asyncio.Protocol] = set()
        self.connections: set[Connection] = set()
        self.callers = Callers()
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self.arriving) + len(self.connections)

    def add(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self.empty.clear()

    def left(self, caller: bytes | None) -> None:
        """A connection of a caller is off the lists."""
        self.callers.went(caller)
        self.on_left(caller)

    def remove(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.empty.set()


class BodyRoom:
    """The memory that unfinished bodies may take, of all connections together. A little of each is not counted."""

    FREE_BYTES = 1 << 16
    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        """Raises `BadHead` where there is no room."""
        if size > self._left:
            raise BadHead(503, "too much is being sent at once")
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


@dataclass(frozen=True, slots=True)
class Service:
    """What the connections of one server share."""

    app: App
    settings: HttpSettings
    report: Report
    sweep: Sweep
    room: BodyRoom
    roster: Roster = field(default_factory=Roster)
    turns: Turns = field(default_factory=Turns)


class Connection(asyncio.Protocol):
    """One peer. Subclasses speak a protocol; this class ends it, and gives up on a peer that does not read."""

    __slots__ = (
        "__weakref__",
        "_leaving",
        "_leaving_since",
        "_paused_since",
        "_unsent_bytes",
        "caller",
        "certificate",
        "lost",
        "peer",
        "service",
        "transport",
        "write_paused",
    )

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self.service = service
        self.caller: bytes | None = None  # who is counted for it
        self.lost = False
        self.peer = ""
        self.certificate: bytes | None = None
        self.write_paused = False
        self._leaving = False
        self._leaving_since = 0.0
        self._paused_since = 0.0
        self._unsent_bytes = 0

    def take_over(self, transport: asyncio.Transport, predecessor: "Connection | None" = None) -> None:
        """Speak on `transport` from now on, in the place of `predecessor`."""
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
            self.service.roster.remove(predecessor)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.service.roster.remove(self)
        self.service.roster.left(self.caller)

    def eof_received(self) -> bool:
        """The peer will say no more."""
        self.leave()
        return False

    def pause_writing(self) -> None:
        self.write_paused = True
        self._paused_since = self.service.sweep.now
        self._unsent_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self.write_paused = False

    def go_on(self) -> None:
        """Take up what is left of the input: called in a turn of its own, where `Turns.wait` asked for it."""

    def drain(self) -> None:
        """Finish what is under way, take on nothing new, then leave."""
        self.leave()

    def look(self) -> None:
        """Called at each sweep while the connection is in use."""

    def is_lost(self) -> bool:
        return self.lost

    def is_leaving(self) -> bool:
        return self._leaving

    def leave(self) -> None:
        """Close once everything written is out."""
        self._start_leaving()
        self.transport.close()

    def linger(self) -> None:
        """Close, but read and discard for a while first.

        A socket closed with input unread is reset, and a reset can overtake the answer that says why.
        """
        self._start_leaving()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()

    def visit(self) -> None:
        """One look of the sweep at this connection."""
        settings, sweep = self.service.settings, self.service.sweep
        if self._leaving:
            unsent = self.transport.get_write_buffer_size()
            limit_s = settings.write_timeout_s if unsent else settings.linger_s
            if sweep.overdue(self._leaving_since, limit_s + self._unsent_bytes / settings.min_bytes_per_s):
                self.transport.abort()
        elif self.write_paused and sweep.overdue(
            self._paused_since, settings.write_timeout_s + self._unsent_bytes / settings.min_bytes_per_s
        ):
            self.transport.abort()
        else:
            self.look()

    def _start_leaving(self) -> None:
        if not self._leaving:
            self._leaving = True
            self._leaving_since = self.service.sweep.now
            self._unsent_bytes = self.transport.get_write_buffer_size()


class Portioned(Connection, ABC):
    """Takes a portion in each turn of the loop, and reads no more until all is taken."""

    __slots__ = ("_at", "_held")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._held = b""
        self._at = 0  # up to where it is taken

    @abstractmethod
    def take(self, data: bytes, at: int) -> int:
        """Take a portion of `data` from there on; returns where it ends."""

    def data_received(self, data: bytes) -> None:
        if self._held:  # what TLS had decrypted before it was told to pause
            self._held = self._held[self._at :] + data
            self._at = 0
        else:
            self._take_from(data, 0)

    def go_on(self) -> None:
        if self._held and not self.lost and not self.write_paused:
            self._take_from(self._held, self._at)
            if not self._held and not self.write_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        # A peer that asks and does not read fills nobody's memory but its own.
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self.service.turns.wait(self)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_from(self, data: bytes, at: int) -> None:
        end = self.take(data, at)
        if end < len(data) and not self.lost:
            if not self._held:
                self.transport.pause_reading()
            self._held, self._at = data, end
            self.service.turns.wait(self)
        else:
            self._held, self._at = b"", 0
