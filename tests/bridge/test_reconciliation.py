"""Reconciliation finds missing, partial, duplicate and unexplained events, and how far both zones agree."""

import asyncio
import json
from pathlib import Path

from tests.bridge.bridge_fixture import EXPORT, IMPORT, Zones, allow, zones
from veen.bridge import reconciliation
from veen.bridge.bundle_export import BundleSizes
from veen.bridge.reconciliation import ReconcileReport, reconcile
from veen.client.sender import Draft
from veen.overlays.bridge_logs import OFFLINE_LOG, BridgeResult, BundleImported, BundleIntake, EventOrigin, TargetRange
from veen.state import DirectorySource, HubSource


async def _report(at: Zones, *, by_bundles: bool = False) -> ReconcileReport:
    if by_bundles:
        left = reconciliation.exports_in(at.drop, {at.source_id})
    else:
        async with at.client("analyst", at.online) as client:
            left = await reconciliation.exports_of(HubSource(client))
    async with at.client("analyst", at.offline) as client:
        return reconcile(await reconciliation.read_input(HubSource(client), left))


async def _send(at: Zones, person: str, stream: str, *drafts: Draft) -> None:
    async with at.client(person, at.offline) as client:
        for draft in drafts:
            await client.sender(stream).put(draft)


def test_two_zones_that_agree_are_clean_by_the_log_and_by_the_bundles(place: Path) -> None:
    async def run() -> None:
        await at.produce(*(b"%d" % number for number in range(5)))
        for data in await at.export(sizes=BundleSizes(events=2)):
            await at.take(data)
        for by_bundles in (False, True):
            report = await _report(at, by_bundles=by_bundles)
            assert report.clean
            assert report.to_json()["events"] == 5
            (region,) = report.regions
            assert (region.consistent_upto_seq, region.exported, region.imported, region.gaps) == (
                5,
                ((1, 5),),
                ((1, 5),),
                (),
            )
            assert region.consistent_upto_time is not None

    with zones(place) as at:
        asyncio.run(run())


def test_copies_of_the_data_directories_are_enough(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        await at.take(data)

    with zones(place) as at:
        asyncio.run(run())
        analyst = at.folders["analyst"]
        online, offline = (DirectorySource(hub.data_dir, analyst) for hub in (at.online, at.offline))
        found = asyncio.run(reconciliation.read_input(offline, asyncio.run(reconciliation.exports_of(online))))
        assert reconcile(found).clean


def test_a_missing_bundle_is_named_and_leaves_a_gap(place: Path) -> None:
    async def run() -> None:
        await at.produce(*(b"%d" % number for number in range(6)))
        first, second, third = await at.export(sizes=BundleSizes(events=2))
        await at.take(first)
        await at.take(third)
        report = await _report(at)
        (missed,) = report.missing
        assert (missed.export_seq_from, missed.export_seq_to, missed.lacking) == (3, 4, ())
        assert not report.clean
        (region,) = report.regions
        assert (region.consistent_upto_seq, region.gaps) == (2, ((3, 4),))
        refused = await at.take(second[:-1] + bytes([second[-1] ^ 1]))
        assert not refused.ok
        assert "rejected" in (await _report(at)).missing[0].reason
        await at.take(second)
        assert (await _report(at)).clean

    with zones(place) as at:
        asyncio.run(run())


def test_a_partial_import_is_named_with_its_missing_events(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        assert not (await at.take(data)).ok
        report = await _report(at)
        (half,) = report.partial
        assert (half.reason, half.lacking) == ("import started, not finished", (1, 2))
        assert report.missing == ()
        (report,) = json.loads(json.dumps(report.to_json()))["partial"]
        assert (report["bundle_id"], report["lacking"]) == (half.bundle_id.hex(), [1, 2])
        allow(at.folders["importer"], IMPORT)
        assert (await at.take(data)).ok
        assert (await _report(at)).clean

    with zones(place, (EXPORT, "import/zone1/elsewhere")) as at:
        key = at.folders["analyst"].stream_keys.create(IMPORT)
        at.folders["importer"].stream_keys.add_public(IMPORT, key.public_key)
        asyncio.run(run())


def test_an_import_that_was_logged_but_not_made_is_named(place: Path) -> None:
    """J2: an importer that falsely logs success."""

    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        found = reconciliation.exports_in(at.drop, {at.source_id})[0]
        from veen.bridge.bundle import Bundle

        events = Bundle.decode(data).events
        origins = tuple(EventOrigin.of(one.msg, one.receipt) for one in events)
        named = (found.bundle_id, at.source_id, EXPORT, 0, 1, 2, 2, IMPORT, 1)
        intake = BundleIntake(*named, origins)
        ended = BundleImported(
            found.bundle_id, found.bundle_hash, IMPORT, (TargetRange(0, 1, 2),), 2, BridgeResult.SUCCESS, "liar"
        )
        drafts = [Draft(one.encode(), one.SCHEMA) for one in (intake, ended)]
        await _send(at, "importer", OFFLINE_LOG, *drafts)
        report = await _report(at)
        (half,) = report.partial
        assert (half.reason, half.lacking) == ("logged as imported, but events are missing", (1, 2))

    with zones(place) as at:
        asyncio.run(run())


def test_duplicate_and_unexplained_events_are_named(place: Path) -> None:
    """J1: exactly one original for each event."""

    async def run() -> None:
        (sent,) = await at.produce(b"a")
        (data,) = await at.export()
        await at.take(data)
        await _send(at, "importer", IMPORT, Draft(b"a", parent_id=sent.msg_id), Draft(b"invented"))
        report = await _report(at)
        (twice,) = report.duplicates
        assert (twice.origin_msg_id, [place.stream_seq for place in twice.places]) == (sent.msg_id, [1, 2])
        assert [one.at.stream_seq for one in report.unexplained] == [3]
        assert not report.clean
        report = json.loads(json.dumps(report.to_json()))
        place_of = {"origin_msg_id": sent.msg_id.hex(), "import_stream": IMPORT, "places": [[0, 1], [0, 2]]}
        assert (report["clean"], report["duplicates"]) == (False, [place_of])
        assert report["unexplained"] == [{"import_stream": IMPORT, "epoch": 0, "stream_seq": 3}]

    with zones(place) as at:
        asyncio.run(run())


def test_an_imported_bundle_that_was_never_exported_is_named(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a")
        (data,) = await at.export()
        outcome = await at.take(data)
        async with at.client("analyst", at.offline) as client:
            report = reconcile(await reconciliation.read_input(HubSource(client), []))
        assert report.unannounced == (outcome.bundle_id,)
        assert not report.clean

    with zones(place) as at:
        asyncio.run(run())
