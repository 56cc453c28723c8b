"""The claims: J1 to J3, K1 and K2, and that a changed bundle is rejected. 001, AGB0 §4.8, §5.2."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from veen.bridge import zone_roles
from veen.bridge.bundle import Bundle, BundleCode
from veen.core import DhKey, Msg, Place, Receipt, Refused, SigningKey, ciphertext, msg
from veen.core.ciphertext import PayloadHdr
from veen.core.hashing import h
from veen.overlays.bridging import BridgeResult, BundleExported, BundleImported, BundleIntake
from veen.overlays.record import RecordEvent
from veen.selftest.airgap.two_hubs import BridgeRun, Zone
from veen.selftest.verdict import Skipped, expect, expect_equal, only

Body: TypeAlias = Callable[[BridgeRun], Awaitable[str | None]]
_TIME_MS = 1_700_000_000_000
_FLIPPED_BITS = 25


@dataclass(frozen=True, slots=True)
class AirgapClaim:
    """A claim, its section, and the code that tests it."""

    id: str
    claim: str
    spec: str
    run: Body


def _claim(check_id: str, text: str, spec: str) -> Callable[[Body], AirgapClaim]:
    return lambda run: AirgapClaim(check_id, text, spec, run)


def events(bridge: BridgeRun, count: int) -> list[RecordEvent]:
    """Recorder events of this run."""
    return [
        RecordEvent(f"subject {number % 3}", "selftest.crossed", _TIME_MS + number, "selftest", f'{{"n":{number}}}')
        for number in range(count)
    ]


@_claim("airgap.j1", "every imported event has exactly one original, and each leads to the other", "001 AGB0 J1")
async def one_to_one(bridge: BridgeRun) -> str:
    sent = await bridge.produce(*events(bridge, bridge.count))
    for data in await bridge.export(max(1, bridge.count // 3)):
        outcome = await bridge.import_bundle(data)
        expect(outcome.ok, f"a bundle was rejected: {outcome.fault}")
    arrived = await bridge.read(bridge.offline, bridge.names.arrived)
    parents = [entry.header.parent_id for entry in arrived if entry.header]
    expect_equal(parents, [one.msg_id for one in sent], "the list of originals that the imported events name")
    expect_equal(set(Counter(parents).values()), {1}, "the number of times each original is named")
    known = {one.msg_id: one.receipt for one in sent}
    logged = await bridge.read(bridge.offline, bridge.names.offline_log)
    intakes = [
        BundleIntake.decode(entry.body) for entry in logged if entry.schema == BundleIntake.SCHEMA and entry.body
    ]
    for origin in (origin for intake in intakes for origin in intake.origins):
        expect_equal(origin.receipt, known.get(origin.msg_id), "the origin_receipt of an event")
    report = await bridge.report()
    expect(report.clean, f"reconciliation is not clean: {report.to_json()}")
    return f"{len(arrived)} events"


@_claim("airgap.j2", "a bundle logged as imported was imported completely, once", "001 AGB0 J2")
async def no_loss(bridge: BridgeRun) -> str:
    await bridge.produce(*events(bridge, bridge.count))
    (data,) = await bridge.export(bridge.count)
    first, again = await bridge.import_bundle(data), await bridge.import_bundle(data)
    expect_equal((first.result, first.event_count), (BridgeResult.SUCCESS, bridge.count), "the first import")
    expect(
        again.fault is not None and again.fault.code is BundleCode.DUPLICATE, "a second import is not reported as one"
    )
    arrived = await bridge.read(bridge.offline, bridge.names.arrived)
    carried = Bundle.decode(data).events
    expect_equal(len(arrived), len(carried), "the number of imported events")
    source = await bridge.read(bridge.online, bridge.names.record)
    for theirs, ours in zip(source, arrived, strict=True):
        expect_equal(
            (ours.schema, ours.body), (theirs.schema, theirs.body), f"event {theirs.stream_seq}, once imported,"
        )
    for place in first.targets:
        expect(place.seq_to <= len(arrived), "the audit log names places that the import stream does not have")
    return f"{len(arrived)} events"


@_claim("airgap.j3", "no role of the bridge can write to the source zone's streams", "001 AGB0 J3")
async def one_way(bridge: BridgeRun) -> str:
    for person, zone, stream in (
        ("exporter", bridge.online, bridge.names.record),
        ("importer", bridge.online, bridge.names.record),
        ("importer", bridge.online, bridge.names.online_log),
        ("exporter", bridge.offline, bridge.names.arrived),
    ):
        await _expect_refused(bridge, person, zone, stream)
    zone_roles.check_exporter(bridge.folders["exporter"], bridge.names.online_log)
    zone_roles.check_importer(bridge.folders["importer"], bridge.names.mapping, bridge.names.offline_log)
    reader, names = bridge.folders["analyst"], bridge.names
    expect(
        _is_role_conflict(lambda: zone_roles.check_importer(reader, names.mapping, names.offline_log)),
        "a reader may import",
    )
    writer = bridge.folders["producer"]
    expect(_is_role_conflict(lambda: zone_roles.check_exporter(writer, names.online_log)), "a writer may export")
    return "4 attempts"


def _is_role_conflict(check: Callable[[], None]) -> bool:
    try:
        check()
    except zone_roles.RoleConflict:
        return True
    return False


async def _expect_refused(bridge: BridgeRun, person: str, zone: Zone, stream: str) -> None:
    """Submit a message with the key of that role; the hub must reject it."""
    async with bridge.client(person, zone) as client:
        if client.session.status.admission == "open":
            raise Skipped("a hub has open admission, so it does not enforce one direction")
        key = SigningKey(client.dir.identity.id_sign.seed)
        place = Place(client.session.profile_id, client.label(stream), key.public_key, 1, 0, None)
        sealed = ciphertext.seal(DhKey.generate().public_key, place, PayloadHdr(h(b"back")), b"back", 256)
        made: Msg = msg.sign(
            key,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=1,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed,
        )
        answer = await client.session.link.submit(made.encode())
    expect(not isinstance(answer, Receipt), f"the {person} can write to {stream}")
    expect(
        isinstance(answer, Refused) and answer.code == "E.CAP",
        f"the {person} was rejected for another reason: {answer}",
    )


@_claim(
    "airgap.tamper", "a bundle with one changed bit is rejected and logged, and nothing is imported", "001 AGB0 §4.4"
)
async def tampered(bridge: BridgeRun) -> str:
    await bridge.produce(*events(bridge, 3))
    (data,) = await bridge.export(3)
    for number in range(1, _FLIPPED_BITS + 1):
        bit = bridge.rng.randrange(8 * len(data))
        changed = data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        outcome = await bridge.import_bundle(changed)
        expect(not outcome.ok, f"a bundle with bit {bit} changed was accepted")
        logged = await bridge.read(bridge.offline, bridge.names.offline_log)
        expect_equal(len(logged), number, "the number of audit entries")
        event = BundleImported.decode(logged[-1].body or b"")
        expect_equal((event.result, event.bundle_hash), (BridgeResult.FAILURE, h(changed)), "the logged rejection")
    expect_equal(await bridge.read(bridge.offline, bridge.names.arrived), [], "the import stream")
    outcome = await bridge.import_bundle(data)
    expect(outcome.ok, f"the unchanged bundle was rejected: {outcome.fault}")
    return f"{_FLIPPED_BITS} bits"


@_claim("airgap.k1", "an event can be traced from its record to its import, step by step", "001 SDR0+AGB0 K1")
async def traced(bridge: BridgeRun) -> str:
    (event,) = events(bridge, 1)
    (sent,) = await bridge.produce(event)
    (data,) = await bridge.export(1)
    await bridge.import_bundle(data)
    recorded = only(await bridge.read(bridge.online, bridge.names.record), "records")
    expect_equal(recorded.msg_id, sent.msg_id, "the recorded event")
    bundle = Bundle.decode(data)
    expect_equal([one.receipt for one in bundle.events], [sent.receipt], "the list of receipts in the bundle")
    left = only(await bridge.read(bridge.online, bridge.names.online_log), "audit entries of the export")
    expect_equal(BundleExported.decode(left.body or b"").bundle_id, bundle.bundle_id, "the bundle logged as exported")
    first, last = await bridge.read(bridge.offline, bridge.names.offline_log)
    intake, ended = BundleIntake.decode(first.body or b""), BundleImported.decode(last.body or b"")
    expect_equal((intake.bundle_id, ended.bundle_id), (bundle.bundle_id,) * 2, "the bundle logged as imported")
    origin = only(intake.origins, "origins")
    expect_equal(origin.receipt, sent.receipt, "the origin_receipt")
    expect_equal(origin.client_id, recorded.client_id, "the principal of the original")
    arrived = only(await bridge.read(bridge.offline, bridge.names.arrived), "imported events")
    expect_equal(arrived.header and arrived.header.parent_id, sent.msg_id, "the original that the imported event names")
    expect_equal(RecordEvent.decode(arrived.body or b""), event, "the event")
    return "record, bundle, both logs, import"


@_claim("airgap.k2", "how far both zones agree is known, and gaps beyond are named", "001 SDR0+AGB0 K2")
async def bounded(bridge: BridgeRun) -> str:
    sent = await bridge.produce(*events(bridge, 9))
    first, second, third = await bridge.export(3)
    await bridge.import_bundle(first)
    await bridge.import_bundle(third)
    report = await bridge.report()
    region = only(report.regions, "regions")
    expect_equal((region.upto_seq, region.upto_time), (3, sent[2].receipt.hub_ts), "the end of the consistent range")
    expect_equal((region.gaps, len(report.missing)), (((4, 6),), 1), "the reported gap")
    await bridge.import_bundle(second)
    report = await bridge.report()
    region = only(report.regions, "regions")
    expect_equal((region.upto_seq, region.gaps, report.clean), (9, (), True), "the end after all imports")
    async with bridge.client("analyst", bridge.online) as client:
        await client.checkpoint(bridge.names.record, region.upto_seq)
    async with bridge.client("analyst", bridge.offline) as client:
        upto = await client.checkpoint(bridge.names.arrived)
    expect_equal(upto.upto_seq, 9, "the checkpoint of the import stream")
    return "3 bundles"


CHECKS: tuple[AirgapClaim, ...] = (one_to_one, no_loss, one_way, tampered, traced, bounded)
