"""Import rejects and logs any faulty bundle, writes nothing then, and never leaves a partial import unnoticed."""

import asyncio
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import EXPORT, IMPORT, Zones, allow, zones
from tests.bridge.test_bundle import flipped
from veen.bridge import zone_roles
from veen.bridge.bundle import BundleCode
from veen.bridge.bundle_export import BundleSizes, Exporter, ExportRange, build
from veen.bridge.bundle_import import Importer, ImportPolicy
from veen.bridge.zone_roles import StreamMapping, parse
from veen.client import ClientDir
from veen.client.sender import Draft
from veen.core import DhKey, Limits, Refused, Unavailable, naming
from veen.core.hashing import h
from veen.hub.admission_rules import Admission
from veen.overlays.bridge_logs import OFFLINE_LOG, ONLINE_LOG, BridgeResult, BundleImported


async def _ended(at: Zones) -> list[BundleImported]:
    found = [entry for entry in await at.audit_entries() if entry.schema == BundleImported.SCHEMA]
    return [BundleImported.decode(entry.body or b"") for entry in found]


def test_a_flipped_bit_is_rejected_and_logged_and_nothing_is_imported(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b", b"c")
        (data,) = await at.export()
        bits = (8 * len(data) // 5, 4 * len(data), 8 * len(data) - 1, 8 * 40)
        for number, bit in enumerate(bits, 1):
            outcome = await at.take(flipped(data, bit))
            assert outcome.result is BridgeResult.FAILURE
            assert await at.imported() == []
            said = (await _ended(at))[-1]
            assert len(await _ended(at)) == number
            assert (said.bundle_id, said.result) == (outcome.bundle_id, BridgeResult.FAILURE)
            assert said.bundle_hash == h(flipped(data, bit))
            assert said.error_code in (BundleCode.MALFORMED, BundleCode.BUNDLE_ID)
            assert said.reason
        assert (await at.take(data)).ok  # the intact bundle is still imported

    with zones(place) as at:
        asyncio.run(run())


def test_a_bundle_is_imported_once(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        assert (await at.take(data)).written == 2
        again = await at.take(data)
        assert (again.fault and again.fault.code, again.ok, again.written) == (BundleCode.DUPLICATE, True, 0)
        assert len(await at.imported()) == 2
        assert [(one.result, one.error_code) for one in await _ended(at)] == [
            ("success", None),
            ("failure", "duplicate"),
        ]

    with zones(place) as at:
        asyncio.run(run())


def test_overlapping_bundles_are_not_both_imported(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b", b"c")
        async with at.client("exporter", at.online) as client:
            first, second = [(await build(client, EXPORT, ExportRange(0, *seqs))).encode() for seqs in ((1, 2), (2, 3))]
        assert (await at.take(first)).ok
        refused = await at.take(second)
        assert refused.fault
        assert refused.fault.code is BundleCode.OVERLAP
        assert [entry.body for entry in await at.imported()] == [b"a", b"b"]

    with zones(place) as at:
        asyncio.run(run())


def test_a_stream_without_mapping_rule_is_rejected(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", stream="record/app/http")
        (data,) = await at.export("record/app/http")
        refused = await at.take(data)
        assert refused.fault
        assert refused.fault.code is BundleCode.MAPPING
        assert (await _ended(at))[-1].error_code == "mapping"
        key = at.folders["producer"].stream_keys.secret(naming.stream_id("record/app/http"))
        assert key
        at.folders["importer"].stream_keys.import_secret("record/app/http", key)
        done = await at.take(data, mapping=StreamMapping((("record/app/", "import/zone1/"), ("export/", "import/"))))
        assert (done.import_stream, done.written) == ("import/zone1/http", 1)

    with zones(place, (EXPORT, "import/zone1/http")) as at:
        allow(at.folders["producer"], "record/app/http")
        at.folders["producer"].stream_keys.create("record/app/http")
        asyncio.run(run())


def test_an_unopenable_event_stops_the_import_unless_a_policy_excludes_it(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a")
        stranger = at.folders["exporter"]
        allow(stranger, EXPORT)
        stranger.stream_keys.add_public(EXPORT, DhKey.generate().public_key)  # a key that no reader has
        async with at.client("exporter", at.online) as client:
            await client.send(EXPORT, b"for nobody")
        await at.produce(b"c")
        async with at.client("analyst", at.online) as client:
            data = (await build(client, EXPORT, ExportRange(0, 1, 3))).encode()
        refused = await at.take(data)
        assert refused.fault
        assert (refused.fault.code, refused.fault.position) == (BundleCode.SEALED, 2)
        assert await at.imported() == []
        done = await at.take(data, exclude=[ImportPolicy.SEALED])
        assert (done.ok, done.excluded, done.event_count) == (True, (2,), 2)
        said = (await _ended(at))[-1]
        assert (said.excluded, said.policy) == ((2,), "sealed")
        assert [entry.body for entry in await at.imported()] == [b"a", b"c"]

    with zones(place) as at:
        asyncio.run(run())


def test_attachments_are_not_dropped_silently(place: Path) -> None:
    async def run() -> None:
        (place / "picture").write_bytes(b"pixels")
        async with at.client("producer", at.online) as client:
            await client.send(EXPORT, b"see", attachments=[place / "picture"])
        (data,) = await at.export()
        refused = await at.take(data)
        assert refused.fault
        assert (refused.fault.code, refused.fault.position) == (BundleCode.ATTACHMENT, 1)

    with zones(place) as at:
        asyncio.run(run())


def test_a_rejection_by_the_hub_is_logged_and_the_import_continues_later(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        importer = at.folders["importer"]
        refused = await at.take(data)
        assert refused.fault
        assert (refused.fault.code, refused.fault.position) == (BundleCode.REFUSED, 1)
        assert (await _ended(at))[-1].error_code == "refused"
        allow(importer, IMPORT)
        done = await at.take(data)
        assert (done.ok, done.written, done.event_count) == (True, 2, 2)
        assert [entry.body for entry in await at.imported()] == [b"a", b"b"]

    with zones(place, (EXPORT, "import/zone1/elsewhere")) as at:
        key = DhKey.generate()
        at.folders["importer"].stream_keys.add_public(IMPORT, key.public_key)
        at.folders["analyst"].stream_keys.import_secret(IMPORT, key)
        asyncio.run(run())


def test_an_event_too_large_for_the_hub_is_detected_before_writing(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"small", bytes(20_000), b"small")
        (data,) = await at.export()
        refused = await at.take(data)
        assert refused.fault
        assert (refused.fault.code, refused.fault.position) == (BundleCode.REFUSED, 2)
        assert await at.imported() == []
        assert [entry.schema for entry in await at.audit_entries()] == [BundleImported.SCHEMA]

    with zones(place, offline_limits=Limits(max_msg_bytes=8192, max_body_bytes=8000)) as at:
        asyncio.run(run())


def test_only_the_importer_that_started_a_bundle_finishes_it(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        assert not (await at.take(data)).ok  # the intake is logged, no event is
        first = at.folders["importer"].stream_keys
        with ClientDir.create(place / "second", None, 1) as second:
            for stream in (EXPORT, OFFLINE_LOG):
                key = first.secret(naming.stream_id(stream))
                assert key
                second.stream_keys.import_secret(stream, key)
            second.stream_keys.add_public(IMPORT, first.public(naming.stream_id(IMPORT)) or b"")
            allow(second, IMPORT, OFFLINE_LOG)
            at.folders["importer"], kept = second, at.folders["importer"]
            refused = await at.take(data)
            at.folders["importer"] = kept
        assert refused.fault
        assert refused.fault.code is BundleCode.PARTIAL

    with zones(place, (EXPORT, "import/zone1/elsewhere")) as at:
        at.folders["importer"].stream_keys.add_public(IMPORT, DhKey.generate().public_key)
        asyncio.run(run())


def test_an_importer_without_the_keys_writes_nothing(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", stream="export/b")
        (data,) = await at.export("export/b")
        with pytest.raises(Unavailable, match="reader key"):
            await at.take(data)
        at.folders["importer"].stream_keys.import_secret("export/b", DhKey.generate())
        with pytest.raises(Unavailable, match="'import/b'"):
            await at.take(data)

    with zones(place) as at:
        allow(at.folders["producer"], "export/b")
        at.folders["producer"].stream_keys.create("export/b")
        asyncio.run(run())


# Separation of roles.


def _exporter(at: Zones) -> None:
    zone_roles.check_exporter(at.folders["exporter"])


def _importer(at: Zones) -> None:
    zone_roles.check_importer(at.folders["importer"], StreamMapping())


def test_the_roles_hold_nothing_that_lets_events_flow_back(place: Path) -> None:
    with zones(place) as at:
        for check in (_exporter, _importer):
            try:
                check(at)
            except zone_roles.RoleConflict as conflict:
                pytest.fail(f"{check.__name__}: {conflict}")


@pytest.mark.parametrize("stream", [EXPORT, "record/app/http", OFFLINE_LOG])
def test_an_exporter_may_write_only_the_log(place: Path, stream: str) -> None:
    with zones(place) as at:
        allow(at.folders["exporter"], stream)
        with pytest.raises(zone_roles.RoleConflict, match="capability"):
            _exporter(at)


def test_an_exporter_may_not_read_import_streams(place: Path) -> None:
    with zones(place) as at:
        at.folders["exporter"].stream_keys.create("import/zone2/x")
        with pytest.raises(zone_roles.RoleConflict, match="import/zone2/x"):
            _exporter(at)


@pytest.mark.parametrize("stream", ["import/zone9/x", "record/app/http", ONLINE_LOG])
def test_an_importer_may_read_only_the_log_of_its_zone(place: Path, stream: str) -> None:
    with zones(place) as at:
        at.folders["importer"].stream_keys.create(stream)
        with pytest.raises(zone_roles.RoleConflict, match=stream):
            _importer(at)


@pytest.mark.parametrize("stream", [EXPORT, ONLINE_LOG])
def test_an_importer_may_not_write_export_streams(place: Path, stream: str) -> None:
    with zones(place) as at:
        allow(at.folders["importer"], stream)
        with pytest.raises(zone_roles.RoleConflict, match=stream):
            _importer(at)


def test_an_identity_with_both_roles_is_rejected_by_the_constructors(place: Path) -> None:
    async def run() -> None:
        async with at.client("producer", at.online) as client:
            with pytest.raises(zone_roles.RoleConflict):
                Exporter(client, at.drop)
        async with at.client("analyst", at.offline) as client:
            with pytest.raises(zone_roles.RoleConflict):
                Importer(client, {at.source_id})

    with zones(place) as at:
        asyncio.run(run())


def test_the_hub_rejects_writes_of_the_exporter(place: Path) -> None:
    async def run() -> None:
        at.folders["exporter"].stream_keys.add_public(EXPORT, DhKey.generate().public_key)
        async with at.client("exporter", at.online) as client:
            with pytest.raises(Refused, match="CAP_MISSING"):
                await client.sender(EXPORT).put(Draft(b"back"))

    with zones(place) as at:
        asyncio.run(run())
    assert zone_roles.enforces_capabilities(Admission.CAPABILITY)
    assert not zone_roles.enforces_capabilities(Admission.OPEN)


@pytest.mark.parametrize(
    ("stream", "target"),
    [("export/zoneX/foo", "import/zoneX/foo"), ("export/a", "import/a"), ("export/x/y/z", "import/x/y/z")],
)
def test_a_stream_keeps_its_name_in_the_other_zone(stream: str, target: str) -> None:
    assert StreamMapping().target(stream) == target


def test_the_longest_rule_wins() -> None:
    rules = parse(["export/=import/", "export/secret/=import/sealed/"])
    assert rules.target("export/secret/x") == "import/sealed/x"
    assert rules.target("export/x") == "import/x"


@pytest.mark.parametrize("text", ["export/", "=import/", "export/=", "a/=a/"])
def test_an_invalid_mapping_rule_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse([text])


# Export.


def test_exported_events_are_not_exported_again(place: Path) -> None:
    async def run() -> None:
        await at.produce(*(b"%d" % number for number in range(5)))
        assert len(await at.export(sizes=BundleSizes(events=2))) == 3
        assert await at.export() == []
        await at.produce(b"5")
        (last,) = await at.export()
        assert (await at.take(last)).ok
        assert len(await at.audit_entries(ONLINE_LOG)) == 4

    with zones(place) as at:
        asyncio.run(run())


def test_unannounced_drafts_are_deleted_and_announced_ones_published(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        (data,) = await at.export()
        (file,) = at.drop.glob("*.bundle")
        file.rename(at.drop / f".{file.name}.draft")  # as a crash leaves it, after the announcement
        async with at.client("exporter", at.online) as client:
            unknown = await build(client, EXPORT, ExportRange(0, 1, 1))
        (at.drop / f".{unknown.name}.draft").write_bytes(unknown.encode())  # and before it
        (at.drop / ".0000.bundle.draft").write_bytes(data[:-1])
        assert await at.export() == [data]
        assert sorted(path.name for path in at.drop.iterdir()) == [file.name]
        assert len(await at.audit_entries(ONLINE_LOG)) == 1

    with zones(place) as at:
        asyncio.run(run())


def test_bundles_respect_the_byte_limit(place: Path) -> None:
    async def run() -> None:
        await at.produce(bytes(3000), bytes(3000), b"c")
        assert len(await at.export(sizes=BundleSizes(size=6000))) == 2

    with zones(place) as at:
        asyncio.run(run())
