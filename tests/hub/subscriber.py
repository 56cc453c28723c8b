"""The client side of /tooling/subscribe."""

import socket
from collections import deque
from types import TracebackType

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, RejectConnection, RejectData, Request

from tests.hub.client import PATIENCE_S, Hub
from veen.core.envelopes import StreamItem


class Subscriber:
    """A WebSocket on which a test waits for entries."""

    def __init__(self, hub: Hub, query: str, receive_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(("127.0.0.1", hub.port))
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._events: deque[Event] = deque()
        self._part = b""
        self._socket.sendall(self._frames.send(Request(host="hub", target=f"/tooling/subscribe?{query}")))
        self.answer = self._event()

    def __enter__(self) -> "Subscriber":
        assert isinstance(self.answer, AcceptConnection), self.answer
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def refusal(self) -> tuple[int, bytes]:
        """The status and body of a rejected upgrade."""
        assert isinstance(self.answer, RejectConnection)
        body = b""
        while True:
            event = self._event()
            assert isinstance(event, RejectData)
            body += bytes(event.data)
            if event.body_finished:
                self._socket.close()
                return self.answer.status_code, body

    def message(self) -> bytes:
        while True:
            event = self._event()
            assert isinstance(event, BytesMessage), event
            self._part += bytes(event.data)
            if event.message_finished:
                whole, self._part = self._part, b""
                return whole

    def item(self) -> StreamItem:
        return StreamItem.decode(self.message())

    def items(self, count: int) -> list[StreamItem]:
        return [self.item() for _ in range(count)]

    def close_code(self) -> int:
        """The close code of the hub."""
        while not isinstance(event := self._event(), CloseConnection):
            pass
        self._socket.sendall(self._frames.send(event.response()))
        return int(event.code)

    def _event(self) -> Event:
        while not self._events:
            data = self._socket.recv(1 << 16)
            assert data, "the hub closed without a word"
            self._frames.receive_data(data)
            self._events.extend(self._frames.events())
        return self._events.popleft()
