"""Clients of one hub, each with its own VEIL node, and a hub that can be forked by copying its data."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hub.client import Hub, make_dir, running
from tests.veil.api_hosts import Running, linked_nodes
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer
from veen.bridge.veil_gossip.exchange import Publisher, ReceivedReport, Receiver
from veen.bridge.veil_gossip.gossip_inbox import Inbox, InboxLimits
from veen.bridge.veil_gossip.gossip_items import NAMESPACE, GossipGroup, GossipItem
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import Checkpoint, DhKey

STREAM = "doors"


@dataclass
class Side:
    """One client, its hub, and its node."""

    folder: ClientDir
    hub: Hub
    node: Running
    inbox: Path

    @asynccontextmanager
    async def client(self, *, allow_caught: bool = False) -> AsyncIterator[Client]:
        pin = Pin(key=self.hub_id)
        url = f"http://127.0.0.1:{self.hub.port}"
        async with Client(url, self.folder, pin=pin, allow_caught=allow_caught) as client:
            yield client

    @property
    def hub_id(self) -> bytes:
        return self.hub.service.hub_metadata.identity.hub_id

    @asynccontextmanager
    async def group(self, group: str | None = None) -> AsyncIterator[GossipGroup]:
        async with VeilNode(self.node.url, self.node.token) as node:
            yield await GossipGroup.join(node, self.hub_id, group)

    async def write(self, *bodies: bytes, stream: str = STREAM) -> None:
        async with self.client() as client:
            for body in bodies:
                await client.send(stream, body)

    async def read(self) -> list[bytes | None]:
        async with self.client() as client:
            return [entry.body async for entry in client.read(STREAM)]

    async def publish_checkpoint(self, stream: str = STREAM, group: str | None = None) -> Checkpoint:
        async with self.client() as client, self.group(group) as joined:
            found = await client.checkpoint(stream)
            await Publisher(joined, client.session.trust.known).checkpoint(client, found)
            return found

    async def put(self, *payloads: bytes | GossipItem) -> None:
        """Publish arbitrary payloads, as anyone who knows the hub can."""
        async with self.group() as group:
            for one in payloads:
                data = one.encode() if isinstance(one, GossipItem) else one
                await group.node.publish(data, group.group, NAMESPACE)

    async def wait_received(self, count: int) -> None:
        """Wait until the node has received `count` payloads in all."""
        await self.node.until(lambda found: len([one for one in found if _is_ours(one.data)]) >= count)

    async def receive(self, limits: InboxLimits | None = None, *, ask: bool = True) -> list[ReceivedReport]:
        """Receive everything that waits, and return the reports."""
        async with self.client(allow_caught=True) as client, self.group() as group:
            known = client.session.trust.known
            with Inbox(self.inbox, self.hub_id, limits) as inbox:
                receiver = Receiver(group, inbox, CheckpointComparer(self.folder, known, client if ask else None))
                return [report async for report in receiver.receive()]

    def counts(self) -> dict[str, int]:
        with Inbox(self.inbox, self.hub_id) as inbox:
            return inbox.counts()


def _is_ours(data: Any) -> bool:
    return data.get("namespace") == NAMESPACE and "payload" in data


@dataclass
class Place:
    """A hub with some entries, and two clients that have read them."""

    root: Path
    folders: tuple[ClientDir, ClientDir]
    data_dir: Path

    @contextmanager
    def hubs(self, *, forked: bool) -> Iterator[tuple[Hub, Hub]]:
        """The hub twice: the same one, or two that continue from one copy of its data with the same key."""
        if not forked:
            with running(self.data_dir) as hub:
                yield hub, hub
            return
        shutil.copytree(self.data_dir, self.root / "copy")
        with running(self.data_dir) as one, running(self.root / "copy") as two:
            yield one, two


async def _write(hub: Hub, folder: ClientDir, *bodies: bytes) -> None:
    pin = Pin(key=hub.service.hub_metadata.identity.hub_id)
    async with Client(f"http://127.0.0.1:{hub.port}", folder, pin=pin) as client:
        for body in bodies:
            await client.send(STREAM, body)


@contextmanager
def place_with(root: Path, *bodies: bytes) -> Iterator[Place]:
    data_dir = make_dir(root)
    key = DhKey.generate()
    folders = (ClientDir.create(root / "alice", None, 1), ClientDir.create(root / "bob", None, 1))
    try:
        for folder in folders:
            folder.stream_keys.import_secret(STREAM, key)
        if bodies:
            with running(data_dir) as hub:
                asyncio.run(_write(hub, folders[0], *bodies))
        yield Place(root, folders, data_dir)
    finally:
        for folder in folders:
            folder.close()


def between(
    root: Path, work: Callable[[Side, Side], Coroutine[Any, Any, None]], *, forked: bool, entries: int = 3
) -> None:
    """Run `work` with two clients of one hub, whose nodes are linked and in the same group."""

    async def with_nodes(hubs: tuple[Hub, Hub], folders: tuple[ClientDir, ClientDir]) -> None:
        async with linked_nodes(root / "nodes", "alice", "bob") as nodes:
            alice, bob = (
                Side(folder, hub, node, root / f"inbox-{name}")
                for folder, hub, node, name in zip(folders, hubs, nodes, ("alice", "bob"), strict=True)
            )
            for side in (alice, bob):
                async with side.group():
                    pass
            await work(alice, bob)

    with place_with(root, *(b"%d" % number for number in range(entries))) as at, at.hubs(forked=forked) as hubs:
        asyncio.run(with_nodes(hubs, at.folders))
