"""A small HTTP/1.1 server for the local API: bounded, one request at a time, parsed by `httptools`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httptools

from veil.lanes import Unavailable
from veil.lanes.byte_stream import close_writer
from veil.veil_errors import Malformed, Refused, Unverified, VeilError

MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 524_288
MAX_CONNECTIONS = 64
IDLE_SECONDS = 120.0  # between two requests
REQUEST_SECONDS = 30.0  # to receive a request, and to send its response
LINGER_SECONDS = 2.0
LINGER_BYTES = 4 * MAX_BODY_BYTES
_READ_BYTES = 65_536


@dataclass(slots=True)
class Request:
    """One request. `head` has the raw bytes, for a protocol upgrade."""

    method: str = ""
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    head: bytes = b""
    upgrade: bool = False
    keep_alive: bool = True


@dataclass(frozen=True, slots=True)
class Response:
    """One response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json(cls, data: object, status: int = HTTPStatus.OK) -> "Response":
        return cls(status, json.dumps(data, separators=(",", ":")).encode() + b"\n")

    def encode(self, *, keep_alive: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"content-type: {self.content_type}",
            f"content-length: {len(self.body)}",
            f"connection: {'keep-alive' if keep_alive else 'close'}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


class BadRequest(Exception):
    """The request is invalid or exceeds a bound."""


Handle = Callable[[Request], Awaitable[Response]]
Upgrade = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Response | None]]


class _Parser:
    """Builds one request from the callbacks of `httptools`."""

    def __init__(self) -> None:
        self.request = Request()
        self.done = False
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._in_body = False
        self._in_second = False
        self._body = bytearray()  # may arrive in many small chunks

    def feed(self, data: bytes) -> None:
        if not self._in_body:
            self.request.head += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.request.upgrade = True
            self.done = True
        except httptools.HttpParserError as error:
            raise BadRequest(f"not HTTP: {error}") from None
        if self._in_second:
            # Both requests are mixed in the parser, so reject both.
            raise BadRequest("pipelined requests are not supported")
        if not self._in_body and len(self.request.head) > MAX_HEAD_BYTES:
            raise BadRequest(f"the head has more than {MAX_HEAD_BYTES} bytes")
        if len(self._body) > MAX_BODY_BYTES:
            raise BadRequest(f"the body has more than {MAX_BODY_BYTES} bytes")
        if self.done:
            self.request.body = bytes(self._body)

    def on_message_begin(self) -> None:
        self._in_second = self.done

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_body = True
        parts = urlsplit(self._url.decode("latin-1"))
        self.request.method = self._parser.get_method().decode("ascii")
        self.request.path = parts.path
        self.request.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.request.keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.done = True


class HttpServer:
    """Serves one address. `upgrade` takes over a connection, or returns an error response."""

    def __init__(self, handle: Handle, upgrade: Upgrade, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self._handle = handle
        self._upgrade = upgrade
        self._request_seconds = request_seconds
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port, which the system chooses for port 0."""
        self._server = await asyncio.start_server(self._on_connection, host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return  # the client is gone or too slow
        finally:
            await close_writer(writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Return whether the connection stays open."""
        parser = _Parser()
        try:
            async with asyncio.timeout(IDLE_SECONDS) as deadline:
                while not parser.done:
                    data = await reader.read(_READ_BYTES)
                    if not data:
                        return False
                    if not parser.request.head:
                        deadline.reschedule(asyncio.get_running_loop().time() + self._request_seconds)
                    parser.feed(data)
        except BadRequest as bad:
            error = {"kind": "malformed", "what": "request", "reason": str(bad)}
            writer.write(Response.json({"error": error}, HTTPStatus.BAD_REQUEST).encode(keep_alive=False))
            await _drain_input(reader, writer)
            return False
        request = parser.request
        if request.upgrade:
            refused = await self._upgrade(request, reader, writer)
            if refused is not None:
                writer.write(refused.encode(keep_alive=False))
                await self._drain(writer)
            return False
        answer = await self._handle(request)
        writer.write(answer.encode(keep_alive=request.keep_alive))
        await self._drain(writer)
        return request.keep_alive

    async def _drain(self, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._request_seconds):
            await writer.drain()


async def _drain_input(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Drain the input before closing: otherwise a TCP reset could discard the response."""
    left = LINGER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            await writer.drain()
            writer.write_eof()
            while left > 0 and (data := await reader.read(_READ_BYTES)):
                left -= len(data)


# HTTP status and error kind by class. A test checks that the table is complete.
STATUS: dict[type[VeilError], tuple[int, str]] = {
    Malformed: (HTTPStatus.BAD_REQUEST, "malformed"),
    Unverified: (HTTPStatus.UNPROCESSABLE_ENTITY, "unverified"),
    Refused: (HTTPStatus.CONFLICT, "refused"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}


def error_response(error: VeilError) -> Response:
    status, kind = next(STATUS[one] for one in type(error).__mro__ if one in STATUS)
    return failure(status, kind, error.what, error.reason, *getattr(error, "__notes__", ()))


def failure(status: int, kind: str, what: str, reason: str, *hints: str) -> Response:
    return Response.json({"error": {"kind": kind, "what": what, "reason": reason, "hints": list(hints)}}, status)
