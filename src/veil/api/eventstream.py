"""Events over a WebSocket: first what was missed, by number, then what happens, each as one text message of JSON.

Nothing is queued for a reader: it is told what the node has on disk, at its own pace. One that is so slow that events
are gone before it read them is told so, by an event of kind `gap`.
"""

import asyncio
import json
from contextlib import suppress

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, TextMessage
from wsproto.events import Request as Opening
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from veil.api import plain
from veil.api.asked import Asked
from veil.api.http import Request
from veil.api.routes import names
from veil.errors import Malformed
from veil.node import Event
from veil.runtime.host import Host

_READ_BYTES = 4_096
_AT_A_TIME = 64
_ANY_SEQ = (1 << 53) - 1
_GOING_AWAY = 1001


class EventStream:
    """One reader."""

    def __init__(self, host: Host, request: Request, subprotocol: str | None) -> None:
        self._host = host
        self._request = request
        self._subprotocol = subprotocol
        self._since = Asked(dict(request.query)).number("since", host.node.last_seq, _ANY_SEQ)
        self._more = asyncio.Event()
        self._wire = WSConnection(ConnectionType.SERVER)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the reader leaves."""
        self._open(writer)
        self._host.listeners.add(self._heard)
        works = asyncio.ensure_future(self._listen(reader, writer)), asyncio.ensure_future(self._tell(writer))
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._host.listeners.discard(self._heard)
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            with suppress(LocalProtocolError):
                writer.write(self._wire.send(CloseConnection(code=_GOING_AWAY)))

    def _open(self, writer: asyncio.StreamWriter) -> None:
        try:
            self._wire.receive_data(self._request.head)
            if not any(isinstance(event, Opening) for event in self._wire.events()):
                raise Malformed("request", "not one for a WebSocket")
            writer.write(self._wire.send(AcceptConnection(subprotocol=self._subprotocol)))
        except RemoteProtocolError as error:
            raise Malformed("request", str(error)) from None

    def _heard(self, event: Event) -> None:
        self._more.set()

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        node = self._host.node
        while True:
            self._more.clear()
            if self._since + 1 < node.first_seq:
                gap = {"seq": node.first_seq - 1, "kind": "gap", "data": {"from": self._since + 1}}
                writer.write(self._wire.send(TextMessage(data=json.dumps(gap))))
                self._since = node.first_seq - 1
            known = names(self._host)
            for event in node.events(self._since, _AT_A_TIME):
                self._since = event.seq
                writer.write(self._wire.send(TextMessage(data=json.dumps(plain.event(event, known)))))
                await writer.drain()
            if self._since >= node.last_seq:
                await self._more.wait()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A reader says nothing but that it is there, or leaves."""
        while data := await reader.read(_READ_BYTES):
            try:
                self._wire.receive_data(data)
                for event in self._wire.events():
                    if isinstance(event, Ping):
                        writer.write(self._wire.send(event.response()))
                    elif isinstance(event, CloseConnection):
                        return
            except RemoteProtocolError:
                return
