"""The claims of `veen selftest airgap` pass between two real hubs, and each fails for a bridge that breaks it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.client import ISSUER, Hub, make_dir, running
from tests.hub.disks import QuickDisk
from veen.bridge.bundle_import import ImportOutcome as Taken
from veen.client import capabilities
from veen.client.reader import Entry
from veen.client.sender import Draft
from veen.core import VeenError, naming
from veen.hub.admission_rules import Admission
from veen.selftest.airgap import CHECKS, BridgeRun, Zone, run
from veen.selftest.check import Failed
from veen.selftest.runner import CheckOutcome

SEED, COUNT = 7, 7
BY_ID = {claim.id: claim for claim in CHECKS}


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Hub]]:
    roots = [tmp_path_factory.mktemp(name) for name in ("online", "offline")]
    dirs = [make_dir(root, now=int(time.time()) - 60) for root in roots]
    with (
        running(dirs[0], time.time, QuickDisk(), admission=Admission.CAPABILITY) as online,
        running(dirs[1], time.time, QuickDisk(), admission=Admission.CAPABILITY) as offline,
    ):
        yield online, offline


def zone(hub: Hub, *, issuer: bool = True) -> Zone:
    pin = hub.service.hub_metadata.identity.hub_id
    return Zone(f"http://127.0.0.1:{hub.port}", pin, ISSUER if issuer else None)


def test_a_bridge_between_two_hubs_keeps_every_invariant(hubs: tuple[Hub, Hub]) -> None:
    report = run(zone(hubs[0]), zone(hubs[1]), seed=SEED, count=COUNT)
    assert {one.id: one.reason for one in report.results if one.outcome is not CheckOutcome.PASS} == {}
    assert {one.id for one in report.results} == {
        "airgap.j1",
        "airgap.j2",
        "airgap.j3",
        "airgap.k1",
        "airgap.k2",
        "airgap.tamper",
    }


def test_without_an_issuer_every_claim_is_skipped(hubs: tuple[Hub, Hub]) -> None:
    report = run(zone(hubs[0], issuer=False), zone(hubs[1], issuer=False), seed=SEED, count=COUNT)
    assert {one.outcome for one in report.results} == {CheckOutcome.SKIP}
    assert not report.ok


def test_open_hubs_skip_only_the_claim_that_needs_capabilities(tmp_path: Path) -> None:
    for name in ("online", "offline"):
        (tmp_path / name).mkdir()
    dirs = [make_dir(tmp_path / name, now=int(time.time()) - 60) for name in ("online", "offline")]
    with (
        running(dirs[0], time.time, QuickDisk()) as online,
        running(dirs[1], time.time, QuickDisk()) as offline,
    ):
        report = run(zone(online, issuer=False), zone(offline, issuer=False), seed=SEED, count=COUNT)
    assert {one.id for one in report.results if one.outcome is CheckOutcome.SKIP} == {"airgap.j3"}
    assert report.ok


class Doubling(BridgeRun):
    """Each import writes one event twice."""

    async def import_bundle(self, data: bytes) -> Taken:
        taken = await super().import_bundle(data)
        (first, *_) = await self.read(self.offline, self.names.arrived)
        async with self.client("importer", self.offline) as client:
            parent = first.header.parent_id if first.header else None
            await client.sender(self.names.arrived).put(Draft(first.body or b"", first.schema or b"", parent))
        return taken


class Forgetful(BridgeRun):
    """The last event of an import stream is missing."""

    async def read(self, zone: Zone, stream: str) -> list[Entry]:
        found = await super().read(zone, stream)
        return found[:-1] if stream == self.names.arrived else found


class Lenient(BridgeRun):
    """It always imports the first bundle, whatever it is given."""

    true: bytes | None = None

    async def export(self, events: int) -> list[bytes]:
        made = await super().export(events)
        self.true = self.true or made[0]
        return made

    async def import_bundle(self, data: bytes) -> Taken:
        return await super().import_bundle(self.true or data)


class Unrecorded(BridgeRun):
    """Exports are not logged."""

    async def read(self, zone: Zone, stream: str) -> list[Entry]:
        return [] if stream == self.names.online_log else await super().read(zone, stream)


class BothWays(BridgeRun):
    """The exporter has permission to write the source stream."""

    def _grant_roles(self) -> None:
        super()._grant_roles()
        stream = naming.stream_id(self.names.record)
        for token in capabilities.issue(ISSUER, self.folders["exporter"].card, [stream], 60):
            self.folders["exporter"].caps.add(token)


BROKEN: list[tuple[type[BridgeRun], str]] = [
    (Doubling, "airgap.j1"),
    (Doubling, "airgap.j2"),
    (Forgetful, "airgap.j1"),
    (Forgetful, "airgap.j2"),
    (Forgetful, "airgap.k1"),
    (Lenient, "airgap.tamper"),
    (Lenient, "airgap.k2"),
    (Unrecorded, "airgap.k1"),
    (BothWays, "airgap.j3"),
]


@pytest.mark.parametrize(("kind", "claim"), BROKEN, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_bridge_that_breaks_an_invariant_fails_its_claim(
    hubs: tuple[Hub, Hub], tmp_path: Path, kind: type[BridgeRun], claim: str
) -> None:
    bridge = kind(tmp_path, (zone(hubs[0]), zone(hubs[1])), SEED, COUNT)
    try:
        with pytest.raises((Failed, VeenError)):
            BY_ID[claim].run(bridge)
    finally:
        bridge.close()


def test_every_claim_has_been_seen_to_fail() -> None:
    assert {claim for _, claim in BROKEN} == set(BY_ID)
