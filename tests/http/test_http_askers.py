"""What an app knows about the client, and bodies in many pieces: the same in both protocols."""

import asyncio
import socket
import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from h2.errors import ErrorCodes

from plumbing.http.http1 import Http1
from plumbing.http.http2 import Http2
from tests.http.h2client import connected
from tests.http.loopback import Echo, House, get, house, run


def place(home: House) -> Any:
    """The server's side of the only connection."""
    assert home.server._service is not None
    (found,) = home.server._service.roster.connections
    return found


# The client.


def test_requests_say_which_connection_they_are_of() -> None:
    async def test() -> None:
        async with house() as home:
            one, other, third = await home.connect(), await home.connect(), await connected(home)
            one.send(get("/later") * 2)
            await home.app.waits(2)
            other.send(get("/later"))
            await home.app.waits(3)
            for _ in range(2):
                third.ask("GET", "/later")
            await home.app.waits(5)
            found = [request.connection for request, _ in home.app.later]
            assert [isinstance(connection, Http1) for connection in found] == [True] * 3 + [False] * 2
            assert [found.index(connection) for connection in found] == [0, 0, 2, 3, 3]

    run(test)


def test_a_request_is_lost_with_its_connection() -> None:
    async def test() -> None:
        async with house() as home:
            one, other, third = await home.connect(), await home.connect(), await connected(home)
            for number, client in enumerate((one, other)):
                client.send(get("/later"))
                await home.app.waits(number + 1)
            third.ask("GET", "/later")
            await home.app.waits(3)
            first, second, last = [request for request, _ in home.app.later]
            assert not any(request.is_lost() for request in (first, second, last))
            for client in (one, third.client):
                raw = client.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
                client.writer.transport.abort()
            while home.server.connections > 1:
                await asyncio.sleep(0.001)
            assert [request.is_lost() for request in (first, second, last)] == [True, False, True]

    run(test)


def test_a_request_that_its_peer_takes_back_is_lost_and_others_are_not() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            back, stays = client.ask("GET", "/later/back"), client.ask("GET", "/later/stays")
            await home.app.waits(2)
            client.h2.reset_stream(back, ErrorCodes.CANCEL)
            client.flush()
            assert (await client.reply(client.ask("GET", "/"))).status == 200
            assert [request.is_lost() for request, _ in home.app.later] == [True, False]
            assert stays in client.replies

    run(test)


# Bodies in many pieces.

PIECES = 8_000


@pytest.mark.parametrize("protocol", ["1.1", "2"])
def test_a_body_in_tiny_pieces_takes_little_more_than_its_size(protocol: str) -> None:
    async def test() -> None:
        async with house(app=Echo(limit=1 << 20)) as home:
            if protocol == "1.1":
                client = await home.connect()
                client.send(b"POST / HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
                pieces = b"2\r\nab\r\n" * PIECES
            else:
                h2 = await connected(home)
                client, stream_id = h2.client, h2.ask("POST", "/", b"x", end=False)
                pieces = (b"\0\0\2\0\0" + struct.pack(">I", stream_id) + b"ab") * PIECES
            while not body_bytes(home):
                await asyncio.sleep(0.001)
            tracemalloc.start()
            try:
                client.send(pieces)
                while body_bytes(home) < 1 + 2 * PIECES:
                    await asyncio.sleep(0.001)
                assert tracemalloc.get_traced_memory()[0] < 16 * PIECES
            finally:
                tracemalloc.stop()

    run(test)


def body_bytes(home: House) -> int:
    """The number of body bytes received so far."""
    if not home.server.connections:
        return 0
    connection = place(home)
    if isinstance(connection, Http2):
        return sum(stream.body_bytes for stream in connection._streams.values())
    return connection._body_bytes if isinstance(connection, Http1) else 0


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2), (3, 3, 9)])
def test_a_body_is_put_together_from_its_pieces(cuts: tuple[int, ...]) -> None:
    async def test() -> None:
        body = b"0123456789"
        bounds = [0, *cuts, len(body)]
        pieces = [body[start:stop] for start, stop in pairwise(bounds) if start < stop]
        async with house() as home:
            plain, second = await home.connect(), await connected(home)
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            head = b"POST / HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n"
            for _ in range(2):  # the first leaves nothing behind
                assert (await plain.ask(head + chunks + b"0\r\n\r\n")).body == b"POST /  " + body
                stream_id = second.ask("POST", "/", end=False)
                for piece in pieces:
                    second.h2.send_data(stream_id, piece)
                second.h2.end_stream(stream_id)
                second.flush()
                assert (await second.reply(stream_id)).body == b"POST /  " + body
            assert all(type(request.body) is bytes for request in home.app.handled)

    run(test)
