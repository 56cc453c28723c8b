"""Accepts connections, counts them, and stops without dropping a response."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from plumbing.http.connection import BodyMemoryLimit, Connection, ConnectionTimer, HttpSettings, Roster, Service
from plumbing.http.http1 import Http1, encode
from plumbing.http.http2 import PREFACE, Http2
from plumbing.http.message import App, Report
from plumbing.http.peer_address import caller_of
from plumbing.http.request_head import partial_request


class ProtocolDetection(Connection):
    """Detects the protocol: HTTP/2 by ALPN, or in clear text by its preface (RFC 9113 3.3), otherwise HTTP/1.1."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._first = b""
        self._since = service.timer.now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        chosen = cast(asyncio.Transport, transport)
        self.service.roster.arriving.pop(self, None)
        high = self.service.settings.write_high_bytes
        chosen.set_write_buffer_limits(high=high, low=high // 4)
        self.take_over(chosen)
        self._since = self.service.timer.now
        tls: ssl.SSLObject | None = chosen.get_extra_info("ssl_object")
        if tls is not None:
            protocol = Http2 if tls.selected_alpn_protocol() == "h2" else Http1
            protocol(self.service).take_over(chosen, self)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        protocol = Http2 if self._first.startswith(PREFACE) else Http1
        successor = protocol(self.service)
        successor.take_over(self.transport, self)
        successor.data_received(self._first)

    def check_timeouts(self) -> None:
        if self.service.timer.overdue(self._since, self.service.settings.header_timeout_s):
            self.leave()


_ACCEPTS_PER_TURN = 64
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OUT_OF_RESOURCES_PAUSE_S = 0.5
# Refusing ends when the connections have fallen to this share of the limit, so that it does not flap.
_RELIEVED_AT = 3 / 4
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


OnLimit = Callable[[str, bytes | None], None]


class HttpServer:
    """One or more listening sockets in front of one app. `report` receives exceptions of the app.

    `on_refused` and `on_relieved` are called with the limit ("total" or "address") and the caller: on every refused
    connection, and once when the connections have fallen well below the limit again. `on_full` is called when an idle
    connection was closed to make room for a new one; `on_relieved` ends that, too.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._listeners: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self._service: Service | None = None
        self.refused_connections = {"total": 0, "address": 0}  # by limit
        self.on_refused: OnLimit = lambda cap, caller: None
        self.on_relieved: OnLimit = lambda cap, caller: None
        self.on_full: Callable[[], None] = lambda: None  # a connection was closed to make room
        self._refusing: set[tuple[str, bytes | None]] = set()  # bounded, because each has connections

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._listeners)

    @property
    def port(self) -> int:
        """The port of the first socket: with port 0, the one that the system chose."""
        return int(self._listeners[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._service.roster) if self._service is not None else 0

    async def start(
        self, app: App, host: str, port: int, *, tls: ssl.SSLContext | None = None, settings: HttpSettings | None = None
    ) -> None:
        """Listen on every address of `host`. Raises `OSError` if one is not available."""
        assert self._service is None, "a server starts once"
        settings = settings or HttpSettings()
        self._tls = tls
        self._listeners = await _listen(host, port, settings.backlog)
        timer, body_memory = ConnectionTimer(settings.tick_s, self._on_tick), BodyMemoryLimit(settings.max_bodies_bytes)
        self._service = Service(app, settings, self._report, timer, body_memory)
        self._service.timer.start()
        self._service.roster.on_left = self._left
        for listener in self._listeners:
            self._open(listener)

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for new connections. A server that was started without TLS stays without."""
        assert self._tls is not None, "the server was started without TLS"
        self._tls = tls

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, let requests finish within `grace_s`, then close the rest."""
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
        service.timer.stop()

    def _on_tick(self) -> None:
        service = self._service
        assert service is not None
        for connection in tuple(service.roster.connections):
            self._tick_one(connection)

    def _tick_one(self, connection: Connection) -> None:
        try:
            connection.on_tick()
        except Exception as error:  # noqa: BLE001  the others must still be checked
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
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                # Out of descriptors: the listener would stay readable, and the loop would spin.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_OUT_OF_RESOURCES_PAUSE_S, self._open, listener)
                return
            peer.setblocking(False)
            settings, roster = service.settings, service.roster
            caller = caller_of(address[0], settings.uncounted_networks)
            if len(roster) >= settings.max_connections and not (settings.makes_room and self._make_room(roster)):
                self._refuse_connection(peer, service, "total", None)
                continue
            if roster.count(caller) >= settings.max_connections_per_address:
                self._refuse_connection(peer, service, "address", caller)
                continue
            detection = ProtocolDetection(service)
            detection.caller = caller
            if caller is not None:
                roster.callers[caller] += 1
            task = asyncio.get_running_loop().create_task(self._admit(peer, detection, service))
            roster.arriving[detection] = task
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            # A task cancelled before its first step cannot close the socket itself.
            task.add_done_callback(lambda task, peer=peer: peer.close() if task.cancelled() else None)  # type: ignore[misc]

    async def _admit(self, peer: socket.socket, detection: ProtocolDetection, service: Service) -> None:
        """One coroutine per connection, none per request."""
        settings, tls = service.settings, self._tls
        try:
            # asyncio does this only for sockets created with the protocol number.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: detection,
                peer,
                ssl=tls,
                ssl_handshake_timeout=settings.handshake_timeout_s if tls else None,
                ssl_shutdown_timeout=settings.linger_s if tls else None,
            )
        except OSError:
            pass  # the peer left, or the TLS handshake failed
        finally:
            if service.roster.arriving.pop(detection, None) is not None:  # the handshake did not finish
                service.roster.left(detection.caller)

    def _make_room(self, roster: Roster) -> bool:
        """Close the connection that is idle for longest. Returns False if every connection is busy."""
        idle = roster.longest_idle()
        if idle is None:
            return False
        handshake = roster.arriving.pop(idle, None)
        roster.remove(idle)
        roster.left(idle.caller)
        idle.caller = None  # it is not counted again when its transport reports the end
        if handshake is not None:
            handshake.cancel()
        else:
            idle.transport.abort()
        self._refusing.add(("total", None))
        self.on_full()
        return True

    def _left(self, caller: bytes | None) -> None:
        if self._refusing:
            service = self._service
            assert service is not None
            settings, roster = service.settings, service.roster
            if len(roster) <= settings.max_connections * _RELIEVED_AT:
                self._relieve("total", None)
            if roster.count(caller) <= settings.max_connections_per_address * _RELIEVED_AT:
                self._relieve("address", caller)

    def _relieve(self, cap: str, caller: bytes | None) -> None:
        if (cap, caller) in self._refusing:
            self._refusing.discard((cap, caller))
            self.on_relieved(cap, caller)

    def _refuse_connection(self, peer: socket.socket, service: Service, cap: str, caller: bytes | None) -> None:
        """Refuse a connection. Sends a response only if that needs no buffer and no waiting."""
        self.refused_connections[cap] += 1
        self._refusing.add((cap, caller))
        self.on_refused(cap, caller)
        with peer:
            if self._tls is None:
                reason = "too many connections" + (" from this address" if cap == "address" else "")
                answer = service.app.refused(503, reason, partial_request(b"", (), ""))
                if answer is not None:
                    with suppress(OSError):
                        peer.send(encode(answer, service.timer.date, False, True))


async def _listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        # Every address of a host gets the same port, also if the system chooses it.
        chosen = listeners[0].getsockname()[1] if listeners else address[1]
        try:
            listener = socket.create_server((str(address[0]), int(chosen)), family=family, backlog=backlog)
        except OSError as error:
            if error.errno in _NO_SUCH_ADDRESS:
                # `localhost` may have an IPv6 address on machines without IPv6.
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
# For TLS 1.2; all suites of TLS 1.3 are of this kind.
_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20"


def tls_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """A server context from a PEM chain and its key. Clients may present a certificate that `client_ca` signed."""
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
