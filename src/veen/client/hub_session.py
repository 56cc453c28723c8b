"""The session with one hub: its keys, status, time and labels, shared by reading and sending. Spec §12."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from veen.client import evidence
from veen.client.client_dir import ClientDir
from veen.client.contradiction import Caught, Contradiction
from veen.client.evidence import EvidenceStore, Knowledge
from veen.client.read_access import signer_of
from veen.client.transport import HubLink
from veen.client.trust import HubRecord, HubStatus, HubTrust, Pin
from veen.core import Checkpoint, Malformed, Receipt, Refused, Unavailable, Unverified, naming
from veen.core.envelopes import ConsistencyRequest, ProofAtResponse
from veen.core.handover import Cover, HandOverList
from veen.core.hub_identity import ForkOrigin
from veen.core.proof import Head, label_of, size_of


class HubClock:
    """The hub's time, estimated from its last status and the time since then."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead = float("-inf")  # offset to our monotonic clock
        self._updated = asyncio.Event()

    def note(self, hub_ts: int) -> None:
        """The hub signed `hub_ts` in a receipt. Hub time never decreases, so the clock only moves forward."""
        self._ahead = max(self._ahead, hub_ts - self._monotonic())

    def set(self, hub_ts: int) -> None:
        """The hub reports `hub_ts` as its current time."""
        self._ahead = hub_ts - self._monotonic()
        self._updated.set()

    async def until(self, hub_ts: int) -> None:
        """Wait until that hub time, as far as it is known."""
        while (wait := hub_ts - self._monotonic() - self._ahead) > 0:
            self._updated.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._updated.wait()

    def now(self) -> int:
        return int(self._monotonic() + self._ahead)


_MOST_ORIGIN = 1 << 26
_MOST_HANDOVERS = 1 << 22


class HubSession:
    """The state that reading and sending share."""

    def __init__(
        self, link: HubLink, folder: ClientDir, trust: HubTrust, status: HubStatus, *, allow_caught: bool = False
    ) -> None:
        self.link = link
        self.dir = folder
        self.trust = trust
        self.hub_id = trust.hub_id
        self.status = status
        self.box = EvidenceStore(folder.evidence, folder.disk)
        self.clock = HubClock()
        self.clock.set(status.hub_ts)
        self.routing_key = trust.known.identity.routing_key
        self.profile_id = trust.profile.profile_id()
        self._allow_caught = allow_caught
        self._is_caught = bool(self.contradictions())

    @classmethod
    async def make(
        cls, link: HubLink, folder: ClientDir, pin: Pin | None, *, allow_caught: bool = False
    ) -> "HubSession":
        """Connect to the hub and verify its identity. The pin is stored, so the next time needs none.

        Raises `Caught` if the hub contradicted itself before, unless `allow_caught` is set, which callers use to start
        over with the hub or to compare what it signed.
        """
        status = HubStatus.read(await link.get_json("/tooling/status"))
        if status.shown.get("read_access") == "signed":
            link.reads = await asyncio.to_thread(signer_of, folder, status.identity.hub_id, status.hub_ts)
        if pin and pin.on_first_use and folder.state.hub_of(link.url):
            pin = None  # the hub is already known
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
        made.check_not_caught()
        return made

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return naming.label(self.routing_key, stream_id, epoch)

    def contradictions(self) -> tuple[Caught, ...]:
        """The proven contradictions of the hub, oldest first, unless the user started over with it."""
        return self.dir.state.caught(self.hub_id)

    def check_not_caught(self) -> None:
        """Raise `Caught` if the hub contradicted itself and the user has not started over with it."""
        if self._is_caught and not self._allow_caught:
            for caught in self.contradictions():
                raise caught
            self._is_caught = False

    async def refresh(self, *, once: bool = False) -> HubStatus:
        """Fetch the hub's status: follow its time and its new keys. Any other change raises."""
        self.status = HubStatus.read(await self.link.get_json("/tooling/status", once=once))
        self.clock.set(self.status.hub_ts)
        try:
            learned = self.trust.learn(self.status)
        except Contradiction as error:
            raise await self.recorded(error) from None
        if learned:
            await asyncio.to_thread(self.dir.state.put_hub, self.hub_id, self.trust.known.encode())
        return self.status

    async def verify(self, heads: Sequence[Receipt | Checkpoint]) -> None:
        """Raise `Contradiction` unless the hub signed all of them. Fetches the hub's new keys if one does not verify.

        Nothing that a caught hub signed is accepted.
        """
        self.check_not_caught()
        for head in heads:
            try:
                self.trust.lineage.verify_head(head, self.trust.profile)
            except Unverified:
                await self._verify_again(head)

    async def _verify_again(self, head: Receipt | Checkpoint) -> None:
        """Verify again with the hub's current identity, which may have a new key."""
        status = await self.refresh()
        try:
            self.trust.verify(head)
        except Contradiction as error:
            raise self.trust.blame_key(error, status) from None

    async def cover(self, head: Head) -> Cover | None:
        """The verified proof that a prefix belongs to the log of a hand-over.

        None if the key of the prefix is not retired, or the hub has no such proof.
        """
        line, label = self.trust.lineage, label_of(head)
        identity = line.identity_at(label, size_of(head))
        try:
            if line.verify_head(head, self.trust.profile) == identity.newest:
                return None
            shown = HandOverList.decode(await self.link.get(f"/tooling/handovers?label={label.hex()}", _MOST_HANDOVERS))
            for one in shown.handovers:
                if one.proved is None or one.proved.row.size < size_of(head):
                    continue
                request = ConsistencyRequest(label, size_of(head), one.proved.row.size)
                answer = await self.link.ask("/tooling/consistency", request, ProofAtResponse)
                cover = Cover(one.handover, one.proved, answer.mmr_proof)
                if cover.covers(identity, head):
                    return cover
        except (Malformed, Refused, Unavailable, Unverified):
            return None  # an older hub, or one that does not answer
        return None

    async def recorded(self, error: Contradiction) -> Contradiction:
        """Save the evidence of a contradiction and return the error. A proven one makes the hub untrusted."""
        if error.evidence is None and len(self.trust.known.identity.signing_keys) > 1:
            covers = [await self.cover(head) for head in error.statements]
            error.covers += tuple(cover for cover in covers if cover is not None)
        await asyncio.to_thread(keep_contradiction, self.dir, self.trust.known, error)
        self._is_caught = self._is_caught or error.proven
        return error


def keep_contradiction(folder: ClientDir, known: HubRecord, error: Contradiction) -> None:
    """Save the evidence of a contradiction. If it proves the contradiction to anyone, mark the hub as caught.

    The file is on disk before the row that names it, so a crash leaves at most a file without a row.
    """
    if error.evidence is not None:
        return
    hub_id = known.identity.hub_id
    made, report = evidence.shows(known, error, own_knowledge(folder, hub_id, error))
    if made is None:
        return
    error.hub_id = hub_id
    error.evidence = EvidenceStore(folder.evidence, folder.disk).save(made)
    if report is None:
        return
    if report.contradictions:
        error.proven = True
        folder.state.put_caught(hub_id, error, int(time.time()))
    elif report.retired:
        error.reason = f"{report.retired[0]} ({error.reason})"


def own_knowledge(folder: ClientDir, hub_id: bytes, error: Contradiction) -> Knowledge:
    """The knowledge from this client's own records about the statements of a contradiction."""
    return Knowledge(existed=[head for head in error.statements if folder.state.has_signed(hub_id, head)])


async def _origin(link: HubLink, status: HubStatus) -> ForkOrigin | None:
    """The origin of a fork. The identity record contains its digest."""
    if status.identity.origin is None:
        return None
    return ForkOrigin.decode(await link.get("/tooling/origin", _MOST_ORIGIN))
