"""One deadline over a whole exchange: a peer that sends a byte now and then is given up in time, by every client."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import httpx
import pytest

from tests.bridge.tsa_server import certify
from tests.slow_server import STAGES, STARTS, dripping
from veen.bridge.anchors import AnchorStatement
from veen.bridge.anchors.backends import TimeStampingAuthority
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.cli.kit.hub_api import HubApi
from veen.client.exchange import SMALL_BYTES, TimedOut, exchange
from veen.client.pinned_tls import pinned
from veen.client.subscription import EntrySubscription
from veen.client.transport import HubLink, Patience
from veen.core import Unavailable
from veen.core.hashing import h
from veen.query.query_client import QueryClient, ServiceAccess
from veen.selftest.probe import Listener, Probe
from veen.selftest.verdict import Failed

LIMIT_S = 0.5
PATIENCE = Patience(attempts=1, connect_s=60, answer_s=LIMIT_S)
PAGE = 2 * SMALL_BYTES
CHUNK = 1 << 16


async def over_hub_link(address: str, folder: Path) -> None:
    link = HubLink(f"http://{address}", patience=PATIENCE)
    try:
        await link.get("/tooling/status", PAGE)
    finally:
        await link.close()


async def over_veil_node(address: str, folder: Path) -> None:
    async with VeilNode(f"http://{address}", "token", answer_s=LIMIT_S) as node:
        await node.pubkey()


async def over_authority(address: str, folder: Path) -> None:
    certify(folder)
    tsa = TimeStampingAuthority(f"http://{address}", folder / "ca.pem", answer_s=LIMIT_S)
    await tsa.publish(AnchorStatement(h(b"root"), 0, 1_700_000_000, bytes(16)))


async def over_hub_api(address: str, folder: Path) -> None:
    with HubApi(f"http://{address}", timeout_s=LIMIT_S) as api:
        api.status()


async def over_remote(address: str, folder: Path) -> None:
    with QueryClient(ServiceAccess(f"http://{address}", "token"), timeout_s=LIMIT_S) as remote:
        remote.status("r-1")


async def over_probe(address: str, folder: Path) -> None:
    probe = Probe(f"http://{address}", answer_s=LIMIT_S)
    try:
        probe.get("/tooling/status")
    finally:
        probe.close()


WAYS = [over_hub_link, over_veil_node, over_authority, over_hub_api, over_remote, over_probe]


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_dripping_answer_ends_at_the_deadline(
    way: Callable[[str, Path], Coroutine[None, None, None]], kind: str, tmp_path: Path
) -> None:
    with dripping(kind) as address, pytest.raises(TimedOut) as caught:
        asyncio.run(way(address, tmp_path))
    assert str(caught.value).startswith(f"http://{address} did not answer ")
    assert f"in full within {LIMIT_S:g} s: " in str(caught.value)
    assert STAGES[kind] in str(caught.value)


def test_a_tls_handshake_that_never_ends_is_given_up() -> None:
    async def run(address: str) -> None:
        link = HubLink(f"https://{address}", patience=PATIENCE)
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
        link = HubLink(f"http://{address}", patience=PATIENCE)
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
        with pytest.raises(Failed, match=r"sent nothing whole for 0\.5 s"):
            Listener(probe, bytes(32), 1, wait_s=LIMIT_S)
        probe.close()


async def moving(limit_s: float, most: int, seconds: float) -> bytes:
    """An answer that takes `seconds`, at far more than the least rate."""
    pieces = 16

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {pieces * CHUNK}\r\n\r\n".encode())
        try:
            for _ in range(pieces):
                writer.write(bytes(CHUNK))
                await writer.drain()
                await asyncio.sleep(seconds / pieces)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            _, body = await exchange(client, "GET", url, limit_s=limit_s, most=most)
            return body
    finally:
        server.close()


def test_a_large_answer_may_take_longer_than_the_limit_while_it_moves() -> None:
    assert len(asyncio.run(moving(3.0, PAGE, 4.0))) == SMALL_BYTES


def test_a_small_answer_may_not_take_longer_than_the_limit_even_while_it_moves() -> None:
    with pytest.raises(TimedOut, match="bytes of the body arrived"):
        asyncio.run(moving(0.5, SMALL_BYTES, 60.0))


def test_a_large_request_that_is_not_read_is_given_up() -> None:
    async def run(address: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(TimedOut, match="the request body was not sent in full"):
                await exchange(client, "POST", f"http://{address}/", limit_s=LIMIT_S, content=bytes(1 << 26))

    with dripping("nothing") as address:
        asyncio.run(run(address))
