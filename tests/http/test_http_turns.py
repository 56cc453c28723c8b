"""A peer that sends much at once does not delay others: all connections take turns."""

import asyncio
import struct
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes

from plumbing.http import HttpSettings, Response
from plumbing.http.connection import CONNECTIONS_PER_TURN, UNIT_BYTES
from tests.http.h2client import H2Client, connected
from tests.http.loopback import Client, Echo, House, get, house, post, run

UNITS = 8
FEW = HttpSettings(max_turn_units=UNITS)
MANY = 1500
UPGRADE = get(
    "/ws",
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
)
# Turns of the loop: input of one turn may be processed further before this test runs again.
TURNS_BETWEEN_LOOKS = 2


async def most_in_a_turn(done: Callable[[], int], upto: int) -> int:
    """The maximum work between two turns of this task, until everything is done."""
    most = before = done()
    while before < upto:
        await asyncio.sleep(0)
        now = done()
        most, before = max(most, now - before), now
    return most


def paths(home: House) -> list[str]:
    return [request.path for request in home.app.handled]


async def answered(client: Client, count: int) -> list[bytes]:
    return [(await client.answer()).body for _ in range(count)]


# HTTP/1.1.


@pytest.mark.parametrize("request_", [get("/a"), post("/a", b"x" * 700)], ids=["without", "with a body"])
def test_a_turn_takes_so_many_requests_and_all_are_answered(request_: bytes) -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await home.connect()
            client.send(request_ * MANY)
            reading = asyncio.create_task(answered(client, MANY))
            most = await most_in_a_turn(lambda: len(home.app.handled), MANY)
            assert 0 < most <= TURNS_BETWEEN_LOOKS * UNITS
            assert len(await reading) == MANY

    run(test)


def test_a_short_read_of_many_tiny_requests_is_no_shortcut() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await home.connect()
            client.send(b"GET / HTTP/1.1\r\nhost:h\r\n\r\n" * 150)
            assert await most_in_a_turn(lambda: len(home.app.handled), 150) <= TURNS_BETWEEN_LOOKS * UNITS
            assert len(await answered(client, 150)) == 150

    run(test)


def test_a_long_answer_counts_for_more() -> None:
    async def test() -> None:
        async with house(FEW, app=Echo(big=bytes(UNITS * UNIT_BYTES))) as home:
            client = await home.connect()
            client.send(get("/big") * 100)
            reading = asyncio.create_task(answered(client, 100))
            assert await most_in_a_turn(lambda: len(home.app.handled), 100) <= TURNS_BETWEEN_LOOKS
            assert len(await reading) == 100

    run(test)


def test_answers_keep_their_order_over_many_turns() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await home.connect()
            names = [f"/later/{number}" if number % 50 == 7 else f"/{number}" for number in range(400)]
            client.send(b"".join(map(get, names)))
            bodies = []
            for name in names:
                if name.startswith("/later"):
                    await home.app.waits(1)
                    home.app.later.pop(0)[1](Response(200, f"GET {name}  ".encode()))
                bodies.append((await client.answer()).body)
            assert bodies == [f"GET {name}  ".encode() for name in names]

    run(test)


def test_what_was_read_before_the_end_is_answered() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await home.connect()
            client.send(get("/a") * 500)
            client.writer.write_eof()
            assert len(await answered(client, 500)) == 500
            assert await client.ended() == b""

    run(test)


def test_a_long_body_takes_nothing_from_the_turn() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_turn_units=1), app=Echo(limit=1 << 20)) as home:
            client = await home.connect()
            body = bytes(range(256)) * 1000
            client.send(post("/body", body) + get("/next"))
            assert (await client.answer()).body == b"POST /body  " + body
            assert (await client.answer()).body == b"GET /next  "

    run(test)


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_chunks_of_any_size_come_together(size: int) -> None:
    async def test() -> None:
        async with house(FEW, app=Echo(limit=1 << 20)) as home:
            client = await home.connect()
            body = bytes(range(256)) * 40
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            head = b"POST /c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
            client.send(head + chunks + b"0\r\n\r\n" + get("/next"))
            assert (await client.answer()).body == b"POST /c  " + body
            assert (await client.answer()).body == b"GET /next  "

    run(test)


def test_many_peers_take_turns_and_none_is_left_behind() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            clients = [await home.connect() for _ in range(3 * CONNECTIONS_PER_TURN)]
            for number, client in enumerate(clients):
                client.send(get(f"/{number}") * 300)
            reading = [asyncio.create_task(answered(client, 300)) for client in clients]
            total = 300 * len(clients)
            await most_in_a_turn(lambda: len(home.app.handled), total)
            first_to_end = min(last_place(paths(home), f"/{number}") for number in range(len(clients)))
            seen = paths(home)[: first_to_end + 1]
            assert min(seen.count(f"/{number}") for number in range(len(clients))) > 300 // 4
            assert sum(map(len, await asyncio.gather(*reading))) == total

    run(test)


def last_place(found: list[str], path: str) -> int:
    return len(found) - 1 - found[::-1].index(path)


# HTTP/2.


def frame(kind: int, payload: bytes = b"", stream_id: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + struct.pack(">I", stream_id) + payload


IDLE_FRAMES = {
    "WINDOW_UPDATE": frame(8, struct.pack(">I", 1)),
    "PRIORITY": frame(2, struct.pack(">IB", 0, 16), stream_id=1),
    "of an unknown type": frame(0x5B),
    "SETTINGS, acknowledged": frame(4, flags=1),
}


def test_a_turn_takes_so_many_http2_requests() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await connected(home)
            asked = [client.ask("GET", f"/{number}") for number in range(100)]
            most = await most_in_a_turn(lambda: len(home.app.handled), 100)
            assert most <= TURNS_BETWEEN_LOOKS * UNITS // 4
            assert [(await client.reply(one)).body for one in asked] == [b"GET /%d  " % n for n in range(100)]

    run(test)


@pytest.mark.parametrize("name", IDLE_FRAMES)
def test_frames_that_ask_nothing_end_the_connection_that_sends_no_others(name: str) -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=20)) as home:
            client = await connected(home)
            client.client.send(IDLE_FRAMES[name] * 500)
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM

    run(test)


@pytest.mark.parametrize("name", IDLE_FRAMES)
def test_some_of_them_are_free(name: str) -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=1)) as home:
            client = await connected(home)
            client.client.send(IDLE_FRAMES[name] * 10)
            assert (await client.reply(client.ask("GET", "/"))).status == 200

    run(test)


def test_a_peer_may_open_its_windows_for_every_frame() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=1), app=Echo(big=bytes(1 << 20))) as home:
            client = await connected(home, greedy=False)
            client.h2.increment_flow_control_window(1 << 24)
            client.flush()
            for _ in range(3):
                asked = client.ask("GET", "/big", None)
                reply = client.replies[asked]
                seen = 0
                while not reply.ended:
                    assert await client.turn(), "the server closed"
                    if len(reply.body) > seen and not reply.ended:
                        client.h2.increment_flow_control_window(len(reply.body) - seen, asked)
                        client.h2.increment_flow_control_window(1)
                        client.flush()
                        seen = len(reply.body)
                assert len(reply.body) == 1 << 20

    run(test)


def test_strikes_are_counted_as_it_goes() -> None:
    """Not only after all of the input was processed."""

    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=20, max_turn_units=UNITS)) as home:
            client = await connected(home)
            client.client.send(frame(6, bytes(8)) * 5000)
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM
            assert client.pongs <= 20 + UNITS

    run(test)


async def uploads(client: H2Client, pieces: int) -> int:
    asked = client.ask("POST", "/body", b"", end=False)
    client.client.send(frame(0, b"x", asked) * pieces + frame(0, b"", asked, flags=1))
    return asked


def test_a_body_in_tiny_frames_is_read_in_many_turns() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client, other = await connected(home), await home.connect()
            asked = await uploads(client, 900)
            assert (await other.ask(get("/other"))).status == 200
            assert (await client.reply(asked)).body == b"POST /body  " + b"x" * 900
            assert paths(home) == ["/other", "/body"]

    run(test)


# WebSocket.


def test_a_turn_takes_so_much_of_a_websocket() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(UPGRADE)
            recorder = await home.app.sockets.get()
            client.send(b"\x82\x80\0\0\0\0" * 5000)
            most = await most_in_a_turn(lambda: recorder.messages.qsize(), 5000)
            assert most <= TURNS_BETWEEN_LOOKS * (512 // 6 + 1)

    run(test)


def test_input_after_the_upgrade_is_processed_in_order() -> None:
    async def test() -> None:
        async with house(FEW) as home:
            client = await home.connect()
            said = [b"%d" % number for number in range(2000)]
            client.send(UPGRADE + b"".join(b"\x82" + bytes([0x80 + len(one)]) + b"\0\0\0\0" + one for one in said))
            recorder = await home.app.sockets.get()
            assert [await recorder.messages.get() for _ in said] == said

    run(test)
