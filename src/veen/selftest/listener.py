"""The other end of a subscription: entries as a hub commits them, over a WebSocket."""

import socket
import ssl
from collections import deque
from time import monotonic
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, RejectConnection, Request
from wsproto.utilities import ProtocolError

from veen.core import Unavailable
from veen.core.envelopes import StreamItem
from veen.selftest.probe import METHOD_NOT_ALLOWED, NOT_FOUND, Probe
from veen.selftest.verdict import Failed, Skipped, expect

_PATH = "/tooling/subscribe"
_PORTS = {"http": 80, "https": 443}
_WAIT_S = 30.0
_LEAST_S = 0.001  # a socket's timeout of 0 would mean something else
_READ_BYTES = 1 << 16


class Listener:
    """One subscription to one label, from one place on."""

    def __init__(self, probe: Probe, label: bytes, from_seq: int, *, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        where = urlsplit(probe.url)
        host = where.hostname or ""
        self._ends = monotonic() + self._wait_s  # for the answer that makes it a subscription
        try:
            self._socket = socket.create_connection((host, where.port or _PORTS[where.scheme]), wait_s)
            if where.scheme == "https":
                tls = probe.tls or ssl.create_default_context()
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise Unavailable(f"{probe.url} did not answer {_PATH}: {error}") from None
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._events: deque[Event] = deque()
        target = f"{where.path}{_PATH}?label={label.hex()}&from={from_seq}"
        self._socket.sendall(self._frames.send(Request(host=where.netloc, target=target)))
        try:
            answer = self._event()
        except BaseException:
            self._socket.close()
            raise
        if isinstance(answer, RejectConnection) and answer.status_code in (NOT_FOUND, METHOD_NOT_ALLOWED):
            raise Skipped(f"the hub does not offer {_PATH}")
        expect(isinstance(answer, AcceptConnection), f"{_PATH} did not become a WebSocket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def item(self) -> StreamItem:
        """The next entry, waited for."""
        self._ends = monotonic() + self._wait_s
        whole = b""
        while True:
            match self._event():
                case BytesMessage(data=part, message_finished=finished):
                    whole += part
                    if finished:
                        return StreamItem.decode(whole)
                case Ping() as ping:
                    self._socket.sendall(self._frames.send(ping.response()))
                case CloseConnection(code=code):
                    raise Failed(f"the hub ended the subscription: {code}")

    def _event(self) -> Event:
        while not self._events:
            try:
                self._socket.settimeout(max(self._ends - monotonic(), _LEAST_S))
                data = self._socket.recv(_READ_BYTES)
                self._frames.receive_data(data or None)
            except TimeoutError:
                raise Failed(f"{_PATH} sent nothing whole for {self._wait_s:g} s") from None
            except OSError as error:
                raise Unavailable(f"the subscription broke: {error}") from None
            except ProtocolError as error:
                raise Failed(f"{_PATH} does not speak as a WebSocket: {error}") from None
            self._events.extend(self._frames.events())
        return self._events.popleft()
