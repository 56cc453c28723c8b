"""The API server: authentication, requests, and events over a WebSocket.

A WebSocket gets the events after `since`, then new ones, each as one JSON text message. Nothing is queued per reader:
events are read from the store at the pace of the reader. A reader that is too slow gets an event of kind `gap`.
"""

import asyncio
import hmac
import json
import os
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, TextMessage
from wsproto.events import Request as Opening
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from veil.api import json_views, routes
from veil.api.http import HttpServer, Request, Response, error_response, failure
from veil.api.request_parser import RequestFields
from veil.api.routes import names
from veil.lanes import Unavailable
from veil.node import Event
from veil.runtime.daemon import Host
from veil.runtime.node_settings import host_port, is_loopback
from veil.veil_errors import Malformed, VeilError

_READ_BYTES = 4_096
_EVENTS_PER_READ = 64
_ANY_SEQ = (1 << 53) - 1
_GOING_AWAY = 1001


class EventStream:
    """One WebSocket reader of events."""

    def __init__(self, host: Host, request: Request, subprotocol: str | None) -> None:
        self._host = host
        self._request = request
        self._subprotocol = subprotocol
        self._since = RequestFields(dict(request.query)).number("since", host.node.last_seq, _ANY_SEQ)
        self._more = asyncio.Event()
        self._wire = WSConnection(ConnectionType.SERVER)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send events until the reader closes the connection."""
        self._open(writer)
        self._host.listeners.add(self._on_event)
        works = asyncio.ensure_future(self._read(reader, writer)), asyncio.ensure_future(self._send_events(writer))
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._host.listeners.discard(self._on_event)
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            with suppress(LocalProtocolError):
                writer.write(self._wire.send(CloseConnection(code=_GOING_AWAY)))

    def _open(self, writer: asyncio.StreamWriter) -> None:
        try:
            self._wire.receive_data(self._request.head)
            if not any(isinstance(event, Opening) for event in self._wire.events()):
                raise Malformed("request", "not a WebSocket request")
            writer.write(self._wire.send(AcceptConnection(subprotocol=self._subprotocol)))
        except RemoteProtocolError as error:
            raise Malformed("request", str(error)) from None

    def _on_event(self, event: Event) -> None:
        self._more.set()

    async def _send_events(self, writer: asyncio.StreamWriter) -> None:
        node = self._host.node
        while True:
            self._more.clear()
            if self._since + 1 < node.first_seq:
                gap = {"seq": node.first_seq - 1, "kind": "gap", "data": {"from": self._since + 1}}
                writer.write(self._wire.send(TextMessage(data=json.dumps(gap))))
                self._since = node.first_seq - 1
            known = names(self._host)
            for event in node.events(self._since, _EVENTS_PER_READ):
                self._since = event.seq
                writer.write(self._wire.send(TextMessage(data=json.dumps(json_views.event(event, known)))))
                await writer.drain()
            if self._since >= node.last_seq:
                await self._more.wait()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer pings, and return when the reader closes."""
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


_SUBPROTOCOL = "veil.token."


class ApiServer:
    """Serves the local API of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._token = host.directory.token()
        self._http = HttpServer(self._handle, self._upgrade)
        self.url = ""

    async def start(self) -> None:
        """Listen, and write the URL to `api.json`."""
        address, port = host_port(self._host.settings.api)
        try:
            port = await self._http.start(address, port)
        except OSError as error:
            refused = Unavailable(f"{address}:{port}", error.strerror or str(error))
            refused.add_note("the address may be in use: choose another with veil node set --api HOST:PORT")
            raise refused from None
        self.url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        self._host.directory.write("api.json", {"url": self.url, "pid": os.getpid()})

    async def stop(self) -> None:
        self._host.directory.remove("api.json")
        await self._http.stop()

    async def _handle(self, request: Request) -> Response:
        refused = self._rejection(request)
        if refused is not None:
            return refused
        try:
            return await routes.answer(self._host, request)
        except VeilError as error:
            return error_response(error)

    async def _upgrade(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Response | None:
        refused = self._rejection(request)
        if refused is not None:
            return refused
        if request.path != "/v1/events" or request.headers.get("upgrade", "").lower() != "websocket":
            return failure(HTTPStatus.NOT_FOUND, "refused", "path", "only /v1/events is a WebSocket")
        chosen = next((word for word in _subprotocols(request) if word.startswith(_SUBPROTOCOL)), None)
        try:
            await EventStream(self._host, request, chosen).run(reader, writer)
        except VeilError as error:
            return error_response(error)
        return None

    def _rejection(self, request: Request) -> Response | None:
        """The error response for a foreign Host or Origin (DNS rebinding, other sites) or a wrong token."""
        if not is_loopback(_hostname(f"//{request.headers.get('host', '')}") or ""):
            return failure(HTTPStatus.FORBIDDEN, "refused", "host", "the Host header is not a loopback address")
        origin = _hostname(request.headers.get("origin", ""))
        if origin is not None and not is_loopback(origin):
            return failure(HTTPStatus.FORBIDDEN, "refused", "origin", "the Origin header is not a loopback address")
        if not any(hmac.compare_digest(found.encode(), self._token.encode()) for found in _tokens(request)):
            return failure(HTTPStatus.UNAUTHORIZED, "refused", "token", "missing or wrong; see api.token")
        return None


def _hostname(url: str) -> str | None:
    """The host of a URL; None if it has none, empty if the URL is invalid."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return ""


def _subprotocols(request: Request) -> list[str]:
    return [word.strip() for word in request.headers.get("sec-websocket-protocol", "").split(",")]


def _tokens(request: Request) -> list[str]:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    found = [bearer.strip()] if scheme.lower() == "bearer" else []
    return found + [word.removeprefix(_SUBPROTOCOL) for word in _subprotocols(request) if word.startswith(_SUBPROTOCOL)]
