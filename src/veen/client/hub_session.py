"""The hub's time, which decides the epoch and with it the label of a stream. Spec §12."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from veen.client import evidence_verify
from veen.client.client_dir import ClientDir
from veen.client.contradiction import Caught, Contradiction
from veen.client.evidence import EvidenceBox
from veen.client.hub_status import HubStatus
from veen.client.transport import HubLink
from veen.client.trust import HubRecord, HubTrust, Pin
from veen.core import Checkpoint, Profile, Receipt, naming
from veen.core.origin import ForkOrigin


class HubClock:
    """What time it is at the hub: what it last said, and the time since."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead = float("-inf")  # of our monotonic clock
        self._told = asyncio.Event()

    def note(self, hub_ts: int) -> None:
        """The hub said it was `hub_ts`. It never goes back, so the latest it can be is what counts."""
        self._ahead = max(self._ahead, hub_ts - self._monotonic())

    def set(self, hub_ts: int) -> None:
        """The hub says it is `hub_ts` now, whatever we thought."""
        self._ahead = hub_ts - self._monotonic()
        self._told.set()

    async def until(self, hub_ts: int) -> None:
        """Wait until it is that time at the hub, as far as can be told from here."""
        while (wait := hub_ts - self._monotonic() - self._ahead) > 0:
            self._told.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._told.wait()

    def now(self) -> int:
        return int(self._monotonic() + self._ahead)


class Labels:
    """Where one hub keeps streams, epoch by epoch."""

    def __init__(self, routing_key: bytes, profile: Profile) -> None:
        self.routing_key = routing_key
        self.profile = profile

    def epoch(self, hub_ts: int) -> int:
        return self.profile.epoch(hub_ts)

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return naming.label(self.routing_key, stream_id, epoch)

    def ends_at(self, epoch: int) -> int | None:
        """The first second after an epoch; None where there are no epochs."""
        return (epoch + 1) * self.profile.epoch_sec if self.profile.epoch_sec else None


T = TypeVar("T")
_MOST_ORIGIN = 1 << 26


class Contact:
    """What reading and sending share."""

    def __init__(
        self, link: HubLink, folder: ClientDir, trust: HubTrust, status: HubStatus, *, allow_caught: bool = False
    ) -> None:
        self.link = link
        self.dir = folder
        self.trust = trust
        self.status = status
        self.box = EvidenceBox(folder.evidence, folder.disk)
        self.clock = HubClock()
        self.clock.set(status.hub_ts)
        self.labels = Labels(trust.known.identity.routing_key, trust.profile)
        self.profile_id = trust.profile.profile_id()
        self._allow_caught = allow_caught
        self._is_caught = bool(self.standing())

    @classmethod
    async def make(cls, link: HubLink, folder: ClientDir, pin: Pin | None, *, allow_caught: bool = False) -> "Contact":
        """Meet the hub. A pin that was used once is kept, so that the next time needs none.

        Raises `Caught` where the hub contradicted itself before, unless `allow_caught` is set: for those who start
        over with the hub, or compare what it signed.
        """
        status = HubStatus.read(await link.get_json("/tooling/status"))
        if pin and pin.on_first_use and folder.state.hub_of(link.url):
            pin = None  # this is not the first
        hub_id = folder.state.hub_of(link.url) if pin is None else status.identity.hub_id
        kept = folder.state.hub(hub_id) if hub_id else None
        record = HubRecord.decode(kept) if kept else None
        origin = record.origin if record else await _origin(link, status)
        try:
            trust = HubTrust.begin(status, pin, record, origin)
        except Contradiction as error:
            if record is not None:
                keep_contradiction(folder, record, error)
            raise
        if record != trust.known:
            folder.state.put_hub(trust.hub_id, trust.known.encode())
        if folder.state.hub_of(link.url) != trust.hub_id:
            folder.state.put_hub_of(link.url, trust.hub_id)
        made = cls(link, folder, trust, status, allow_caught=allow_caught)
        made.check_standing()
        return made

    @property
    def hub_id(self) -> bytes:
        return self.trust.hub_id

    def standing(self) -> tuple[Caught, ...]:
        """What the hub was caught at and is still held to; the oldest first."""
        return self.dir.state.caught(self.hub_id)

    def check_standing(self) -> None:
        """Raise `Caught` where the hub contradicted itself and nobody started over with it."""
        if self._is_caught and not self._allow_caught:
            for caught in self.standing():
                raise caught
            self._is_caught = False

    async def refresh(self, *, once: bool = False) -> HubStatus:
        """Ask the hub who it is and what time it is there; keys it added are learned, anything else is refused."""
        self.status = HubStatus.read(await self.link.get_json("/tooling/status", once=once))
        self.clock.set(self.status.hub_ts)
        try:
            learned = self.trust.learn(self.status)
        except Contradiction as error:
            raise await self.caught(error) from None
        if learned:
            await self.on_disk(lambda: self.dir.state.put_hub(self.hub_id, self.trust.known.encode()))
        return self.status

    async def verify(self, heads: Sequence[Receipt | Checkpoint]) -> None:
        """Raise unless the hub signed every one of them. A signature by a key it added meanwhile is looked into.

        Nothing that a caught hub signs is accepted.
        """
        self.check_standing()
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
        """The same error, with what shows it saved. A proven contradiction is held against the hub from now on."""
        await self.on_disk(lambda: keep_contradiction(self.dir, self.trust.known, error))
        self._is_caught = self._is_caught or error.proven
        return error

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Work that waits for a disk, off the loop."""
        return await asyncio.to_thread(work)


def keep_contradiction(folder: ClientDir, known: HubRecord, error: Contradiction) -> None:
    """Save what shows a contradiction; where the file proves it to anyone, hold it against the hub.

    The file is on disk before the row that names it, so a crash leaves at most a file that no row names.
    """
    if error.evidence is not None:
        return
    made, contradictions = evidence_verify.shows(known, error)
    if made is None:
        return
    error.hub_id = known.identity.hub_id
    error.evidence = EvidenceBox(folder.evidence, folder.disk).save(made)
    if contradictions:
        error.proven = True
        folder.state.put_caught(error.hub_id, error, int(time.time()))


async def _origin(link: HubLink, status: HubStatus) -> ForkOrigin | None:
    """Where a fork comes from, in its own words; the identity record names the hash of them."""
    if status.identity.origin is None:
        return None
    return ForkOrigin.decode(await link.get("/tooling/origin", _MOST_ORIGIN))
