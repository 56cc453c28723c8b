"""The listening end: accepts, counts, and stops without dropping an answer."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from plumbing.http.connection import BodyRoom, Connection, Service
from plumbing.http.connection_timer import Sweep
from plumbing.http.http1 import Http1
from plumbing.http.http1_writer import encode
from plumbing.http.http2 import Http2
from plumbing.http.http2_writer import PREFACE
from plumbing.http.http_settings import HttpSettings
from plumbing.http.message import App, Report
from plumbing.http.peer_address import caller_of
from plumbing.http.request_head import glimpse


class Door(Connection):
    """Takes HTTP/2 from ALPN, or in clear from its preface (RFC 9113 3.3), and HTTP/1.1 otherwise."""

    __slots__ = ("_first", "_since")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._first = b""
        self._since = service.sweep.now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        chosen = cast(asyncio.Transport, transport)
        self.service.roster.arriving.discard(self)
        high = self.service.settings.write_high_bytes
        chosen.set_write_buffer_limits(high=high, low=high // 4)
        self.take_over(chosen)
        self._since = self.service.sweep.now
        tls: ssl.SSLObject | None = chosen.get_extra_info("ssl_object")
        if tls is not None:
            spoken = Http2 if tls.selected_alpn_protocol() == "h2" else Http1
            spoken(self.service).take_over(chosen, self)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        spoken = Http2 if self._first.startswith(PREFACE) else Http1
        successor = spoken(self.service)
        successor.take_over(self.transport, self)
        successor.data_received(self._first)

    def look(self) -> None:
        if self.service.sweep.overdue(self._since, self.service.settings.header_timeout_s):
            self.leave()


_ACCEPTS_PER_TURN = 64
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_PAUSE_S = 0.5
# Refusing ends when the connections have fallen to this share of their limit: the two do not follow each other closely.
_RELIEVED_AT = 3 / 4
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


OnLimit = Callable[[str, bytes | None], None]


class HttpServer:
    """One or more listening sockets in front of one app. `report` hears of what went wrong inside the app.

    `on_refused` and `on_relieved` are called with the limit that was reached ("total" or "address") and the caller it
    was reached for: on every refusal, and once when its connections have fallen well below that limit again.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._listeners: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self._service: Service | None = None
        self.refused_connections = {"total": 0, "address": 0}  # by which of the two caps
        self.on_refused: OnLimit = lambda cap, caller: None
        self.on_relieved: OnLimit = lambda cap, caller: None
        self._refusing: set[tuple[str, bytes | None]] = set()  # each has connections, so these are few

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._listeners)

    @property
    def port(self) -> int:
        """The port of the first socket: with port 0, the one the system chose."""
        return int(self._listeners[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._service.roster) if self._service is not None else 0

    async def start(
        self, app: App, host: str, port: int, *, tls: ssl.SSLContext | None = None, settings: HttpSettings | None = None
    ) -> None:
        """Listen on every address of `host`; raises `OSError` where one cannot be had."""
        assert self._service is None, "a server starts once"
        settings = settings or HttpSettings()
        self._tls = tls
        self._listeners = await _listen(host, port, settings.backlog)
        sweep, room = Sweep(settings.sweep_s, self._visit), BodyRoom(settings.max_bodies_bytes)
        self._service = Service(app, settings, self._report, sweep, room)
        self._service.sweep.start()
        self._service.roster.on_left = self._left
        for listener in self._listeners:
            self._open(listener)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let what is under way finish within `grace_s`, then close what is left."""
        service = self._service
        if service is None:
            return
        loop = asyncio.get_running_loop()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            loop.remove_reader(listener)
            listener.close()
        for task in tuple(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        for connection in tuple(service.roster.connections):
            if not connection.is_leaving():
                connection.drain()
        try:
            await asyncio.wait_for(service.roster.empty.wait(), grace_s)
        except TimeoutError:
            for connection in tuple(service.roster.connections):
                connection.transport.abort()
            await service.roster.empty.wait()
        service.sweep.stop()

    def _visit(self) -> None:
        service = self._service
        assert service is not None
        for connection in tuple(service.roster.connections):
            self._visit_one(connection)

    def _visit_one(self, connection: Connection) -> None:
        try:
            connection.visit()
        except Exception as error:  # noqa: BLE001  one faulty connection must not end the sweep of the others
            self._report("sweep", error)
            connection.transport.abort()

    def _open(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        service = self._service
        assert service is not None
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                peer, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # Out of descriptors: the listener would stay readable and the loop would spin.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_NO_ROOM_PAUSE_S, self._open, listener)
                return
            peer.setblocking(False)
            settings, roster = service.settings, service.roster
            caller = caller_of(address[0], settings.uncounted_networks)
            if len(roster) >= settings.max_connections:
                self._turn_away(peer, service, "total", None)
                continue
            if roster.callers.count(caller) >= settings.max_connections_per_address:
                self._turn_away(peer, service, "address", caller)
                continue
            door = Door(service)
            door.caller = caller
            roster.callers.came(caller)
            roster.arriving.add(door)
            task = asyncio.get_running_loop().create_task(self._admit(peer, door, service))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            # One that is cancelled before its first step never gets to close it.
            task.add_done_callback(lambda task, peer=peer: peer.close() if task.cancelled() else None)  # type: ignore[misc]

    async def _admit(self, peer: socket.socket, door: Door, service: Service) -> None:
        """One coroutine for a connection, none for a request."""
        settings, tls = service.settings, self._tls
        try:
            # asyncio would, but only for sockets that were made with the protocol's number.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: door,
                peer,
                ssl=tls,
                ssl_handshake_timeout=settings.header_timeout_s if tls else None,
                ssl_shutdown_timeout=settings.linger_s if tls else None,
            )
        except OSError:
            pass  # the peer left, or speaks no TLS that we do: its own affair
        finally:
            if door in service.roster.arriving:  # it never became a connection
                service.roster.arriving.discard(door)
                service.roster.left(door.caller)

    def _left(self, caller: bytes | None) -> None:
        if self._refusing:
            service = self._service
            assert service is not None
            settings, roster = service.settings, service.roster
            if len(roster) <= settings.max_connections * _RELIEVED_AT:
                self._relieve("total", None)
            if roster.callers.count(caller) <= settings.max_connections_per_address * _RELIEVED_AT:
                self._relieve("address", caller)

    def _relieve(self, cap: str, caller: bytes | None) -> None:
        if (cap, caller) in self._refusing:
            self._refusing.discard((cap, caller))
            self.on_relieved(cap, caller)

    def _turn_away(self, peer: socket.socket, service: Service, cap: str, caller: bytes | None) -> None:
        """Tell it why, if that costs nothing: a refused caller is given no buffer and no time."""
        self.refused_connections[cap] += 1
        self._refusing.add((cap, caller))
        self.on_refused(cap, caller)
        with peer:
            if self._tls is None:
                reason = "too many connections" + (" from this address" if cap == "address" else "")
                answer = service.app.refused(503, reason, glimpse(b"", (), ""))
                try:
                    peer.send(encode(answer, service.sweep.date, False, True))
                except OSError:
                    return


async def _listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        # Every address of one host gets the same port, also where the system chooses it.
        chosen = listeners[0].getsockname()[1] if listeners else address[1]
        try:
            listener = socket.create_server((str(address[0]), int(chosen)), family=family, backlog=backlog)
        except OSError as error:
            if error.errno in _NO_SUCH_ADDRESS:
                # `localhost` has an IPv6 address on machines that have no IPv6.
                absent = error
                continue
            for other in listeners:
                other.close()
            raise
        listener.setblocking(False)
        listeners.append(listener)
    if not listeners and absent is not None:
        raise absent
    return listeners


ALPN = ("h2", "http/1.1")
# Of TLS 1.2; all suites of TLS 1.3 are of this kind.
_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"


def tls_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A server's context from a PEM chain and its key. A client may show a certificate that `client_ca` vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_SUITES)
    # HTTP/2 forbids both compression and renegotiation (RFC 9113 9.2.1).
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(ALPN))
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
