"""The API server: authentication, requests, and events over a WebSocket.

A WebSocket gets the events after `since`, then new ones, each as one JSON text message. Nothing is queued per reader:
events are read from the store at the pace of the reader. A reader that is too slow gets an event of kind `gap`.
"""

import asyncio
import hmac
import json
import logging
import os
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import parse_qsl

from plumbing.background import Tasks
from plumbing.http import HttpServer, HttpSettings, Request, Respond, Response, WebSocketHandler
from plumbing.http.peer_address import authority_of, host_of, is_loopback
from veil.api import routes
from veil.api.api_client import STATUS
from veil.api.routes import RequestFields
from veil.node import Event
from veil.runtime.daemon import Host
from veil.runtime.data_directory import host_port
from veil.veil_errors import Malformed, Unavailable, VeilError

MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 524_288
REQUEST_SECONDS = 30.0  # to receive a request, and to send its response
_STOP_SECONDS = 2.0
_EVENTS_PER_TURN = 64
_ANY_SEQ = (1 << 53) - 1
_SUBPROTOCOL = "veil.token."
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


def settings(request_seconds: float = REQUEST_SECONDS) -> HttpSettings:
    return HttpSettings(
        max_connections=64,
        max_header_bytes=MAX_HEAD_BYTES,
        header_timeout_s=request_seconds / 2,
        body_timeout_s=request_seconds / 2,
        write_timeout_s=request_seconds,
        min_bytes_per_s=1 << 40,  # a longer body gets no more time
        idle_timeout_s=120.0,
    )


class ApiServer:
    """Serves the local API of one node. It is the app of the HTTP server."""

    def __init__(self, host: Host, http_settings: HttpSettings | None = None) -> None:
        self._host = host
        self._token = host.directory.token().encode()
        self._settings = http_settings or settings()
        self._http = HttpServer(_log_bug)
        self._waiting = Tasks()
        self.url = ""

    async def start(self) -> None:
        """Listen, and write the URL to `api.json`."""
        address, port = host_port(self._host.settings.api)
        try:
            await self._http.start(self, address, port, settings=self._settings)
        except OSError as error:
            refused = Unavailable(f"{address}:{port}", error.strerror or str(error))
            refused.add_note("the address may be in use: choose another with veil node set --api HOST:PORT")
            raise refused from None
        shown = f"[{address}]" if ":" in address else address
        self.url = f"http://{shown}:{self._http.port}"
        self._host.directory.write("api.json", {"url": self.url, "pid": os.getpid()})

    async def stop(self) -> None:
        self._host.directory.remove("api.json")
        await self._waiting.stop()
        await self._http.stop(_STOP_SECONDS)

    def body_limit(self, method: str, path: str) -> int | None:
        return MAX_BODY_BYTES

    def too_large(self, head: Request) -> Response:
        return _failure(HTTPStatus.BAD_REQUEST, "malformed", "request", f"more than {MAX_BODY_BYTES} bytes in the body")

    def refused(self, status: int, reason: str, head: Request) -> Response | None:
        if status == HTTPStatus.REQUEST_TIMEOUT:
            return None
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _failure(status, "unavailable", "node", reason or "internal error; see node.log")
        return _failure(HTTPStatus.BAD_REQUEST, "malformed", "request", reason or HTTPStatus(status).phrase)

    def upload(self, head: Request) -> None:
        return None

    def shortcut(self, head: Request) -> None:
        return None

    def handle(self, request: Request, respond: Respond) -> None:
        refused = self._rejection(request)
        if refused is not None:
            respond(refused)
            return
        try:
            found = self._answer(request)
        except VeilError as error:
            found = _error_response(error)
        if isinstance(found, Awaitable):
            self._waiting.start(self._respond_later(found, respond))
        else:
            respond(found)

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        refused = self._rejection(head)
        if refused is not None:
            return refused
        if head.path != "/v1/events":
            return _failure(HTTPStatus.NOT_FOUND, "refused", "path", "only /v1/events is a WebSocket")
        try:
            since = _query(head).number("since", self._host.node.last_seq, _ANY_SEQ)
        except Malformed as error:
            return _error_response(error)
        return EventStream(self._host, since, next(iter(_token_words(head)), None))

    def _answer(self, request: Request) -> Response | Awaitable[object]:
        """Run the handler of a route. Raise `VeilError` if it fails."""
        route = routes.ROUTES.get((request.method, request.path))
        if route is None:
            known = {method for method, path in routes.ROUTES if path == request.path}
            if known:
                reason = f"{request.path} supports only {', '.join(sorted(known))}"
                return _failure(HTTPStatus.METHOD_NOT_ALLOWED, "refused", "method", reason)
            return _failure(HTTPStatus.NOT_FOUND, "refused", "path", f"{request.path} does not exist")
        in_body = request.method == "POST" or request.body
        found = route(self._host, RequestFields.body(request.body) if in_body else _query(request))
        self._host.wake_timers()
        return found if isinstance(found, Awaitable) else _success(found)

    async def _respond_later(self, work: Awaitable[object], respond: Respond) -> None:
        try:
            response = _success(await work)
            self._host.wake_timers()
        except VeilError as error:
            response = _error_response(error)
        except asyncio.CancelledError:
            response = _failure(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "node", "the node stops")
        except Exception as error:  # noqa: BLE001  the client gets a response in any case
            _log_bug("a waiting request", error)
            response = _failure(HTTPStatus.INTERNAL_SERVER_ERROR, "unavailable", "node", "internal error; see node.log")
        respond(response)

    def _rejection(self, request: Request) -> Response | None:
        """The error response for a foreign Host or Origin (DNS rebinding, other sites) or a wrong token."""
        if not is_loopback(host_of(_header(request, b"host"))):
            return _failure(HTTPStatus.FORBIDDEN, "refused", "host", "the Host header is not a loopback address")
        origin = _header(request, b"origin")
        if origin and not is_loopback(host_of(authority_of(origin))):
            return _failure(HTTPStatus.FORBIDDEN, "refused", "origin", "the Origin header is not a loopback address")
        scheme, _, bearer = _header(request, b"authorization").partition(" ")
        tokens = [word.removeprefix(_SUBPROTOCOL) for word in _token_words(request)]
        tokens += [bearer.strip()] if scheme.lower() == "bearer" else []
        if not any(hmac.compare_digest(token.encode(), self._token) for token in tokens):
            return _failure(HTTPStatus.UNAUTHORIZED, "refused", "token", "missing or wrong; see api.token")
        return None


class EventStream:
    """One WebSocket reader of events. The server names `subprotocol`, if any, when it accepts the upgrade."""

    def __init__(self, host: Host, since: int, subprotocol: str | None) -> None:
        self.subprotocol = subprotocol
        self._host = host
        self._since = since
        self._is_due = False
        self._is_open = True

    def on_open(self, send: Callable[[bytes | str], bool], close: Callable[[int], None]) -> None:
        self._send = send
        self._host.listeners.add(self._on_event)
        self._send_soon()

    def on_message(self, data: bytes) -> None:
        """Ignore messages: readers only receive."""

    def on_full(self) -> None:
        """The next event is read from the store when there is room for it."""

    def on_drain(self) -> None:
        self._send_soon()

    def on_close(self) -> None:
        self._is_open = False
        self._host.listeners.discard(self._on_event)

    def _on_event(self, event: Event) -> None:
        self._send_soon()

    def _send_soon(self) -> None:
        """Send in a later turn: the node may be in the middle of a change."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_events)

    def _send_events(self) -> None:
        self._is_due = False
        node = self._host.node
        if not self._is_open:
            return
        if self._since + 1 < node.first_seq:
            gap = {"seq": node.first_seq - 1, "kind": "gap", "data": {"from": self._since + 1}}
            if not self._send(json.dumps(gap)):
                return
            self._since = node.first_seq - 1
        known = routes.names(self._host)
        for event in node.events(self._since, _EVENTS_PER_TURN):
            if not self._send(json.dumps(routes.event(event, known))):
                return  # `on_drain` continues
            self._since = event.seq
        if self._since < node.last_seq:
            self._send_soon()


def _header(request: Request, name: bytes) -> str:
    return request.headers.get(name, b"").decode("latin-1")


def _token_words(request: Request) -> list[str]:
    """The subprotocols that carry a token, for browsers, which cannot set other headers."""
    words = (word.strip() for word in _header(request, b"sec-websocket-protocol").split(","))
    return [word for word in words if word.startswith(_SUBPROTOCOL)]


def _query(request: Request) -> RequestFields:
    return RequestFields(dict(parse_qsl(request.query, keep_blank_values=True)))


def _success(found: object) -> Response:
    if isinstance(found, str):
        return Response(HTTPStatus.OK, found.encode(), b"text/plain; version=0.0.4; charset=utf-8", _HEADERS)
    return _json(HTTPStatus.OK, routes.plain(found))


def _error_response(error: VeilError) -> Response:
    status, kind = next(STATUS[one] for one in type(error).__mro__ if one in STATUS)
    return _failure(status, kind, error.what, error.reason, *getattr(error, "__notes__", ()))


def _failure(status: int, kind: str, what: str, reason: str, *hints: str) -> Response:
    return _json(status, {"error": {"kind": kind, "what": what, "reason": reason, "hints": list(hints)}})


def _json(status: int, data: object) -> Response:
    return Response(status, json.dumps(data, separators=(",", ":")).encode() + b"\n", b"application/json", _HEADERS)


def _log_bug(place: str, error: BaseException) -> None:
    logging.getLogger("veil").error("veil: bug in %s", place, exc_info=error)
