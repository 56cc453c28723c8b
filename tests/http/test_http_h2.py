"""HTTP/2 in clear text by prior knowledge; the same connections over TLS are in test_http_tls.py."""

import asyncio
import socket

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from plumbing.http import HttpSettings, Response
from plumbing.http.connection import BodyMemoryLimit, Connection
from tests.http.h2client import connected
from tests.http.loopback import BODY_LIMIT, PATIENCE_S, Echo, House, house, run

MIB = 1 << 20


def test_requests_are_answered_with_what_they_asked() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            reply = await client.reply(client.ask("POST", "/echo?q=1", b"body"))
            assert (reply.status, reply.body) == (200, b"POST /echo q=1 body")
            assert reply.headers[b"content-length"] == b"%d" % len(reply.body)
            assert (await client.reply(client.ask("GET", "/"))).body == b"GET /  "
            request = home.app.handled[0]
            assert (request.http_version, request.headers, request.peer) == ("2", {b"host": b"hub"}, "127.0.0.1")

    run(test)


def test_the_preface_may_arrive_in_pieces() -> None:
    async def test() -> None:
        async with house() as home:
            raw = await home.connect()
            sent = H2Connection(H2Configuration(client_side=True))
            sent.initiate_connection()
            for byte in sent.data_to_send():
                raw.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await raw.reader.readexactly(9))[3] == 4  # SETTINGS

    run(test)


def test_answers_come_as_they_are_ready() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            first, second = client.ask("GET", "/later/1"), client.ask("GET", "/later/2")
            await home.app.waits(2)
            home.app.later[1][1](Response(200, b"second"))
            assert (await client.reply(second)).body == b"second"
            assert not client.replies[first].ended
            home.app.later[0][1](Response(200, b"first"))
            assert (await client.reply(first)).body == b"first"

    run(test)


def test_head_and_no_content_have_no_body() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            head = await client.reply(client.ask("HEAD", "/h"))
            assert (head.body, head.headers[b"content-length"]) == (b"", b"9")
            empty = await client.reply(client.ask("GET", "/empty"))
            assert (empty.status, b"content-length" in empty.headers) == (204, False)

    run(test)


def test_a_large_answer_respects_the_windows_of_the_peer() -> None:
    async def test() -> None:
        async with house(app=Echo(big=b"x" * MIB)) as home:
            client = await connected(home, greedy=False)
            big = client.ask("GET", "/big")
            window = 65535
            while len(client.replies[big].body) < window:
                await client.turn()
            # The connection's window is used up; responses without body still pass.
            assert (await client.reply(client.ask("GET", "/empty"))).status == 204
            assert len(client.replies[big].body) == window
            client.greedy = True
            client.h2.acknowledge_received_data(window, big)
            client.flush()
            assert (await client.reply(big)).body == b"x" * MIB

    run(test)


def test_frames_leave_without_waiting_for_each_other() -> None:
    async def test() -> None:
        async with house(app=Echo(big=b"x" * MIB)) as home:
            client = await connected(home)
            assert (await client.reply(client.ask("GET", "/big"))).ended
            raw: socket.socket = place(home).transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(test)


def place(home: House) -> Connection:
    """The server's side of the only connection."""
    (only,) = home.server._service.roster.connections  # type: ignore[union-attr]
    return only


def test_an_answer_does_not_pile_up_where_the_peer_does_not_read() -> None:
    async def test() -> None:
        size, high = 8 * MIB, 50_000
        async with house(HttpSettings(write_high_bytes=high), app=Echo(big=b"x" * size)) as home:
            client = await connected(home)
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2 * size})
            client.h2.increment_flow_control_window(2 * size)
            client.flush()
            assert (await client.reply(client.ask("GET", "/empty"))).status == 204
            home.app.arrivals.get_nowait()
            client.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stream_id = client.ask("GET", "/big")
            await home.app.arrivals.get()
            assert place(home).write_paused
            assert high < place(home).transport.get_write_buffer_size() < 2 * high
            client.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await client.reply(stream_id)).body) == size

    run(test)


def test_two_large_answers_share_the_window() -> None:
    async def test() -> None:
        async with house(app=Echo(big=b"x" * MIB)) as home:
            client = await connected(home)
            first, second = client.ask("GET", "/big"), client.ask("GET", "/big")
            while len(client.replies[second].body) < MIB // 2:
                assert await client.turn()
            assert not client.replies[first].ended
            assert (await client.reply(first)).body == (await client.reply(second)).body

    run(test)


def test_a_large_upload_is_read_to_its_end() -> None:
    async def test() -> None:
        body = b"y" * (MIB + MIB // 2)
        async with house(app=Echo(limit=len(body))) as home:
            client = await connected(home)
            stream_id, start = client.ask("POST", "/up", end=False), 0
            while start < len(body):
                size = min(client.h2.local_flow_control_window(stream_id), 16384, len(body) - start)
                if size == 0:
                    assert await client.turn()
                    continue
                client.h2.send_data(stream_id, body[start : start + size], end_stream=start + size == len(body))
                client.flush()
                start += size
            assert (await client.reply(stream_id)).body == b"POST /up  " + body

    run(test)


@pytest.mark.parametrize("announced", [False, True])
def test_a_body_over_the_limit_is_refused_and_the_connection_lives(announced: bool) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            fields = [("content-length", str(BODY_LIMIT + 1))] if announced else []
            body = None if announced else b"x" * (BODY_LIMIT + 1)
            reply = await client.reply(client.ask("POST", "/large", body, *fields, end=False))
            assert (reply.status, reply.body) == (413, b"too large: /large")
            assert (await client.reply(client.ask("GET", "/next"))).status == 200
            assert reply.reset == ErrorCodes.NO_ERROR
            assert [request.path for request in home.app.handled] == ["/next"]

    run(test)


def test_long_bodies_share_one_memory_limit_with_all_connections() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_bodies_bytes=40_000, max_h2_upload_bytes=MIB), app=Echo(limit=MIB)) as home:
            client = await connected(home)

            def send(stream_id: int, size: int, end: bool = False) -> None:
                for start in range(0, size, 4_000):
                    client.h2.send_data(stream_id, b"x" * min(4_000, size - start), end_stream=False)
                client.h2.send_data(stream_id, b"x", end_stream=end)
                client.flush()

            window = BodyMemoryLimit.FREE_BYTES + 30_000
            first, second = client.ask("POST", "/first", end=False), client.ask("POST", "/second", end=False)
            while client.h2.local_flow_control_window(first) < 2 * window:
                assert await client.turn()
            send(first, window)
            send(second, window)
            assert (await client.reply(second)).status == 503
            client.h2.end_stream(first)
            client.flush()
            assert (await client.reply(first)).status == 200
            third = client.ask("POST", "/third", end=False)
            send(third, window, end=True)
            assert (await client.reply(third)).status == 200
            assert home.server._service.body_memory._left == 40_000  # type: ignore[union-attr]

    run(test)


def test_an_unknown_path_is_answered_without_its_body_and_once() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            early = client.ask("POST", "/unknown", end=False)
            assert (await client.reply(early)).status == 404
            assert (await client.reply(client.ask("POST", "/unknown", b"body"))).status == 404
            assert [request.body for request in home.app.handled] == [b"", b""]

    run(test)


def test_a_client_that_expects_100_gets_100_continue() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            stream_id = client.ask("POST", "/e", None, ("expect", "100-continue"), end=False)
            while not client.replies[stream_id].told_to_go_on:
                assert await client.turn()
            client.h2.send_data(stream_id, b"body", end_stream=True)
            client.flush()
            assert (await client.reply(stream_id)).body == b"POST /e  body"

    run(test)


@pytest.mark.parametrize("path", ["/raise", "/limit-raises", "/bad-header"])
def test_a_fault_of_the_app_is_reported_and_answered(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            assert (await client.reply(client.ask("GET", path))).status == 500
            assert len(home.faults) == 1
            assert (await client.reply(client.ask("GET", "/fine"))).status == 200

    run(test)


BAD_HEADS = [
    ((("x", "x" * 20_000),), 431),
    (tuple((f"x{n}", "y") for n in range(101)), 431),
    ((("content-type", "a"), ("content-type", "b")), 400),
]


@pytest.mark.parametrize(("fields", "status"), BAD_HEADS)
def test_a_bad_head_is_refused_and_the_connection_lives(fields: tuple[tuple[str, str], ...], status: int) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            assert (await client.reply(client.ask("GET", "/", None, *fields))).status == status
            assert (await client.reply(client.ask("GET", "/next"))).status == 200

    run(test)


def test_a_head_without_measure_ends_the_connection() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_header_bytes=1000)) as home:
            client = await connected(home)
            client.ask("GET", "/", None, ("x", "x" * 10_000))
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM
            assert home.app.handled == []

    run(test)


def test_a_reset_by_the_client_makes_its_answer_a_no_op() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            taken_back, kept = client.ask("GET", "/later/1"), client.ask("GET", "/later/2")
            await home.app.waits(2)
            client.h2.reset_stream(taken_back, ErrorCodes.CANCEL)
            client.flush()
            assert (await client.reply(client.ask("GET", "/the-reset-has-been-read"))).status == 200
            for _, respond in home.app.later:
                respond(Response(200, b"answer"))
            assert (await client.reply(kept)).body == b"answer"
            assert client.replies[taken_back].status == 0
            assert home.faults == []

    run(test)


def test_rapid_reset_ends_the_connection_and_spares_the_app() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=20)) as home:
            client = await connected(home)
            for _ in range(100):
                stream_id = client.h2.get_next_available_stream_id()
                head = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "hub")]
                client.h2.send_headers(stream_id, head, end_stream=True)
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            client.flush()
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM
            assert home.app.handled == []

    run(test)


def test_resets_one_by_one_are_counted_too() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=20)) as home:
            client = await connected(home)
            # One less than the limit: the client's SETTINGS count as well.
            for count in range(20):
                stream_id = client.ask("GET", "/later")
                await home.app.waits(count + 1)
                client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
                client.flush()
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM

    run(test)


def test_a_flood_of_pings_ends_the_connection() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_resets=20)) as home:
            client = await connected(home)
            client.h2.ping(b"eight by")
            client.flush()
            while client.pongs == 0:
                assert await client.turn()
            for _ in range(50):
                client.h2.ping(b"eight by")
            client.flush()
            assert await client.ended() == ErrorCodes.ENHANCE_YOUR_CALM

    run(test)


def test_more_streams_than_were_offered_end_the_connection() -> None:
    async def test() -> None:
        async with house(HttpSettings(max_h2_streams=3)) as home:
            client = await connected(home)
            while SettingCodes.MAX_CONCURRENT_STREAMS not in client.settings:
                assert await client.turn()
            assert client.settings[SettingCodes.MAX_CONCURRENT_STREAMS] == 3
            for _ in range(3):
                client.ask("GET", "/later")
            await home.app.waits(3)
            client.h2.remote_settings.max_concurrent_streams = 100
            client.h2.remote_settings.acknowledge()
            client.ask("GET", "/later")
            assert await client.ended() is not None
            assert len(home.app.later) == 3

    run(test)


def test_unfinished_uploads_together_are_bounded() -> None:
    async def test() -> None:
        settings = HttpSettings(max_h2_upload_bytes=20_000)
        async with house(settings, app=Echo(limit=MIB)) as home:
            client = await connected(home)
            first = client.ask("POST", "/first", b"x" * 15_000, end=False)
            second = client.ask("POST", "/second", b"x" * 15_000, end=False)
            assert (await client.reply(second)).reset == ErrorCodes.ENHANCE_YOUR_CALM
            client.h2.send_data(first, b"x" * 15_000, end_stream=True)
            client.flush()
            assert len((await client.reply(first)).body) > 30_000

    run(test)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def test() -> None:
        async with house(HttpSettings(body_timeout_s=0.05)) as home:
            client = await connected(home)
            reply = await client.reply(client.ask("POST", "/slow", b"x", end=False))
            assert (reply.status, reply.body) == (408, b"the body took too long\n")

    run(test)


def test_an_answer_that_is_not_taken_is_given_up() -> None:
    async def test() -> None:
        settings = HttpSettings(write_timeout_s=0.05, min_bytes_per_s=1 << 30)
        async with house(settings, app=Echo(big=b"x" * MIB)) as home:
            client = await connected(home, greedy=False)
            assert (await client.reply(client.ask("GET", "/big"))).reset == ErrorCodes.CANCEL

    run(test)


def test_an_idle_connection_gets_a_goaway() -> None:
    async def test() -> None:
        async with house(HttpSettings(idle_timeout_s=0.05)) as home:
            client = await connected(home)
            assert (await client.reply(client.ask("GET", "/"))).status == 200
            assert await client.ended() == ErrorCodes.NO_ERROR

    run(test)


SHORT_PING = b"\0\0\x01\x06\0\0\0\0\0x"
ZERO_INCREMENT = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0"
OVERLONG = b"\0\x40\x01\0\0\0\0\0\x01"


@pytest.mark.parametrize("frame", [SHORT_PING, ZERO_INCREMENT, OVERLONG])
def test_a_broken_frame_ends_the_connection(frame: bytes) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            client.client.send(frame)
            assert await client.ended() not in (None, ErrorCodes.NO_ERROR)

    run(test)


def test_stop_lets_the_streams_finish_and_takes_no_new_ones() -> None:
    async def test() -> None:
        async with house(app=Echo(big=b"")) as home:
            client, idle = await connected(home), await connected(home)
            waiting = client.ask("GET", "/later")
            await home.app.waits(1)
            assert (await idle.reply(idle.ask("GET", "/"))).status == 200
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            assert await idle.ended() == ErrorCodes.NO_ERROR
            late = client.ask("GET", "/late")
            # The client's h2 stops at a GOAWAY, so its frames are parsed one by one.
            data = b""
            while (3, late) not in frames(data):
                data += await client.client.reader.read(1 << 16)
            home.app.later[0][1](Response(200, b"z" * 5000))
            data += await client.client.ended()
            assert (7, 0) in frames(data)
            assert (0, waiting) in frames(data)
            assert b"z" * 5000 in data
            await client.client.close()
            await stopping
            assert [request.path for request in home.app.handled] == ["/later", "/"]

    run(test)


def frames(data: bytes) -> list[tuple[int, int]]:
    """The type and the stream of each frame."""
    found = []
    while data:
        size = int.from_bytes(data[:3])
        found.append((data[3], int.from_bytes(data[5:9])))
        data = data[9 + size :]
    return found


def test_a_client_that_leaves_before_its_response_disturbs_no_other() -> None:
    async def test() -> None:
        async with house() as home:
            leaver, stayer = await connected(home), await connected(home)
            leaver.ask("GET", "/later/1")
            stream_id = stayer.ask("GET", "/later/2")
            await home.app.waits(2)
            leaver.client.writer.transport.abort()
            while home.server.connections == 2:
                await asyncio.sleep(0.001)
            for _, respond in home.app.later:
                respond(Response(200, b"answer"))
            assert (await stayer.reply(stream_id)).body == b"answer"
            assert home.faults == []

    run(test)
