"""One hub as this client knows it: the way there, whom to believe, what is kept of it, what it was caught at."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from veen.client.clientdir import ClientDir
from veen.client.contradiction import Contradiction
from veen.client.epochs import HubClock, Labels
from veen.client.evidence import EvidenceBox
from veen.client.status import HubStatus
from veen.client.transport import HubLink
from veen.client.trust import HubRecord, HubTrust, Pin
from veen.core import Checkpoint, Receipt
from veen.core.origin import Origin

T = TypeVar("T")
_MOST_ORIGIN = 1 << 26


class Contact:
    """What reading and sending share."""

    def __init__(self, link: HubLink, folder: ClientDir, trust: HubTrust, status: HubStatus) -> None:
        self.link = link
        self.dir = folder
        self.trust = trust
        self.status = status
        self.box = EvidenceBox(folder.evidence, folder.disk)
        self.clock = HubClock()
        self.clock.set(status.hub_ts)
        self.labels = Labels(trust.known.identity.routing_key, trust.profile)
        self.profile_id = trust.profile.profile_id()

    @classmethod
    async def make(cls, link: HubLink, folder: ClientDir, pin: Pin | None) -> "Contact":
        """Meet the hub. A pin that was used once is kept, so that the next time needs none."""
        status = HubStatus.read(await link.get_json("/tooling/status"))
        if pin and pin.on_first_use and folder.state.hub_of(link.url):
            pin = None  # this is not the first
        hub_id = folder.state.hub_of(link.url) if pin is None else status.identity.hub_id
        kept = folder.state.hub(hub_id) if hub_id else None
        record = HubRecord.decode(kept) if kept else None
        origin = record.origin if record else await _origin(link, status)
        trust = HubTrust.begin(status, pin, record, origin)
        if record != trust.known:
            folder.state.put_hub(trust.hub_id, trust.known.encode())
        if folder.state.hub_of(link.url) != trust.hub_id:
            folder.state.put_hub_of(link.url, trust.hub_id)
        return cls(link, folder, trust, status)

    @property
    def hub_id(self) -> bytes:
        return self.trust.hub_id

    async def refresh(self, *, once: bool = False) -> HubStatus:
        """Ask the hub who it is and what time it is there; keys it added are learned, anything else is refused."""
        self.status = HubStatus.read(await self.link.get_json("/tooling/status", once=once))
        self.clock.set(self.status.hub_ts)
        if self.trust.learn(self.status):
            await self.on_disk(lambda: self.dir.state.put_hub(self.hub_id, self.trust.known.encode()))
        return self.status

    async def verify(self, heads: Sequence[Receipt | Checkpoint]) -> None:
        """Raise unless the hub signed every one of them. A signature by a key it added meanwhile is looked into."""
        for head in heads:
            try:
                self._verify(head)
            except Contradiction as error:
                await self._verify_again(head, error)

    async def _verify_again(self, head: Receipt | Checkpoint, error: Contradiction) -> None:
        """Once more after asking for the hub's identity: it may have a new key by now."""
        status = await self.refresh()
        try:
            self._verify(head)
        except Contradiction:
            raise self.trust.blame_key(error, status) from None

    def _verify(self, head: Receipt | Checkpoint) -> None:
        if isinstance(head, Receipt):
            self.trust.verify_receipt(head)
        else:
            self.trust.verify_checkpoint(head)

    async def caught(self, error: Contradiction) -> Contradiction:
        """The same error, with what shows it saved."""
        await self.on_disk(lambda: self.box.keep(self.trust.known, error))
        return error

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Work that waits for a disk, off the loop."""
        return await asyncio.to_thread(work)


async def _origin(link: HubLink, status: HubStatus) -> Origin | None:
    """Where a fork comes from, in its own words; the identity record names the hash of them."""
    if status.identity.origin is None:
        return None
    return Origin.decode(await link.get("/tooling/origin", _MOST_ORIGIN))
