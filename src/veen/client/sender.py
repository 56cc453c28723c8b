"""Sending to a stream: messages are sealed in order, sent in batches, and answered once verified and on disk.

While one batch is being sent, the next one gets its places. A message with a place is in the outbox, so a crash leaves
either nothing or the bytes to send again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from veen.client import message_attachments
from veen.client.capabilities import check_presentable
from veen.client.client_state import StateConflict
from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import HubSession
from veen.client.message_attachments import ATTACHED_SCHEMA, AttachedBody, Attachment
from veen.client.transport import Outcome, as_try_later
from veen.client.tree_follower import Follower, Followers, PrunedEntries
from veen.client.writer_keys import Pending, WriterKey, WriterRequest, use_places
from veen.core import (
    CapToken,
    Limits,
    Msg,
    PayloadHdr,
    Place,
    Receipt,
    Refused,
    Sealer,
    SigningKey,
    Unavailable,
    Unverified,
    VeenError,
    admin,
    attachment,
    msg,
    naming,
)
from veen.core.admission import BY_DETAIL, UNREGISTERED, WRONG_CLOCK
from veen.core.cap_token import Capability, token_of
from veen.core.envelopes import AuthorizeResponse, CheckpointOrder
from veen.core.hashing import U64_MAX, h
from veen.core.hpke import ENC_BYTES, TAG_BYTES
from veen.core.limits import MAX_MSG_BYTES
from veen.core.msg import MAX_CIPHERTEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES

DEFAULT_SCHEMA = naming.schema_id("veen.bytes.v1")
_LENGTHS_BYTES = 8
# The size of a MSG without its ciphertext, with all numbers at their maximum length.
_AROUND_BYTES = MAX_MSG_BYTES - MAX_CIPHERTEXT_BYTES
_MOST_HEADER = len(PayloadHdr(bytes(32), bytes(32), bytes(32), bytes(32), U64_MAX).encode())


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send."""

    body: bytes = field(repr=False)
    schema: bytes = DEFAULT_SCHEMA
    parent_id: bytes | None = None
    expires_at: int | None = None
    files: tuple[Path, ...] = ()
    mark: bytes | None = None  # the program's own id for it, stored together with its place: see `Outbox.marks`

    def header(self, auth_ref: bytes | None, att_root: bytes | None = None) -> PayloadHdr:
        """The header to seal. It names the capability that the message is admitted with."""
        schema = ATTACHED_SCHEMA if self.files else self.schema
        return PayloadHdr(schema, self.parent_id, att_root, auth_ref, self.expires_at)

    def payload(self, parts: tuple[Attachment, ...]) -> bytes:
        return AttachedBody(parts, self.schema, self.body).encode() if self.files else self.body

    def check(self, limits: Limits, pad_block: int) -> None:
        """Raise `Refused` for sizes that the hub would reject. Before it has a place, a rejection costs nothing.

        Assumes the maximum length for values that are not known yet.
        """
        around = _MOST_HEADER + ENC_BYTES + _LENGTHS_BYTES + 2 * TAG_BYTES + pad_block + _AROUND_BYTES
        room = min(limits.max_body_bytes - TAG_BYTES, limits.max_msg_bytes - around)
        if not self.files and len(self.body) <= room and limits.max_hdr_bytes >= _MOST_HEADER + TAG_BYTES:
            return  # it fits with any header
        message_attachments.check_files(self.files, limits)
        named = tuple(
            Attachment(bytes(32), limits.max_attachment_bytes, message_attachments.name_of(path)) for path in self.files
        )
        hdr_len = len(self.header(bytes(32), bytes(32)).encode()) + TAG_BYTES
        body_len = len(self.payload(named)) + TAG_BYTES
        sealed = ENC_BYTES + _LENGTHS_BYTES + hdr_len + body_len
        sealed += -sealed % pad_block if pad_block else 0
        for what, size, most in (
            ("header", hdr_len, limits.max_hdr_bytes),
            ("body", body_len, limits.max_body_bytes),
            ("message", sealed + _AROUND_BYTES, limits.max_msg_bytes),
        ):
            if size > most:
                raise BY_DETAIL["SIZE_PREFILTER"].refused(
                    f"the sealed {what} has {size} bytes, above {most}", max_allowed=most
                )


@dataclass(frozen=True, slots=True)
class Sent:
    """A message in the log. Its receipt is verified, the tree contains it, and both are on disk."""

    epoch: int
    receipt: Receipt

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash

    @property
    def stream_seq(self) -> int:
        return self.receipt.stream_seq

    @property
    def label(self) -> bytes:
        return self.receipt.label


_NO_SIG = bytes(SIGNATURE_BYTES)
T = TypeVar("T")


class MessageBuilder:
    """Builds the messages of one stream."""

    def __init__(self, session: HubSession, stream_id: bytes, reader_pk: bytes) -> None:
        self.stream_id = stream_id
        self.pad_block = session.trust.profile.pad_block
        self._session = session
        self._reader_pk = reader_pk
        # Streams that bind the hub itself always need a capability.
        self._is_binding = stream_id in admin.binding_streams(session.trust.known.identity.realm_id)

    async def place(self, follower: Follower, epoch: int, drafts: Sequence[Draft]) -> list[Pending]:
        """Seal as many drafts as the key has room for, and store them in the outbox."""
        if drafts[0].files:
            return [await self._place_attached(follower, epoch, drafts[0])]
        while True:
            missing, sealed = await _finish(asyncio.to_thread(self._place, follower, epoch, drafts))
            if missing is None:
                return sealed
            await authorize(self._session, missing)

    def _place(self, follower: Follower, epoch: int, drafts: Sequence[Draft]) -> tuple[CapToken | None, list[Pending]]:
        """Choose the key, seal and sign the messages for its next places, and store them, in one transaction.

        Returns no messages, but the capability, if the hub must authorize it first.
        """
        folder, wanted = self._session.dir, self._request(follower.label, epoch)
        sealed: list[Pending] = []
        with folder.state.tables.write() as rows:
            writer = folder.writers.writer(rows, wanted)
            missing = self._not_granted(writer.cap) if writer.cap else None
            if missing is None:
                prev_ack = max(writer.used.last_prev_ack, follower.tree.size)
                for client_seq, draft in enumerate(drafts[: writer.room], writer.next_client_seq):
                    sealed.append(self._seal(writer.key, self._sealer(writer, client_seq, prev_ack), draft))
                use_places(rows, writer, sealed)
        if writer.generation > folder.card.generation:
            folder.renew_card(wanted.now)
        return missing, sealed

    async def _place_attached(self, follower: Follower, epoch: int, draft: Draft) -> Pending:
        """As `_place`, for a message whose attachments are sealed for its place and uploaded before it is stored."""
        session = self._session
        while True:
            writer = await asyncio.to_thread(session.dir.writer, self._request(follower.label, epoch))
            missing = self._not_granted(writer.cap) if writer.cap else None
            if missing is not None:
                await authorize(session, missing)
            prev_ack = max(writer.used.last_prev_ack, follower.tree.size)
            sealer = self._sealer(writer, writer.next_client_seq, prev_ack)
            sealed = self._seal(writer.key, sealer, draft, await self._attached(sealer, writer.key, draft))
            try:
                await _finish(asyncio.to_thread(session.dir.outbox.put, writer, [sealed]))
            except StateConflict:
                continue  # another process took the place; discard the sealed message
            return sealed

    def _request(self, label: bytes, epoch: int) -> WriterRequest:
        session = self._session
        needs_capability = self._is_binding or session.status.admission != "open"
        now, limits = session.clock.now(), session.trust.limits
        return WriterRequest(session.hub_id, label, self.stream_id, now, epoch, needs_capability, limits)

    async def checkpoint_order(self, label: bytes, epoch: int) -> CheckpointOrder:
        """An order of a checkpoint, signed with the key of the capability. A hub with open admission needs none."""
        session = self._session
        if session.status.admission == "open":
            return CheckpointOrder(label)
        writer = await asyncio.to_thread(session.dir.writer, self._request(label, epoch))
        assert writer.cap is not None
        missing = self._not_granted(writer.cap)
        if missing is not None:
            await authorize(session, missing)
        now = session.clock.now()
        return CheckpointOrder.signed(writer.key, session.hub_id, label, writer.cap.auth_ref(), now)

    def _not_granted(self, cap: CapToken) -> CapToken | None:
        """The capability, if the hub must authorize it before the message is sent."""
        return cap if self._session.dir.caps.granted(self._session.hub_id, cap.auth_ref()) is None else None

    def _sealer(self, writer: WriterKey, client_seq: int, prev_ack: int) -> Sealer:
        auth_ref = writer.cap.auth_ref() if writer.cap else None
        client_id = writer.key.public_key
        place = Place(self._session.profile_id, writer.label, client_id, client_seq, prev_ack, auth_ref)
        return Sealer(self._reader_pk, place)

    def _seal(self, key: SigningKey, sealer: Sealer, draft: Draft, parts: tuple[Attachment, ...] = ()) -> Pending:
        place = sealer.place
        att_root = attachment.root([part.coid for part in parts]) if parts else None
        sealed = sealer.seal(draft.header(place.auth_ref, att_root), draft.payload(parts), self.pad_block)
        unsigned = Msg(
            place.profile_id,
            place.label,
            place.client_id,
            place.client_seq,
            place.prev_ack,
            place.auth_ref,
            h(sealed),
            sealed,
            _NO_SIG,
        )
        signed, encoded = msg.sign_encoded(key, unsigned)
        return Pending(signed, encoded, signed.leaf_hash(), draft.mark)

    async def _attached(self, sealer: Sealer, key: SigningKey, draft: Draft) -> tuple[Attachment, ...]:
        """Seal and upload the attachments first, so that the hub has them when the message is in the log."""
        session, parts = self._session, []
        for path in draft.files:
            part, sealed = await asyncio.to_thread(message_attachments.seal_file, sealer, path, session.trust.limits)
            label, auth_ref = sealer.place.label, sealer.place.auth_ref
            headers = message_attachments.upload_headers(
                key, session.hub_id, label, auth_ref, sealed, session.clock.now()
            )
            await message_attachments.upload(session.link, sealed, label, headers)
            parts.append(part)
        return tuple(parts)


async def _finish(storing: Coroutine[Any, Any, T]) -> T:
    """Await work that stores messages in the outbox, to its end even if this task is cancelled.

    A message that was stored must not count as never placed, so the cancellation is deferred to the next await.
    """
    stored = asyncio.create_task(storing)
    try:
        return await asyncio.shield(stored)
    except asyncio.CancelledError:
        await asyncio.wait([stored])
        task = asyncio.current_task()
        if stored.exception() is not None or task is None:
            raise
        task.cancel()
        return stored.result()


async def authorize(session: HubSession, capability: Capability) -> AuthorizeResponse:
    """Register a capability at the hub, which logs it and returns the receipt. Repeating it is harmless.

    A token is shown in the presentation that the client directory has for this hub, if any.
    """
    caps, token = session.dir.caps, token_of(capability)
    if capability is token:
        capability = caps.shown_at(session.hub_id, token.auth_ref()) or token
    is_known = caps.granted(session.hub_id, token.auth_ref()) is not None
    now = 0 if is_known else session.clock.now()  # the hub repeats its answer, also after the end
    shown = check_presentable(capability, session.hub_id, session.status.bare_tokens, now)
    answer = await session.link.ask("/tooling/authorize", shown, AuthorizeResponse)
    await session.verify([answer.receipt])
    if answer.auth_ref != token.auth_ref():
        raise Unverified("authorize response", "its auth_ref does not match the sent capability")
    if answer.expires_at > token.expires_at(answer.receipt.hub_ts):  # less: the first presentation set an earlier end
        raise Unverified("authorize response", "expires_at does not match its receipt")
    await asyncio.to_thread(session.dir.caps.put_granted, session.hub_id, answer.auth_ref, answer.expires_at)
    return answer


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
    """The next action after a rejection."""

    WAIT = "send it again later"
    RESEAL = "its place is gone"
    GIVE_UP = "rejected permanently"


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a message: a receipt or a rejection. With `resend`, it may be sealed again for another place.

    `PrunedEntries` is the outcome of a message that is in the log, if its receipt was pruned before it could be had.
    """

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

    def __init__(
        self,
        session: HubSession,
        follower: Follower,
        epoch: int,
        placing: asyncio.Lock,
        deliver: Callable[[list[Settled]], None],
    ) -> None:
        """`placing` is the lock of the tasks that take places or give them up, so that these never overlap.

        `deliver` gets every message that has left the outbox, also if `push` is cancelled meanwhile.
        """
        self.epoch = epoch
        self._placing = placing
        self._deliver = deliver
        self.follower = follower
        # The messages in the outbox by leaf_hash, in the order in which the hub must receive them.
        self.waiting = {one.leaf_hash: one for one in session.dir.outbox.pending(session.hub_id, follower.label)}
        self._session = session
        self._tried = set(self.waiting)  # may be at the hub already
        self._failures = 0
        self._batches = True

    async def push(self) -> None:
        """One round: send the next batch and deliver its outcomes.

        Raises `Contradiction` if the hub's answer does not verify, `Unavailable` if it did not answer after all
        retries, and `Refused` if its retry_after is too long. Then no message has left the outbox.
        """
        self._session.check_not_caught()
        batch = self._next_batch()
        try:
            outcomes = await self._submit(batch)
        except Unavailable as error:
            await self._failed(error, batch)
            return
        found, stop = await self._settle(batch, outcomes)
        settled = await _finish(self._conclude(found))
        self._deliver(settled)
        if settled:
            self._failures = 0
        if stop is not None:
            self._tried.update(pending.leaf_hash for pending in batch)
            await self._failed(as_try_later(stop) or stop, batch, progress=bool(settled))

    async def _conclude(self, settled: list[Settled]) -> list[Settled]:
        """Verify the receipts, advance the tree past them, and remove the settled messages from the outbox.

        Returns what has left it.
        """
        sent, receipts = list[Pending](), list[Receipt]()
        for one in settled:
            if isinstance(one.outcome, Receipt):
                sent.append(one.pending)
                receipts.append(one.outcome)
        if receipts:
            try:
                await self._session.verify(receipts)
                self._check_bound(sent, receipts)
            except Contradiction as error:
                raise await self.follower.recorded(error) from None
            ordered = sorted(receipts, key=attrgetter("stream_seq"))
            await self.follower.follow(ordered, keep=receipts, done=list(map(attrgetter("leaf_hash"), sent)))
            self._session.clock.note(ordered[-1].hub_ts)
        return await self._remove(settled)

    def _next_batch(self) -> list[Pending]:
        batch: list[Pending] = []
        room = BATCH_BYTES
        for pending in self.waiting.values():
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
            if isinstance(outcome, Receipt | PrunedEntries):
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
            return await self.follower.placed(pending.leaf_hash, int(refused.detail["stream_seq"]))
        if refused.detail_enum == "PREV_ACK":
            await self.follower.check_end()
        if _next_step(refused) is not _Next.WAIT and pending.leaf_hash in self._tried:
            # An earlier answer was lost, and this rejection may be caused by what changed since.
            return await self.follower.find(pending.leaf_hash, pending.msg.prev_ack) or refused
        return refused

    def _check_bound(self, sent: Sequence[Pending], receipts: Sequence[Receipt]) -> None:
        """Check that each receipt is for its message, and that the messages of a key have ascending places."""
        last: dict[bytes, tuple[Pending, Receipt]] = {}
        places: dict[int, Receipt] = {}
        for pending, receipt in zip(sent, receipts, strict=True):
            seq = receipt.stream_seq
            if receipt.label != self.follower.label or receipt.leaf_hash != pending.leaf_hash:
                raise self._misdirected(receipt, {one.leaf_hash for one in sent})
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
        if receipt.label != self.follower.label:
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
        found: list[Settled] = []
        async with self._placing:
            for one in settled:
                if isinstance(one.outcome, Receipt):
                    removed: Sequence[Pending] = (one.pending,)
                elif isinstance(one.outcome, PrunedEntries):
                    removed = (one.pending,)
                    await asyncio.to_thread(self._session.dir.outbox.remove, one.pending.leaf_hash)
                elif one.pending.leaf_hash in self.waiting:
                    removed = await self._abandon(one.pending.msg)
                else:
                    continue  # removed together with an earlier one
                for pending in removed:
                    self.waiting.pop(pending.leaf_hash, None)
                    self._tried.discard(pending.leaf_hash)
                    is_same = pending.leaf_hash == one.pending.leaf_hash
                    found.append(one if is_same else Settled(pending, one.outcome, resend=True))
        return found

    async def _abandon(self, first: Msg) -> tuple[Pending, ...]:
        session, label = self._session, self.follower.label
        return await asyncio.to_thread(
            session.dir.outbox.abandon, session.hub_id, label, first.client_id, first.client_seq
        )


class OutboxRecovery:
    """Sends the outbox of earlier runs, once per run, before the first message."""

    def __init__(self, session: HubSession, followers: Followers) -> None:
        self._session = session
        self._followers = followers
        self._lock = asyncio.Lock()
        self.is_done = False
        self.settled: list[Settled] = []  # the messages found, with their outcomes

    async def run(self) -> list[Settled]:
        """Send this hub's messages in the outbox. Raises `Unavailable` if the hub does not answer."""
        async with self._lock:
            if not self.is_done:
                for hub_id, label in self._session.dir.outbox.places():
                    if hub_id == self._session.hub_id:
                        await self._empty(label)
                self.is_done = True
        return self.settled

    async def _empty(self, label: bytes) -> None:
        queue = SubmitQueue(self._session, self._followers.of(label), 0, asyncio.Lock(), self.settled.extend)
        while queue.waiting:
            await queue.push()


_MAX_QUEUED = 1 << 14
_MAX_PLACES = 4  # how often a message gets a new place before its rejection is final


@dataclass(slots=True)
class _Item:
    draft: Draft
    future: "asyncio.Future[Sent]"
    places: int = 0


class Sender:
    """The outgoing messages of one stream, in the order of `put`."""

    def __init__(
        self, session: HubSession, followers: Followers, builder: MessageBuilder, recovery: OutboxRecovery
    ) -> None:
        self._session = session
        self._followers = followers
        self._builder = builder
        self._recovery = recovery
        self._placing = asyncio.Lock()
        self._queue: deque[_Item] = deque()
        self._items: dict[bytes, _Item] = {}  # by leaf_hash: sealed and not yet answered
        self._displaced: list[_Item] = []  # they lost their places and get new ones
        self._submit_queue: SubmitQueue | None = None
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._broken: BaseException | None = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def put(self, draft: Draft) -> "asyncio.Future[Sent]":
        """Queue a message. The future completes once the receipt is verified, in the tree and on disk.

        It fails with `Refused` if the hub rejects the message, `Undecided` if the result is unknown, and
        `Contradiction` if the hub contradicted itself, after which nothing more is sent. Sizes are checked at once.
        """
        if self._broken:
            raise self._broken.with_traceback(None)
        draft.check(self._session.trust.limits, self._builder.pad_block)
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._queue.append(_Item(draft, future))
        self._idle.clear()
        self._woken.set()
        return future

    @property
    def is_full(self) -> bool:
        """Whether a producer should `await drain()` before the next `put`."""
        return len(self._queue) >= _MAX_QUEUED

    async def drain(self) -> None:
        """Wait until everything that was put has an outcome."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop. Messages without an answer stay in the outbox."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Fail all waiting futures, with the task's own error if it failed by a bug."""
        bug = None if task.cancelled() else task.exception()
        self._broken = bug or Unavailable("the sender was closed")
        for item in (*self._items.values(), *self._queue):
            if bug and not item.future.done():
                item.future.set_exception(bug)
        self._fail(Unavailable("the sender was closed"))
        self._items.clear()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                if not self._recovery.is_done:
                    await self._recovery.run()
                while self._queue or (self._submit_queue and self._submit_queue.waiting):
                    await self._round()
            except Contradiction as error:
                self._broken = error
                self._fail(error)
            except VeenError as error:
                self._fail(error)
            self._idle.set()

    async def _round(self) -> None:
        """Send the messages that have places, and meanwhile give places to the next ones."""
        queue = self._submit_queue
        if queue is None or not queue.waiting:
            await self._seal_next()
            queue = self._submit_queue
            if queue is None or not queue.waiting:
                return
        push = asyncio.create_task(queue.push())
        try:
            if self._queue and len(queue.waiting) <= BATCH_MESSAGES:
                await self._seal_next()
            await push
        except BaseException:
            push.cancel()
            await asyncio.wait([push])
            raise
        finally:
            displaced, self._displaced = self._displaced, []
            self._queue.extendleft(reversed(displaced))
        if displaced:
            await self._session.refresh()

    async def _seal_next(self) -> None:
        """Give places to the next group of the queue. If that fails, the whole group fails."""
        async with self._placing:
            drafts = self._next_drafts()
            try:
                queue = self._current_queue()
                if queue is None:
                    return
                sealed = await self._builder.place(queue.follower, queue.epoch, drafts)
            except VeenError as error:
                for _ in drafts:
                    _refuse(self._queue.popleft(), error)
                return
            for pending in sealed:
                queue.waiting[pending.leaf_hash] = pending
                self._items[pending.leaf_hash] = self._queue.popleft()

    def _next_drafts(self) -> list[Draft]:
        """The first drafts of the queue. One with attachments comes alone, because they must be uploaded first."""
        drafts: list[Draft] = []
        for item in self._queue:
            if len(drafts) == BATCH_MESSAGES or (drafts and item.draft.files):
                break
            drafts.append(item.draft)
            if item.draft.files:
                break
        return drafts

    def _current_queue(self) -> SubmitQueue | None:
        """The submit queue of the hub's current epoch; None while the previous one still has messages to send."""
        profile = self._session.trust.profile
        epoch = profile.epoch(self._session.clock.now()) if profile.epoch_sec else 0
        if self._submit_queue is None or self._submit_queue.epoch != epoch:
            if self._submit_queue and self._submit_queue.waiting:
                return None
            label = self._session.label(self._builder.stream_id, epoch)
            self._submit_queue = SubmitQueue(
                self._session, self._followers.of(label), epoch, self._placing, partial(self._answer, epoch)
            )
        return self._submit_queue

    def _answer(self, epoch: int, settled: Sequence[Settled]) -> None:
        """Complete the futures of messages that have left the outbox, and note those that lost their places."""
        for one in settled:
            item = self._items.pop(one.pending.leaf_hash, None)
            if item is None:
                continue
            if isinstance(one.outcome, Receipt):
                if not item.future.done():
                    item.future.set_result(Sent(epoch, one.outcome))
            elif one.resend and item.places < _MAX_PLACES:
                item.places += 1
                self._displaced.append(item)
            else:
                _refuse(item, _explained(one.outcome, epoch))

    def _fail(self, error: VeenError) -> None:
        """Fail all waiting futures. Messages with a place keep it, and are sent with whatever is put next."""
        for leaf, item in self._items.items():
            _refuse(item, error if isinstance(error, Contradiction) else Undecided(leaf, error))
        for item in self._queue:
            _refuse(item, error)
        self._queue.clear()
        self._idle.set()


def _explained(refused: Refused, epoch: int) -> Refused:
    """Say which of its two causes E.TIME/EPOCH has. The hub cannot: a label is a hash."""
    first, last = refused.detail.get("first_epoch"), refused.detail.get("last_epoch")
    if refused.detail_enum != "EPOCH" or not isinstance(first, int) or not isinstance(last, int):
        return refused
    if first <= epoch <= last:
        text, cause = "the stream is not registered at the hub", UNREGISTERED
    else:
        text = f"the message is of epoch {epoch}, but the hub is in epoch {refused.detail.get('epoch')}"
        cause = WRONG_CLOCK
    detail = {**refused.detail, "cause": cause}
    return Refused(refused.code, text, stage=refused.stage, detail_enum=refused.detail_enum, detail=detail)


def _refuse(item: _Item, error: VeenError) -> None:
    if not item.future.done():
        item.future.set_exception(error)
