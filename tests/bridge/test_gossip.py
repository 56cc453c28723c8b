"""Two clients of one hub compare what it told them, over VEIL, and believe neither the hub nor the network."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import zones
from tests.bridge.gossip_fixture import Side, between
from tests.veil.api_hosts import town
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
from veen.client import evidence_verify
from veen.core import SigningKey, Unavailable, Unverified
from veen.core.hashing import h
from veil.node import Event


def _shows_a_lie(path: Path | None, hub_id: bytes) -> bool:
    assert path is not None
    report = evidence_verify.verify(path.read_bytes(), hub_id)
    return report.pinned and bool(report.contradictions)


def _payload(event: Event) -> bytes:
    payload = event.data.get("payload")
    return payload if isinstance(payload, bytes) else b""


def _standings(found: list[ReceivedReport]) -> list[tuple[ItemKind | None, ComparisonResult | None]]:
    return [(told.what, told.standing) for told in found]


def test_each_client_of_a_forked_hub_finds_out_and_can_prove_it(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.write(b"for alice")
        await bob.write(b"for bob")
        assert await alice.read() != await bob.read()
        assert (await alice.say()).upto_seq == (await bob.say()).upto_seq == 4
        for side in (alice, bob):
            await side.heard(1)
            told = (await side.receive())[0]
            assert (told.what, told.standing) == (ItemKind.CHECKPOINT, ComparisonResult.FORKED)
            assert _shows_a_lie(told.file, side.hub_id)
        await alice.heard(2)  # what bob can prove is said to alice, and the other way round
        (told,) = await alice.receive()
        assert (told.what, told.standing) == (ItemKind.EVIDENCE, ComparisonResult.FORKED)
        assert _shows_a_lie(told.file, alice.hub_id)
        for side in (alice, bob):
            with Inbox(side.inbox, side.hub_id) as inbox:
                assert {one.untold for one in inbox.found()} == {False}

    between(place, work, forked=True)


def test_the_client_that_was_shown_less_learns_of_the_fork_from_the_one_that_was_shown_more(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.write(b"a")
        await bob.write(b"b", b"c", b"d")
        await bob.say()
        await alice.heard(1)
        (told,) = await alice.receive()
        assert told.standing is ComparisonResult.UNSHOWN
        assert "signed for 6 entries" in told.reason
        assert "shows 4" in told.reason
        assert await alice.receive() == []  # asked again, and nothing has changed
        await alice.say()
        await bob.heard(1)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.FORKED)]
        await alice.heard(2)
        (told,) = await alice.receive()
        assert (told.what, told.standing) == (ItemKind.EVIDENCE, ComparisonResult.FORKED)
        assert _shows_a_lie(told.file, alice.hub_id)
        await alice.write(b"e", b"f")  # and now its own hub has to say what its sixth entry is
        (told,) = await alice.receive()
        assert (told.result, told.standing) == (LOOKED, ComparisonResult.FORKED)
        assert _shows_a_lie(told.file, alice.hub_id)

    between(place, work, forked=True)


def test_an_honest_hub_is_not_accused_whatever_the_sizes(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await bob.say()
        await bob.write(b"a")
        await bob.say()
        await bob.write(b"b", b"c")
        await alice.read()
        await alice.say()
        await bob.write(b"d")
        await bob.say()
        await alice.heard(3)
        assert _standings(await alice.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)] * 3
        await bob.heard(1)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)]
        for side in (alice, bob):
            assert [*side.folder.evidence.glob("*")] == []

    between(place, work, forked=False)


def test_nothing_that_anyone_sends_is_taken_unless_it_holds_or_stops_the_receiver(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await bob.read()
        true = await alice.say()
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
        await bob.heard(1)
        assert [told.result for told in await bob.receive()] == [TAKEN]
        for count, (payload, _) in enumerate(hostile, 2):
            await alice.put(payload)  # one after the other: in VEIL they come in any order
            await bob.heard(count)
        found = await bob.receive()
        seen = [told.reason.partition(":")[0] if told.result == REFUSED else told.result for told in found]
        assert seen == [reason for _, reason in hostile]
        assert sum(number for name, number in bob.counts().items() if name.startswith("refused ")) == 13
        await alice.write(b"more")
        await alice.say()
        await bob.heard(len(hostile) + 2)
        assert _standings(await bob.receive()) == [(ItemKind.CHECKPOINT, ComparisonResult.AGREES)]

    between(place, work, forked=False)


def test_what_is_said_in_a_group_is_heard_by_its_members_alone(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        await alice.node.post("/v1/groups", name="auditors")
        await alice.say(group="auditors")
        with pytest.raises(Unavailable, match="auditors"):
            async with bob.meeting("auditors"):
                pass
        await alice.node.post("/v1/groups/invite", group="auditors", contact="bob")
        await bob.node.until(lambda found: len(bob.node.host.groups.ring.groups) == 2)
        async with bob.meeting("auditors"):
            pass
        await alice.write(b"more")
        said = await alice.say(group="auditors")
        await bob.node.until(lambda found: any(said.mmr_root in _payload(one) for one in found))
        assert 4 in [told.size for told in await bob.receive()]

    between(place, work, forked=False)


def test_what_does_not_hold_is_not_said(place: Path) -> None:
    async def work(alice: Side, bob: Side) -> None:
        async with alice.client() as client, alice.meeting() as meeting:
            publisher = Publisher(meeting, client.contact.trust.known)
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
        async with town(place / "nodes", "out", "in") as (sender, receiver), at.client("exporter", at.online) as source:
            folder = at.folders["analyst"]
            bob = Side(folder, at.online, receiver, place / "inbox")
            async with bob.meeting():
                pass
            async with VeilNode(sender.url, sender.token) as node:
                meeting = await GossipGroup.enter(node, at.source_id)
                said = await Publisher(meeting, source.contact.trust.known).bundle(data)
            assert len(said.message_ids) == 2 + len(data) // PART_BYTES
            await bob.heard(len(said.message_ids))
            found = await bob.receive()
        assert [told.result for told in found] == [STAGED] * (len(found) - 1) + [TAKEN]
        (path,) = (place / "inbox" / BUNDLES).glob("*.bundle")
        assert path == found[-1].file
        assert path.name == bundles.decode(data).name
        async with at.client("importer", at.offline) as client:
            outcome = await Importer(client, {at.source_id}, operator="test").take(path.read_bytes())
        assert (outcome.ok, outcome.written) == (True, len(bodies))
        assert [entry.body for entry in await at.imported()] == bodies

    with zones(place) as at:
        asyncio.run(work())


def test_items_of_another_hub_do_not_mix_with_ours(place: Path) -> None:
    """Two hubs may meet in one group: each receiver takes what is its own hub's."""

    async def work(alice: Side, bob: Side) -> None:
        data = b"x" * (PART_BYTES + 1)
        foreign = [*items_of(h(b"another"), ItemKind.EVIDENCE, data)]
        await alice.put(*foreign)
        await bob.heard(len(foreign))
        assert [told.reason.partition(":")[0] for told in await bob.receive()] == ["foreign"] * len(foreign)

    between(place, work, forked=False, entries=1)
