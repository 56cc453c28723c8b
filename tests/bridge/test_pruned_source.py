"""Mirrors and bundles of a stream that a hub has pruned: they continue behind it, and name what was left out."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import EXPORT, zones
from tests.bridge.test_mirror import NEWS, ROUTE, Hubs, between
from tests.client.pair import Pair
from tests.client.test_pruned_entries import DAY, SMALL, at_a_hub, in_chunks, keep, run
from tests.hub.client import TOKEN, Clock, Hub, until
from veen.bridge.bundle_export import Exporter, ExportRange, build
from veen.bridge.mirror import Mirrorer
from veen.bridge.veil_gossip import gossip_items
from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer, ComparedCheckpoint, ComparisonResult
from veen.bridge.veil_gossip.gossip_items import ShownCheckpoint
from veen.client import ClientDir
from veen.client.contradiction import Contradiction
from veen.client.tree_follower import PrunedEntries
from veen.core import Unavailable, Unverified, naming
from veen.core.retention import RetentionPolicy, RetentionReport, RetentionRequest, Tombstone
from veen.storage.paths import Folders

ENTRIES = 10  # chunks of 4: two are closed
NUMBERS = tuple(b"%d" % number for number in range(1, ENTRIES + 1))


def erase(hub: Hub, stream: str, first: int, last: int) -> None:
    """Prune the chunks with these entries, once they are closed."""
    label = hub.label(stream)

    def is_closed() -> bool:
        asked = RetentionRequest(True, label, first, last, "request 3")
        reply = hub.post("/tooling/retention/run", asked, authorization=f"Bearer {TOKEN}")
        return reply.status == 200 and any(one.end_seq >= last for one in reply.read(RetentionReport).ranges)

    until(is_closed)
    assert run(hub, RetentionRequest(False, label, first, last, "request 3")).range_count > 0


def ranges(found: list[Tombstone]) -> list[tuple[int, int]]:
    return [(one.segment.start_seq, one.segment.end_seq) for one in found]


@contextmanager
def with_key(hubs: Hubs, folder: Path) -> Iterator[ClientDir]:
    """Another client that has the reader key."""
    with ClientDir.create(folder, None, 1) as made:
        key = hubs.keeper.stream_keys.secret(naming.stream_id(NEWS))
        assert key is not None
        made.stream_keys.import_secret(NEWS, key)
        yield made


def test_a_mirror_continues_behind_pruned_entries_and_names_them(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(*NUMBERS)
        await asyncio.to_thread(erase, hubs.at.online, NEWS, 5, 8)
        with pytest.raises(PrunedEntries, match="entries 5 to 8 were pruned"):
            await hubs.mirror()
        for expected in (4, 0):  # the first four were mirrored before the error
            found: list[Tombstone] = []
            async with hubs.both() as (source, target):
                done = [one async for one in Mirrorer(source, target, ROUTE).run(on_pruned=found.append)]
            assert (len(done), ranges(found)) == ((6, [(5, 8)]) if expected else (0, [(5, 8)]))
        assert await hubs.bodies(1) == [*NUMBERS[:4], *NUMBERS[8:]]
        report = await hubs.compared()
        assert (report.clean, report.source_entries, report.pruned) == (True, 6, ((0, 5, 8),))

    between(place, work, limits=SMALL)


def test_a_mirror_that_follows_starts_behind_pruned_entries(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(*NUMBERS)
        await asyncio.to_thread(erase, hubs.at.online, NEWS, 1, 4)
        found: list[Tombstone] = []
        async with hubs.both() as (source, target):
            following = Mirrorer(source, target, ROUTE).run(follow=True, on_pruned=found.append)
            for body in NUMBERS[4:]:
                assert (await anext(following)).entry.body == body
            with with_key(hubs, place / "other") as other:
                async with hubs.both(other) as (there, _):
                    await there.send(NEWS, b"new")
            assert (await anext(following)).entry.body == b"new"
            await following.aclose()
        assert ranges(found) == [(1, 4)]
        assert await hubs.bodies(1) == [*NUMBERS[4:], b"new"]

    between(place, work, limits=SMALL)


def test_mirrored_messages_that_the_source_pruned_later_are_not_unknown(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(*NUMBERS)
        assert len(await hubs.mirror()) == ENTRIES
        await asyncio.to_thread(erase, hubs.at.online, NEWS, 1, 8)
        assert await hubs.mirror() == []
        report = await hubs.compared()
        assert (report.differences, report.source_entries, report.pruned) == ((), 2, ((0, 1, 4), (0, 5, 8)))

    between(place, work, limits=SMALL)


def test_a_mirror_takes_a_gap_without_a_tombstone_for_damage(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(*NUMBERS)
        hub = hubs.at.online
        await asyncio.to_thread(erase, hub, NEWS, 1, 4)
        Folders(hub.data_dir).manifest(hub.label(NEWS)).unlink()
        found: list[Tombstone] = []
        async with hubs.both() as (source, target):
            mirroring = Mirrorer(source, target, ROUTE).run(on_pruned=found.append)
            with pytest.raises((Contradiction, Unverified, Unavailable)):
                await anext(mirroring)
        assert found == []
        assert await hubs.bodies(1) == []

    between(place, work, limits=SMALL)


def test_a_mirror_whose_records_were_pruned_names_the_stream_and_the_remedy(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(*NUMBERS)
        for _ in range(2):
            await hubs.mirror()
        await asyncio.to_thread(erase, hubs.at.offline, NEWS, 1, 8)
        assert await hubs.mirror() == [], "this client computed the state before"
        with (
            with_key(hubs, place / "second") as second,
            pytest.raises(PrunedEntries, match="entries 1 to 4 were pruned") as caught,
        ):
            await hubs.mirror(folder=second)
        assert "veen retention set" in "".join(caught.value.__notes__)

    between(place, work, limits=SMALL)


def test_an_export_continues_behind_pruned_entries_and_names_them(place: Path) -> None:
    async def work() -> None:
        await at.produce(*NUMBERS)
        await asyncio.to_thread(erase, at.online, EXPORT, 5, 8)
        found: list[Tombstone] = []
        async with at.client("exporter", at.online) as client:
            with pytest.raises(PrunedEntries, match="entries 5 to 8 were pruned"):
                await build(client, EXPORT, ExportRange(0, 3, 9))
            exporter = Exporter(client, at.drop, operator="test")
            made = [one async for one in exporter.run(EXPORT, on_pruned=found.append)]
        headers = [one.bundle.header for one in made]
        assert [(one.export_seq_from, one.export_seq_to) for one in headers] == [(1, 4), (9, 10)]
        assert ranges(found) == [(5, 8)]
        for one in made:
            assert (await at.take((at.drop / one.bundle.name).read_bytes())).ok
        assert [one.body for one in await at.imported()] == [*NUMBERS[:4], *NUMBERS[8:]]
        async with at.client("exporter", at.online) as client:
            exporter = Exporter(client, at.drop, operator="test")
            assert [one async for one in exporter.run(EXPORT, on_pruned=found.append)] == []
        assert ranges(found) == [(5, 8), (5, 8)]

    with zones(place, limits=SMALL) as at:
        asyncio.run(work())


def test_a_message_whose_attachment_was_erased_is_recorded_without_a_copy(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        (place / "picture").write_bytes(b"pixels")
        await hubs.send(b"see", attachments=[place / "picture"])
        await hubs.send(b"next")
        async with hubs.both() as (source, _):
            entry = await anext(source.read(NEWS))
        coid = entry.attachments[0].coid
        await asyncio.to_thread(run, hubs.at.online, RetentionRequest(False, reason="request 3", coid=coid))
        erased, following = await hubs.mirror()
        assert (erased.copy, following.entry.body) == (None, b"next")
        assert "was pruned by the hub" in (erased.unopened or "")
        assert await hubs.bodies(1) == [b"next"]

    between(place, work)


@pytest.mark.parametrize("receipts", [None, 2 * DAY])
def test_checkpoints_of_pruned_entries_are_compared_over_veil(place: Path, receipts: int | None) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        assert isinstance(hub.clock, Clock)
        async with people.writer() as writer:
            for body in NUMBERS:
                await writer.send(NEWS, body)
            shown = await writer.checkpoint(NEWS, 4)
        async with people.reader() as reader:
            assert len([one async for one in reader.read(NEWS)]) == ENTRIES
        in_chunks(hub)
        hub.clock.now += 10 * DAY
        keep(hub, RetentionPolicy(DAY, receipts))
        assert run(hub).range_count == 1
        metadata = hub.service.hub_metadata
        encoded = ShownCheckpoint(metadata.identity, metadata.signature, shown).encode()
        async with people.reader() as reader:
            received = gossip_items.verify_checkpoint(encoded, reader.session.trust.known)
            comparer = CheckpointComparer(people.reader_dir, reader.session.trust.known, reader)
            assert await comparer.compare(received, []) == ComparedCheckpoint(ComparisonResult.AGREES)

    at_a_hub(place, work)
