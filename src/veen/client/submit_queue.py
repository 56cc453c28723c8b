"""The way of signed messages to one label: in order, as often as it takes, and never past an answer that is unproved.

What waits here is what the outbox holds. A message leaves it in one of three ways: its receipt is verified and the
tree has followed it; it is refused for good; or it must be placed anew, because the place it was sealed for is gone.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import Contact
from veen.client.outbox import Pending
from veen.client.transport import Outcome, as_try_later
from veen.client.tree_follower import Follower
from veen.core import Msg, Receipt, Refused, Unavailable, VeenError

BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 22
STALLED = 3  # rounds without progress after which everything is looked at afresh. RESYNC0.3


class Undecided(Unavailable):
    """The hub did not say, or not yet. The message stays in the outbox, and goes out first next time."""

    def __init__(self, msg_id: bytes, reason: VeenError) -> None:
        super().__init__(f"{reason}; message {msg_id.hex()[:16]}… stays in the outbox and goes out first next time")
        self.msg_id = msg_id
        self.reason = reason


class _Next(Enum):
    """What follows from a refusal."""

    WAIT = "the same again, later"
    PLACE_ANEW = "its place is gone"
    GIVE_UP = "refused for good"


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a message: a receipt, or why not. `anew` says that it may be sealed again for another place."""

    pending: Pending
    outcome: Outcome
    anew: bool = False


def _judge(refused: Refused) -> _Next:
    if as_try_later(refused) or refused.code == "E.RATE":
        return _Next.WAIT
    if refused.detail_enum in ("EPOCH", "CLIENT_SEQ", "PREV_ACK", "DUPLICATE"):
        return _Next.PLACE_ANEW
    return _Next.GIVE_UP


class SubmitQueue:
    """What waits to go to one label."""

    def __init__(self, contact: Contact, follower: Follower, epoch: int, placing: asyncio.Lock) -> None:
        """`placing` is held by whoever takes places or gives them up, so that neither happens amid the other."""
        self.epoch = epoch
        self._placing = placing
        self.follower = follower
        self.waiting: deque[Pending] = deque(contact.dir.outbox.pending(contact.hub_id, follower.label))
        self._contact = contact
        self._tried: set[bytes] = {pending.leaf_hash for pending in self.waiting}  # may have arrived before
        self._failures = 0
        self._batches = True

    @property
    def label(self) -> bytes:
        return self.follower.label

    def put(self, sealed: Sequence[Pending]) -> None:
        """These are in the outbox already."""
        self.waiting.extend(sealed)

    async def push(self) -> list[Settled]:
        """One round: send what waits first, and see what becomes of it.

        Raises `Contradiction` where the hub's answer does not hold, `Unavailable` where there was none as often as
        patience allows, `Refused` where it asks for more patience than that. Nothing has left the outbox then.
        """
        self._contact.check_standing()
        batch = self._next_batch()
        try:
            outcomes = await self._submit(batch)
        except Unavailable as error:
            await self._failed(error, batch)
            return []
        settled, stop = await self._settle(batch, outcomes)
        await self._advance([one for one in settled if isinstance(one.outcome, Receipt)])
        async with self._placing:
            settled = await self._taken_out(settled)
        if settled:
            self._failures = 0
        if stop is not None:
            self._tried.update(pending.leaf_hash for pending in batch)
            await self._failed(as_try_later(stop) or stop, batch, progress=bool(settled))
        return settled

    def _next_batch(self) -> list[Pending]:
        batch: list[Pending] = []
        room = BATCH_BYTES
        for pending in self.waiting:
            room -= len(pending.encoded)
            if batch and (room < 0 or len(batch) == BATCH_MESSAGES):
                break
            batch.append(pending)
        return batch

    async def _submit(self, batch: Sequence[Pending]) -> list[Outcome]:
        """Together where the hub takes batches, else one by one."""
        if self._batches and len(batch) > 1:
            try:
                return await self._contact.link.submit_batch([pending.encoded for pending in batch])
            except Refused as refused:
                # A batch may ask for more work at once than its messages do one by one.
                if refused.code != "E.NOT_FOUND" and refused.detail_enum != "PREFILTER_REJECT":
                    return [refused] * len(batch)
                self._batches = False
        outcomes: list[Outcome] = []
        for pending in batch:
            outcomes.append(await self._contact.link.submit(pending.encoded))
            if isinstance(outcomes[-1], Refused):
                break
        return outcomes

    async def _failed(self, error: Exception, batch: Sequence[Pending], *, progress: bool = False) -> None:
        """Wait before the next round, or raise where patience is at its end."""
        self._tried.update(pending.leaf_hash for pending in batch)
        self._failures = 0 if progress else self._failures + 1
        if self._failures >= self._contact.link.patience.attempts:
            self._failures = 0
            raise error if isinstance(error, Unavailable) else Unavailable(str(error))
        if self._failures and self._failures % STALLED == 0:
            await self._look_afresh()
        await asyncio.sleep(self._contact.link.pause_s(error, self._failures))

    async def _look_afresh(self) -> None:
        """New connections, the hub's keys and time as they are now. Every message has a fresh HPKE context anyway."""
        await self._contact.link.renew()
        with suppress(Unavailable):
            await self._contact.refresh(once=True)

    async def _settle(
        self, batch: Sequence[Pending], outcomes: Sequence[Outcome]
    ) -> tuple[list[Settled], Refused | None]:
        """What each outcome means, up to the first that the rest must wait for.

        Behind a message that was not taken, the hub refuses whatever the same key sent after it: that follows from the
        first, and says nothing by itself.
        """
        settled: list[Settled] = []
        blocked: set[bytes] = set()
        stop: Refused | None = None
        for pending, outcome in zip(batch, outcomes, strict=False):
            client_id = pending.msg.client_id
            if client_id in blocked and isinstance(outcome, Refused):
                continue
            if isinstance(outcome, Refused):
                outcome = await self._receipt_of(pending, outcome)
            if isinstance(outcome, Receipt):
                settled.append(Settled(pending, outcome))
                continue
            blocked.add(client_id)
            meant = _judge(outcome)
            if meant is _Next.WAIT:
                stop = stop or outcome
            else:
                settled.append(Settled(pending, outcome, anew=meant is _Next.PLACE_ANEW))
        return settled, stop

    async def _receipt_of(self, pending: Pending, refused: Refused) -> Outcome:
        """The receipt of a message that was accepted though this answer refuses it, or else the refusal."""
        if refused.detail_enum == "DUPLICATE" and "stream_seq" in refused.detail:
            return await self.follower.receipt(int(refused.detail["stream_seq"]))
        if refused.detail_enum == "PREV_ACK":
            await self.follower.check_end()
        if _judge(refused) is not _Next.WAIT and pending.leaf_hash in self._tried:
            # An earlier answer was lost, and this one may be about something that has changed since.
            return await self.follower.find(pending.leaf_hash, pending.msg.prev_ack) or refused
        return refused

    async def _advance(self, accepted: Sequence[Settled]) -> None:
        """Verify every receipt and take the tree past them, and the messages out of the outbox with it."""
        if not accepted:
            return
        receipts = [one.outcome for one in accepted if isinstance(one.outcome, Receipt)]
        try:
            await self._contact.verify(receipts)
            self._check_bound([one.pending for one in accepted], receipts)
        except Contradiction as error:
            raise await self._contact.caught(error) from None
        ordered = sorted(receipts, key=lambda receipt: receipt.stream_seq)
        await self.follower.follow(ordered, keep=receipts, done=[one.pending.leaf_hash for one in accepted])
        self._contact.clock.note(ordered[-1].hub_ts)

    def _check_bound(self, sent: Sequence[Pending], receipts: Sequence[Receipt]) -> None:
        """Each receipt is for the message it answers, and a key's messages have ascending places."""
        leaves = {pending.leaf_hash for pending in sent}
        last: dict[bytes, tuple[Pending, Receipt]] = {}
        places: dict[int, Receipt] = {}
        for pending, receipt in zip(sent, receipts, strict=True):
            seq = receipt.stream_seq
            if receipt.label != self.label or receipt.leaf_hash != pending.leaf_hash:
                raise self._misdirected(receipt, leaves)
            if seq in places:
                reason = f"two messages are given the place {seq}"
                raise Contradiction(Lie.DUPLICATE_SEQ, reason, (places[seq], receipt))
            places[seq] = receipt
            before = last.get(pending.msg.client_id)
            if before and before[1].stream_seq > seq:
                raise Contradiction(
                    Lie.REPEATED_MESSAGE,
                    f"message {pending.msg.client_seq} is given the place {seq}, before "
                    f"message {before[0].msg.client_seq} at {before[1].stream_seq}",
                    (before[1], receipt),
                    messages=(before[0].msg, pending.msg),
                )
            last[pending.msg.client_id] = (pending, receipt)
            if seq <= pending.msg.prev_ack:
                raise Contradiction(
                    Lie.DUPLICATE_SEQ,
                    f"a message that acknowledges entry {pending.msg.prev_ack} is given the place {seq}",
                    tuple(head for head in (self.follower.known(seq), receipt) if head),
                )

    def _misdirected(self, receipt: Receipt, leaves: set[bytes]) -> Contradiction:
        """A receipt for something else than what was sent."""
        seq = receipt.stream_seq
        if receipt.label != self.label:
            return Contradiction(Lie.REPLAYED_RECEIPT, "the receipt is of another label", (receipt,))
        if receipt.leaf_hash in leaves:
            reason = f"the receipt of entry {seq} answers another message of the same batch"
            return Contradiction(Lie.SWAPPED_MESSAGE, reason, (receipt,))
        if seq > self.follower.tree.size:
            return Contradiction(Lie.SWAPPED_MESSAGE, f"entry {seq} is signed for with another message", (receipt,))
        known = self.follower.known(seq)
        if known and (known.leaf_hash, known.mmr_root) != (receipt.leaf_hash, receipt.mmr_root):
            reason = f"entry {seq} is signed for as two different entries"
            return Contradiction(Lie.DUPLICATE_SEQ, reason, (known, receipt))
        return Contradiction(Lie.REPLAYED_RECEIPT, f"the receipt of entry {seq} answers a new message", (receipt,))

    async def _taken_out(self, settled: list[Settled]) -> list[Settled]:
        """Take what is settled off the queue. A message given up takes along what its key put after it."""
        gone = {one.pending.leaf_hash for one in settled if isinstance(one.outcome, Receipt)}
        found = [one for one in settled if isinstance(one.outcome, Receipt)]
        for one in settled:
            if isinstance(one.outcome, Receipt) or one.pending.leaf_hash in gone:
                continue
            msg = one.pending.msg
            for pending in await self._abandon(msg):
                first = pending.leaf_hash == one.pending.leaf_hash
                found.append(one if first else Settled(pending, one.outcome, anew=True))
                gone.add(pending.leaf_hash)
        # In place: whoever seals for this lane adds to the same queue.
        self._forget(gone)
        return found

    async def _abandon(self, first: Msg) -> tuple[Pending, ...]:
        contact = self._contact
        return await contact.on_disk(
            lambda: contact.dir.outbox.abandon(contact.hub_id, self.label, first.client_id, first.client_seq)
        )

    def _forget(self, gone: set[bytes]) -> None:
        kept = [pending for pending in self.waiting if pending.leaf_hash not in gone]
        self.waiting.clear()
        self.waiting.extend(kept)
        self._tried -= gone
