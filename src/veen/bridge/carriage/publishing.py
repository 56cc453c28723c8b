"""Saying something: a checkpoint of this client's hub, evidence, or a bundle. What does not hold is not said."""

from dataclasses import dataclass

from veen.bridge.carriage import judging
from veen.bridge.carriage.items import MAX_CONTENT_BYTES, Shown, What, digest_of, items_of
from veen.bridge.carriage.meeting import Meeting
from veen.client.client import Client
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Malformed, Unverified


@dataclass(frozen=True, slots=True)
class Said:
    """What was handed to the node: on its disk, and sent as soon as somebody is there to take it."""

    what: What
    digest: bytes
    size: int
    message_ids: tuple[int, ...]


class Publisher:
    """Says things of one hub where its clients meet."""

    def __init__(self, meeting: Meeting, known: HubRecord) -> None:
        self._meeting = meeting
        self._known = known

    async def checkpoint(self, client: Client, found: Checkpoint) -> Said:
        """A checkpoint that the client has verified, with the papers that anyone else needs for it."""
        known = client.contact.trust.known
        return await self._say(What.CHECKPOINT, Shown(known.identity, known.signature, found).encode())

    async def evidence(self, data: bytes) -> Said:
        """An evidence file about this hub."""
        return await self._say(What.EVIDENCE, data)

    async def bundle(self, data: bytes) -> Said:
        """A bundle of this hub's events. Nothing in it is in plain but the name of the stream, and who wrote when."""
        return await self._say(What.BUNDLE, data)

    async def _say(self, what: What, content: bytes) -> Said:
        if len(content) > MAX_CONTENT_BYTES:
            raise Malformed(what.word, f"{len(content)} bytes, above the {MAX_CONTENT_BYTES} that are carried")
        try:
            _JUDGES[what](content, self._known)
        except judging.Refusal as refusal:
            raise Unverified(what.word, f"it is not said, since nobody would take it: {refusal}") from None
        ids = [await self._meeting.say(item) for item in items_of(self._meeting.hub_id, what, content)]
        return Said(what, digest_of(what, content), len(content), tuple(ids))


_JUDGES = {What.CHECKPOINT: judging.checkpoint, What.EVIDENCE: judging.evidence, What.BUNDLE: judging.bundled}
