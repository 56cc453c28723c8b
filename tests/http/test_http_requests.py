"""HTTP/1.1: responses, their order, and rejected requests."""

import asyncio

import pytest

from plumbing.http import HttpSettings, Response
from tests.http.loopback import BODY_LIMIT, Echo, get, house, post, run

HOST = b"host: hub\r\n"


def test_one_connection_serves_many_requests() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            for number in range(5):
                answer = await client.ask(post(f"/echo?n={number}", b"body"))
                assert answer.status == 200
                assert answer.body == f"POST /echo n={number} body".encode()
                assert "connection" not in answer.headers
                assert answer.headers["date"].endswith("GMT")
            assert home.server.connections == 1
            assert home.app.handled[0].peer == "127.0.0.1"
            assert home.app.handled[0].headers == {b"host": b"hub", b"content-length": b"4"}

    run(test)


def test_a_request_may_arrive_byte_by_byte() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            for byte in post("/bytes", b"body"):
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer()).body == b"POST /bytes  body"

    run(test)


def test_pipelined_answers_keep_the_order_of_requests_when_the_app_does_not() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(b"".join([get("/later/0"), get("/now"), get("/later/1"), get("/later/2")]))
            await home.app.waits(3)
            for request, respond in reversed(home.app.later):
                respond(Response(200, request.path.encode()))
            bodies = [(await client.answer()).body for _ in range(4)]
            assert bodies == [b"/later/0", b"GET /now  ", b"/later/1", b"/later/2"]

    run(test)


REFUSED_EARLY = [
    (b"GET / HTTP/1.1\r\nbad line\r\n\r\n", 400),
    (post("/large", b"x" * (BODY_LIMIT + 1)), 413),
    (get("/", f"x: {'x' * 20_000}"), 431),
    (post("/unknown", b"unread"), 404),
    (get("/", "expect: miracles"), 417),
]


@pytest.mark.parametrize(("bad", "status"), REFUSED_EARLY)
def test_an_early_refusal_does_not_overtake_the_answers_before_it(bad: bytes, status: int) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later/a") + get("/later/b") + bad)
            await home.app.waits(2)
            (_, first), (_, second) = home.app.later
            second(Response(200, b"second"))
            first(Response(200, b"first"))
            assert (await client.answer()).body == b"first"
            assert (await client.answer()).body == b"second"
            refused = await client.answer()
            assert refused.status == status
            assert refused.headers["connection"] == "close"
            assert await client.ended() == b""

    run(test)


def test_pipelined_answers_of_one_turn_leave_in_one_write() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(b"".join(get(f"/later/{number}") for number in range(8)))
            await home.app.waits(8)
            for request, respond in home.app.later:
                respond(Response(200, request.path.encode()))
            data = await client.reader.read(1 << 16)
            assert data.count(b"HTTP/1.1 200 OK") == 8

    run(test)


def test_a_second_response_raises() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later"))
            await home.app.waits(1)
            respond = home.app.later[0][1]
            respond(Response(200))
            with pytest.raises(RuntimeError, match="called twice"):
                respond(Response(200))
            assert (await client.answer()).status == 200

    run(test)


def test_a_chunked_body_is_read_and_its_trailers_are_not_headers() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            head = b"POST /c HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
            answer = await client.ask(head + b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nauthorization: forged\r\n\r\n")
            assert answer.body == b"POST /c  abcdefg"
            assert b"authorization" not in home.app.handled[0].headers
            assert (await client.ask(get("/next"))).status == 200

    run(test)


def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            chunk = b"%x\r\n%b\r\n" % (BODY_LIMIT, b"x" * BODY_LIMIT)
            client.send(b"POST /c HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n" + chunk + chunk)
            answer = await client.answer()
            assert (answer.status, answer.body) == (413, b"too large: /c")
            assert await client.ended() == b""
            assert home.app.handled == []

    run(test)


@pytest.mark.parametrize(("size", "status"), [(BODY_LIMIT - 1, 200), (BODY_LIMIT, 200), (BODY_LIMIT + 1, 413)])
def test_a_body_may_be_as_long_as_the_limit(size: int, status: int) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(post("/", b"x" * size))).status == status

    run(test)


def test_a_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(post("/p", b"x" * (BODY_LIMIT + 1), "expect: 100-continue")[: -BODY_LIMIT - 1])
            assert (answer.status, answer.body) == (413, b"too large: /p")
            assert await client.ended() == b""

    run(test)


def test_an_unknown_path_is_answered_without_its_body() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(get("/unknown"))).headers.get("connection") is None
            answer = await client.ask(post("/unknown", b"x" * 50_000)[:200])
            assert (answer.status, answer.headers["connection"]) == (404, "close")
            assert home.app.handled[1].body == b""

    run(test)


def test_a_client_that_expects_100_gets_100_continue() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            request = post("/e", b"body", "expect: 100-continue")
            assert (await client.ask(request[:-4])).status == 100
            assert (await client.ask(b"body")).body == b"POST /e  body"

    run(test)


def test_100_continue_waits_for_the_answers_before_it() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later") + post("/e", b"body", "expect: 100-continue")[:-4])
            await home.app.waits(1)
            home.app.later[0][1](Response(200, b"first"))
            assert (await client.answer()).body == b"first"
            assert (await client.answer()).status == 100
            assert (await client.ask(b"body")).status == 200

    run(test)


def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/h").replace(b"GET", b"HEAD") + get("/empty") + get("/g"))
            head = await client.answer(bodiless=True)
            assert head.headers["content-length"] == str(len(b"HEAD /h  "))
            empty = await client.answer()
            assert (empty.status, empty.headers.get("content-length")) == (204, None)
            assert (await client.answer()).body == b"GET /g  "

    run(test)


@pytest.mark.parametrize(
    "request_bytes",
    [get("/", "connection: close"), b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"],
)
def test_the_connection_ends_with_the_last_answer(request_bytes: bytes) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(request_bytes)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.ended() == b""

    run(test)


def test_a_client_that_has_shut_its_side_still_gets_its_answers() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(get("/later") + get("/now"))
            await home.app.waits(1)
            client.writer.write_eof()
            other = await home.connect()
            await other.ask(get("/the-end-has-been-seen"))
            home.app.later[0][1](Response(200, b"late"))
            assert (await client.answer()).body == b"late"
            assert (await client.answer()).body == b"GET /now  "
            assert await client.ended() == b""

    run(test)


def test_an_absolute_target_is_its_path() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(get("http://hub/a?b"))).body == b"GET /a b "
            assert (await client.ask(get("http://hub?b"))).body == b"GET / b "
            assert (await client.ask(get("/%2f?"))).body == b"GET /%2f  "

    run(test)


CHUNKED = b"transfer-encoding: chunked\r\n"
SMUGGLED = [
    ("length and chunks", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    ("chunks and length", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"content-length: 3\r\n\r\n0\r\n\r\n", 400),
    ("two equal lengths", post("/", b"abc", "content-length: 3"), 400),
    ("two lengths", post("/", b"abc", "content-length: 2"), 400),
    ("list of lengths", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 3, 3\r\n\r\nabc", 400),
    ("signed length", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: +3\r\n\r\nabc", 400),
    ("underscored length", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 1_0\r\n\r\nabc", 400),
    ("hexadecimal length", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 0x3\r\n\r\nabc", 400),
    ("endless length", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 99999999999999999999\r\n\r\n", 400),
    ("length of 21 digits", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: " + b"0" * 20 + b"3\r\n\r\nabc", 400),
    ("length of 5001 digits", b"POST / HTTP/1.1\r\n" + HOST + b"content-length: " + b"0" * 5001 + b"\r\n\r\n", 400),
    ("two codings", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", 400),
    ("other coding", b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ("coding after chunked", b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked, gzip\r\n\r\n", 400),
    ("almost chunked", b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    ("identity", b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: identity\r\n\r\n", 501),
    ("space before colon", b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    ("chunks in 1.0", b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    ("folded line", get("/", "x: a\r\n b"), 400),
    ("bare line feeds", b"GET / HTTP/1.1\nhost: hub\n\n", 400),
    ("line feed in a value", get("/", "x: a\ny: b"), 400),
    ("carriage return in a value", get("/", "x: a\ry"), 400),
    ("NUL in a value", get("/", "x: a\0b"), 400),
    ("NUL in a name", get("/", "x\0: a"), 400),
    ("space in a name", get("/", "x y: a"), 400),
    ("space in a chunk size", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3 \r\nabc\r\n0\r\n\r\n", 400),
    ("bare line feed in a chunk", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\nabc\r\n0\r\n\r\n", 400),
    ("long chunk", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
    ("endless chunk", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\nfffffffffffffffff\r\n", 400),
    ("length in the trailers", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\ncontent-length: 3\r\n\r\n", 400),
    ("two hosts", get("/", "host: other"), 400),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("no version", b"GET /\r\n\r\n", 505),
    ("version 0.9", b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
    ("version 2.0", b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    ("version 1.2", b"GET / HTTP/1.2\r\n" + HOST + b"\r\n", 400),
    ("unknown method", b"FETCH / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("space in the target", b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("fragment", get("/a#b"), 400),
    ("not a path", get("mailto:hub"), 400),
    ("not ASCII", get("/\xff"), 400),
    ("a tunnel", b"CONNECT hub:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("TLS without TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
]


@pytest.mark.parametrize(("_name", "request_bytes", "status"), SMUGGLED, ids=[case[0] for case in SMUGGLED])
def test_a_request_that_two_readers_could_read_differently_is_refused(
    _name: str, request_bytes: bytes, status: int
) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            client.send(request_bytes + get("/smuggled"))
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await client.ended() == b""
            assert home.app.handled == []
            assert home.faults == []

    run(test)


SMALL = HttpSettings(max_header_bytes=1000, max_headers=10)
OVERSIZED = [
    ("one long value", get("/", f"x: {'x' * 1000}"), 431),
    ("many values", get("/", *(f"x{n}: {'x' * 200}" for n in range(5))), 431),
    ("many headers", get("/", *(f"x{n}: y" for n in range(10))), 431),
    ("one header many times", get("/", *["x: y"] * 10), 431),
    ("long target", get("/" + "x" * 1000), 414),
    ("a line without an end", b"GET / HTTP/1.1\r\nhost: " + b"h" * 9000, 431),
    ("a target without an end", b"GET /" + b"h" * 9000, 414),
    ("trailers", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\nx: %b\r\n\r\n" % (b"x" * 9000), 431),
    ("a trailer without an end", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\nx: " + b"x" * 9000, 431),
    ("a chunk extension without an end", b"POST / HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n1;" + b"x" * 9000, 431),
]


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize(("_name", "request_bytes", "status"), OVERSIZED, ids=[case[0] for case in OVERSIZED])
def test_an_oversized_head_is_refused(_name: str, request_bytes: bytes, status: int, pause: bool) -> None:
    async def test() -> None:
        async with house(SMALL) as home:
            client = await home.connect()
            client.send(get("/before"))
            if pause:
                assert (await client.answer()).status == 200
            client.send(request_bytes)
            if not pause:
                assert (await client.answer()).status == 200
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await client.ended() == b""
            assert [request.path for request in home.app.handled] == ["/before"]

    run(test)


def test_a_small_head_behind_a_large_body_is_no_large_head() -> None:
    async def test() -> None:
        async with house(SMALL, app=Echo(limit=20_000)) as home:
            client = await home.connect()
            client.send(post("/", b"x" * 20_000) + get("/next")[:20])
            assert (await client.answer()).status == 200
            assert (await client.ask(get("/next")[20:])).body == b"GET /next  "

    run(test)


@pytest.mark.parametrize("path", ["/raise", "/limit-raises", "/bad-header"])
def test_a_fault_of_the_app_is_reported_and_answered(path: str) -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            assert (await client.ask(get(path))).status == 500
            assert len(home.faults) == 1
            assert isinstance(home.faults[0][1], LookupError | ValueError)
            await client.close()
            other = await home.connect()
            assert (await other.ask(get("/fine"))).status == 200

    run(test)


@pytest.mark.parametrize("value", [b"a\rb", b"a\nb", b"a\0b", b"a\x7fb"])
def test_a_header_cannot_carry_a_second_one(value: bytes) -> None:
    with pytest.raises(ValueError, match="header value"):
        Response(200, headers=((b"x", value),))
    with pytest.raises(ValueError, match="header value"):
        Response(200, content_type=value)


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\n", b"X", b"content-length", b"transfer-encoding", b"date"])
def test_a_header_name_is_a_lower_case_token_that_the_front_does_not_write(name: bytes) -> None:
    with pytest.raises(ValueError, match="header name"):
        Response(200, headers=((name, b"v"),))


@pytest.mark.parametrize("status", [99, 100, 101, 199, 600])
def test_only_a_final_status_is_an_answer(status: int) -> None:
    with pytest.raises(ValueError, match="final status"):
        Response(status)


def test_an_offer_to_upgrade_that_we_do_not_take_is_ignored() -> None:
    async def test() -> None:
        async with house() as home:
            client = await home.connect()
            answer = await client.ask(post("/u", b"body", "connection: upgrade", "upgrade: h2c") + get("/next"))
            assert answer.body == b"POST /u  body"
            assert (await client.answer()).body == b"GET /next  "

    run(test)
