"""Every client bounds a whole exchange with one deadline, also for a peer that sends one byte at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.bridge.tsa_server import certify
from tests.slow_server import STAGES, STARTS, dripping
from veen.bridge.anchor_backends import TimeStampingAuthority
from veen.bridge.anchors import AnchorStatement
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.cli.kit.hub_api import HubApi
from veen.client.exchange import MIN_BYTES_PER_S, SMALL_BYTES, TimedOut, exchange
from veen.client.reader import EntrySubscription
from veen.client.transport import HubLink, RetryPolicy
from veen.client.trust import pinned
from veen.core import Unavailable
from veen.core.hashing import h
from veen.query.query_client import QueryClient, ServiceAccess
from veen.selftest.check import Failed
from veen.selftest.probe import Listener, Probe

LIMIT_S = 0.5
LIMITS_S = (LIMIT_S, 8 * LIMIT_S, 64 * LIMIT_S)  # a busy machine may need longer until the first bytes arrive
PAGE = 2 * SMALL_BYTES


def policy(limit_s: float) -> RetryPolicy:
    return RetryPolicy(attempts=1, connect_s=60, answer_s=limit_s)


POLICY = policy(LIMIT_S)


async def over_hub_link(address: str, folder: Path, limit_s: float) -> None:
    link = HubLink(f"http://{address}", retry_policy=policy(limit_s))
    try:
        await link.get("/tooling/status", PAGE)
    finally:
        await link.close()


async def over_veil_node(address: str, folder: Path, limit_s: float) -> None:
    async with VeilNode(f"http://{address}", "token", answer_s=limit_s) as node:
        await node.pubkey()


async def over_authority(address: str, folder: Path, limit_s: float) -> None:
    certify(folder)
    tsa = TimeStampingAuthority(f"http://{address}", folder / "ca.pem", answer_s=limit_s)
    await tsa.publish(AnchorStatement(h(b"root"), 0, 1_700_000_000, bytes(16)))


async def over_hub_api(address: str, folder: Path, limit_s: float) -> None:
    with HubApi(f"http://{address}", timeout_s=limit_s) as api:
        api.status()


async def over_remote(address: str, folder: Path, limit_s: float) -> None:
    with QueryClient(ServiceAccess(f"http://{address}", "token"), timeout_s=limit_s) as remote:
        remote.status("r-1")


async def over_probe(address: str, folder: Path, limit_s: float) -> None:
    probe = Probe(f"http://{address}", answer_s=limit_s)
    try:
        probe.get("/tooling/status")
    finally:
        probe.close()


WAYS = [over_hub_link, over_veil_node, over_authority, over_hub_api, over_remote, over_probe]


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_dripping_answer_ends_at_the_deadline(
    way: Callable[[str, Path, float], Coroutine[None, None, None]], kind: str, tmp_path: Path
) -> None:
    for limit_s in LIMITS_S:
        with dripping(kind) as address, pytest.raises(TimedOut) as caught:
            asyncio.run(way(address, tmp_path, limit_s))
        assert str(caught.value).startswith(f"http://{address} did not answer ")
        assert f"in full within {limit_s:g} s: " in str(caught.value)
        if STAGES[kind] in str(caught.value):
            return
    pytest.fail(f"expected {STAGES[kind]!r}, found {caught.value}")


def test_a_tls_handshake_that_never_ends_is_given_up() -> None:
    async def run(address: str) -> None:
        link = HubLink(f"https://{address}", retry_policy=POLICY)
        try:
            with pytest.raises(TimedOut, match="the TLS handshake did not finish"):
                await link.get("/tooling/status", PAGE)
        finally:
            await link.close()
        with pytest.raises(Unavailable, match=r"TLS handshake within 0\.5 s"):
            await pinned(f"https://{address}", bytes(32), LIMIT_S)

    with dripping("nothing") as address:
        asyncio.run(run(address))


@pytest.mark.parametrize("kind", ["nothing", "head"])
def test_a_subscription_that_never_opens_is_given_up(kind: str) -> None:
    async def run(address: str) -> None:
        link = HubLink(f"http://{address}", retry_policy=POLICY)
        try:
            with pytest.raises(Unavailable, match=r"did not open the subscription within 0\.5 s"):
                await EntrySubscription.open(link, bytes(32), 1)
        finally:
            await link.close()

    with dripping(kind) as address:
        asyncio.run(run(address))


def test_a_check_of_a_subscription_that_never_opens_ends() -> None:
    with dripping("head") as address:
        probe = Probe(f"http://{address}")
        with pytest.raises(Failed, match=r"sent no complete message for 0\.5 s"):
            Listener(probe, bytes(32), 1, wait_s=LIMIT_S)
        probe.close()


class ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when a test moves it, so that load cannot make a deadline pass."""

    now = 0.0

    def time(self) -> float:
        return self.now


class TimedStream(httpx.AsyncByteStream):
    """A response body. Each part moves the clock by a time proportional to its length."""

    def __init__(self, stream: httpx.AsyncByteStream, loop: ManualClockLoop, s_per_byte: float) -> None:
        self._stream = stream
        self._loop = loop
        self._s_per_byte = s_per_byte

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._loop.now += len(part) * self._s_per_byte
            await asyncio.sleep(0)  # a deadline that has passed fires here
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class TimedTransport(httpx.AsyncHTTPTransport):
    """Real connections whose response bodies take `s_per_byte` on the manual clock."""

    def __init__(self, s_per_byte: float) -> None:
        super().__init__()
        self._s_per_byte = s_per_byte

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualClockLoop)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = TimedStream(answer.stream, loop, self._s_per_byte)
        return answer


async def fetch(limit_s: float, most: int, seconds: float) -> bytes:
    """The body of a response of `SMALL_BYTES` that takes `seconds`, at a steady rate."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {SMALL_BYTES}\r\n\r\n".encode() + bytes(SMALL_BYTES))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        async with httpx.AsyncClient(transport=TimedTransport(seconds / SMALL_BYTES)) as client:
            _, body = await exchange(client, "GET", url, limit_s=limit_s, most=most)
            return body
    finally:
        server.close()


def on_manual_clock(work: Coroutine[None, None, bytes]) -> bytes:
    with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
        return runner.run(work)


def test_a_large_answer_may_take_longer_than_the_limit_while_it_moves() -> None:
    assert len(on_manual_clock(fetch(3.0, PAGE, 4.0))) == SMALL_BYTES


def test_a_large_answer_below_the_minimum_rate_ends_at_the_deadline() -> None:
    with pytest.raises(TimedOut, match="bytes of the body arrived"):
        on_manual_clock(fetch(3.0, PAGE, 2.0 * SMALL_BYTES / MIN_BYTES_PER_S))


def test_a_small_answer_may_not_take_longer_than_the_limit_even_while_it_moves() -> None:
    with pytest.raises(TimedOut, match="bytes of the body arrived"):
        on_manual_clock(fetch(0.5, SMALL_BYTES, 60.0))


def test_a_large_request_that_is_not_read_is_given_up() -> None:
    async def run(address: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(TimedOut, match="the request body was not sent in full"):
                await exchange(client, "POST", f"http://{address}/", limit_s=LIMIT_S, content=bytes(1 << 26))

    with dripping("nothing") as address:
        asyncio.run(run(address))
