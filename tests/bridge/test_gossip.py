"""Two clients of one hub compare over VEIL what it sent to each. Neither the hub nor the network is trusted."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import zones
from tests.bridge.gossip_fixture import Side, between
from tests.veil.api_hosts import linked_nodes
from veen.bridge import bundle as bundles
from veen.bridge.bundle_import import Importer
from veen.bridge.veil_gossip.checkpoint_compare import ComparisonResult
from veen.bridge.veil_gossip.exchange import LOOKED, REFUSED, STAGED, TAKEN, Publisher, ReceivedReport
from veen.bridge.veil_gossip.gossip_inbox import BUNDLES, Inbox
from veen.bridge.veil_gossip.gossip_items import (
    MAX_PAYLOAD_BYTES,
    PART_BYTES,
    GossipGroup,
    GossipItem,
    ItemKind,
    PartsManifest,
    ShownCheckpoint,
    items_of,
    part_name,
)
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.client import evidence
from veen.core import SigningKey, Unavailable, Unverified
from veen.core.hashing import h
from veil.node import Event


def _shows_a_contradiction(path: Path | None, hub_id: bytes) -> bool:
    assert path is not None
    report = evidence.verify(path.read_bytes(), hub_id)
    return report.pinned and bool(report.contradictions)


def _payload(event: Event) -> bytes:
    payload = event.data.get("payload")
    return payload if isinstance(payload, bytes) else b""


def _standings(found: list[ReceivedReport]) -> list[tuple[ItemKind | None, ComparisonResult | None]]:
    return [(report.what, report.standing) for report in found]


def test_each_client_of_a_forked_hub_detects_and_proves_the_fork(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.write(b"for alice")
        await bob.write(b"for bob")
        assert await alice.read() != await bob.read()
        assert (await alice.publish_checkpoint()).upto_seq == (await bob.publish_checkpoint()).upto_seq == 4
        for side in (alice, bob):
            await side.wait_received(1)
            report = (await side.receive())[0]
            assert (report.what, report.standing) == (ItemKind.CHECKPOINT, ComparisonResult.FORKED)
            assert _shows_a_contradiction(report.file, side.hub_id)
        await alice.wait_received(2)  # both publish their proof
        (report,) = await alice.receive()
        assert (report.what, report.standing) == (ItemKind.EVIDENCE, ComparisonResult.FORKED)
        assert _shows_a_contradiction(report.file, alice.hub_id)
        for side in (alice, bob):
            with Inbox(side.inbox, side.hub_id) as inbox:
                assert {one.untold for one in inbox.found()} == {False}

    between(place, work, forked=True)


def test_the_client_with_fewer_entries_learns_of_the_fork(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.write(b"a")
        await bob.write(b"b", b"c", b"d")
        await bob.publish_checkpoint()
        await alice.wait_received(1)
        (report,) = await alice.receive()
        assert report.standing is ComparisonResult.UNSHOWN
        assert "signed 6 entries" in report.reason
        assert "shows 4" in report.reason
        assert await alice.receive() == []  # compared again, nothing changed
        await alice.publish_checkpoint()
        await bob.wait_received(1)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.FORKED)]
        await alice.wait_received(2)
        (report,) = await alice.receive()
        assert (report.what, report.standing) == (ItemKind.EVIDENCE, ComparisonResult.FORKED)
        assert _shows_a_contradiction(report.file, alice.hub_id)
        await alice.write(b"e", b"f")  # now her hub must show its sixth entry
        (report,) = await alice.receive()
        assert (report.result, report.standing) == (LOOKED, ComparisonResult.FORKED)
        assert _shows_a_contradiction(report.file, alice.hub_id)

    between(place, work, forked=True)


def test_an_honest_hub_is_not_accused_at_any_sizes(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await bob.publish_checkpoint()
        await bob.write(b"a")
        await bob.publish_checkpoint()
        await bob.write(b"b", b"c")
        await alice.read()
        await alice.publish_checkpoint()
        await bob.write(b"d")
        await bob.publish_checkpoint()
        await alice.wait_received(3)
        assert _standings(await alice.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)] * 3
        await bob.wait_received(1)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)]
        for side in (alice, bob):
            assert [*side.folder.evidence.glob("*")] == []

    between(place, work, forked=False)


def test_invalid_items_are_rejected_and_do_not_stop_the_receiver(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await bob.read()
        true = await alice.publish_checkpoint()
        known = alice.hub.service.hub_metadata
        shown = ShownCheckpoint(known.identity, known.signature, true)
        item = GossipItem(alice.hub_id, ItemKind.CHECKPOINT, shown.encode())
        forged = ShownCheckpoint(known.identity, known.signature, replace(true, mmr_root=bytes(32)))
        stolen = replace(true, hub_sig=SigningKey.generate().sign(true.signing_digest()))
        manifest = PartsManifest(
            ItemKind.BUNDLE, PART_BYTES + 1, bytes(32), (part_name(bytes(PART_BYTES)), part_name(b"x"))
        )
        hostile: list[tuple[bytes, str]] = [
            (b"garbage", "malformed"),
            (b"\xff" * 100, "malformed"),
            (item.encode(), "again"),
            (item.encode()[:-1], "malformed"),
            (item.encode() + b"\x00", "malformed"),
            (bytes(MAX_PAYLOAD_BYTES + 1), "oversized"),
            (replace(item, hub_id=bytes(32)).encode(), "foreign"),
            (replace(item, body=forged.encode()).encode(), "signature"),
            (replace(item, body=replace(shown, checkpoint=stolen).encode()).encode(), "signature"),
            (replace(item, what=ItemKind.EVIDENCE).encode(), "malformed"),
            (replace(item, what=ItemKind.BUNDLE).encode(), "bundle"),
            (replace(item, what=ItemKind.MANIFEST).encode(), "malformed"),
            (replace(item, what=ItemKind.MANIFEST, body=manifest.encode()).encode(), "staged"),
            (replace(item, what=ItemKind.PART, body=b"x").encode(), "staged"),
            (replace(item, what=ItemKind.PART, body=bytes(PART_BYTES)).encode(), "parts"),
        ]
        await bob.wait_received(1)
        assert [report.result for report in await bob.receive()] == [TAKEN]
        for count, (payload, _) in enumerate(hostile, 2):
            await alice.put(payload)  # one by one: VEIL may reorder them
            await bob.wait_received(count)
        found = await bob.receive()
        seen = [report.reason.partition(":")[0] if report.result == REFUSED else report.result for report in found]
        assert seen == [reason for _, reason in hostile]
        assert sum(number for name, number in bob.counts().items() if name.startswith("refused ")) == 13
        await alice.write(b"more")
        await alice.publish_checkpoint()
        await bob.wait_received(len(hostile) + 2)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)]

    between(place, work, forked=False)


def test_only_members_of_a_group_receive_its_items(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.node.post("/v1/groups", name="auditors")
        await alice.publish_checkpoint(group="auditors")
        with pytest.raises(Unavailable, match="auditors"):
            async with bob.group("auditors"):
                pass
        await alice.node.post("/v1/groups/invite", group="auditors", contact="bob")
        await bob.node.until(lambda found: len(bob.node.host.groups.ring.groups) == 2)
        async with bob.group("auditors"):
            pass
        await alice.write(b"more")
        said = await alice.publish_checkpoint(group="auditors")
        await bob.node.until(lambda found: any(said.mmr_root in _payload(one) for one in found))
        assert 4 in [report.size for report in await bob.receive()]

    between(place, work, forked=False)


def test_invalid_items_are_not_published(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        async with alice.client() as client, alice.group() as group:
            publisher = Publisher(group, client.session.trust.known)
            with pytest.raises(Unverified, match="evidence"):
                await publisher.evidence(b"nothing")
            with pytest.raises(Unverified, match="bundle"):
                await publisher.bundle(b"nothing")
        assert await alice.node.get("/v1/outbound") == []

    between(place, work, forked=False, entries=1)


def test_a_bundle_larger_than_an_object_arrives_verifies_and_is_imported(place: Path) -> None:
    bodies = [bytes((number,)) * 50_000 for number in range(8)]

    async def work() -> None:
        await at.produce(*bodies)
        (data,) = await at.export()
        assert len(data) > 256 * 1024
        async with (
            linked_nodes(place / "nodes", "out", "in") as (sender, receiver),
            at.client("exporter", at.online) as source,
        ):
            folder = at.folders["analyst"]
            bob = Side(folder, at.online, receiver, place / "inbox")
            async with bob.group():
                pass
            async with VeilNode(sender.url, sender.token) as node:
                group = await GossipGroup.join(node, at.source_id)
                said = await Publisher(group, source.session.trust.known).bundle(data)
            assert len(said.message_ids) == 2 + len(data) // PART_BYTES
            await bob.wait_received(len(said.message_ids))
            found = await bob.receive()
        assert [report.result for report in found] == [STAGED] * (len(found) - 1) + [TAKEN]
        (path,) = (place / "inbox" / BUNDLES).glob("*.bundle")
        assert path == found[-1].file
        assert path.name == bundles.decode(data).name
        async with at.client("importer", at.offline) as client:
            outcome = await Importer(client, {at.source_id}, operator="test").take(path.read_bytes())
        assert (outcome.ok, outcome.written) == (True, len(bodies))
        assert [entry.body for entry in await at.imported()] == bodies

    with zones(place) as at:
        asyncio.run(work())


def test_items_about_another_hub_are_ignored(place: Path) -> None:
    """Two hubs may share a group: each receiver accepts items about its own hub."""

    async def work(alice: Side, bob: Side) -> None:
        data = b"x" * (PART_BYTES + 1)
        foreign = [*items_of(h(b"another"), ItemKind.EVIDENCE, data)]
        await alice.put(*foreign)
        await bob.wait_received(len(foreign))
        assert [report.reason.partition(":")[0] for report in await bob.receive()] == ["foreign"] * len(foreign)

    between(place, work, forked=False, entries=1)
