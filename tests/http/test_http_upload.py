"""Bodies that the app receives in pieces: memory is bounded, and each end is reported exactly once."""

import asyncio

import pytest

from plumbing.http import HttpSettings, Response
from plumbing.http.http1 import Http1
from tests.http.h2client import H2Client, connected
from tests.http.loopback import BODY_LIMIT, PATIENCE_S, Answer, Client, Echo, House, Taker, get, house, run

MIB = 1 << 20
HASTY = HttpSettings(body_timeout_s=0.05, linger_s=0.05, idle_timeout_s=5.0)


def put(path: str, body: bytes, *fields: str) -> bytes:
    length = f"content-length: {len(body)}"
    return "\r\n".join([f"PUT {path} HTTP/1.1", "host: hub", length, *fields, "", ""]).encode() + body


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"PUT {path} HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


async def settled(home: House) -> None:
    """Wait until data in transit has arrived: a request of another connection comes after it."""
    other = await home.connect()
    assert (await other.ask(get("/"))).status == 200


def pipeline(home: House) -> Http1:
    (only,) = home.server._service.roster.connections  # type: ignore[union-attr]
    assert isinstance(only, Http1)
    return only


# HTTP/1.1.


@pytest.mark.parametrize("request_bytes", [put("/upload", b"x" * 900), chunked("/upload", b"x" * 400, b"x" * 500, b"")])
def test_a_body_reaches_the_app_piece_by_piece_and_the_connection_lives(request_bytes: bytes) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            for _ in range(2):
                answer = await client.ask(request_bytes)
                assert (answer.status, answer.body) == (201, b"900 bytes")
                assert "connection" not in answer.headers
            taker = home.app.uploads.get_nowait()
            assert taker.body == b"x" * 900
            assert (taker.ends, taker.aborted.is_set()) == (1, False)
            assert home.app.handled == []

    run(test)


def test_an_empty_body_has_an_end_too() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(put("/upload", b""))).body == b"0 bytes"
            assert (await client.ask(b"PUT /upload HTTP/1.1\r\nhost: hub\r\n\r\n")).body == b"0 bytes"

    run(test)


def test_only_what_the_app_wants_piece_by_piece_comes_so() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(put("/whole", b"body"))).body == b"PUT /whole  body"
            assert (await client.ask(put("/upload", b"body"))).body == b"4 bytes"
            assert (await client.ask(put("/whole", b"body"))).body == b"PUT /whole  body"

    run(test)


def test_the_answer_keeps_its_place_among_the_others() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later") + put("/upload-held", b"body") + get("/behind"))
            taker = await home.app.uploads.get()
            await taker.ended.wait()
            taker.respond(Response(201, b"kept"))
            home.app.later[0][1](Response(200, b"first"))
            assert [(await client.answer()).body for _ in range(3)] == [b"first", b"kept", b"GET /behind  "]

    run(test)


def test_the_last_answer_of_a_connection_may_be_an_uploads() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(put("/upload", b"body", "connection: close"))
            assert (answer.status, answer.headers["connection"]) == (201, "close")
            assert await client.ended() == b""

    run(test)


@pytest.mark.parametrize("path", ["/upload-refused", "/upload-stop"])
def test_a_refused_upload_is_answered_before_its_body(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(put(path, b"x" * BODY_LIMIT)[:100])
            assert answer.status in (403, 409)
            assert answer.headers["connection"] == "close"
            assert await client.ended() == b""

    run(test)


def test_an_upload_that_was_stopped_is_not_answered_again_for_its_size() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(chunked("/upload-stop", b"x" * BODY_LIMIT, b"x", b"") + get("/next"))
            assert (await client.answer()).status == 409
            assert await client.ended() == b""

    run(test)


def test_a_rejected_upload_gets_no_100_continue() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            request = put("/upload-refused", b"x" * 100, "expect: 100-continue")[:-100]
            assert (await client.ask(request)).status == 403
            other = await home.connect()
            assert (await other.ask(request.replace(b"-refused", b""))).status == 100
            assert (await other.ask(b"x" * 100)).status == 201

    run(test)


def test_the_app_may_end_an_upload_early_and_gets_no_more_data() -> None:
    async def test() -> None:
        async with house(app=Echo(limit=8 * MIB)) as home:
            client = await home.connect()
            client.send(put("/upload-held", b"x" * 8 * MIB)[:50_000])
            taker = await home.app.uploads.get()
            await taker.heard.wait()
            taker.respond(Response(503, b"full"))
            before = len(taker.body)
            client.send(b"x" * MIB)
            answer = await client.answer()
            assert (answer.status, answer.body, answer.headers["connection"]) == (503, b"full", "close")
            assert await client.ended() == b""
            assert (len(taker.body), taker.ends) == (before, 0)

    run(test)


def test_a_peer_that_leaves_during_a_body_is_reported_once() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(put("/upload-held", b"x" * 100)[:-1])
            taker = await home.app.uploads.get()
            client.writer.transport.abort()
            await taker.aborted.wait()
            taker.respond(Response(200))
            taker.pause(True)
            taker.pause(False)
            assert taker.ends == 1
            assert home.faults == []

    run(test)


def test_a_peer_that_leaves_after_its_body_leaves_a_whole_upload() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(put("/upload-held", b"body"))
            taker = await home.app.uploads.get()
            await taker.ended.wait()
            client.writer.transport.abort()
            await settled(home)
            taker.respond(Response(201))
            assert (taker.ends, taker.aborted.is_set()) == (1, False)

    run(test)


def test_a_peer_that_shuts_its_side_amid_a_body_gets_the_answers_before_it() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later") + put("/upload-held", b"body")[:-1])
            taker = await home.app.uploads.get()
            client.writer.write_eof()
            await taker.aborted.wait()
            home.app.later[0][1](Response(200, b"first"))
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"first", "close")
            assert await client.ended() == b""

    run(test)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (chunked("/upload-held", b"x" * BODY_LIMIT, b"x"), 413),
        (chunked("/upload-held", b"x") + b"nonsense\r\n", 400),
    ],
)
def test_what_the_front_refuses_amid_an_upload_is_answered_in_its_place(request_bytes: bytes, status: int) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/before") + request_bytes)
            assert (await client.answer()).status == 200
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            taker = home.app.uploads.get_nowait()
            assert (taker.ends, taker.aborted.is_set()) == (1, True)
            taker.respond(Response(200, b"too late"))
            assert await client.ended() == b""

    run(test)


def test_an_announced_body_over_the_limit_starts_no_upload() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(put("/upload", b"x" * (BODY_LIMIT + 1), "expect: 100-continue")[:-BODY_LIMIT])
            assert (answer.status, answer.body) == (413, b"too large: /upload")
            assert home.app.uploads.empty()

    run(test)


def test_an_upload_that_takes_too_long_is_given_up() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            client = await home.connect()
            client.send(put("/upload-held", b"body")[:-1])
            assert (await client.answer()).status == 408
            assert home.app.uploads.get_nowait().aborted.is_set()

    run(test)


async def paused_upload(home: House, size: int) -> tuple[Client, Taker]:
    client = await home.connect()
    client.send(put("/upload-paused", b"x" * size) + get("/next"))
    return client, await home.app.uploads.get()


def test_a_paused_upload_is_not_read_and_goes_on_where_it_was() -> None:
    async def test() -> None:
        size = 32 * MIB
        async with house(app=Echo(limit=size)) as home:
            client, taker = await paused_upload(home, size)
            for _ in range(20):
                await settled(home)
            # Only what was read before the pause is buffered.
            assert len(taker.body) < 8192
            assert len(pipeline_of(home, taker)._buffer) < MIB
            taker.pause(False)
            while len(taker.body) < size // 2:
                taker.heard.clear()
                await taker.heard.wait()
            taker.pause(True)
            await settled(home)
            taker.pause(False)
            await taker.ended.wait()
            assert len(taker.body) == size
            taker.respond(Response(201, b"kept"))
            assert (await client.answer()).body == b"kept"
            assert (await client.answer()).body == b"GET /next  "

    run(test)


def pipeline_of(home: House, taker: Taker) -> Http1:
    """The connection of an upload."""
    service = home.server._service
    assert service is not None
    found = [one for one in service.roster.connections if isinstance(one, Http1) and one.upload_body is not None]
    (only,) = found
    return only


def test_a_paused_upload_is_not_late() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            client, taker = await paused_upload(home, 10)
            late = await home.connect()
            late.send(put("/upload-held", b"body")[:-1])
            assert (await late.answer()).status == 408
            taker.pause(False)
            await taker.ended.wait()
            taker.respond(Response(201, b"kept"))
            assert (await client.answer()).body == b"kept"

    run(test)


def test_an_upload_paused_at_its_end_does_not_hold_up_what_comes_next() -> None:
    async def test() -> None:
        async with house() as home:
            client, taker = await paused_upload(home, 10)
            taker.pause(False)
            await taker.ended.wait()
            taker.pause(True)
            taker.respond(Response(201, b"kept"))
            assert (await client.answer()).body == b"kept"
            assert (await client.answer()).body == b"GET /next  "

    run(test)


def test_stopping_a_paused_upload_ends_the_connection() -> None:
    async def test() -> None:
        async with house(app=Echo(limit=8 * MIB)) as home:
            client, taker = await paused_upload(home, 8 * MIB)
            taker.respond(Response(503, b"full"))
            assert (await client.answer()).body == b"full"
            assert await client.ended() == b""

    run(test)


@pytest.mark.parametrize("path", ["/upload-raises", "/upload-data-raises", "/upload-end-raises"])
def test_a_fault_of_the_app_amid_an_upload_is_reported_and_answered(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(put(path, b"body"))).status == 500
            assert [type(error) for _, error in home.faults] == [LookupError]

    run(test)


def test_an_exception_in_on_abort_is_reported() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(put("/upload-abort-raises", b"body")[:-1])
            taker = await home.app.uploads.get()
            client.writer.transport.abort()
            await taker.aborted.wait()
            assert [type(error) for _, error in home.faults] == [LookupError]

    run(test)


def test_a_stop_lets_an_upload_finish() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(put("/upload", b"body")[:-1])
            taker = await home.app.uploads.get()
            await taker.heard.wait()
            stopping = asyncio.create_task(home.server.stop(PATIENCE_S))
            answer = await client.ask(b"y")
            assert (answer.status, answer.headers["connection"]) == (201, "close")
            await client.close()
            await stopping

    run(test)


def test_what_is_sent_after_the_last_answer_is_not_kept() -> None:
    async def test() -> None:
        async with house(HttpSettings(linger_s=5.0)) as home:
            client = await home.connect()
            client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
            held = pipeline(home)
            for _ in range(8):
                client.send(b"x" * MIB)
                await client.writer.drain()
            await settled(home)
            assert held._buffer == b""

    run(test)


# HTTP/2.


async def send_body(client: H2Client, stream_id: int, body: bytes, end: bool = True) -> None:
    """Within the windows that the server grants."""
    start = 0
    while start < len(body):
        size = min(client.h2.local_flow_control_window(stream_id), 16384, len(body) - start)
        if size == 0:
            assert await client.turn()
            continue
        client.h2.send_data(stream_id, body[start : start + size], end_stream=end and start + size == len(body))
        client.flush()
        start += size


def test_h2_a_body_reaches_the_app_piece_by_piece() -> None:
    async def test() -> None:
        size = 3 * MIB
        async with house(app=Echo(limit=size)) as home:
            client = await connected(home)
            stream_id = client.ask("PUT", "/upload", end=False)
            await send_body(client, stream_id, b"x" * size)
            reply = await client.reply(stream_id)
            assert (reply.status, reply.body) == (201, b"%d bytes" % size)
            taker = home.app.uploads.get_nowait()
            assert (len(taker.body), taker.ends) == (size, 1)
            assert len(taker.pieces) > 100
            assert (await client.reply(client.ask("PUT", "/upload", b""))).body == b"0 bytes"
            assert (await client.reply(client.ask("PUT", "/upload"))).body == b"0 bytes"

    run(test)


def test_h2_a_paused_upload_stops_at_its_window_and_goes_on() -> None:
    async def test() -> None:
        window = 100_000
        async with house(HttpSettings(h2_window_bytes=window), app=Echo(limit=MIB)) as home:
            client = await connected(home)
            stream_id = client.ask("PUT", "/upload-paused", end=False)
            taker = await home.app.uploads.get()
            sending = asyncio.create_task(send_body(client, stream_id, b"x" * MIB))
            while len(taker.body) < window:
                taker.heard.clear()
                await taker.heard.wait()
            await settled(home)
            assert len(taker.body) == window
            taker.pause(False)
            await taker.ended.wait()
            await sending
            taker.respond(Response(201, b"kept"))
            assert (await client.reply(stream_id)).body == b"kept"

    run(test)


@pytest.mark.parametrize("how", ["stop", "reset"])
def test_h2_the_window_of_a_paused_upload_that_ends_is_given_back(how: str) -> None:
    async def test() -> None:
        window = 100_000
        async with house(HttpSettings(h2_window_bytes=window), app=Echo(limit=MIB)) as home:
            client = await connected(home)
            stream_id = client.ask("PUT", "/upload-paused", end=False)
            taker = await home.app.uploads.get()
            sending = asyncio.create_task(send_body(client, stream_id, b"x" * window, end=False))
            while len(taker.body) < window:
                taker.heard.clear()
                await taker.heard.wait()
            await sending
            if how == "stop":
                taker.respond(Response(503, b"full"))
                assert (await client.reply(stream_id)).body == b"full"
            else:
                client.h2.reset_stream(stream_id)
                client.flush()
                await taker.aborted.wait()
            stream_id = client.ask("PUT", "/upload", end=False)
            await send_body(client, stream_id, b"x" * MIB)
            assert (await client.reply(stream_id)).status == 201

    run(test)


@pytest.mark.parametrize("path", ["/upload-refused", "/upload-stop"])
def test_h2_a_refused_upload_is_answered_before_its_body_and_the_connection_lives(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            assert (await client.reply(client.ask("PUT", path, end=False))).status in (403, 409)
            assert (await client.reply(client.ask("PUT", "/upload", b"body"))).status == 201

    run(test)


def test_h2_the_app_may_end_an_upload_early_and_gets_no_more_data() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            stream_id = client.ask("PUT", "/upload-held", b"part", end=False)
            taker = await home.app.uploads.get()
            await taker.heard.wait()
            taker.respond(Response(503, b"full"))
            assert (await client.reply(stream_id)).body == b"full"
            await client.reply(client.ask("GET", "/"))
            assert (taker.body, taker.ends) == (b"part", 0)

    run(test)


@pytest.mark.parametrize("how", ["reset", "leave"])
def test_h2_a_peer_that_leaves_during_a_body_is_reported_once(how: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            stream_id = client.ask("PUT", "/upload-held", b"part", end=False)
            taker = await home.app.uploads.get()
            await taker.heard.wait()
            if how == "reset":
                client.h2.reset_stream(stream_id)
                client.flush()
            else:
                client.client.writer.transport.abort()
            await taker.aborted.wait()
            taker.respond(Response(200))
            assert taker.ends == 1
            assert home.faults == []

    run(test)


def test_h2_a_body_over_the_limit_is_answered_by_the_front() -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            reply = await client.reply(client.ask("PUT", "/upload-held", b"x" * (BODY_LIMIT + 1), end=False))
            assert (reply.status, reply.body) == (413, b"too large: /upload-held")
            taker = home.app.uploads.get_nowait()
            taker.respond(Response(200))
            assert (taker.ends, taker.aborted.is_set()) == (1, True)
            announced = client.ask("PUT", "/upload", None, ("content-length", str(BODY_LIMIT + 1)), end=False)
            assert (await client.reply(announced)).status == 413
            assert home.app.uploads.empty()

    run(test)


def test_h2_an_upload_that_takes_too_long_is_given_up_and_a_paused_one_is_not() -> None:
    async def test() -> None:
        async with house(HASTY) as home:
            client = await connected(home)
            paused = client.ask("PUT", "/upload-paused", b"body")
            held = await home.app.uploads.get()
            late = client.ask("PUT", "/upload-held", b"part", end=False)
            assert (await client.reply(late)).status == 408
            assert (await home.app.uploads.get()).aborted.is_set()
            await held.ended.wait()
            held.respond(Response(201))
            assert (await client.reply(paused)).status == 201

    run(test)


@pytest.mark.parametrize("path", ["/upload-raises", "/upload-data-raises", "/upload-end-raises"])
def test_h2_a_fault_of_the_app_amid_an_upload_is_reported_and_answered(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await connected(home)
            assert (await client.reply(client.ask("PUT", path, b"body"))).status == 500
            assert [type(error) for _, error in home.faults] == [LookupError]
            assert (await client.reply(client.ask("GET", "/fine"))).status == 200

    run(test)


async def _answers(client: Client, count: int) -> list[Answer]:
    return [await client.answer() for _ in range(count)]


def test_an_upload_may_follow_an_upload_without_waiting() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(b"".join(put("/upload", b"x" * size) for size in (5, 0, 7)) + get("/end"))
            bodies = [answer.body for answer in await _answers(client, 4)]
            assert bodies == [b"5 bytes", b"0 bytes", b"7 bytes", b"GET /end  "]

    run(test)
