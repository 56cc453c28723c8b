"""Seals and signs messages for their places. A message is in the outbox before it is sent."""

import asyncio
from collections.abc import Mapping, Sequence

from veen.client import message_attachments
from veen.client.client_state import StateConflict
from veen.client.draft import Draft
from veen.client.hub_session import HubSession
from veen.client.message_attachments import Attachment
from veen.client.outbox import Pending
from veen.client.tree_follower import Follower
from veen.client.writer_keys import WriterKey
from veen.core import CapToken, Msg, Place, Sealer, SigningKey, Unverified, admin, attachment, msg
from veen.core.hashing import h
from veen.core.signing import SIGNATURE_BYTES
from veen.core.tooling_messages import AuthorizeResponse

_NO_SIG = bytes(SIGNATURE_BYTES)
_YIELD_EVERY = 32  # messages sealed before other tasks may run


class MessageBuilder:
    """Builds the messages of one stream."""

    def __init__(self, session: HubSession, stream_id: bytes, reader_pk: bytes) -> None:
        self.stream_id = stream_id
        self._session = session
        self._reader_pk = reader_pk
        self._pad_block = session.trust.profile.pad_block

    def check(self, draft: Draft) -> None:
        draft.check(self._session.trust.limits, self._pad_block)

    async def writer(self, label: bytes, epoch: int) -> WriterKey:
        """The key that writes next to a label, with an authorized capability if the hub requires one."""
        session = self._session
        # Streams that bind the hub itself always need a capability.
        binding = admin.binding_streams(session.trust.known.identity.realm_id)
        capability = session.status.admission != "open" or self.stream_id in binding
        writer = await session.on_disk(
            lambda: session.dir.writer(
                session.hub_id,
                label,
                self.stream_id,
                now=session.clock.now(),
                epoch=epoch,
                capability=capability,
                limits=session.trust.limits,
            )
        )
        if writer.cap and session.dir.caps.granted(session.hub_id, writer.cap.auth_ref()) is None:
            await authorize(session, writer.cap)
        return writer

    async def place(self, follower: Follower, epoch: int, drafts: Sequence[Draft]) -> list[Pending]:
        """Seal as many drafts as the key has room for, and store them in the outbox."""
        while True:
            writer = await self.writer(follower.label, epoch)
            sealed = await self._sealed(writer, follower, drafts[: writer.room])
            try:
                await self._put(writer, sealed, _marks(drafts, sealed))
            except StateConflict:
                continue  # another process took the places; discard the sealed messages
            return sealed

    async def _put(self, writer: WriterKey, sealed: list[Pending], marks: Mapping[bytes, bytes]) -> None:
        """Store the messages in the outbox. The thread finishes even if this task is cancelled.

        A message that was stored must not count as never placed, so the cancellation is deferred to the next await.
        """
        storing = asyncio.create_task(asyncio.to_thread(self._session.dir.outbox.put, writer, sealed, marks))
        try:
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asyncio.wait([storing])
            task = asyncio.current_task()
            if storing.exception() is not None or task is None:
                raise
            task.cancel()

    async def _sealed(self, writer: WriterKey, follower: Follower, drafts: Sequence[Draft]) -> list[Pending]:
        prev_ack = max(writer.used.last_prev_ack, follower.tree.size)
        auth_ref = writer.cap.auth_ref() if writer.cap else None
        sealed: list[Pending] = []
        for number, draft in enumerate(drafts):
            place = Place(
                self._session.profile_id,
                follower.label,
                writer.client_id,
                writer.next_client_seq + number,
                prev_ack,
                auth_ref,
            )
            sealed.append(await self._seal(writer.key, place, draft))
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return sealed

    async def _seal(self, key: SigningKey, place: Place, draft: Draft) -> Pending:
        sealer = Sealer(self._reader_pk, place)
        parts = await self._attached(sealer, key, draft) if draft.files else ()
        att_root = attachment.root([part.coid for part in parts]) if parts else None
        sealed = sealer.seal(draft.header(place.auth_ref, att_root), draft.payload(parts), self._pad_block)
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
        return Pending(signed, encoded, signed.leaf_hash())

    async def _attached(self, sealer: Sealer, key: SigningKey, draft: Draft) -> tuple[Attachment, ...]:
        """Seal and upload the attachments first, so that the hub has them when the message is in the log."""
        session, parts = self._session, []
        for path in draft.files:
            part, sealed = await session.on_disk(
                lambda path=path: message_attachments.seal_file(sealer, path, session.trust.limits)  # type: ignore[misc]
            )
            headers = message_attachments.upload_headers(
                key, session.hub_id, sealer.place.auth_ref, sealed, session.clock.now()
            )
            await message_attachments.upload(session.link, sealed, headers)
            parts.append(part)
        return tuple(parts)


def _marks(drafts: Sequence[Draft], sealed: Sequence[Pending]) -> dict[bytes, bytes]:
    return {draft.mark: one.leaf_hash for draft, one in zip(drafts, sealed, strict=False) if draft.mark is not None}


async def authorize(session: HubSession, token: CapToken) -> AuthorizeResponse:
    """Register a capability at the hub, which logs it and returns the receipt. Repeating it is harmless."""
    answer = await session.link.ask("/tooling/authorize", token, AuthorizeResponse)
    await session.verify([answer.receipt])
    if answer.auth_ref != token.auth_ref():
        raise Unverified("authorize response", "its auth_ref is not that of the sent capability")
    if answer.expires_at != token.expires_at(answer.receipt.hub_ts):
        raise Unverified("authorize response", "expires_at does not match its receipt")
    await session.on_disk(lambda: session.dir.caps.put_granted(session.hub_id, token.auth_ref(), answer.expires_at))
    return answer
