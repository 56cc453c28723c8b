"""Limits on what a peer can use: time, connections, memory. And how a server stops."""

import asyncio
import socket
import struct
from dataclasses import replace
from ipaddress import ip_network

import pytest

from plumbing.http import HttpServer, HttpSettings, Response
from plumbing.http.connection import BodyMemoryLimit
from plumbing.http.peer_address import caller_of
from tests.http.loopback import PATIENCE_S, Client, Echo, House, get, house, post, run

HASTY = HttpSettings(
    header_timeout_s=0.05, body_timeout_s=0.05, idle_timeout_s=0.05, write_timeout_s=0.05, linger_s=0.05
)
MIB = 1 << 20


async def gone(home: House) -> None:
    """Wait until the server has no connection."""
    while home.server.connections:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (get("/")[:2], b"the head took too long\n"),
        (get("/")[:5], b"the head took too long\n"),
        (get("/")[:-2], b"the head took too long\n"),
        (post("/", b"body")[:-1], b"the body took too long\n"),
    ],
)
def test_a_request_that_does_not_come_to_its_end_is_given_up(part: bytes, reason: bytes) -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            client = await home.connect()
            answer = await client.ask(part)
            assert (answer.status, answer.body) == (408, reason)
            assert answer.headers["connection"] == "close"
            assert await client.ended() == b""

    run(test)


@pytest.mark.parametrize("step", [b"x", b"y" * 5000])
def test_dribbling_does_not_extend_the_time_for_a_body(step: bytes) -> None:
    async def test() -> None:
        # The server's clock is slow on a busy machine. At this rate, the data sent grants no time.
        settings = replace(HASTY, min_bytes_per_s=1 << 30)
        async with house(settings, app=Echo(limit=MIB)) as home:
            client = await home.connect()
            client.send(post("/", b"x" * MIB)[:100])

            async def dribble() -> None:
                while True:
                    client.send(step)
                    await asyncio.sleep(0.01)

            task = asyncio.create_task(dribble())
            assert (await client.answer()).status == 408
            task.cancel()

    run(test)


def test_a_timeout_waits_its_turn_behind_the_answers_before_it() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            client = await home.connect()
            client.send(get("/later") + get("/never")[:-2])
            await home.app.waits(1)
            other = await home.connect()
            assert (await other.ask(get("/")[:-2])).status == 408
            home.app.later[0][1](Response(200, b"late"))
            assert (await client.answer()).body == b"late"
            assert (await client.answer()).status == 408

    run(test)


def test_a_head_is_not_late_while_we_do_not_listen() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_pipelined=1, header_timeout_s=2.0)) as home:
            held, other = await home.connect(), await home.connect()
            held.send(get("/later") + get("/next")[:-2])
            await home.app.waits(1)
            assert (await other.ask(get("/")[:-2])).status == 408
            home.app.later[0][1](Response(200, b"late"))
            assert (await held.answer()).body == b"late"
            await asyncio.sleep(0.15)  # until the timer checks it, well within its time
            assert (await held.ask(b"\r\n")).body == b"GET /next  "

    run(test)


def test_an_idle_connection_is_closed_without_a_response() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            silent, used = await home.connect(), await home.connect()
            assert (await used.ask(get("/"))).status == 200
            assert await silent.ended() == b""
            assert await used.ended() == b""

    run(test)


def test_a_connection_that_waits_for_the_app_is_not_idle() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            waiting, idle = await home.connect(), await home.connect()
            waiting.send(get("/later"))
            await home.app.waits(1)
            assert (await idle.ask(get("/"))).status == 200
            assert await idle.ended() == b""
            home.app.later[0][1](Response(200, b"at last"))
            assert (await waiting.answer()).body == b"at last"

    run(test)


def test_one_timer_serves_all_connections() -> None:
    async def test() -> None:
        async with house() as home:
            loop = asyncio.get_running_loop()
            clients = [await home.connect() for _ in range(20)]
            for client in clients:
                client.send(post("/", b"body")[:-1])
            assert (await clients[0].ask(b"y")).status == 200
            timers: list[object] = loop._scheduled  # type: ignore[attr-defined]
            # One of the server, one of this test.
            assert len(timers) == 2

    run(test)


def test_a_connection_beyond_the_limit_gets_503_and_a_free_place_is_reused() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_connections=2)) as home:
            first, second = await home.connect(), await home.connect()
            assert (await first.ask(get("/"))).status == 200
            assert (await second.ask(get("/"))).status == 200
            third = await home.connect()
            answer = await third.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert await third.ended() == b""
            await first.close()
            while home.server.connections == 2:
                await asyncio.sleep(0.001)
            fourth = await home.connect()
            assert (await fourth.ask(get("/"))).status == 200

    run(test)


def test_an_address_beyond_its_limit_gets_503_and_others_do_not() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_connections_per_address=2)) as home:
            first, second = await home.connect(), await home.connect()
            assert (await first.ask(get("/"))).status == (await second.ask(get("/"))).status == 200
            third = await home.connect()
            answer = await third.answer()
            assert (answer.status, answer.body) == (503, b"too many connections from this address\n")
            assert await third.ended() == b""
            for other in [await home.connect(source="127.0.0.2") for _ in range(2)]:
                assert (await other.ask(get("/"))).status == 200
            assert (home.callers, home.server.connections) == (2, 4)
            await first.close()
            while home.server.connections == 4:
                await asyncio.sleep(0.001)
            assert (await (await home.connect()).ask(get("/"))).status == 200
            assert home.server.refused_connections == {"total": 0, "address": 1}

    run(test)


def test_connections_refused_at_the_total_are_counted_as_such() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_connections=1, max_connections_per_address=1)) as home:
            first = await home.connect()
            assert (await first.ask(get("/"))).status == 200
            assert (await (await home.connect()).answer()).body == b"too many connections\n"
            assert home.server.refused_connections == {"total": 1, "address": 0}

    run(test)


UNCOUNTED = (ip_network("192.0.2.0/24"), ip_network("2001:db8:5::/48"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7", "::ffff:198.51.100.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ("fe80::1%eth0", "fe80::2%eth1"),
    ],
)
def test_two_addresses_of_one_caller_are_counted_together(one: str, other: str) -> None:
    assert caller_of(one, UNCOUNTED) == caller_of(other, UNCOUNTED) is not None


@pytest.mark.parametrize(
    ("one", "other"), [("198.51.100.7", "198.51.100.8"), ("2001:db8:1:2::1", "2001:db8:1:3::1"), ("::1", "0.0.0.1")]
)
def test_two_callers_are_counted_apart(one: str, other: str) -> None:
    assert caller_of(one, UNCOUNTED) != caller_of(other, UNCOUNTED)


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.200", "2001:db8:5:1::1"])
def test_a_network_the_operator_names_is_not_counted(address: str) -> None:
    assert caller_of(address, UNCOUNTED) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_connections_are_not_counted_by_default(address: str) -> None:
    assert caller_of(address, HttpSettings().uncounted_networks) is None
    assert caller_of("10.0.0.1", HttpSettings().uncounted_networks) is not None


@pytest.mark.parametrize("rudely", [False, True])
def test_a_client_that_leaves_before_its_response_disturbs_no_other(rudely: bool) -> None:
    async def test() -> None:
        async with house() as home:
            leaver, stayer = await home.connect(), await home.connect()
            leaver.send(get("/later/leaver") + get("/later/leaver-too"))
            stayer.send(get("/later/stayer"))
            await home.app.waits(3)
            if rudely:
                raw: socket.socket = leaver.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.writer.transport.abort()
            while rudely and home.server.connections == 2:
                await asyncio.sleep(0.001)
            for request, respond in home.app.later:
                respond(Response(200, request.path.encode()))
            assert (await stayer.answer()).body == b"/later/stayer"
            while home.server.connections == 2:
                await asyncio.sleep(0.001)
            assert home.faults == []

    run(test)


def test_no_more_requests_are_taken_than_may_wait() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_pipelined=4)) as home:
            client = await home.connect()
            request = get("/later", f"x: {'x' * 4000}")
            client.send(request * 50)
            await home.app.waits(4)
            other = await home.connect()
            await other.ask(get("/the-rest-has-been-read"))
            # A piece of input has at most one of these, so at most one more was processed.
            assert 4 <= len(home.app.later) <= 5
            answered = 0
            while answered < 50:
                await home.app.waits(answered + 1)
                home.app.later[answered][1](Response(200, b"%d" % answered))
                assert (await client.answer()).body == b"%d" % answered
                answered += 1
                assert len(home.app.later) - answered <= 5

    run(test)


def test_many_tiny_pipelined_requests_are_all_answered_in_order() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_pipelined=4)) as home:
            client = await home.connect()
            client.send(b"".join(get(f"/{number}") for number in range(3000)))
            for number in range(3000):
                assert (await client.answer()).body == b"GET /%d  " % number

    run(test)


async def reluctant(home: House) -> Client:
    """A client with the smallest buffers, which are soon full."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", home.server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    return home.know(Client(reader, writer))


def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async def test() -> None:
        async with house(HttpSettings(write_high_bytes=10_000), app=Echo(big=b"x" * 4 * MIB)) as home:
            client, other = await reluctant(home), await home.connect()
            # Larger than a piece of input, so that they are not processed at once.
            client.send(get("/big", f"x: {'x' * 5000}") * 4)
            await home.app.arrivals.get()
            for _ in range(20):
                await other.ask(get("/time-passes"))
            assert sum(request.path == "/big" for request in home.app.handled) <= 2
            for _ in range(4):
                assert b"content-length: %d" % (4 * MIB) in await client.reader.readuntil(b"\r\n\r\n")
                assert await client.reader.readexactly(4 * MIB) == b"x" * 4 * MIB

    run(test)


def test_a_peer_that_never_reads_is_cut_off() -> None:
    async def test() -> None:
        settings = HttpSettings(
            write_high_bytes=10_000, write_timeout_s=0.05, min_bytes_per_s=1 << 30, linger_s=0.05, idle_timeout_s=9.0
        )
        async with house(settings, app=Echo(big=b"x" * 16 * MIB)) as home:
            client = await reluctant(home)
            client.send(get("/big"))
            await home.app.arrivals.get()
            await gone(home)
            assert len(await client.reader.read()) < 16 * MIB  # the rest was never sent

    run(test)


def test_an_early_refusal_reaches_a_peer_that_is_still_sending() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(post("/large", b"x" * 4 * MIB))
            answer = await client.answer()
            assert (answer.status, answer.body) == (413, b"too large: /large")

    run(test)


def test_stop_lets_what_is_under_way_finish() -> None:
    async def test() -> None:
        async with house() as home:
            idle, waiting, sending = [await home.connect() for _ in range(3)]
            assert (await idle.ask(get("/"))).status == 200
            waiting.send(get("/later/1") + get("/later/2"))
            sending.send(post("/sent", b"body")[:-1])
            await home.app.waits(2)
            assert (await idle.ask(get("/"))).status == 200
            port = home.server.port
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            assert await idle.ended() == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            for request, respond in home.app.later:
                respond(Response(200, request.path.encode()))
            first, second = await waiting.answer(), await waiting.answer()
            assert (first.body, first.headers.get("connection")) == (b"/later/1", None)
            assert (second.body, second.headers.get("connection")) == (b"/later/2", "close")
            last = await sending.ask(b"y" + get("/too-late"))
            assert (last.body, last.headers["connection"]) == (b"POST /sent  body"[:-1] + b"y", "close")
            for client in (idle, waiting, sending):
                assert await client.ended() == b""
                await client.close()
            await stopping
            assert [request.path for request in home.app.handled if request.path == "/too-late"] == []

    run(test)


def test_stop_does_not_wait_longer_than_its_grace() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later"))
            await home.app.waits(1)
            await home.server.stop(0.01)
            assert await client.ended() == b""
            home.app.later[0][1](Response(200, b"too late"))

    run(test)


def test_a_port_in_use_is_an_error_and_stop_before_start_is_not() -> None:
    async def test() -> None:
        async with house() as home:
            second = HttpServer(lambda place, error: None)
            with pytest.raises(OSError, match="in use"):
                await second.start(Echo(), "127.0.0.1", home.server.port)
            await second.stop(0)

    run(test)


def test_a_name_with_several_addresses_has_one_port() -> None:
    async def test() -> None:
        server = HttpServer(lambda place, error: None)
        await server.start(Echo(), "localhost", 0)
        assert {listener.getsockname()[1] for listener in server.sockets} == {server.port}
        await server.stop(0)

    run(test)


# Memory of unfinished bodies.

FREE = BodyMemoryLimit.FREE_BYTES
CROWDED = HttpSettings(max_bodies_bytes=200_000)


def unfinished(size: int) -> bytes:
    """A request that lacks the last byte of its body."""
    return post("/", b"x" * (size + 1))[:-1]


def room_left(home: House) -> int:
    assert home.server._service is not None
    return home.server._service.body_memory._left


def test_long_bodies_share_one_memory_limit_and_get_503_beyond_it() -> None:
    async def test() -> None:
        async with house(CROWDED, app=Echo(limit=MIB)) as home:
            first, second, small = [await home.connect() for _ in range(3)]
            first.send(unfinished(FREE + 150_000))
            while room_left(home) > 50_000:
                await asyncio.sleep(0.001)
            second.send(unfinished(FREE + 150_000))
            answer = await second.answer()
            assert (answer.status, answer.body) == (503, b"the server is receiving too many bytes at once\n")
            # Short bodies need no memory, and bodies begun before can end.
            assert (await small.ask(post("/", b"x" * FREE))).status == 200
            assert (await first.ask(b"x")).status == 200
            assert await second.ended() == b""
            await second.close()
            while room_left(home) < 200_000:
                await asyncio.sleep(0.001)

    run(test)


@pytest.mark.parametrize("how", ["leaves", "is late", "is too large"])
def test_an_unfinished_body_gives_its_memory_back(how: str) -> None:
    async def test() -> None:
        settings = HttpSettings(max_bodies_bytes=200_000, body_timeout_s=0.1, linger_s=0.05, min_bytes_per_s=1 << 30)
        async with house(settings, app=Echo(limit=FREE + 150_000)) as home:
            client = await home.connect()
            if how == "is too large":
                head = b"POST / HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n"
                client.send(head + b"%x\r\n" % (2 * FREE + 200_000) + b"x" * (FREE + 150_001))
                assert (await client.answer()).status == 413
            else:
                client.send(unfinished(FREE + 100_000))
                while room_left(home) > 100_000:
                    await asyncio.sleep(0.001)
            if how == "leaves":
                client.writer.transport.abort()
            if how == "is late":
                assert (await client.answer()).status == 408
            while room_left(home) < 200_000:
                await asyncio.sleep(0.001)

    run(test)


def test_an_upload_takes_no_room() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_bodies_bytes=0), app=Echo(limit=MIB)) as home:
            client = await home.connect()
            request = post("/upload", b"x" * MIB).replace(b"POST", b"PUT")
            assert (await client.ask(request)).status == 201
            assert (await client.ask(post("/", b"x" * (FREE + 1)))).status == 503

    run(test)
