"""A WebSocket connection: binary messages from the peer, no extensions. RFC 6455."""

import base64
import binascii
from collections.abc import Callable, Mapping

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token

from plumbing.http.connection import BufferedConnection, Service
from plumbing.http.message import WebSocketHandler
from plumbing.http.request_head import BadHead

_KEY_BYTES = 16
# A frame has at least six bytes, so this is at most about a hundred frames.
_PORTION_BYTES = 512
_NORMAL, _GOING_AWAY, _UNSUPPORTED, _TOO_BIG, _INTERNAL = 1000, 1001, 1003, 1009, 1011


def check_upgrade(method: str, http_version: str, headers: Mapping[bytes, bytes]) -> bytes:
    """The key of an upgrade request. Raises `BadHead` for one that RFC 6455 4.2.1 does not allow."""
    if method != "GET" or http_version != "1.1":
        raise BadHead(400, "a websocket upgrade must be a GET of HTTP/1.1")
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise BadHead(400, "a websocket upgrade must not have a body")
    if headers.get(b"sec-websocket-version") != b"13":
        raise BadHead(400, "sec-websocket-version must be 13")
    key = headers.get(b"sec-websocket-key", b"")
    try:
        valid = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        valid = False
    if not valid:
        raise BadHead(400, "sec-websocket-key is not 16 bytes in base64")
    return key


class WebSocket(BufferedConnection):
    """Transports messages between a peer and a handler. The handler's `on_close` is called exactly once."""

    def __init__(self, service: Service, handler: WebSocketHandler) -> None:
        super().__init__(service)
        self._frames = Frames(ConnectionType.SERVER)
        self._handler = handler
        self._message = bytearray()
        self._open = True  # on_close was not called yet
        self._last_received = service.timer.now
        self._pinged = False

    def open(self, key: bytes, data: bytes) -> None:
        """Accept the upgrade with this key. `data` are the bytes that followed the request."""
        subprotocol: str | None = getattr(self._handler, "subprotocol", None)
        chosen = b"sec-websocket-protocol: %b\r\n" % subprotocol.encode("latin-1") if subprotocol else b""
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n%b"
            b"sec-websocket-accept: %b\r\n\r\n" % (chosen, generate_accept_token(key))
        )
        self.transport.resume_reading()
        if self._call(lambda: self._handler.on_open(self.send, self.close)) and data:
            self.data_received(data)

    def send(self, data: bytes | str) -> bool:
        """Send one message. Returns False, and sends nothing, if the peer is slow or the socket is closing."""
        if self.write_paused or not self._is_open():
            return False
        message = TextMessage(data) if isinstance(data, str) else BytesMessage(data)
        self.transport.write(self._frames.send(message))
        return True

    def close(self, code: int = _NORMAL) -> None:
        """Start the closing handshake. The timer aborts it if the peer does not respond."""
        if self._is_open():
            self.transport.write(self._frames.send(CloseConnection(code)))
            self._start_leaving()
            self._end()

    def process(self, data: bytes, at: int) -> int:
        self._last_received = self.service.timer.now
        self._pinged = False
        if self.lost or self._frames.state is ConnectionState.CLOSED:
            return len(data)
        end = at + _PORTION_BYTES
        try:
            self._frames.receive_data(data[at:end])
            for event in self._frames.events():
                self._on_event(event)
        except LocalProtocolError:
            # The peer continued after its own close.
            self.leave()
        return end

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._is_open():
            self._call(self._handler.on_full)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_open():
            self._call(self._handler.on_drain)

    def drain(self) -> None:
        self.close(_GOING_AWAY)

    def is_busy(self) -> bool:
        """A subscription without news is in use."""
        return True

    def check_timeouts(self) -> None:
        settings, overdue = self.service.settings, self.service.timer.overdue
        if overdue(self._last_received, 2 * settings.idle_timeout_s):
            self.transport.abort()
        elif overdue(self._last_received, settings.idle_timeout_s) and not self._pinged and self._is_open():
            # A subscriber may be silent for ever, but its machine answers a ping.
            self._pinged = True
            self.transport.write(self._frames.send(Ping()))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CloseConnection):
            self._on_close(event)
        elif not self._is_open():
            return  # ignore messages after our own close
        elif isinstance(event, Ping):
            self.transport.write(self._frames.send(Pong(event.payload)))
        elif isinstance(event, TextMessage):
            self.close(_UNSUPPORTED)
        elif isinstance(event, BytesMessage):
            if len(self._message) + len(event.data) > self.service.settings.max_ws_message_bytes:
                self.close(_TOO_BIG)
                return
            self._message += event.data
            if event.message_finished:
                message = bytes(self._message)
                self._message.clear()
                self._call(lambda: self._handler.on_message(message))

    def _on_close(self, event: CloseConnection) -> None:
        if self._frames.state in (ConnectionState.REMOTE_CLOSING, ConnectionState.OPEN):
            # In state OPEN the peer violated the protocol: the close code says how.
            self.transport.write(self._frames.send(event.response()))
        self._end()
        self.leave()

    def _is_open(self) -> bool:
        return not self.lost and not self.is_leaving() and self._frames.state is ConnectionState.OPEN

    def _call(self, callback: Callable[[], None]) -> bool:
        try:
            callback()
        except Exception as error:  # noqa: BLE001  a bug in one handler must not affect others
            self.service.report("websocket", error)
            self.close(_INTERNAL)
            return False
        return True

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._call(self._handler.on_close)
