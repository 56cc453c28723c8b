"""A real server on 127.0.0.1 with an app whose responses the test controls, and raw clients."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from plumbing.http import HttpServer, HttpSettings, Request, Respond, Response, Upload, WebSocketHandler

PATIENCE_S = 300.0
BODY_LIMIT = 1000


class Recorder:
    """A WebSocket handler that records its messages."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.full = asyncio.Event()
        self.drained = asyncio.Event()
        self.closed = asyncio.Event()
        self.closings = 0
        self.send: Callable[[bytes], bool]
        self.close: Callable[[int], None]

    def on_open(self, send: Callable[[bytes], bool], close: Callable[[int], None]) -> None:
        self.send, self.close = send, close
        self.opened.set()

    def on_message(self, data: bytes) -> None:
        if data == b"raise":
            raise LookupError("the handler failed")
        self.messages.put_nowait(data)

    def on_full(self) -> None:
        self.full.set()

    def on_drain(self) -> None:
        self.drained.set()

    def on_close(self) -> None:
        self.closings += 1
        self.closed.set()


class Taker:
    """An upload that records its data and behaves as its path says; the test sends its response."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pieces: list[bytes] = []
        self.heard = asyncio.Event()
        self.ended = asyncio.Event()
        self.aborted = asyncio.Event()
        self.ends = 0
        self.respond: Respond
        self.pause: Callable[[bool], None]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def on_start(self, respond: Respond, pause: Callable[[bool], None]) -> None:
        self.respond, self.pause = respond, pause
        if self.path == "/upload-stop":
            respond(Response(409, b"no more"))
        if self.path == "/upload-paused":
            pause(True)

    def on_data(self, data: bytes) -> None:
        if self.path == "/upload-data-raises":
            raise LookupError("no data")
        self.pieces.append(data)
        self.heard.set()

    def on_end(self) -> None:
        if self.path == "/upload-end-raises":
            raise LookupError("no end")
        self.ends += 1
        self.ended.set()
        if self.path == "/upload":
            self.respond(Response(201, b"%d bytes" % len(self.body)))

    def on_abort(self) -> None:
        self.ends += 1
        self.aborted.set()
        if self.path == "/upload-abort-raises":
            raise LookupError("no abort")


@dataclass
class Echo:
    """Responds at once with method, path, query and body; /later waits for the test, /big sends much data."""

    limit: int = BODY_LIMIT
    big: bytes = b""
    handled: list[Request] = field(default_factory=list)
    later: list[tuple[Request, Respond]] = field(default_factory=list)
    arrivals: asyncio.Queue[Request] = field(default_factory=asyncio.Queue)
    sockets: asyncio.Queue[Recorder] = field(default_factory=asyncio.Queue)
    uploads: "asyncio.Queue[Taker]" = field(default_factory=asyncio.Queue)
    refusals: list[tuple[int, Request]] = field(default_factory=list)

    def body_limit(self, method: str, path: str) -> int | None:
        if path == "/limit-raises":
            raise LookupError("no limit")
        return None if path.startswith("/unknown") else self.limit

    def too_large(self, head: Request) -> Response:
        return Response(413, b"too large: " + head.path.encode())

    def refused(self, status: int, reason: str, head: Request) -> Response:
        self.refusals.append((status, head))
        return Response(status, f"{reason or HTTPStatus(status).phrase}\n".encode())

    def upload(self, head: Request) -> Upload | Response | None:
        if head.path == "/upload-raises":
            raise LookupError("no upload")
        if head.path == "/upload-refused":
            return Response(403, b"not you")
        if not head.path.startswith("/upload"):
            return None
        taker = Taker(head.path)
        self.uploads.put_nowait(taker)
        return taker

    def handle(self, request: Request, respond: Respond) -> None:
        self.handled.append(request)
        self.arrivals.put_nowait(request)
        if request.path == "/raise":
            raise LookupError("the app failed")
        if request.path == "/bad-header":
            respond(Response(200, headers=((b"x", b"a\r\nset-cookie: b"),)))
        elif request.path.startswith("/later"):
            self.later.append((request, respond))
        elif request.path == "/big":
            respond(Response(200, self.big))
        elif request.path == "/empty":
            respond(Response(204))
        elif request.path.startswith("/unknown"):
            respond(Response(404, b"unknown"))
        else:
            respond(Response(200, f"{request.method} {request.path} {request.query} ".encode() + request.body))

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        return lambda body, respond: self.handle(replace(head, body=body), respond)

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        if head.path != "/ws":
            return Response(403, b"no")
        recorder = Recorder()
        self.sockets.put_nowait(recorder)
        return recorder

    async def waits(self, count: int) -> None:
        """Wait until `count` responses are held back."""
        while len(self.later) < count:
            await self.arrivals.get()


@dataclass
class House:
    """A running server, its app, and the faults it reported."""

    server: HttpServer
    app: Echo
    faults: list[tuple[str, BaseException]]
    clients: "list[Client]" = field(default_factory=list)

    async def connect(self, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> "Client":
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=tls, server_hostname=name, local_addr=(source, 0)
        )
        return self.know(Client(reader, writer))

    @property
    def callers(self) -> int:
        """The number of addresses with a connection."""
        assert self.server._service is not None
        return len(self.server._service.roster.callers)

    def know(self, client: "Client") -> "Client":
        """Close it when the test is over, however it ends."""
        self.clients.append(client)
        return client


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Client:
    """Sends raw bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, bodiless: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = dict(one.split(": ", 1) for one in fields)
        size = 0 if bodiless else int(headers.get("content-length", "0"))
        return Answer(int(line.split(" ")[1]), headers, await self.reader.readexactly(size))

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    async def ended(self) -> bytes:
        """Everything until the server closes; a reset counts as the end."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            return


@asynccontextmanager
async def house(
    settings: HttpSettings | None = None, tls: ssl.SSLContext | None = None, app: Echo | None = None
) -> AsyncIterator[House]:
    """A server that also counts connections from this machine, so that each test checks that counts return to 0."""
    settings = replace(settings or HttpSettings(), uncounted_networks=())
    faults: list[tuple[str, BaseException]] = []
    server = HttpServer(lambda place, error: faults.append((place, error)))
    app = app or Echo()
    await server.start(app, "127.0.0.1", 0, tls=tls, settings=settings)
    home = House(server, app, faults)
    try:
        yield home
    finally:
        for client in home.clients:
            client.writer.transport.abort()
        await server.stop(0)
    assert (server.connections, home.callers) == (0, 0)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test coroutine; fails if it hangs."""
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: hub", *fields, "", ""]).encode()


def post(path: str, body: bytes, *fields: str) -> bytes:
    length = f"content-length: {len(body)}"
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: hub", length, *fields, "", ""]).encode() + body
