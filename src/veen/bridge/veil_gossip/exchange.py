"""Publishes and receives checkpoints, evidence and bundles. Only items that verify are published."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from veen.bridge.veil_gossip import gossip_inbox, gossip_items
from veen.bridge.veil_gossip.checkpoint_compare import OPEN, CheckpointComparer, ComparedCheckpoint, ComparisonResult
from veen.bridge.veil_gossip.gossip_items import (
    MAX_CONTENT_BYTES,
    MAX_PAYLOAD_BYTES,
    NAMESPACE,
    GossipGroup,
    GossipItem,
    ItemKind,
    ItemRejected,
    PartsManifest,
    RejectReason,
    ShownCheckpoint,
    VerifiedCheckpoint,
    digest_of,
    items_of,
    part_name,
)
from veen.bridge.veil_gossip.veil_node import Delivered
from veen.client import local_files
from veen.client.client import Client
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Malformed, Unverified
from veen.core.hashing import h
from veen.core.strict_json import Json


@dataclass(frozen=True, slots=True)
class PublishedItem:
    """An item stored on the node's disk. The node sends it when peers are connected."""

    what: ItemKind
    digest: bytes
    size: int
    message_ids: tuple[int, ...]


class Publisher:
    """Publishes items about one hub to the group of its clients."""

    def __init__(self, group: GossipGroup, known: HubRecord) -> None:
        self._group = group
        self._known = known

    async def checkpoint(self, client: Client, found: Checkpoint) -> PublishedItem:
        """Publish a checkpoint that the client verified, with the hub metadata needed to verify it."""
        known = client.session.trust.known
        return await self._publish(
            ItemKind.CHECKPOINT, ShownCheckpoint(known.identity, known.signature, found).encode()
        )

    async def evidence(self, data: bytes) -> PublishedItem:
        """Publish an evidence file about this hub."""
        return await self._publish(ItemKind.EVIDENCE, data)

    async def bundle(self, data: bytes) -> PublishedItem:
        """Publish a bundle. Only the stream name and the authors and times of messages are readable."""
        return await self._publish(ItemKind.BUNDLE, data)

    async def _publish(self, what: ItemKind, content: bytes) -> PublishedItem:
        if len(content) > MAX_CONTENT_BYTES:
            raise Malformed(what.word, f"{len(content)} bytes, the maximum is {MAX_CONTENT_BYTES}")
        try:
            _VERIFIERS[what](content, self._known)
        except gossip_items.ItemRejected as refusal:
            raise Unverified(what.word, f"not published, because receivers would reject it: {refusal}") from None
        ids = [await self._group.publish(item) for item in items_of(self._group.hub_id, what, content)]
        return PublishedItem(what, digest_of(what, content), len(content), tuple(ids))


_VERIFIERS = {
    ItemKind.CHECKPOINT: gossip_items.verify_checkpoint,
    ItemKind.EVIDENCE: gossip_items.verify_evidence,
    ItemKind.BUNDLE: gossip_items.verify_bundle,
}


TAKEN, REFUSED, STAGED, LOOKED = "taken", "refused", "staged", "looked at again"
MISSED = "missed"
# How long the node waits for an event before it answers.
_LONG_POLL_S = 20
_TAKEN_COUNTS = {ItemKind.CHECKPOINT: "checkpoints", ItemKind.EVIDENCE: "evidence", ItemKind.BUNDLE: "bundles"}


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """The outcome of one item. `standing` belongs to a checkpoint; evidence of a contradiction is `forked`."""

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
    """Receives items from one node for one client of one hub."""

    def __init__(
        self,
        group: GossipGroup,
        inbox: gossip_inbox.Inbox,
        comparer: CheckpointComparer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._inbox = inbox
        self._parts = gossip_inbox.PartStore(inbox)
        self._comparer = comparer
        self._clock = clock

    async def receive(self) -> AsyncIterator[ReceivedReport]:
        """Read every waiting item, then compare undecided checkpoints again."""
        async for report in self._drain():
            yield report
        async for report in self._compare_again():
            yield report
        await self.publish_contradictions()

    async def follow(self) -> AsyncIterator[ReceivedReport]:
        """Do the same for ever, as items arrive."""
        node = await self._group.node.pubkey()
        compared_at = -float(_LONG_POLL_S)
        while True:
            async for report in self._drain(node, _LONG_POLL_S if self._clock() - compared_at < _LONG_POLL_S else 0):
                yield report
            if self._clock() - compared_at >= _LONG_POLL_S:  # also under constant load
                compared_at = self._clock()
                async for report in self._compare_again():
                    yield report
            await self.publish_contradictions()

    async def _drain(self, node: bytes | None = None, wait_s: int = 0) -> AsyncIterator[ReceivedReport]:
        node = node or await self._group.node.pubkey()
        while True:
            since = self._inbox.cursor(node)
            page = await self._group.node.page(since, NAMESPACE, wait_s)
            if page.last_seq < since:  # the node has the same key and a new store: its numbers restarted
                with self._inbox.change():
                    self._inbox.put_cursor(node, 0)
                continue
            if since and page.first_seq > since + 1:
                with self._inbox.change():
                    self._inbox.count(MISSED, page.first_seq - since - 1)
            for one in page.delivered:
                with self._inbox.change():
                    report = await self._receive_payload(one)
                    self._count(report)
                    self._inbox.put_cursor(node, one.seq)
                yield report
            if page.upto_seq > since:
                with self._inbox.change():
                    self._inbox.put_cursor(node, page.upto_seq)
            if page.upto_seq >= page.last_seq or page.upto_seq == since:
                return
            wait_s = 0

    def _count(self, report: ReceivedReport) -> None:
        if report.result == REFUSED:
            self._inbox.count(f"refused {report.reason.partition(':')[0]}")
        elif report.result == TAKEN and report.what:
            self._inbox.count(_TAKEN_COUNTS[report.what])

    async def _receive_payload(self, one: Delivered) -> ReceivedReport:
        """Process one payload of any sender."""
        what = None
        try:
            item = self._item(one.payload)
            what = ItemKind(item.what)
            return await self._receive_item(item, what, one.sender)
        except ItemRejected as refusal:
            if refusal.reason not in (RejectReason.ROOM, RejectReason.AGAIN, RejectReason.OVERSIZED):
                self._inbox.see(h(one.payload))
            return ReceivedReport(REFUSED, what, str(refusal), sender=one.sender)

    def _item(self, payload: bytes) -> GossipItem:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ItemRejected(RejectReason.OVERSIZED, f"{len(payload)} bytes, the maximum is {MAX_PAYLOAD_BYTES}")
        if self._inbox.has_seen(h(payload)):
            raise ItemRejected(RejectReason.AGAIN, "already received")
        try:
            item = GossipItem.decode(payload)
        except Malformed as error:
            raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
        if item.hub_id != self._comparer.hub_id:
            raise ItemRejected(RejectReason.FOREIGN, f"belongs to hub {item.hub_id.hex()}")
        return item

    async def _receive_item(self, item: GossipItem, what: ItemKind, sender: bytes) -> ReceivedReport:
        if what is ItemKind.MANIFEST:
            return await self._assemble(self._manifest(item.body, sender), what, sender)
        if what is ItemKind.PART:
            if self._inbox.has_seen(part_name(item.body)):
                raise ItemRejected(RejectReason.AGAIN, "the content it belongs to is already complete")
            return await self._assemble(self._parts.put_part(item.body, sender), what, sender)
        return await self._receive_content(what, item.body, sender)

    def _manifest(self, body: bytes, sender: bytes) -> list[PartsManifest]:
        try:
            manifest = PartsManifest.decode(body)
        except Malformed as error:
            raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
        if self._inbox.has_seen(manifest.digest):
            raise ItemRejected(RejectReason.AGAIN, "the content it lists is already complete")
        return self._parts.put_manifest(body, sender)

    async def _assemble(self, whole: list[PartsManifest], what: ItemKind, sender: bytes) -> ReceivedReport:
        """A part seldom belongs to several manifests; the report is about the last one."""
        report = ReceivedReport(STAGED, what, sender=sender)
        for manifest in whole:
            content = self._parts.take(manifest)
            if content is None:
                raise ItemRejected(RejectReason.PARTS, "the parts do not match the manifest")
            report = await self._receive_content(ItemKind(manifest.what), content, sender)
            for part in manifest.parts:
                self._inbox.see(part)
        return report

    async def _receive_content(self, what: ItemKind, content: bytes, sender: bytes) -> ReceivedReport:
        digest = digest_of(what, content)
        if self._inbox.has_seen(digest):
            raise ItemRejected(RejectReason.AGAIN, "already received")
        try:
            if what is ItemKind.CHECKPOINT:
                report = await self._checkpoint(content, sender)
            elif what is ItemKind.EVIDENCE:
                report = self._evidence(content, sender)
            else:
                found = gossip_items.verify_bundle(content, self._comparer.known)
                report = ReceivedReport(
                    TAKEN, what, file=self._inbox.put_file(gossip_inbox.BUNDLES, found.name, content), sender=sender
                )
        except gossip_inbox.InboxFull:
            raise ItemRejected(RejectReason.ROOM, "the inbox is full; process or remove what it contains") from None
        self._inbox.see(digest)
        return report

    async def _checkpoint(self, content: bytes, sender: bytes) -> ReceivedReport:
        received = gossip_items.verify_checkpoint(content, self._comparer.known)
        compared = await self._compare(content, received)
        return _report(TAKEN, received, compared, sender)

    async def _compare(self, content: bytes, received: VerifiedCheckpoint) -> ComparedCheckpoint:
        label, size = received.checkpoint.label_curr, received.checkpoint.upto_seq
        before = self._inbox.found_at(label)
        if before is not None:
            compared = ComparedCheckpoint(
                ComparisonResult.FORKED,
                f"a contradiction at this label is already proved: {before.reason}",
                Path(before.file),
            )
        else:
            others = [ShownCheckpoint.decode(one).checkpoint for one in self._inbox.heads_at(label, size)]
            compared = await self._comparer.compare(received, others)
        if compared.standing is ComparisonResult.FORKED and before is None:
            self._inbox.put_found(
                gossip_inbox.ProvedContradiction(str(compared.evidence), compared.reason, label, untold=True)
            )
        kept = gossip_inbox.StoredCheckpoint(content, compared.standing, compared.reason)
        with suppress(gossip_inbox.InboxFull) if compared.standing is ComparisonResult.FORKED else nullcontext():
            self._inbox.put_head(label, size, kept, is_open=compared.standing in OPEN)
        return compared

    def _evidence(self, content: bytes, sender: bytes) -> ReceivedReport:
        report, plain = gossip_items.verify_evidence(content, self._comparer.known)
        if self._inbox.has_seen(plain):
            raise ItemRejected(RejectReason.AGAIN, "the same evidence was already received with another claim")
        if report.contradictions and len(self._inbox.found()) >= self._inbox.limits.found:
            raise gossip_inbox.InboxFull
        path = self._inbox.put_file(gossip_inbox.EVIDENCE, f"{h(content).hex()}.evidence", content)
        self._inbox.see(plain)
        if not report.contradictions:
            return ReceivedReport(TAKEN, ItemKind.EVIDENCE, file=path, sender=sender)
        self._inbox.put_found(gossip_inbox.ProvedContradiction(str(path), report.contradictions[0]))
        return ReceivedReport(
            TAKEN, ItemKind.EVIDENCE, report.contradictions[0], ComparisonResult.FORKED, file=path, sender=sender
        )

    async def _compare_again(self) -> AsyncIterator[ReceivedReport]:
        """Compare undecided checkpoints again; report only changes."""
        for kept in self._inbox.open_heads():
            with self._inbox.change():
                try:
                    received = gossip_items.verify_checkpoint(kept.shown, self._comparer.known)
                except ItemRejected as refusal:
                    # The current hub record no longer accepts it.
                    shown = ShownCheckpoint.decode(kept.shown).checkpoint
                    gone = gossip_inbox.StoredCheckpoint(kept.shown, ComparisonResult.UNFOLLOWED, str(refusal))
                    self._inbox.put_head(shown.label_curr, shown.upto_seq, gone, is_open=False)
                    continue
                compared = await self._compare(kept.shown, received)
            if compared.standing != kept.standing:
                yield _report(LOOKED, received, compared, b"")

    async def publish_contradictions(self) -> None:
        """Publish contradictions proved here. After a crash an item may be sent twice; receivers accept it once."""
        for one in self._inbox.found():
            path = Path(one.file)
            if not one.untold:
                continue
            data = local_files.read_file(path, MAX_EVIDENCE_BYTES) if path.exists() else b""  # removed by the user
            for item in items_of(self._comparer.hub_id, ItemKind.EVIDENCE, data) if data else ():
                await self._group.publish(item)
            with self._inbox.change():
                self._inbox.mark_published(one.file)
                self._inbox.see(digest_of(ItemKind.EVIDENCE, data))  # do not accept our own item when it comes back


def _report(result: str, received: VerifiedCheckpoint, compared: ComparedCheckpoint, sender: bytes) -> ReceivedReport:
    found = received.checkpoint
    at = (found.label_curr, found.upto_seq)
    return ReceivedReport(
        result, ItemKind.CHECKPOINT, compared.reason, compared.standing, *at, compared.evidence, sender
    )
