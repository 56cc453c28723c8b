"""Requests to a hub: malformed, oversized, late and interrupted answers, rejections, and retries."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.client.hostile import START, HostileHub
from veen.client.transport import HubLink, RetryPolicy, TryLater
from veen.core import Malformed, Receipt, Refused, Unavailable, wire_json
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import (
    SUBMIT_RESPONSE_HEAD,
    SUBMIT_RESPONSE_TAIL,
    ErrorEnvelope,
    ReceiptRequest,
    ReceiptResponse,
    SubmitResponse,
)
from veen.core.limits import SERVER_VERSION

QUICK = RetryPolicy(attempts=3, first_wait_s=0.001, longest_wait_s=0.002, longest_retry_after_s=0.05, answer_s=120)
ASK = ReceiptRequest(bytes(32), 1)
LONG = 1 << 21

Script = Callable[[int], bytes]


def http(status: int, body: bytes, kind: str = "application/cbor", length: int | None = None, more: str = "") -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n{more}\r\n".encode() + body


def refused(error: Refused, status: int) -> bytes:
    return http(status, ErrorEnvelope.of(error).encode())


def a_receipt() -> Receipt:
    hub = HostileHub()
    return hub.log(bytes(32)).append(hub.key, hub.forged(bytes(32)), START)


RECEIPT = a_receipt()
GOOD = http(200, ReceiptResponse(RECEIPT).encode())


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[HubLink, list[bytes]]]:
    """A server that gives these answers in turn and repeats the last; an empty one closes the connection."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                await reader.readexactly(length)
                asked.append(head)
                answer = answers[min(len(asked), len(answers)) - 1]
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = HubLink(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", retry_policy=QUICK)
    try:
        yield link, asked
    finally:
        await link.close()
        server.close()


def ask(*answers: bytes) -> tuple[Receipt, int]:
    """The receipt that arrived, and the number of requests."""

    async def run() -> tuple[Receipt, int]:
        async with answering(*answers) as (link, asked):
            return (await link.ask("/v1/receipt", ASK, ReceiptResponse)).receipt, len(asked)

    return asyncio.run(run())


BUSY = refused(Refused("E.UNAVAILABLE", "not now"), 503)


@pytest.mark.parametrize(
    "failure",
    [
        b"",
        BUSY,
        http(500, b"oops", "text/plain"),
        http(503, b""),
        http(429, b"slow down", "text/html"),
        http(200, b"short", length=500, more="connection: close\r\n"),
        b"this is not HTTP\r\n\r\n",
    ],
    ids=["closed", "busy", "500", "503", "429", "cut short", "not HTTP"],
)
def test_temporary_failures_are_retried(failure: bytes) -> None:
    assert ask(failure, failure, GOOD) == (RECEIPT, 3)
    with pytest.raises(Unavailable):
        ask(failure, failure, failure)


@pytest.mark.parametrize(
    "answer",
    [
        http(200, b""),
        http(200, b"\xa0"),
        http(200, ReceiptResponse(RECEIPT).encode() + b"\0"),
        http(404, b"<html>", "text/html"),
        http(302, b"", more="location: http://127.0.0.1:1/\r\n"),
        http(400, b"\xa0"),
    ],
    ids=["nothing", "another object", "trailing bytes", "a page", "a redirect", "no envelope"],
)
def test_malformed_answers_are_not_retried(answer: bytes) -> None:
    async def run() -> None:
        async with answering(answer) as (link, asked):
            with pytest.raises(Malformed):
                await link.ask("/v1/receipt", ASK, ReceiptResponse)
            assert len(asked) == 1

    asyncio.run(run())


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_is_read_only_as_far_as_there_is_room(status: int) -> None:
    """Its content-length is a thousand times larger, and it never ends."""
    with pytest.raises(Malformed, match="more than"):
        ask(http(status, bytes(LONG), length=1000 * LONG))


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rejection_keeps_its_message_and_details(as_json: bool) -> None:
    error = BY_DETAIL["CAP_RATE"].refused("slow down", retry_after=7, stream_seq=3)
    envelope = ErrorEnvelope.of(error)
    answer = http(429, wire_json.encode(envelope), "application/json") if as_json else refused(error, 429)
    with pytest.raises(Refused) as caught:
        ask(answer)
    found = caught.value
    assert (found.code, found.detail_enum, found.stage) == ("E.RATE", "CAP_RATE", "auth")
    assert (found.retry_after, found.detail) == (7, {"stream_seq": 3})


def test_retry_after_is_respected_up_to_a_limit() -> None:
    soon = refused(Refused("E.UNAVAILABLE", "starting", retry_after=0), 503)
    assert ask(soon, GOOD) == (RECEIPT, 2)
    never = refused(Refused("E.UNAVAILABLE", "come back tomorrow", retry_after=86_400), 503)
    with pytest.raises(TryLater, match="tomorrow") as caught:
        ask(never, GOOD)
    assert caught.value.retry_after == 86_400


def test_waits_grow_and_are_bounded() -> None:
    policy = RetryPolicy(first_wait_s=0.1, longest_wait_s=1.0)
    for attempt in range(40):
        full = min(0.1 * 2**attempt, 1.0)
        assert all(full / 2 <= policy.wait_s(attempt) <= full for _ in range(20))


def test_an_answer_that_never_comes_is_given_up() -> None:
    async def run() -> None:
        async with answering(b"HTTP/1.1 200 X\r\ncontent-length: 5\r\n\r\n") as (link, _):
            link.retry_policy = RetryPolicy(attempts=1, answer_s=0.05)
            await link.renew()
            with pytest.raises(Unavailable, match="did not answer"):
                await link.ask("/v1/receipt", ASK, ReceiptResponse)

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    ["", "hub", "hub:80", "ftp://hub", "http://", "http://hub:port", "http://hub:99999", "http://h/?a=b", "https:///x"],
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(Malformed, match="hub address"):
        HubLink(url)


def test_renewing_disturbs_nothing_that_is_under_way() -> None:
    async def run() -> None:
        async with answering(GOOD) as (link, _):
            asked = [asyncio.create_task(link.ask("/v1/receipt", ASK, ReceiptResponse)) for _ in range(5)]
            await asyncio.sleep(0)
            await link.renew()
            again = await link.ask("/v1/receipt", ASK, ReceiptResponse)
            assert {found.receipt for found in await asyncio.gather(*asked)} == {RECEIPT} == {again.receipt}
            await link.renew()
            await link.renew()

    asyncio.run(run())


# Batches.


def batch(answer: bytes, count: int = 2) -> list[Receipt | Refused]:
    async def run() -> list[Receipt | Refused]:
        async with answering(answer) as (link, asked):
            found = await link.submit_batch([b"\x80"] * count)
            assert len(asked) == 1
            return found

    return asyncio.run(run())


def test_a_batch_has_an_outcome_for_each_message() -> None:
    error = BY_DETAIL["CLIENT_SEQ"].refused("not yet")
    found = batch(http(200, RECEIPT.encode() + ErrorEnvelope.of(error).encode()))
    assert found[0] == RECEIPT
    assert isinstance(found[1], Refused)
    assert found[1].detail_enum == "CLIENT_SEQ"


@pytest.mark.parametrize(
    "body",
    [b"", RECEIPT.encode(), RECEIPT.encode() * 3, RECEIPT.encode() + b"\x00", RECEIPT.encode() + RECEIPT.encode()[:-1]],
    ids=["none", "one too few", "one too many", "a number", "cut short"],
)
def test_a_batch_answer_that_does_not_fit_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        batch(http(200, body))


@pytest.mark.parametrize("failure", [b"", BUSY])
def test_a_batch_is_not_retried_by_the_transport(failure: bytes) -> None:
    with pytest.raises(Unavailable):
        batch(failure)


def test_a_submit_is_answered_by_a_receipt_or_a_refusal() -> None:
    async def run(answer: bytes) -> Receipt | Refused:
        async with answering(answer) as (link, _):
            return await link.submit(b"\x80")

    error = BY_DETAIL["SIG_INVALID"].refused("no")
    assert isinstance(asyncio.run(run(refused(error, 409))), Refused)
    assert asyncio.run(run(GOOD)) == RECEIPT
    with pytest.raises(Unavailable):
        asyncio.run(run(BUSY))


def submit_responses() -> Iterator[bytes]:
    """The usual submit response, and responses that differ from it in one place."""
    usual = SubmitResponse(RECEIPT, SERVER_VERSION).encode()
    assert usual == SUBMIT_RESPONSE_HEAD + RECEIPT.encode() + SUBMIT_RESPONSE_TAIL
    yield usual
    for version in (None, "", "9.9.9", f"a longer one{SUBMIT_RESPONSE_TAIL.decode()}"):
        yield SubmitResponse(RECEIPT, version).encode()
    yield usual + b"\x00"
    yield usual.replace(RECEIPT.encode(), b"")
    yield usual.replace(RECEIPT.encode(), RECEIPT.encode() * 2)
    for at in range(len(usual)):
        yield usual[:at]
        yield usual[:at] + bytes([usual[at] ^ 1]) + usual[at + 1 :]


def test_a_submit_response_is_decoded_as_its_table_says() -> None:
    def by_table(body: bytes) -> Receipt | str:
        try:
            return SubmitResponse.decode(body).receipt
        except Malformed as error:
            return str(error)

    async def by_link(link: HubLink) -> Receipt | Refused | str:
        try:
            return await link.submit(b"\x80")
        except Malformed as error:
            return str(error)

    async def run(bodies: list[bytes]) -> None:
        async with answering(*(http(200, body) for body in bodies)) as (link, _):
            for body in bodies:
                assert await by_link(link) == by_table(body), body.hex()

    asyncio.run(run(list(submit_responses())))
