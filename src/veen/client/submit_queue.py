"""The messages on their way to one label: sent in order, retried, and settled only by verified answers.

The queue mirrors the outbox. A message leaves it in one of three ways: its receipt is verified and in the tree; the hub
rejected it permanently; or it must be sealed again for a new place, because its own place is gone.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import HubSession
from veen.client.outbox import Pending
from veen.client.transport import Outcome, as_try_later
from veen.client.tree_follower import Follower
from veen.core import Msg, Receipt, Refused, Unavailable, VeenError

BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 22
STALLED = 3  # rounds without progress before reconnecting. RESYNC0.3


class Undecided(Unavailable):
    """The result is unknown. The message stays in the outbox and is sent first next time."""

    def __init__(self, msg_id: bytes, reason: VeenError) -> None:
        super().__init__(f"{reason}; message {msg_id.hex()[:16]}… stays in the outbox and is sent first next time")
        self.msg_id = msg_id
        self.reason = reason


class _Next(Enum):
    """What to do after a rejection."""

    WAIT = "send it again later"
    RESEAL = "its place is gone"
    GIVE_UP = "rejected permanently"


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a message: a receipt or a rejection. With `resend`, it may be sealed again for another place."""

    pending: Pending
    outcome: Outcome
    resend: bool = False


def _next_step(refused: Refused) -> _Next:
    if as_try_later(refused) or refused.code == "E.RATE":
        return _Next.WAIT
    if refused.detail_enum in ("EPOCH", "CLIENT_SEQ", "PREV_ACK", "DUPLICATE"):
        return _Next.RESEAL
    return _Next.GIVE_UP


class SubmitQueue:
    """The messages that wait to be sent to one label."""

    def __init__(self, session: HubSession, follower: Follower, epoch: int, placing: asyncio.Lock) -> None:
        """`placing` is the lock of the tasks that take places or give them up, so that these never overlap."""
        self.epoch = epoch
        self._placing = placing
        self.follower = follower
        self.waiting: deque[Pending] = deque(session.dir.outbox.pending(session.hub_id, follower.label))
        self._session = session
        self._tried: set[bytes] = {pending.leaf_hash for pending in self.waiting}  # may be at the hub already
        self._failures = 0
        self._batches = True

    @property
    def label(self) -> bytes:
        return self.follower.label

    def put(self, sealed: Sequence[Pending]) -> None:
        """Add messages. They are already in the outbox."""
        self.waiting.extend(sealed)

    async def push(self) -> list[Settled]:
        """One round: send the next batch and process its outcomes.

        Raises `Contradiction` if the hub's answer does not verify, `Unavailable` if it did not answer after all
        retries, and `Refused` if its retry_after is too long. Then no message has left the outbox.
        """
        self._session.check_not_caught()
        batch = self._next_batch()
        try:
            outcomes = await self._submit(batch)
        except Unavailable as error:
            await self._failed(error, batch)
            return []
        settled, stop = await self._settle(batch, outcomes)
        await self._advance([one for one in settled if isinstance(one.outcome, Receipt)])
        async with self._placing:
            settled = await self._remove(settled)
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
        """As a batch if the hub accepts batches, else one by one."""
        if self._batches and len(batch) > 1:
            try:
                return await self._session.link.submit_batch([pending.encoded for pending in batch])
            except Refused as refused:
                # A batch may need more proof of work than its messages do separately.
                if refused.code != "E.NOT_FOUND" and refused.detail_enum != "PREFILTER_REJECT":
                    return [refused] * len(batch)
                self._batches = False
        outcomes: list[Outcome] = []
        for pending in batch:
            outcomes.append(await self._session.link.submit(pending.encoded))
            if isinstance(outcomes[-1], Refused):
                break
        return outcomes

    async def _failed(self, error: Exception, batch: Sequence[Pending], *, progress: bool = False) -> None:
        """Wait before the next round, or raise after the last retry."""
        self._tried.update(pending.leaf_hash for pending in batch)
        self._failures = 0 if progress else self._failures + 1
        if self._failures >= self._session.link.retry_policy.attempts:
            self._failures = 0
            raise error if isinstance(error, Unavailable) else Unavailable(str(error))
        if self._failures and self._failures % STALLED == 0:
            await self._reconnect()
        await asyncio.sleep(self._session.link.pause_s(error, self._failures))

    async def _reconnect(self) -> None:
        """Open new connections and fetch the hub's keys and time. Every message has a fresh HPKE context anyway."""
        await self._session.link.renew()
        with suppress(Unavailable):
            await self._session.refresh(once=True)

    async def _settle(
        self, batch: Sequence[Pending], outcomes: Sequence[Outcome]
    ) -> tuple[list[Settled], Refused | None]:
        """The meaning of each outcome, up to the first that the rest must wait for.

        After a rejected message the hub also rejects all later messages of the same key. Those rejections are a
        consequence of the first, so they are ignored.
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
            step = _next_step(outcome)
            if step is _Next.WAIT:
                stop = stop or outcome
            else:
                settled.append(Settled(pending, outcome, resend=step is _Next.RESEAL))
        return settled, stop

    async def _receipt_of(self, pending: Pending, refused: Refused) -> Outcome:
        """The receipt of a message that was accepted earlier although this answer rejects it, else the rejection."""
        if refused.detail_enum == "DUPLICATE" and "stream_seq" in refused.detail:
            return await self.follower.receipt(int(refused.detail["stream_seq"]))
        if refused.detail_enum == "PREV_ACK":
            await self.follower.check_end()
        if _next_step(refused) is not _Next.WAIT and pending.leaf_hash in self._tried:
            # An earlier answer was lost, and this rejection may be caused by what changed since.
            return await self.follower.find(pending.leaf_hash, pending.msg.prev_ack) or refused
        return refused

    async def _advance(self, accepted: Sequence[Settled]) -> None:
        """Verify the receipts, advance the tree past them, and remove the messages from the outbox."""
        if not accepted:
            return
        receipts = [one.outcome for one in accepted if isinstance(one.outcome, Receipt)]
        try:
            await self._session.verify(receipts)
            self._check_bound([one.pending for one in accepted], receipts)
        except Contradiction as error:
            raise await self._session.recorded(error) from None
        ordered = sorted(receipts, key=lambda receipt: receipt.stream_seq)
        await self.follower.follow(ordered, keep=receipts, done=[one.pending.leaf_hash for one in accepted])
        self._session.clock.note(ordered[-1].hub_ts)

    def _check_bound(self, sent: Sequence[Pending], receipts: Sequence[Receipt]) -> None:
        """Check that each receipt is for its message, and that the messages of a key have ascending places."""
        leaves = {pending.leaf_hash for pending in sent}
        last: dict[bytes, tuple[Pending, Receipt]] = {}
        places: dict[int, Receipt] = {}
        for pending, receipt in zip(sent, receipts, strict=True):
            seq = receipt.stream_seq
            if receipt.label != self.label or receipt.leaf_hash != pending.leaf_hash:
                raise self._misdirected(receipt, leaves)
            if seq in places:
                reason = f"two messages have the place {seq}"
                raise Contradiction(Lie.DUPLICATE_SEQ, reason, (places[seq], receipt))
            places[seq] = receipt
            before = last.get(pending.msg.client_id)
            if before and before[1].stream_seq > seq:
                raise Contradiction(
                    Lie.REPEATED_MESSAGE,
                    f"message {pending.msg.client_seq} has the place {seq}, before "
                    f"message {before[0].msg.client_seq} at {before[1].stream_seq}",
                    (before[1], receipt),
                    messages=(before[0].msg, pending.msg),
                )
            last[pending.msg.client_id] = (pending, receipt)
            if seq <= pending.msg.prev_ack:
                raise Contradiction(
                    Lie.DUPLICATE_SEQ,
                    f"a message that acknowledges entry {pending.msg.prev_ack} has the place {seq}",
                    tuple(head for head in (self.follower.known(seq), receipt) if head),
                )

    def _misdirected(self, receipt: Receipt, leaves: set[bytes]) -> Contradiction:
        """The contradiction of a receipt that is not for the sent message."""
        seq = receipt.stream_seq
        if receipt.label != self.label:
            return Contradiction(Lie.REPLAYED_RECEIPT, "the receipt has another label", (receipt,))
        if receipt.leaf_hash in leaves:
            reason = f"the receipt of entry {seq} answers another message of the same batch"
            return Contradiction(Lie.SWAPPED_MESSAGE, reason, (receipt,))
        if seq > self.follower.tree.size:
            return Contradiction(Lie.SWAPPED_MESSAGE, f"entry {seq} is signed with another message", (receipt,))
        known = self.follower.known(seq)
        if known and (known.leaf_hash, known.mmr_root) != (receipt.leaf_hash, receipt.mmr_root):
            reason = f"two different entries are signed as entry {seq}"
            return Contradiction(Lie.DUPLICATE_SEQ, reason, (known, receipt))
        return Contradiction(Lie.REPLAYED_RECEIPT, f"the receipt of entry {seq} answers a new message", (receipt,))

    async def _remove(self, settled: list[Settled]) -> list[Settled]:
        """Remove settled messages. An abandoned one also removes the later messages of its key."""
        gone = {one.pending.leaf_hash for one in settled if isinstance(one.outcome, Receipt)}
        found = [one for one in settled if isinstance(one.outcome, Receipt)]
        for one in settled:
            if isinstance(one.outcome, Receipt) or one.pending.leaf_hash in gone:
                continue
            msg = one.pending.msg
            for pending in await self._abandon(msg):
                first = pending.leaf_hash == one.pending.leaf_hash
                found.append(one if first else Settled(pending, one.outcome, resend=True))
                gone.add(pending.leaf_hash)
        # In place, because the sender appends to the same queue.
        self._forget(gone)
        return found

    async def _abandon(self, first: Msg) -> tuple[Pending, ...]:
        session = self._session
        return await session.on_disk(
            lambda: session.dir.outbox.abandon(session.hub_id, self.label, first.client_id, first.client_seq)
        )

    def _forget(self, gone: set[bytes]) -> None:
        kept = [pending for pending in self.waiting if pending.leaf_hash not in gone]
        self.waiting.clear()
        self.waiting.extend(kept)
        self._tried -= gone
