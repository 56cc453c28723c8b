"""Checks of an air-gap bridge between two running hubs: J1 to J3, K1 and K2, and that a changed bundle is rejected.

Each claim runs with its own streams and keys. 001, AGB0 §4.8, §5.2.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import TypeAlias

from veen.bridge import reconciliation, zone_roles
from veen.bridge.bundle import Bundle, BundleCode
from veen.bridge.bundle_export import BundleSizes, Exporter
from veen.bridge.bundle_import import Importer, ImportOutcome
from veen.bridge.reconciliation import ReconcileReport, reconcile
from veen.bridge.zone_roles import StreamMapping
from veen.client import ClientDir, capabilities
from veen.client.client import Client
from veen.client.reader import Entry
from veen.client.sender import Draft, Sent
from veen.client.trust import FIRST_USE, Pin
from veen.core import DhKey, Msg, Place, Receipt, Refused, SigningKey, cap_token, ciphertext, msg, naming
from veen.core.ciphertext import PayloadHdr
from veen.core.hashing import h
from veen.overlays.bridge_logs import BridgeResult, BundleExported, BundleImported, BundleIntake
from veen.overlays.event import Event
from veen.overlays.record import RecordEvent
from veen.selftest.check import Check, Skipped, Suite, expect, expect_equal, only
from veen.selftest.runner import CheckResult, Progress, SelftestReport, result_of
from veen.state import HubSource

SUITE = "airgap"
_MAX_EVENTS = 200
_TIME_MS = 1_700_000_000_000
_FLIPPED_BITS = 25
_GRANT_SEC = 86_400
ROLES = ("producer", "exporter", "importer", "analyst")


@dataclass(frozen=True, slots=True)
class Zone:
    """A hub, its expected id, and the issuer key that it trusts."""

    url: str
    pin: bytes | None = None
    issuer: SigningKey | None = None


class Names:
    """The streams of one run."""

    def __init__(self) -> None:
        run = token_hex(8)
        self.record = f"record/selftest/{run}"
        self.arrived = f"import/selftest/{run}"
        self.online_log = f"bridge/online/log/{run}"
        self.offline_log = f"bridge/offline/log/{run}"
        self.mapping = StreamMapping((("record/", "import/"),))


class BridgeRun:
    """A bridge from one zone to the other with its own keys and capabilities. Call `close` at the end."""

    def __init__(self, root: Path, zones: tuple[Zone, Zone], seed: int, count: int) -> None:
        self.names = Names()
        self.online, self.offline = zones
        self.count = count
        self.rng = Random(seed)
        self.drop = root / "drop"
        self.drop.mkdir()
        self._root = root
        now = int(time.time())
        self.folders = {person: ClientDir.create(root / person, None, now) for person in ROLES}
        self._grant_roles()

    def close(self) -> None:
        for folder in self.folders.values():
            folder.close()

    def _grant_roles(self) -> None:
        """Give each role the keys and capabilities it needs, and none that would let events flow back."""
        names, people = self.names, self.folders
        for stream, readers, writers in (
            (names.record, ("importer", "analyst"), ("producer",)),
            (names.arrived, ("analyst",), ("importer",)),
            (names.online_log, ("exporter", "analyst"), ()),
            (names.offline_log, ("importer", "analyst"), ()),
        ):
            key = DhKey.generate()
            for reader in readers:
                people[reader].stream_keys.import_secret(stream, key)
            for writer in writers:
                people[writer].stream_keys.add_public(stream, key.public_key)
        self._allow(self.online, "producer", names.record)
        self._allow(self.online, "exporter", names.online_log)
        self._allow(self.offline, "importer", names.arrived, names.offline_log)

    def _allow(self, zone: Zone, person: str, *streams: str) -> None:
        if zone.issuer is not None:
            named, card = [naming.stream_id(stream) for stream in streams], self.folders[person].card
            for token in capabilities.issue(zone.issuer, card, named, _GRANT_SEC):
                self.folders[person].caps.add(token)

    @asynccontextmanager
    async def client(self, person: str, zone: Zone) -> AsyncIterator[Client]:
        pin = FIRST_USE if zone.pin is None else Pin(key=zone.pin)
        async with Client(zone.url, self.folders[person], pin=pin) as client:
            if client.session.status.admission != "open" and zone.issuer is None:
                raise Skipped("a hub requires capabilities, and no issuer key was given")
            if zone.issuer is not None and client.session.status.bare_tokens is False:
                end = client.session.clock.now() + 2 * _GRANT_SEC
                for token in [one for one in client.dir.caps if one.issuer_pk == zone.issuer.public_key]:
                    client.dir.caps.add(cap_token.present(zone.issuer, token, client.hub_id, end))
            yield client

    # Actions of the roles.

    async def produce(self, *events: Event) -> list[Sent]:
        async with self.client("producer", self.online) as client:
            sender = client.sender(self.names.record)
            drafts = [Draft(event.encode(), event.SCHEMA) for event in events]
            return list(await asyncio.gather(*(sender.put(draft) for draft in drafts)))

    async def export(self, events: int) -> list[bytes]:
        """Export everything new, in bundles of at most `events` events."""
        async with self.client("exporter", self.online) as client:
            exporter = Exporter(client, self.drop, operator="selftest", log=self.names.online_log)
            made = [found async for found in exporter.run(self.names.record, BundleSizes(events=events))]
        return [(self.drop / found.bundle.name).read_bytes() for found in made]

    async def import_bundle(self, data: bytes) -> ImportOutcome:
        async with self.client("importer", self.offline) as client:
            trusted = {await self.source_id()}
            names = self.names
            importer = Importer(client, trusted, mapping=names.mapping, operator="selftest", log=names.offline_log)
            return await importer.take(data)

    async def source_id(self) -> bytes:
        async with self.client("analyst", self.online) as client:
            return client.hub_id

    async def read(self, zone: Zone, stream: str) -> list[Entry]:
        async with self.client("analyst", zone) as client:
            return [entry async for entry in client.read(stream)]

    async def report(self) -> ReconcileReport:
        async with self.client("analyst", self.online) as client:
            left = await reconciliation.exports_of(HubSource(client), self.names.online_log)
        async with self.client("analyst", self.offline) as client:
            return reconcile(await reconciliation.read_input(HubSource(client), left, self.names.offline_log))


CHECKS = Suite[BridgeRun]()
Body: TypeAlias = Callable[[BridgeRun], Coroutine[None, None, str]]


def _claim(check_id: str, text: str, spec: str) -> Callable[[Body], Check[BridgeRun]]:
    return lambda body: CHECKS.claim(check_id, text, spec)(lambda bridge: asyncio.run(body(bridge)))


def events(count: int) -> list[RecordEvent]:
    """Recorder events of this run."""
    return [
        RecordEvent(f"subject {number % 3}", "selftest.crossed", _TIME_MS + number, "selftest", f'{{"n":{number}}}')
        for number in range(count)
    ]


@_claim("airgap.j1", "every imported event has exactly one original, and each leads to the other", "001 AGB0 J1")
async def one_to_one(bridge: BridgeRun) -> str:
    sent = await bridge.produce(*events(bridge.count))
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
    await bridge.produce(*events(bridge.count))
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
    await bridge.produce(*events(3))
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
    (event,) = events(1)
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
    sent = await bridge.produce(*events(9))
    first, second, third = await bridge.export(3)
    await bridge.import_bundle(first)
    await bridge.import_bundle(third)
    report = await bridge.report()
    region = only(report.regions, "regions")
    expect_equal(
        (region.consistent_upto_seq, region.consistent_upto_time),
        (3, sent[2].receipt.hub_ts),
        "the end of the consistent range",
    )
    expect_equal((region.gaps, len(report.missing)), (((4, 6),), 1), "the reported gap")
    await bridge.import_bundle(second)
    report = await bridge.report()
    region = only(report.regions, "regions")
    expect_equal((region.consistent_upto_seq, region.gaps, report.clean), (9, (), True), "the end after all imports")
    async with bridge.client("analyst", bridge.online) as client:
        await client.checkpoint(bridge.names.record, region.consistent_upto_seq)
    async with bridge.client("analyst", bridge.offline) as client:
        upto = await client.checkpoint(bridge.names.arrived)
    expect_equal(upto.upto_seq, 9, "the checkpoint of the import stream")
    return "3 bundles"


def run(
    online: Zone,
    offline: Zone,
    *,
    seed: int,
    count: int,
    claims: Iterable[Check[BridgeRun]] = CHECKS,
    progress: Progress | None = None,
) -> SelftestReport:
    """Test every claim between two hubs; events go from the first to the second."""
    results: list[CheckResult] = []
    chosen = tuple(claims)
    for claim in chosen:
        results.append(_run_claim(claim, (online, offline), seed, min(count, _MAX_EVENTS)))
        if progress:
            progress(len(results), len(chosen), results[-1])
    return SelftestReport(SUITE, f"{online.url} -> {offline.url}", online.pin, seed, count, tuple(results))


def _run_claim(claim: Check[BridgeRun], zones: tuple[Zone, Zone], seed: int, count: int) -> CheckResult:
    with tempfile.TemporaryDirectory(prefix="veen-airgap-") as folder:
        bridge = BridgeRun(Path(folder), zones, seed, count)
        try:
            return result_of(SUITE, claim, bridge)
        finally:
            bridge.close()
