"""The claims: J1 to J3, K1 and K2, and that a changed bundle is refused. 001, AGB0 §4.8, §5.2."""

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
from veen.selftest.airgap.two_hubs import Crossing, Zone
from veen.selftest.verdict import Skipped, expect, expect_equal, only

Body: TypeAlias = Callable[[Crossing], Awaitable[str | None]]
_TIME_MS = 1_700_000_000_000
_BITS = 25


@dataclass(frozen=True, slots=True)
class AirgapClaim:
    """What is claimed, where, and how it is tried."""

    id: str
    claim: str
    spec: str
    run: Body


def _claim(check_id: str, text: str, spec: str) -> Callable[[Body], AirgapClaim]:
    return lambda run: AirgapClaim(check_id, text, spec, run)


def events(crossing: Crossing, count: int) -> list[RecordEvent]:
    """Recorder events that nobody else has."""
    return [
        RecordEvent(f"subject {number % 3}", "selftest.crossed", _TIME_MS + number, "selftest", f'{{"n":{number}}}')
        for number in range(count)
    ]


@_claim("airgap.j1", "every imported event has exactly one original, and each finds the other", "001 AGB0 J1")
async def one_to_one(crossing: Crossing) -> str:
    sent = await crossing.produce(*events(crossing, crossing.count))
    for data in await crossing.export(max(1, crossing.count // 3)):
        outcome = await crossing.take(data)
        expect(outcome.ok, f"a bundle is not taken: {outcome.fault}")
    arrived = await crossing.read(crossing.offline, crossing.names.arrived)
    parents = [entry.header.parent_id for entry in arrived if entry.header]
    expect_equal(parents, [one.msg_id for one in sent], "what the imported events name as their originals")
    expect_equal(set(Counter(parents).values()), {1}, "how often each original is named")
    known = {one.msg_id: one.receipt for one in sent}
    logged = await crossing.read(crossing.offline, crossing.names.offline_log)
    told = [BundleIntake.decode(entry.body) for entry in logged if entry.schema == BundleIntake.SCHEMA and entry.body]
    for origin in (origin for intake in told for origin in intake.origins):
        expect_equal(origin.receipt, known.get(origin.msg_id), "the origin_receipt of an event")
    report = await crossing.report()
    expect(report.clean, f"reconciliation is not clean: {report.to_json()}")
    return f"{len(arrived)} events"


@_claim("airgap.j2", "a bundle that is said to be imported is there as a whole, once", "001 AGB0 J2")
async def no_loss(crossing: Crossing) -> str:
    await crossing.produce(*events(crossing, crossing.count))
    (data,) = await crossing.export(crossing.count)
    first, again = await crossing.take(data), await crossing.take(data)
    expect_equal((first.result, first.event_count), (BridgeResult.SUCCESS, crossing.count), "the first import")
    expect(
        again.fault is not None and again.fault.code is BundleCode.DUPLICATE, "a second import is not told to be one"
    )
    arrived = await crossing.read(crossing.offline, crossing.names.arrived)
    carried = Bundle.decode(data).events
    expect_equal(len(arrived), len(carried), "the number of imported events")
    source = await crossing.read(crossing.online, crossing.names.record)
    for theirs, ours in zip(source, arrived, strict=True):
        expect_equal(
            (ours.schema, ours.body), (theirs.schema, theirs.body), f"event {theirs.stream_seq}, once imported,"
        )
    for place in first.targets:
        expect(place.seq_to <= len(arrived), "the record names places that the import stream does not have")
    return f"{len(arrived)} events"


@_claim("airgap.j3", "nobody of the bridge can write where events come from", "001 AGB0 J3")
async def one_way(crossing: Crossing) -> str:
    for person, zone, stream in (
        ("exporter", crossing.online, crossing.names.record),
        ("importer", crossing.online, crossing.names.record),
        ("importer", crossing.online, crossing.names.online_log),
        ("exporter", crossing.offline, crossing.names.arrived),
    ):
        await _expect_refused(crossing, person, zone, stream)
    zone_roles.check_exporter(crossing.folders["exporter"], crossing.names.online_log)
    zone_roles.check_importer(crossing.folders["importer"], crossing.names.mapping, crossing.names.offline_log)
    reader, names = crossing.folders["analyst"], crossing.names
    expect(
        _is_both_ways(lambda: zone_roles.check_importer(reader, names.mapping, names.offline_log)),
        "a reader may import",
    )
    writer = crossing.folders["producer"]
    expect(_is_both_ways(lambda: zone_roles.check_exporter(writer, names.online_log)), "a writer may export")
    return "4 attempts"


def _is_both_ways(check: Callable[[], None]) -> bool:
    try:
        check()
    except zone_roles.RoleConflict:
        return True
    return False


async def _expect_refused(crossing: Crossing, person: str, zone: Zone, stream: str) -> None:
    """A message by the key of that role, as the hub itself judges it."""
    async with crossing.client(person, zone) as client:
        if client.contact.status.admission == "open":
            raise Skipped("a hub lets anyone write, so that one way is not enforced there")
        key = SigningKey(client.dir.identity.id_sign.seed)
        place = Place(client.contact.profile_id, client.label(stream), key.public_key, 1, 0, None)
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
        answer = await client.contact.link.submit(made.encode())
    expect(not isinstance(answer, Receipt), f"the {person} can write to {stream}")
    expect(
        isinstance(answer, Refused) and answer.code == "E.CAP", f"the {person} is refused for another reason: {answer}"
    )


@_claim("airgap.tamper", "a bundle with one bit changed is refused and recorded, and nothing comes in", "001 AGB0 §4.4")
async def tampered(crossing: Crossing) -> str:
    await crossing.produce(*events(crossing, 3))
    (data,) = await crossing.export(3)
    for number in range(1, _BITS + 1):
        bit = crossing.rng.randrange(8 * len(data))
        changed = data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        outcome = await crossing.take(changed)
        expect(not outcome.ok, f"bit {bit} can be changed")
        logged = await crossing.read(crossing.offline, crossing.names.offline_log)
        expect_equal(len(logged), number, "the number of records")
        said = BundleImported.decode(logged[-1].body or b"")
        expect_equal((said.result, said.bundle_hash), (BridgeResult.FAILURE, h(changed)), "the record of the refusal")
    expect_equal(await crossing.read(crossing.offline, crossing.names.arrived), [], "what came in")
    outcome = await crossing.take(data)
    expect(outcome.ok, f"the bundle as it was is refused: {outcome.fault}")
    return f"{_BITS} bits"


@_claim("airgap.k1", "an event can be followed from its record to where it came in, step by step", "001 SDR0+AGB0 K1")
async def traced(crossing: Crossing) -> str:
    (event,) = events(crossing, 1)
    (sent,) = await crossing.produce(event)
    (data,) = await crossing.export(1)
    await crossing.take(data)
    recorded = only(await crossing.read(crossing.online, crossing.names.record), "records")
    expect_equal(recorded.msg_id, sent.msg_id, "the recorded event")
    bundle = Bundle.decode(data)
    expect_equal([one.receipt for one in bundle.events], [sent.receipt], "what the bundle carries")
    left = only(await crossing.read(crossing.online, crossing.names.online_log), "records of the export")
    expect_equal(
        BundleExported.decode(left.body or b"").bundle_id, bundle.bundle_id, "the bundle that is said to have left"
    )
    first, last = await crossing.read(crossing.offline, crossing.names.offline_log)
    intake, ended = BundleIntake.decode(first.body or b""), BundleImported.decode(last.body or b"")
    expect_equal(
        (intake.bundle_id, ended.bundle_id), (bundle.bundle_id,) * 2, "the bundle that is said to have come in"
    )
    origin = only(intake.origins, "origins")
    expect_equal(origin.receipt, sent.receipt, "the origin_receipt")
    expect_equal(origin.client_id, recorded.client_id, "the principal of the original")
    arrived = only(await crossing.read(crossing.offline, crossing.names.arrived), "imported events")
    expect_equal(arrived.header and arrived.header.parent_id, sent.msg_id, "the original that the imported event names")
    expect_equal(RecordEvent.decode(arrived.body or b""), event, "the event")
    return "record, bundle, both logs, import"


@_claim("airgap.k2", "how far both zones agree is known, and what lies beyond it is named", "001 SDR0+AGB0 K2")
async def bounded(crossing: Crossing) -> str:
    sent = await crossing.produce(*events(crossing, 9))
    first, second, third = await crossing.export(3)
    await crossing.take(first)
    await crossing.take(third)
    report = await crossing.report()
    region = only(report.regions, "regions")
    expect_equal((region.upto_seq, region.upto_time), (3, sent[2].receipt.hub_ts), "the end of what is consistent")
    expect_equal((region.gaps, len(report.missing)), (((4, 6),), 1), "what is named as missing")
    await crossing.take(second)
    report = await crossing.report()
    region = only(report.regions, "regions")
    expect_equal((region.upto_seq, region.gaps, report.clean), (9, (), True), "the end, once all came in")
    async with crossing.client("analyst", crossing.online) as client:
        await client.checkpoint(crossing.names.record, region.upto_seq)
    async with crossing.client("analyst", crossing.offline) as client:
        upto = await client.checkpoint(crossing.names.arrived)
    expect_equal(upto.upto_seq, 9, "the checkpoint of the import stream")
    return "3 bundles"


CHECKS: tuple[AirgapClaim, ...] = (one_to_one, no_loss, one_way, tampered, traced, bounded)
