"""Events cross the air gap in bundles: all of them, once, unchanged."""

import asyncio
from pathlib import Path

from tests.bridge.bridge_fixture import EXPORT, IMPORT, zones
from tests.hub.client import START, Clock
from veen.bridge import reconciliation
from veen.bridge.bundle_export import BundleSizes
from veen.bridge.reconciliation import reconcile
from veen.core import Limits, Profile
from veen.overlays.bridge_logs import (
    ONLINE_LOG,
    BridgeResult,
    BundleExported,
    BundleImported,
    BundleIntake,
    TargetRange,
)
from veen.state import HubSource


def test_events_arrive_unchanged_and_name_their_originals(place: Path) -> None:
    async def run() -> None:
        sent = await at.produce(*(b"event %d" % number for number in range(7)))
        first, second, third = await at.export(sizes=BundleSizes(events=3))
        outcomes = [await at.take(data) for data in (first, second, third)]
        assert [(one.result, one.event_count, one.written) for one in outcomes] == [
            (BridgeResult.SUCCESS, 3, 3),
            (BridgeResult.SUCCESS, 3, 3),
            (BridgeResult.SUCCESS, 1, 1),
        ]
        found = await at.imported()
        assert [entry.body for entry in found] == [b"event %d" % number for number in range(7)]
        assert [entry.header.parent_id for entry in found if entry.header] == [one.msg_id for one in sent]
        assert outcomes[1].targets == (TargetRange(0, 4, 6),)

    with zones(place) as at:
        asyncio.run(run())


def test_both_zones_log_the_transfer(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        outcome = await at.take(data)
        (left,) = await at.audit_entries(ONLINE_LOG)
        exported = BundleExported.decode(left.body or b"")
        assert (exported.bundle_id, exported.export_stream, exported.event_count) == (outcome.bundle_id, EXPORT, 2)
        first, last = await at.audit_entries()
        intake, ended = BundleIntake.decode(first.body or b""), BundleImported.decode(last.body or b"")
        assert (intake.bundle_id, intake.import_stream, len(intake.origins)) == (outcome.bundle_id, IMPORT, 2)
        assert (ended.result, ended.event_count, ended.targets) == (BridgeResult.SUCCESS, 2, (TargetRange(0, 1, 2),))
        assert ended.operator == "test"

    with zones(place) as at:
        asyncio.run(run())


def test_every_epoch_is_exported_and_imported_separately(place: Path) -> None:
    """Each epoch has its own label, and numbers restart in each."""
    clock = Clock(START)

    async def run() -> None:
        await at.produce(b"a", b"b")
        first = await at.export()
        clock.now += 1000
        await at.produce(b"c")
        second = await at.export()
        assert [len(first), len(second)] == [1, 1]
        for data in (*first, *second):
            outcome = await at.take(data)
            assert outcome.ok, outcome.fault
        async with at.client("analyst", at.online) as client:
            left = await reconciliation.exports_of(HubSource(client))
        async with at.client("analyst", at.offline) as client:
            found = reconcile(await reconciliation.read_input(HubSource(client), left))
        assert found.clean, found.to_json()
        assert [(region.consistent_upto_seq, region.epoch) for region in found.regions] == [
            (2, START // 500),
            (1, (START + 1000) // 500),
        ]

    with zones(place, profile=Profile(epoch_sec=500), limits=Limits(max_epoch_skew_sec=0), clock=clock) as at:
        asyncio.run(run())


def test_an_intake_is_split_for_a_hub_with_small_messages(place: Path) -> None:
    async def run() -> None:
        await at.produce(*(b"%d" % number for number in range(12)))
        (data,) = await at.export()
        assert (await at.take(data)).written == 12
        parts = [entry for entry in await at.audit_entries() if entry.schema == BundleIntake.SCHEMA]
        assert len(parts) > 2

    with zones(place, limits=Limits(max_msg_bytes=8192, max_body_bytes=8000)) as at:
        asyncio.run(run())
