"""The local API as a service: who has the token is served, on this machine only.

A browser cannot set headers on a WebSocket, so the token may come there as a subprotocol, `veil.token.<token>`.
"""

import asyncio
import hmac
import os
from http import HTTPStatus
from urllib.parse import urlsplit

from veil.api import routes
from veil.api.eventstream import EventStream
from veil.api.faults import refusal, told
from veil.api.http import HttpServer, Request, Response
from veil.errors import VeilError
from veil.lanes import Unavailable
from veil.runtime.host import Host
from veil.runtime.settings import host_port, is_loopback

_SUBPROTOCOL = "veil.token."


class ApiServer:
    """Serves one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._token = host.folder.token()
        self._http = HttpServer(self._handle, self._upgrade)
        self.url = ""

    async def start(self) -> None:
        """Listen, and write down where, for who finds the folder."""
        address, port = host_port(self._host.settings.api)
        try:
            port = await self._http.start(address, port)
        except OSError as error:
            refused = Unavailable(f"{address}:{port}", error.strerror or str(error))
            refused.add_note("another node may have it: choose one with veil node set --api HOST:PORT")
            raise refused from None
        self.url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        self._host.folder.write("api.json", {"url": self.url, "pid": os.getpid()})

    async def stop(self) -> None:
        self._host.folder.remove("api.json")
        await self._http.stop()

    async def _handle(self, request: Request) -> Response:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        try:
            return await routes.answer(self._host, request)
        except VeilError as error:
            return told(error)

    async def _upgrade(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Response | None:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        if request.path != "/v1/events" or request.headers.get("upgrade", "").lower() != "websocket":
            return refusal(HTTPStatus.NOT_FOUND, "refused", "path", "only /v1/events is a WebSocket")
        chosen = next((word for word in _subprotocols(request) if word.startswith(_SUBPROTOCOL)), None)
        try:
            await EventStream(self._host, request, chosen).run(reader, writer)
        except VeilError as error:
            return told(error)
        return None

    def _refusal(self, request: Request) -> Response | None:
        """What is said to who may not ask: a page of another site that was led here, or anyone without the token."""
        if not is_loopback(_hostname(f"//{request.headers.get('host', '')}") or ""):
            return refusal(HTTPStatus.FORBIDDEN, "refused", "host", "the local API is asked by its own address only")
        origin = _hostname(request.headers.get("origin", ""))
        if origin is not None and not is_loopback(origin):
            return refusal(HTTPStatus.FORBIDDEN, "refused", "origin", "not of this machine")
        if not any(hmac.compare_digest(found.encode(), self._token.encode()) for found in _tokens(request)):
            return refusal(HTTPStatus.UNAUTHORIZED, "refused", "token", "missing, or not this node's")
        return None


def _hostname(url: str) -> str | None:
    """None where it names no host; empty, which no host is, where it is no URL."""
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
