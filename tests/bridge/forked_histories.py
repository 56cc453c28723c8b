"""A hub that can send anything, a client that knows six of its entries, and other histories of its log."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.client.hostile import START, HostileHub, Log
from tests.client.pair import STREAM, Pair, pair, read_all, send_all
from veen.bridge.veil_gossip import gossip_items
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer, ComparedCheckpoint
from veen.bridge.veil_gossip.gossip_items import ShownCheckpoint, VerifiedCheckpoint
from veen.client import evidence
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import Checkpoint
from veen.core import hub_identity as identities

KNOWN = 6


@dataclass
class ForkedHub:
    """A hub, a client that knows six of its entries, and forks of its log."""

    hub: HostileHub
    people: Pair
    reader: Client

    @property
    def log(self) -> Log:
        return self.hub.log(self.hub.label(STREAM))

    def other(self, common: int, size: int) -> Log:
        """Another history of the same label that forks after `common` entries."""
        made = self.log.cut(common)
        while made.tree.size < size:
            made.append(self.hub.key, self.hub.forged(made.label), START)
        return made

    def grow(self, size: int) -> None:
        while self.log.tree.size < size:
            self.log.append(self.hub.key, self.hub.forged(self.log.label), START)

    def shown(self, checkpoint: Checkpoint) -> bytes:
        return ShownCheckpoint(self.hub.identity, identities.sign(self.hub.identity, self.hub.key), checkpoint).encode()

    def verified(self, log: Log) -> VerifiedCheckpoint:
        return gossip_items.verify_checkpoint(self.shown(self.hub.checkpoint_of(log)), self.reader.session.trust.known)

    async def compare(self, log: Log, *others: Log, ask: bool = True) -> ComparedCheckpoint:
        comparer = CheckpointComparer(
            self.people.reader_dir, self.reader.session.trust.known, self.reader if ask else None
        )
        return await comparer.compare(self.verified(log), [self.hub.checkpoint_of(one) for one in others])

    def proves(self, compared: ComparedCheckpoint) -> bool:
        assert compared.evidence is not None, f"no evidence file: {compared.reason}"
        return bool(evidence.verify(compared.evidence.read_bytes(), self.hub.identity.hub_id).contradictions)


def with_forked_hub(place: Path, then: Callable[[ForkedHub], Awaitable[None]]) -> None:
    async def work() -> None:
        with pair(place) as people:
            async with HostileHub() as hub:
                people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
                async with people.writer() as writer:
                    await send_all(writer, *(b"%d" % number for number in range(KNOWN)))
                async with people.reader() as reader:
                    await read_all(reader)
                    await then(ForkedHub(hub, people, reader))

    asyncio.run(work())
