"""Two real nodes over QUIC, a fifth of all packets lost, killed without warning in the middle: nothing is lost."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.veil.lanes_nodes import NodeProcess, stop_all
from tests.veil.lanes_proxy import LossyUdp
from veil.runtime.settings import Settings

LOSS = 0.2
SEED = 20_260


@contextmanager
def lossy(server_port: int) -> Iterator[LossyUdp]:
    """The proxy, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = asyncio.run_coroutine_threadsafe(LossyUdp.start(("127.0.0.1", server_port), LOSS, SEED), loop).result()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        found: int = held.getsockname()[1]
        return found


def exchange(folder: Path, count: int) -> None:
    """`count` objects each way, either node killed in the middle of it."""
    port = free_udp_port()
    with lossy(port) as proxy:
        bob = NodeProcess(
            folder,
            "bob",
            Settings(listen=(f"quic://127.0.0.1:{port}",), announce=(f"quic://127.0.0.1:{proxy.port}",)),
        )
        alice = NodeProcess(folder, "alice", Settings())
        nodes = {alice: bob, bob: alice}
        try:
            for node in nodes:
                node.start()
            alice.knows(bob)
            for node, other in nodes.items():
                node.api.post("/v1/subscriptions", kind="feed", publisher=other.pubkey.hex(), namespace=40)
            said: dict[NodeProcess, Counter[str]] = {node: Counter() for node in nodes}
            for number in range(count):
                for node in nodes:
                    text = f"{node.folder.path.name} {number}"
                    node.api.post("/v1/publish", text=text, namespace=40)
                    said[node][text] += 1
                if number == count // 3:
                    bob.kill()
                    bob.start()
                if number == 2 * count // 3:
                    alice.kill()
                    alice.start()
            for node, other in nodes.items():
                heard: Counter[str] = Counter()
                while said[other] - heard:
                    heard.update(one["text"] for one in node.delivered())
                assert heard == said[other], "something came twice"
            assert proxy.lost / (proxy.lost + proxy.passed) > LOSS / 2
        finally:
            stop_all(*nodes)


def test_two_nodes_lose_nothing_over_a_lossy_network_and_a_kill(tmp_path: Path) -> None:
    exchange(tmp_path, 30)


@pytest.mark.slow
def test_two_nodes_exchange_a_thousand_objects_over_a_lossy_network_and_kills(tmp_path: Path) -> None:
    exchange(tmp_path, 500)
