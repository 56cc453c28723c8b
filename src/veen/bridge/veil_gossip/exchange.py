"""Saying something: a checkpoint of this client's hub, evidence, or a bundle. What does not hold is not said."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from veen.bridge.veil_gossip import item_verify
from veen.bridge.veil_gossip.checkpoint_compare import OPEN, CheckpointComparer, ComparedCheckpoint, ComparisonResult
from veen.bridge.veil_gossip.gossip_inbox import (
    BUNDLES,
    EVIDENCE,
    Inbox,
    InboxFull,
    PartStore,
    ProvedContradiction,
    StoredCheckpoint,
)
from veen.bridge.veil_gossip.gossip_items import (
    MAX_CONTENT_BYTES,
    MAX_PAYLOAD_BYTES,
    NAMESPACE,
    GossipGroup,
    GossipItem,
    ItemKind,
    PartsManifest,
    ShownCheckpoint,
    digest_of,
    items_of,
    part_name,
)
from veen.bridge.veil_gossip.item_verify import ItemRejected, RejectReason, VerifiedCheckpoint
from veen.bridge.veil_gossip.veil_node import Delivered
from veen.client import durable
from veen.client.client import Client
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Malformed, Unverified
from veen.core.hashing import h
from veen.core.strict_json import Json


@dataclass(frozen=True, slots=True)
class PublishedItem:
    """What was handed to the node: on its disk, and sent as soon as somebody is there to take it."""

    what: ItemKind
    digest: bytes
    size: int
    message_ids: tuple[int, ...]


class Publisher:
    """Says things of one hub where its clients meet."""

    def __init__(self, meeting: GossipGroup, known: HubRecord) -> None:
        self._meeting = meeting
        self._known = known

    async def checkpoint(self, client: Client, found: Checkpoint) -> PublishedItem:
        """A checkpoint that the client has verified, with the papers that anyone else needs for it."""
        known = client.contact.trust.known
        return await self._say(ItemKind.CHECKPOINT, ShownCheckpoint(known.identity, known.signature, found).encode())

    async def evidence(self, data: bytes) -> PublishedItem:
        """An evidence file about this hub."""
        return await self._say(ItemKind.EVIDENCE, data)

    async def bundle(self, data: bytes) -> PublishedItem:
        """A bundle of this hub's events. Nothing in it is in plain but the name of the stream, and who wrote when."""
        return await self._say(ItemKind.BUNDLE, data)

    async def _say(self, what: ItemKind, content: bytes) -> PublishedItem:
        if len(content) > MAX_CONTENT_BYTES:
            raise Malformed(what.word, f"{len(content)} bytes, above the {MAX_CONTENT_BYTES} that are carried")
        try:
            _JUDGES[what](content, self._known)
        except item_verify.ItemRejected as refusal:
            raise Unverified(what.word, f"it is not said, since nobody would take it: {refusal}") from None
        ids = [await self._meeting.say(item) for item in items_of(self._meeting.hub_id, what, content)]
        return PublishedItem(what, digest_of(what, content), len(content), tuple(ids))


_JUDGES = {
    ItemKind.CHECKPOINT: item_verify.checkpoint,
    ItemKind.EVIDENCE: item_verify.evidence,
    ItemKind.BUNDLE: item_verify.bundled,
}


TAKEN, REFUSED, STAGED, LOOKED = "taken", "refused", "staged", "looked at again"
MISSED = "missed"
# How long a node holds an answer back while nothing happens.
_WAIT_S = 20
_TAKEN_COUNTS = {ItemKind.CHECKPOINT: "checkpoints", ItemKind.EVIDENCE: "evidence", ItemKind.BUNDLE: "bundles"}


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """What became of one thing that came. `standing` is that of a checkpoint; evidence that shows a lie is `forked`."""

    result: str
    what: ItemKind | None = None
    reason: str = ""
    standing: ComparisonResult | None = None
    label: bytes | None = None
    size: int | None = None
    file: Path | None = None
    sender: bytes = b""

    def to_json(self) -> dict[str, Json]:
        return {
            "result": self.result,
            "what": self.what.word if self.what else None,
            "standing": str(self.standing) if self.standing else None,
            "reason": self.reason,
            "label": self.label.hex() if self.label else None,
            "upto_seq": self.size,
            "file": str(self.file) if self.file else None,
            "sender": self.sender.hex(),
        }


class Receiver:
    """Reads one node for one client of one hub."""

    def __init__(
        self,
        meeting: GossipGroup,
        inbox: Inbox,
        holder: CheckpointComparer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meeting = meeting
        self._inbox = inbox
        self._staging = PartStore(inbox)
        self._holder = holder
        self._clock = clock

    async def receive(self) -> AsyncIterator[ReceivedReport]:
        """All that waits at the node, then all that could not be decided before."""
        async for told in self._drain():
            yield told
        async for told in self._look_again():
            yield told
        await self.tell_others()

    async def follow(self) -> AsyncIterator[ReceivedReport]:
        """The same for ever, as things come."""
        node = await self._meeting.node.pubkey()
        looked = -float(_WAIT_S)
        while True:
            async for told in self._drain(node, _WAIT_S if self._clock() - looked < _WAIT_S else 0):
                yield told
            if self._clock() - looked >= _WAIT_S:  # a hub is asked again now and then, however much comes
                looked = self._clock()
                async for told in self._look_again():
                    yield told
            await self.tell_others()

    async def _drain(self, node: bytes | None = None, wait_s: int = 0) -> AsyncIterator[ReceivedReport]:
        node = node or await self._meeting.node.pubkey()
        while True:
            since = self._inbox.cursor(node)
            page = await self._meeting.node.page(since, NAMESPACE, wait_s)
            if page.last_seq < since:  # the same key with another store: its numbers begin anew
                with self._inbox.change():
                    self._inbox.put_cursor(node, 0)
                continue
            if since and page.first_seq > since + 1:
                with self._inbox.change():
                    self._inbox.count(MISSED, page.first_seq - since - 1)
            for one in page.delivered:
                with self._inbox.change():
                    told = await self._take(one)
                    self._count(told)
                    self._inbox.put_cursor(node, one.seq)
                yield told
            if page.upto_seq > since:
                with self._inbox.change():
                    self._inbox.put_cursor(node, page.upto_seq)
            if page.upto_seq >= page.last_seq or page.upto_seq == since:
                return
            wait_s = 0

    def _count(self, told: ReceivedReport) -> None:
        if told.result == REFUSED:
            self._inbox.count(f"refused {told.reason.partition(':')[0]}")
        elif told.result == TAKEN and told.what:
            self._inbox.count(_TAKEN_COUNTS[told.what])

    async def _take(self, one: Delivered) -> ReceivedReport:
        """One payload, whatever it is."""
        what = None
        try:
            item = self._item(one.payload)
            what = ItemKind(item.what)
            told = await self._take_item(item, what, one.sender)
        except ItemRejected as refusal:
            if refusal.reason not in (RejectReason.ROOM, RejectReason.AGAIN, RejectReason.OVERSIZED):
                self._inbox.see(h(one.payload))
            return ReceivedReport(REFUSED, what, str(refusal), sender=one.sender)
        return told

    def _item(self, payload: bytes) -> GossipItem:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ItemRejected(RejectReason.OVERSIZED, f"{len(payload)} bytes, above {MAX_PAYLOAD_BYTES}")
        if self._inbox.has_seen(h(payload)):
            raise ItemRejected(RejectReason.AGAIN, "it came before")
        try:
            item = GossipItem.decode(payload)
        except Malformed as error:
            raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
        if item.hub_id != self._holder.hub_id:
            raise ItemRejected(RejectReason.FOREIGN, f"it is of hub {item.hub_id.hex()}")
        return item

    async def _take_item(self, item: GossipItem, what: ItemKind, sender: bytes) -> ReceivedReport:
        if what is ItemKind.MANIFEST:
            return await self._put_together(self._manifest(item.body, sender), what, sender)
        if what is ItemKind.PART:
            if self._inbox.has_seen(part_name(item.body)):
                raise ItemRejected(RejectReason.AGAIN, "what it is a part of is here")
            return await self._put_together(self._staging.put_part(item.body, sender), what, sender)
        return await self._take_content(what, item.body, sender)

    def _manifest(self, body: bytes, sender: bytes) -> list[PartsManifest]:
        try:
            manifest = PartsManifest.decode(body)
        except Malformed as error:
            raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
        if self._inbox.has_seen(manifest.digest):
            raise ItemRejected(RejectReason.AGAIN, "what it lists is here")
        return self._staging.put_manifest(body, sender)

    async def _put_together(self, whole: list[PartsManifest], what: ItemKind, sender: bytes) -> ReceivedReport:
        """The last of a part's manifests tells what became of it; it seldom has more than one."""
        told = ReceivedReport(STAGED, what, sender=sender)
        for manifest in whole:
            content = self._staging.take(manifest)
            if content is None:
                raise ItemRejected(RejectReason.PARTS, "the parts are not those of what the manifest says")
            told = await self._take_content(ItemKind(manifest.what), content, sender)
            for part in manifest.parts:
                self._inbox.see(part)
        return told

    async def _take_content(self, what: ItemKind, content: bytes, sender: bytes) -> ReceivedReport:
        digest = digest_of(what, content)
        if self._inbox.has_seen(digest):
            raise ItemRejected(RejectReason.AGAIN, "it came before")
        try:
            if what is ItemKind.CHECKPOINT:
                told = await self._checkpoint(content, sender)
            elif what is ItemKind.EVIDENCE:
                told = self._evidence(content, sender)
            else:
                found = item_verify.bundled(content, self._holder.known)
                told = ReceivedReport(
                    TAKEN, what, file=self._inbox.put_file(BUNDLES, found.name, content), sender=sender
                )
        except InboxFull:
            raise ItemRejected(
                RejectReason.ROOM, "there is no room for it until what is there has been dealt with"
            ) from None
        self._inbox.see(digest)
        return told

    async def _checkpoint(self, content: bytes, sender: bytes) -> ReceivedReport:
        judged = item_verify.checkpoint(content, self._holder.known)
        held = await self._hold(content, judged)
        return _told(TAKEN, judged, held, sender)

    async def _hold(self, content: bytes, judged: VerifiedCheckpoint) -> ComparedCheckpoint:
        label, size = judged.checkpoint.label_curr, judged.checkpoint.upto_seq
        before = self._inbox.found_at(label)
        if before is not None:
            held = ComparedCheckpoint(
                ComparisonResult.FORKED,
                f"the hub was caught at this label before: {before.reason}",
                Path(before.file),
            )
        else:
            others = [ShownCheckpoint.decode(one).checkpoint for one in self._inbox.heads_at(label, size)]
            held = await self._holder.hold(judged, others)
        if held.standing is ComparisonResult.FORKED and before is None:
            self._inbox.put_found(ProvedContradiction(str(held.evidence), held.reason, label, untold=True))
        kept = StoredCheckpoint(content, held.standing, held.reason)
        with suppress(InboxFull) if held.standing is ComparisonResult.FORKED else nullcontext():
            self._inbox.put_head(label, size, kept, is_open=held.standing in OPEN)
        return held

    def _evidence(self, content: bytes, sender: bytes) -> ReceivedReport:
        report, plain = item_verify.evidence(content, self._holder.known)
        if self._inbox.has_seen(plain):
            raise ItemRejected(RejectReason.AGAIN, "it says what came before, in other words")
        if report.contradictions and len(self._inbox.found()) >= self._inbox.room.found:
            raise InboxFull
        path = self._inbox.put_file(EVIDENCE, f"{h(content).hex()}.evidence", content)
        self._inbox.see(plain)
        if not report.contradictions:
            return ReceivedReport(TAKEN, ItemKind.EVIDENCE, file=path, sender=sender)
        self._inbox.put_found(ProvedContradiction(str(path), report.contradictions[0]))
        return ReceivedReport(
            TAKEN, ItemKind.EVIDENCE, report.contradictions[0], ComparisonResult.FORKED, file=path, sender=sender
        )

    async def _look_again(self) -> AsyncIterator[ReceivedReport]:
        """What could not be decided; told again only where that has changed."""
        for kept in self._inbox.open_heads():
            with self._inbox.change():
                try:
                    judged = item_verify.checkpoint(kept.shown, self._holder.known)
                except ItemRejected as refusal:
                    # What is known of the hub now says otherwise than when it came.
                    shown = ShownCheckpoint.decode(kept.shown).checkpoint
                    gone = StoredCheckpoint(kept.shown, ComparisonResult.UNFOLLOWED, str(refusal))
                    self._inbox.put_head(shown.label_curr, shown.upto_seq, gone, is_open=False)
                    continue
                held = await self._hold(kept.shown, judged)
            if held.standing != kept.standing:
                yield _told(LOOKED, judged, held, b"")

    async def tell_others(self) -> None:
        """What was proved here. A crash between saying and noting it says it again, which others take once."""
        for one in self._inbox.found():
            path = Path(one.file)
            if not one.untold:
                continue
            data = durable.read_file(path, MAX_EVIDENCE_BYTES) if path.exists() else b""  # its owner took it away
            for item in items_of(self._holder.hub_id, ItemKind.EVIDENCE, data) if data else ():
                await self._meeting.say(item)
            with self._inbox.change():
                self._inbox.told(one.file)
                self._inbox.see(digest_of(ItemKind.EVIDENCE, data))  # where it comes back, it is ours


def _told(result: str, judged: VerifiedCheckpoint, held: ComparedCheckpoint, sender: bytes) -> ReceivedReport:
    found = judged.checkpoint
    at = (found.label_curr, found.upto_seq)
    return ReceivedReport(result, ItemKind.CHECKPOINT, held.reason, held.standing, *at, held.evidence, sender)
