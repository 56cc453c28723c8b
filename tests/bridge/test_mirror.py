"""A mirror copies each message once, records its origin, and finds differences between two hubs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.bridge.bridge_fixture import Zones, zones
from tests.overlays import identities, wallets
from veen.bridge.mirror import Comparison, MirroredMessage, Mirrorer, MirrorRoute, compare
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.sender import Draft
from veen.client.trust import Pin
from veen.core import DhKey, Limits, Profile, Refused, Unavailable, Unverified, naming
from veen.hub.admission_rules import Admission
from veen.overlays import AnyOverlay, Event
from veen.overlays.identity import IDENTITY
from veen.overlays.operations.operation_events import Mirror
from veen.overlays.wallet import WALLETS
from veen.state import HubSource, StateView

NEWS = "news"
ROUTE = MirrorRoute(NEWS, NEWS)


class Hubs:
    """Two hubs and an identity that reads and writes at both."""

    def __init__(self, at: Zones, keeper: ClientDir) -> None:
        self.at = at
        self.keeper = keeper

    @asynccontextmanager
    async def both(self, folder: ClientDir | None = None) -> AsyncIterator[tuple[Client, Client]]:
        one, two = (
            Client(
                f"http://127.0.0.1:{hub.port}",
                folder or self.keeper,
                pin=Pin(key=hub.service.hub_metadata.identity.hub_id),
            )
            for hub in (self.at.online, self.at.offline)
        )
        async with one as source, two as target:
            yield source, target

    async def send(self, *bodies: bytes, hub: int = 0, **options: Any) -> None:
        async with self.both() as clients:
            for body in bodies:
                await clients[hub].send(NEWS, body, **options)

    async def mirror(self, route: MirrorRoute = ROUTE, folder: ClientDir | None = None) -> list[MirroredMessage]:
        async with self.both(folder) as (source, target):
            return [one async for one in Mirrorer(source, target, route).run()]

    async def compared(self, route: MirrorRoute = ROUTE) -> Comparison:
        async with self.both() as (source, target):
            return await compare(source, target, route)

    async def bodies(self, hub: int) -> list[bytes | None]:
        async with self.both() as clients:
            return [one.body async for one in clients[hub].read(NEWS) if one.schema != Mirror.SCHEMA]


def between(
    place: Path,
    work: Callable[[Hubs], Coroutine[Any, Any, None]],
    profile: Profile | None = None,
    limits: Limits | None = None,
) -> None:
    with (
        zones(place, admission=Admission.OPEN, profile=profile, limits=limits) as at,
        ClientDir.create(place / "keeper", None, 1) as keeper,
    ):
        keeper.stream_keys.create(NEWS)
        asyncio.run(work(Hubs(at, keeper)))


def test_each_message_is_copied_once_however_often_the_mirror_runs(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a", b"b")
        first = await hubs.mirror()
        assert [(one.entry.body, one.copy is not None) for one in first] == [(b"a", True), (b"b", True)]
        assert await hubs.mirror() == []
        await hubs.send(b"c")
        assert len(await hubs.mirror()) == 1
        assert await hubs.bodies(1) == [b"a", b"b", b"c"]
        report = await hubs.compared()
        assert (report.clean, report.source_entries, report.copies) == (True, 3, 3)

    between(place, work)


def test_a_copy_names_its_original_and_so_does_its_record(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a", expires_at=4_000_000_000)
        (done,) = await hubs.mirror()
        async with hubs.both() as (source, target):
            copy, record = [one async for one in target.read(NEWS)]
            (original,) = [one async for one in source.read(NEWS)]
        assert copy.header
        assert record.header
        assert copy.header.parent_id == record.header.parent_id == original.msg_id == done.entry.msg_id
        assert (copy.schema, copy.body, copy.header.expires_at) == (original.schema, b"a", 4_000_000_000)
        said = Mirror.decode(record.body or b"")
        assert (said.source_label, said.source_stream_seq) == (original.receipt.label, 1)
        assert said.source_receipt_root == original.receipt.mmr_root
        assert said.target_label == copy.receipt.label

    between(place, work)


def test_another_identity_continues_where_the_first_stopped(place: Path) -> None:
    """The target's log shows what is mirrored; the first mirror's state is not needed."""

    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a", b"b")
        await hubs.mirror()
        await hubs.send(b"c")
        with ClientDir.create(place / "second", None, 1) as second:
            key = hubs.keeper.stream_keys.secret(naming.stream_id(NEWS))
            assert key
            second.stream_keys.import_secret(NEWS, key)
            assert len(await hubs.mirror(folder=second)) == 1
        assert (await hubs.compared()).clean

    between(place, work)


def test_a_copy_that_a_crash_left_without_a_record_is_not_made_twice(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        async with hubs.both() as (source, target):
            (original,) = [one async for one in source.read(NEWS)]
            await target.send(NEWS, b"a", schema=original.schema or b"", parent_id=original.msg_id)
        (uncopied,) = await hubs.mirror()
        assert uncopied.copy is None
        assert await hubs.bodies(1) == [b"a"]
        assert (await hubs.compared()).clean

    between(place, work)


def test_records_alone_need_no_reader_key(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a", b"b")
        with ClientDir.create(place / "blind", None, 1) as blind:
            blind.stream_keys.create("records")
            route = MirrorRoute(NEWS, "records", copies=False)
            found = await hubs.mirror(route, blind)
            assert [one.copy for one in found] == [None, None]
            assert await hubs.mirror(route, blind) == []

    between(place, work)


def test_an_unopenable_message_gets_a_record_and_is_reported(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        with ClientDir.create(place / "stranger", None, 1) as stranger:
            stranger.stream_keys.add_public(NEWS, DhKey.generate().public_key)
            async with hubs.both(stranger) as (source, _):
                await source.send(NEWS, b"for nobody")
        (report,) = await hubs.mirror()
        assert report.unopened
        assert await hubs.bodies(1) == []
        assert (await hubs.compared()).clean

    between(place, work)


def test_attachments_are_mirrored(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        (place / "picture").write_bytes(b"pixels")
        await hubs.send(b"see", attachments=[place / "picture"])
        await hubs.mirror()
        async with hubs.both() as (_, target):
            copy, _ = [one async for one in target.read(NEWS)]
            assert [one.name for one in copy.attachments] == ["picture"]
            assert await target.attachment(copy, 0) == b"pixels"
        assert (await hubs.compared()).clean

    between(place, work)


def test_new_entries_are_followed(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        async with hubs.both() as (source, target):
            run = Mirrorer(source, target, ROUTE).run(follow=True)
            seen = [(await anext(run)).entry.body]
            waiting = asyncio.create_task(anext(run))
            with ClientDir.create(place / "other", None, 1) as other:
                key = hubs.keeper.stream_keys.secret(naming.stream_id(NEWS))
                assert key
                other.stream_keys.import_secret(NEWS, key)
                async with hubs.both(other) as (there, _):
                    await there.send(NEWS, b"b")
            seen.append((await waiting).entry.body)
            await run.aclose()
        assert seen == [b"a", b"b"]
        assert (await hubs.compared()).clean

    between(place, work)


def test_a_message_that_was_not_validated_is_not_mirrored(place: Path) -> None:
    """F1: a message without its proof is not mirrored."""

    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        async with hubs.both() as (source, target):
            (entry,) = [one async for one in source.read(NEWS)]
            with pytest.raises(Unverified, match="no inclusion proof"):
                await Mirrorer(source, target, ROUTE)._put([entry])
        assert await hubs.bodies(1) == []

    between(place, work)


def test_an_unreadable_target_is_not_written(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        with ClientDir.create(place / "writer", None, 1) as writer:
            key = hubs.keeper.stream_keys.secret(naming.stream_id(NEWS))
            assert key
            writer.stream_keys.import_secret(NEWS, key)
            writer.stream_keys.add_public("elsewhere", key.public_key)
            with pytest.raises((Unavailable, Refused)):
                await hubs.mirror(MirrorRoute(NEWS, "elsewhere"), writer)

    between(place, work)


def test_a_stream_is_not_mirrored_to_itself(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        async with hubs.both() as (source, _):
            with pytest.raises(ValueError, match="itself"):
                Mirrorer(source, source, ROUTE)

    between(place, work)


# Differences between two hubs.


async def _record_of(hubs: Hubs, **fields: Any) -> Draft:
    from dataclasses import replace

    async with hubs.both() as (source, target):
        (original, *_) = [one async for one in source.read(NEWS)]
        receipt = original.receipt
        said = Mirror(source.hub_id.hex(), receipt.label, 1, receipt.leaf_hash, receipt.mmr_root, target.label(NEWS))
    said = replace(said, **fields)
    return Draft(said.encode(), said.SCHEMA, said.source_leaf_hash)


DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "another root": ({"source_receipt_root": bytes(32)}, "mismatch"),
    "another leaf": ({"source_leaf_hash": bytes(32)}, "mismatch"),
    "a number there is not": ({"source_stream_seq": 9}, "unknown"),
    "the same again": ({}, "repeated"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_wrong_record_is_found(place: Path, name: str) -> None:
    fields, what = DIFFERENCES[name]

    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        await hubs.mirror()
        draft = await _record_of(hubs, **fields)
        async with hubs.both() as (_, target):
            await target.sender(NEWS).put(draft)
        report = await hubs.compared()
        assert what in {one.what for one in report.differences}
        assert not report.clean

    between(place, work)


def test_missing_altered_and_uncopied_messages_are_found(place: Path) -> None:
    async def work(hubs: Hubs) -> None:
        await hubs.send(b"a")
        assert [one.what for one in (await hubs.compared()).differences] == ["missing"]
        draft = await _record_of(hubs)
        async with hubs.both() as (_, target):
            await target.sender(NEWS).put(draft)
        assert [one.what for one in (await hubs.compared()).differences] == ["uncopied"]
        async with hubs.both() as (_, target):
            await target.send(NEWS, b"A", parent_id=draft.parent_id)
        assert [one.what for one in (await hubs.compared()).differences] == ["altered"]
        await hubs.send(b"A", hub=1, parent_id=draft.parent_id)
        assert {one.what for one in (await hubs.compared()).differences} == {"altered", "repeated"}

    between(place, work)


# Identities and wallets: ids do not change, copies count once.

HISTORIES: list[tuple[AnyOverlay, Callable[[Random], Event]]] = [
    (WALLETS, wallets.random_event),
    (IDENTITY, identities.random_event),
]


@pytest.mark.parametrize(("overlay", "event"), HISTORIES, ids=["wallet", "identity"])
def test_source_and_target_have_the_same_state(
    place: Path, overlay: AnyOverlay, event: Callable[[Random], Event]
) -> None:
    async def work(hubs: Hubs) -> None:
        chance = Random(9)
        said = [event(chance) for _ in range(12)]
        async with hubs.both() as (source, _):
            for one in said:
                await source.send(NEWS, one.encode(), schema=one.SCHEMA)
        await hubs.mirror()
        here, there = await _parts(hubs, overlay)
        assert set(here) == set(there)
        assert here
        if overlay is WALLETS:
            assert here == there
        async with hubs.both() as (source, target):  # a second bridge without state of the first
            for entry in [one async for one in source.read(NEWS)]:
                await target.send(NEWS, entry.body or b"", schema=entry.schema or b"", parent_id=entry.msg_id)
        assert (await _parts(hubs, overlay))[1] == there

    async def _parts(hubs: Hubs, overlay: AnyOverlay) -> list[dict[bytes, object]]:
        found: list[dict[bytes, object]] = []
        async with hubs.both() as clients:
            for client in clients:
                async with StateView(HubSource(client), NEWS, overlay, cached=False) as view, view.reading() as reading:
                    found.append(dict(reading.states))
        return found

    between(place, work)
