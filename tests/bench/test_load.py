"""The load generator checks every answer and reads each completely."""

import pytest

from tests.bench.answer_server import answering, ok
from tests.hub.client import own_port
from veen.bench import load
from veen.bench.load import Http, LoadResult, Nats, Redis, request
from veen.core import Malformed, Unavailable

ASKED = request(b"/", b"asked")


def drive(port: int, plan: list[list[bytes]]) -> LoadResult:
    return load.drive(plan, Http(), lambda _: load.connect(port))


def test_every_request_is_sent_once_and_each_has_a_latency() -> None:
    seen: list[bytes] = []

    def answer(body: bytes) -> bytes:
        seen.append(body)
        return ok(body)

    plan = [[request(b"/", b"%d of %d" % (number, client)) for number in range(20)] for client in range(5)]
    with answering(answer) as port:
        found = drive(port, plan)
    assert sorted(seen) == sorted(b"%d of %d" % (number, client) for number in range(20) for client in range(5))
    assert found.requests == len(found.latencies) == 100
    assert list(found.latencies) == sorted(found.latencies)
    assert 0 < found.percentile(0.5) <= found.percentile(0.99) <= found.percentile(1) <= found.seconds
    assert found.generator_s > 0


def test_a_connection_sends_only_after_it_was_answered() -> None:
    order: list[bytes] = []

    def answer(body: bytes) -> bytes:
        order.append(body)
        return ok(b"")

    with answering(answer) as port:
        drive(port, [[request(b"/", b"%d" % number) for number in range(50)]])
    assert order == [b"%d" % number for number in range(50)]


def test_a_connection_with_nothing_to_send_is_not_opened() -> None:
    with answering(ok) as port:
        assert drive(port, [[], [ASKED], []]).requests == 1


def test_answers_of_any_length_are_read_to_their_end() -> None:
    bodies = [b"x" * size for size in (0, 1, 9, 10, 99, 100, 8 * load._READ_BYTES, 5, 5, load._READ_BYTES, 0)]
    with answering(ok) as port:
        assert drive(port, [[request(b"/", body) for body in bodies]]).requests == len(bodies)


def test_a_request_larger_than_the_socket_buffer_is_sent_completely() -> None:
    body = b"y" * (1 << 24)
    seen: list[int] = []

    def answer(given: bytes) -> bytes:
        seen.append(len(given))
        return ok(b"")

    with answering(answer) as port:
        drive(port, [[request(b"/", body), request(b"/", body), ASKED]])
    assert seen == [len(body), len(body), len(b"asked")]


@pytest.mark.parametrize("status", [b"100 Continue", b"201 Created", b"204 No Content", b"301 Moved", b"400 Bad"])
@pytest.mark.parametrize("before", [0, 3])
def test_anything_but_200_ends_the_measurement(status: bytes, before: int) -> None:
    left = [before]

    def answer(body: bytes) -> bytes:
        left[0] -= 1
        return ok(body) if left[0] >= 0 else ok(body).replace(b"200 OK", status)

    with answering(answer) as port, pytest.raises(Unavailable) as caught:
        drive(port, [[ASKED] * (before + 1)])
    assert status.split()[0].decode() in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: one\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        b"200\r\n\r\n",
        ok(b"asked") + b"x",
        ok(b"asked") + ok(b"asked"),
    ],
)
def test_anything_but_one_complete_answer_is_rejected(answer: bytes) -> None:
    with answering(lambda _: answer) as port, pytest.raises(Malformed):
        drive(port, [[ASKED]])


def test_a_longer_answer_with_the_same_head_is_rejected() -> None:
    answers = iter([ok(b"asked"), ok(b"asked") + b"x"])
    with answering(lambda _: next(answers)) as port, pytest.raises(Malformed) as caught:
        drive(port, [[ASKED, ASKED]])
    assert "were announced" in str(caught.value)


@pytest.mark.parametrize("before", [0, 2])
def test_a_connection_that_closes_instead_of_answering_ends_the_measurement(before: int) -> None:
    left = [before]

    def answer(body: bytes) -> bytes:
        left[0] -= 1
        return ok(body) if left[0] >= 0 else b""

    with answering(answer) as port, pytest.raises(Unavailable):
        drive(port, [[ASKED] * 5])


def test_an_answer_that_never_comes_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_ANSWER_TIMEOUT_S", 0.01)
    with answering(lambda _: b"HTTP/1.1 200") as port, pytest.raises(Unavailable) as caught:
        drive(port, [[ASKED]])
    assert "no answer arrived" in str(caught.value)


def test_a_closed_port_is_unavailable() -> None:
    with own_port() as port, pytest.raises(Unavailable):
        drive(port, [[ASKED]])


@pytest.mark.parametrize("cut", range(len(ok(b"asked"))))
def test_http_detects_an_incomplete_answer(cut: int) -> None:
    answer = ok(b"asked")
    head = len(answer) - len(b"asked")
    assert Http().whole(answer[:cut]) == (len(answer) if cut >= head else 0)


def test_http_checks_a_head_that_resembles_the_last() -> None:
    http = Http()
    assert http.whole(ok(b"asked")) == len(ok(b"asked"))
    assert http.whole(ok(b"again")) == len(ok(b"again"))
    assert http.whole(ok(b"longer than")) == len(ok(b"longer than"))
    with pytest.raises(Unavailable):
        http.whole(ok(b"longer than").replace(b"200 OK", b"503 No"))


@pytest.mark.parametrize(
    ("data", "length"),
    [(b"$3\r\n1-0\r\n", 9), (b"$3\r\n1-0", 9), (b"$3\r\n", 9), (b"$3\r", 0), (b"$", 0), (b"$12\r\n", 19)],
)
def test_redis_answers_have_the_announced_length(data: bytes, length: int) -> None:
    assert Redis().whole(data) == length


@pytest.mark.parametrize("data", [b"-ERR no\r\n", b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"$\r\n"])
def test_redis_answers_other_than_an_id_are_rejected(data: bytes) -> None:
    with pytest.raises(Unavailable):
        Redis().whole(data)


ACK = b'MSG inbox.0 1 11\r\n{"seq": 1 }\r\n'


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (ACK, len(ACK)),
        (ACK[:-1], len(ACK)),
        (ACK[:18], len(ACK)),
        (ACK[:17], 0),
        (b"PING\r\n", 0),
        (b"PING\r\n" + ACK, len(ACK) + 6),
        (ACK + b"PING\r\n", len(ACK) + 6),
        (ACK + ACK, len(ACK)),
    ],
)
def test_nats_answers_have_the_announced_length(data: bytes, length: int) -> None:
    assert Nats().whole(data) == length


@pytest.mark.parametrize(
    "data",
    [
        b"-ERR 'no'\r\n",
        b"+OK\r\n",
        b"MSG\r\n",
        b"MSG inbox.0 1 x\r\n",
        b'MSG inbox.0 1 23\r\n{"error":{"code": 503}}\r\n',
    ],
)
def test_nats_answers_other_than_an_acknowledgement_are_rejected(data: bytes) -> None:
    with pytest.raises(Unavailable):
        Nats().whole(data)
