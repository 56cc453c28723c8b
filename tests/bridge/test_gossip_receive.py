"""A receiver processes items one by one: losses are counted, and storage stays within its limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.bridge.forked_histories import KNOWN, ForkedHub, with_forked_hub
from tests.client.hostile import Log
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer, ComparisonResult
from veen.bridge.veil_gossip.exchange import MISSED, REFUSED, ReceivedReport, Receiver
from veen.bridge.veil_gossip.gossip_inbox import Inbox, InboxLimits, ProvedContradiction
from veen.bridge.veil_gossip.gossip_items import NAMESPACE, PART_BYTES, GossipGroup, GossipItem, ItemKind, items_of
from veen.bridge.veil_gossip.veil_node import Delivered, FeedPage, VeilNode
from veen.client.evidence import Evidence
from veen.core.hashing import h

NODE = h(b"node")


class MemoryNode(VeilNode):
    """A node without network: payloads put here count as delivered, published ones go to `published`."""

    def __init__(self) -> None:
        self.first_seq = 1
        self.events: list[Delivered] = []
        self.published: list[GossipItem] = []
        self.pages = 2

    def put(self, *payloads: bytes | GossipItem, sender: bytes = NODE) -> None:
        for one in payloads:
            data = one.encode() if isinstance(one, GossipItem) else one
            self.events.append(Delivered(self.first_seq + len(self.events), sender, data))

    def discard(self, count: int) -> None:
        self.first_seq += count
        del self.events[:count]

    async def pubkey(self) -> bytes:
        return NODE

    async def publish(self, payload: bytes, group: str, namespace: int) -> int:
        self.published.append(GossipItem.decode(payload))
        return len(self.published)

    async def page(self, since: int, namespace: int, wait_s: int = 0) -> FeedPage:
        assert namespace == NAMESPACE
        last = self.first_seq + len(self.events) - 1
        found = [one for one in self.events if one.seq > since][: self.pages]
        return FeedPage(self.first_seq, last, found[-1].seq if found else since, tuple(found))


class Listener:
    """A receiver that reads from a `MemoryNode`."""

    def __init__(self, at: ForkedHub, folder: Path, limits: InboxLimits | None = None) -> None:
        self.at = at
        self.node = MemoryNode()
        self._folder = folder
        self.limits = limits

    def checkpoint(self, log: Log) -> GossipItem:
        return GossipItem(
            self.at.hub.identity.hub_id, ItemKind.CHECKPOINT, self.at.shown(self.at.hub.checkpoint_of(log))
        )

    @contextmanager
    def inbox(self) -> Iterator[Inbox]:
        with Inbox(self._folder, self.at.hub.identity.hub_id, self.limits) as inbox:
            yield inbox

    async def receive(self) -> list[ReceivedReport]:
        hub_id = self.at.hub.identity.hub_id
        with self.inbox() as inbox:
            comparer = CheckpointComparer(self.at.people.reader_dir, self.at.reader.session.trust.known, self.at.reader)
            receiver = Receiver(GossipGroup(self.node, hub_id, "here"), inbox, comparer)
            return [report async for report in receiver.receive()]

    def counts(self) -> dict[str, int]:
        with self.inbox() as inbox:
            return inbox.counts()


def test_events_that_the_node_discarded_unread_are_counted(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one = Listener(at, place / "inbox")
        one.node.put(b"a", b"b", b"c")
        assert len(await one.receive()) == 3
        one.node.put(b"d", b"e", b"f", b"g")
        one.node.discard(5)
        assert len(await one.receive()) == 2
        assert one.counts() == {"refused malformed": 5, MISSED: 2}
        assert await one.receive() == []

    with_forked_hub(place, then)


def test_a_node_whose_numbers_restart_is_read_from_the_start(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one = Listener(at, place / "inbox")
        one.node.put(b"a", b"b", b"c")
        await one.receive()
        one.node = MemoryNode()
        one.node.put(b"d")
        assert len(await one.receive()) == 1
        assert MISSED not in one.counts()

    with_forked_hub(place, then)


def test_a_fork_of_a_label_is_proved_once(place: Path) -> None:
    """A forked hub continues signing: each of its checkpoints would prove the same again."""

    async def then(at: ForkedHub) -> None:
        one, other = Listener(at, place / "inbox"), at.other(4, KNOWN + 20)
        at.grow(KNOWN + 20)
        one.node.put(*(one.checkpoint(other.cut(size)) for size in range(5, KNOWN + 20)))
        found = await one.receive()
        assert {report.standing for report in found} == {ComparisonResult.FORKED}
        assert len({report.file for report in found}) == 1
        assert len([*at.people.reader_dir.evidence.glob("*")]) == 1
        assert [item.what for item in one.node.published] == [ItemKind.EVIDENCE]
        await one.receive()
        assert len(one.node.published) == 1

    with_forked_hub(place, then)


def test_evidence_with_another_claim_is_the_same_evidence(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one, hub_id = Listener(at, place / "inbox", InboxLimits(found=2)), at.hub.identity.hub_id
        compared = await at.compare(at.other(4, KNOWN))
        assert compared.evidence
        shown = Evidence.decode(compared.evidence.read_bytes())
        words = [replace(shown, claim=f"claim {number}", made_at=number) for number in range(3)]
        fewer = [replace(shown, checkpoints=(*shown.checkpoints, at.hub.checkpoint_of(at.log.cut(n)))) for n in (1, 2)]
        for each in (*words, *fewer):
            one.node.put(*items_of(hub_id, ItemKind.EVIDENCE, each.encode()))
        found = await one.receive()
        reasons = [report.reason.partition(":")[0] for report in found if report.result == REFUSED]
        assert reasons == ["again", "again", "room"]
        with one.inbox() as inbox:
            assert len(inbox.found()) == 2

    with_forked_hub(place, then)


def test_an_item_rejected_for_space_is_accepted_later(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        compared = await at.compare(at.other(4, KNOWN))
        assert compared.evidence
        content = compared.evidence.read_bytes()
        item = GossipItem(at.hub.identity.hub_id, ItemKind.EVIDENCE, content)
        one = Listener(at, place / "inbox", InboxLimits(evidence_bytes=len(content) - 1))
        one.node.put(item)
        assert [report.reason.partition(":")[0] for report in await one.receive()] == ["room"]
        one.limits = InboxLimits()
        one.node.put(item, item)
        found = await one.receive()
        assert [report.result for report in found] == ["taken", REFUSED]

    with_forked_hub(place, then)


def test_undecided_checkpoints_are_compared_until_decided(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one, other = Listener(at, place / "inbox"), at.other(4, KNOWN + 3)
        one.node.put(one.checkpoint(other))
        assert [report.standing for report in await one.receive()] == [ComparisonResult.UNSHOWN]
        assert await one.receive() == []
        at.grow(KNOWN + 3)
        assert [report.standing for report in await one.receive()] == [ComparisonResult.FORKED]
        assert [item.what for item in one.node.published] == [ItemKind.EVIDENCE]
        assert await one.receive() == []

    with_forked_hub(place, then)


def test_removed_evidence_is_not_published(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one = Listener(at, place / "inbox")
        with one.inbox() as inbox, inbox.change():
            inbox.put_found(ProvedContradiction(str(place / "gone.evidence"), "it lied", untold=True))
        await one.receive()
        assert one.node.published == []
        with one.inbox() as inbox:
            assert [found.untold for found in inbox.found()] == [False]

    with_forked_hub(place, then)


def test_a_flood_of_unrelated_parts_stays_within_its_limit(place: Path) -> None:
    async def then(at: ForkedHub) -> None:
        one, hub_id = Listener(at, place / "inbox", InboxLimits(staged_bytes=1 << 20, seen=100)), at.hub.identity.hub_id
        for number in range(200):
            one.node.put(
                GossipItem(hub_id, ItemKind.PART, number.to_bytes(2, "big") * (PART_BYTES // 2)), b"junk %d" % number
            )
        report = await one.receive()
        assert {each.result for each in report} == {"staged", REFUSED}
        assert one.counts() == {"let go": 189, "refused malformed": 200}
        assert (place / "inbox" / "received.db").stat().st_size < 2 << 20

    with_forked_hub(place, then)
