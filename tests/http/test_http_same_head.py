"""A repeated head is not parsed again, which makes no visible difference."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from plumbing.http import HttpServer, Request, Respond, Response, WebSocketHandler

HEAD = b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"


@dataclass
class Echo:
    """Responds with the request that it received."""

    seen: list[tuple[str, str, bytes]] = field(default_factory=list)
    shortcuts: int = 0

    def body_limit(self, method: str, path: str) -> int | None:
        return 100

    def too_large(self, head: Request) -> Response:
        return Response(413)

    def refused(self, status: int, reason: str, head: Request) -> Response:
        return Response(status)

    def upload(self, head: Request) -> None:
        return None

    def handle(self, request: Request, respond: Respond) -> None:
        self.seen.append((request.method, request.path, request.body))
        respond(Response(200, request.body))

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        self.shortcuts += 1
        return lambda body, respond: self.handle(replace(head, body=body), respond)

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        return Response(404)


async def exchange(pieces: list[bytes]) -> tuple[Echo, bytes]:
    """Send the pieces one by one, each after the responses to those before, then close."""
    app, server = Echo(), HttpServer(lambda place, error: None)
    await server.start(app, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    received = b""
    for piece in pieces:
        before = len(app.seen)
        writer.write(piece)
        await writer.drain()
        while len(app.seen) == before and not reader.at_eof():
            received += await reader.read(4096)
    writer.write_eof()
    received += await reader.read()
    writer.close()
    await server.stop(1)
    return app, received


def posted(body: bytes) -> bytes:
    return HEAD % len(body) + body


def test_the_same_head_with_other_bodies() -> None:
    app, _ = asyncio.run(exchange([posted(b"one"), posted(b"two"), posted(b"six")]))
    assert app.seen == [("POST", "/echo", body) for body in (b"one", b"two", b"six")]


def test_another_length_another_path_and_the_first_again() -> None:
    other = posted(b"two").replace(b"/echo", b"/ohce")
    app, _ = asyncio.run(exchange([posted(b"one"), posted(b"three"), other, posted(b"one")]))
    assert [path for _, path, _ in app.seen] == ["/echo", "/echo", "/ohce", "/echo"]
    assert [body for _, _, body in app.seen] == [b"one", b"three", b"two", b"one"]


@pytest.mark.parametrize("name", [b"content-length:", b"Content-Length:\t", b"CONTENT-LENGTH:  "])
def test_the_same_head_with_bodies_of_other_lengths_is_not_parsed_again(name: bytes) -> None:
    bodies = [b"x" * length for length in (3, 9, 10, 99, 100, 1)]
    pieces = [posted(body).replace(b"content-length: ", name) for body in bodies]
    app, received = asyncio.run(exchange(pieces))
    assert app.seen == [("POST", "/echo", body) for body in bodies]
    assert received.count(b"HTTP/1.1 200") == len(bodies)
    assert app.shortcuts == 1


def test_a_longer_body_than_the_limit_is_refused_after_the_same_head() -> None:
    app, received = asyncio.run(exchange([posted(b"one"), posted(b"x" * 101)]))
    assert [body for _, _, body in app.seen] == [b"one"]
    assert b"HTTP/1.1 413" in received


@pytest.mark.parametrize("digits", [b"2", b"03", b"+3", b"3 ", b"", b"3\r\ncontent-length: 3"])
def test_a_length_that_is_not_that_of_the_body_is_left_to_the_parser(digits: bytes) -> None:
    """Whether a request is first or repeats the head before, it is read in the same way."""
    odd = (posted(b"two")).replace(b": 3", b": " + digits)
    alone, _ = asyncio.run(exchange([odd]))
    after, _ = asyncio.run(exchange([posted(b"one"), odd]))
    assert after.seen[1:] == alone.seen


@pytest.mark.parametrize("body", [b"\r\n\r\n", b"POST /echo HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"])
def test_a_body_that_looks_like_a_head_is_a_body_each_time(body: bytes) -> None:
    app, _ = asyncio.run(exchange([posted(body)] * 3))
    assert app.seen == [("POST", "/echo", body)] * 3


def test_two_requests_in_one_piece_are_two_each_time() -> None:
    both = posted(b"one") + posted(b"two")
    app, _ = asyncio.run(exchange([both, both]))
    assert [body for _, _, body in app.seen] == [b"one", b"two"] * 2


def test_a_piece_that_starts_amid_a_body_does_not_become_a_head() -> None:
    """The rest of one body and a whole request: sent again on its own, it must be parsed as what it is."""
    tail = b"POST /smuggled HTTP/1.1\r\nx: "
    first = HEAD % (len(tail) + 1) + b"-"
    piece = tail + posted(b"two")

    async def run() -> Echo:
        app, server = Echo(), HttpServer(lambda place, error: None)
        await server.start(app, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(first)
        await writer.drain()
        await asyncio.sleep(0)  # so that the server reads the first part alone
        for _ in range(2):
            writer.write(piece)
            await writer.drain()
            await reader.read(4096)
        writer.close()
        await server.stop(1)
        return app

    app = asyncio.run(run())
    assert app.seen[:2] == [("POST", "/echo", b"-" + tail), ("POST", "/echo", b"two")]
    # Alone, the piece is one request: its line says /smuggled and the rest of its first line is a header's value.
    assert ("POST", "/smuggled", b"two") in app.seen[2:] or len(app.seen) == 2
