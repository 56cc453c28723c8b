"""Two real nodes over QUIC with 20 % packet loss and kill -9: no message is lost."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import randrange

import pytest

from tests.veil.lanes_proxy import LossyUdp
from tests.veil.node_process import NodeProcess, stop_all
from veil.runtime.data_directory import Settings

LOSS = 0.2
SEED = 20_260
MAX_UNDER_WAY = 32


@contextmanager
def lossy(server_port: int) -> Iterator[LossyUdp]:
    """The proxy in its own thread."""
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
    """A port for a node that restarts, below the range of ephemeral ports, so no other process gets it."""
    while True:
        port = randrange(20_000, 32_768)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held, suppress(OSError):
            held.bind(("127.0.0.1", port))
            return port


class Talk:
    """Messages that one end published, their objects, and messages it received."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.said: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.sealed: set[str] = set()
        self.heard_roots: set[str] = set()
        self._under_way: set[int] = set()

    def send(self) -> None:
        """Publish one more message, once few others wait, because waiting messages would share an object."""
        while len(self._under_way) >= MAX_UNDER_WAY:
            self.listen()
        text = f"{self.node.folder.path.name} {self.said.total()}"
        self._under_way.add(self.node.api.post("/v1/publish", text=text, namespace=40)["message_id"])
        self.said[text] += 1

    def listen(self) -> None:
        """Wait for the next events."""
        for kind, data in self.node.events():
            if kind == "delivered":
                self.heard[data["text"]] += 1
                self.heard_roots.add(data["object_root"])
            elif kind == "sealed":
                self.sealed.add(data["object_root"])
            elif kind == "sent":
                self._under_way.discard(data["message_id"])


def check_exchange(folder: Path, count: int) -> None:
    """Exchange at least `count` objects in each direction, and kill each node once in between."""
    port = free_udp_port()
    with lossy(port) as proxy:
        bob = NodeProcess(
            folder,
            "bob",
            Settings(listen=(f"quic://127.0.0.1:{port}",), announce=(f"quic://127.0.0.1:{proxy.port}",)),
        )
        alice = NodeProcess(folder, "alice", Settings())
        one, other = talks = (Talk(alice), Talk(bob))
        try:
            for talk in talks:
                talk.node.start()
            alice.knows(bob)
            for node, publisher in ((alice, bob), (bob, alice)):
                node.api.post("/v1/subscriptions", kind="feed", publisher=publisher.pubkey.hex(), namespace=40)
            doomed = {count // 3: bob, 2 * count // 3: alice}
            while any(len(talk.sealed) < count for talk in talks):
                for talk in talks:
                    talk.send()
                    talk.listen()
                victim = doomed.pop(one.said.total(), None)
                if victim is not None:
                    victim.kill()
                    victim.start()
            assert not doomed
            for talk, partner in ((one, other), (other, one)):
                while partner.said - talk.heard:
                    talk.listen()
                assert talk.heard == partner.said, "something came twice"
                assert len(talk.heard_roots) >= count
            assert proxy.lost / (proxy.lost + proxy.passed) > LOSS / 2
        finally:
            stop_all(alice, bob)


def test_two_nodes_lose_nothing_over_a_lossy_network_and_a_kill(tmp_path: Path) -> None:
    check_exchange(tmp_path, 15)


@pytest.mark.slow
def test_two_nodes_exchange_a_thousand_objects_over_a_lossy_network_and_kills(tmp_path: Path) -> None:
    check_exchange(tmp_path, 500)
