"""An importer that is killed at any moment finishes exactly once when it runs again."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import EXPORT, Zones, zones
from veen.bridge import reconciliation
from veen.bridge.bundle_export import BundleSizes
from veen.bridge.reconciliation import ReconcileReport, reconcile
from veen.client import ClientDir
from veen.overlays.bridge_logs import BridgeResult, BundleImported, BundleIntake
from veen.state import HubSource

EVENTS = 6


def _run(at: Zones, file: Path, moment: str = "0") -> "subprocess.CompletedProcess[bytes]":
    url = f"http://127.0.0.1:{at.offline.port}"
    given = [url, at.root / "importer", at.target_id.hex(), at.source_id.hex(), file, moment]
    command = [sys.executable, "-m", "tests.bridge.import_process", *map(str, given)]
    return subprocess.run(command, capture_output=True)


async def _report(at: Zones) -> ReconcileReport:
    async with at.client("analyst", at.online) as client:
        left = await reconciliation.exports_of(HubSource(client))
    async with at.client("analyst", at.offline) as client:
        return reconcile(await reconciliation.read_input(HubSource(client), left))


def _assert_survives_kills(place: Path, calls: int) -> None:
    """Kill an import at `calls` calls, and at two functions that run after its intake is logged."""
    named = ("_wait_all", "_log_result")
    moments = calls + len(named)

    async def export() -> list[Path]:
        await at.produce(*(b"event %d" % number for number in range(EVENTS * (moments + 1))))
        await at.export(sizes=BundleSizes(events=EVENTS))
        seqs = {path: reconciliation.exports_in(path.parent, {at.source_id}) for path in at.drop.glob("*.bundle")}
        order = {one.bundle_id.hex(): one.export_seq_from for found in seqs.values() for one in found}
        return sorted(seqs, key=lambda path: order[path.stem])

    partial = set()
    with zones(place) as at:
        first, *files = asyncio.run(export())
        at.folders["importer"].close()
        whole = int(_run(at, first).stdout)
        each = [*(str(whole * number // (calls + 1)) for number in range(1, calls + 1)), *named]
        for number, (file, moment) in enumerate(zip(files, each, strict=True), 1):
            killed = _run(at, file, moment)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            report = asyncio.run(_report(at))
            unfinished = {one.bundle_id.hex() for one in (*report.missing, *report.partial)}
            done = EVENTS * (number + 1) <= report.regions[0].consistent_upto_seq  # killed after its result was logged
            assert (file.stem in unfinished) is not done
            if report.partial:
                partial.add(moment)
            assert _run(at, file).returncode == 0
        at.folders["importer"] = ClientDir.open(at.root / "importer")
        report = asyncio.run(_report(at))
        assert report.clean, report.to_json()
        found = asyncio.run(at.imported())
        logged = asyncio.run(at.audit_entries())
    ended = [BundleImported.decode(entry.body or b"") for entry in logged if entry.schema == BundleImported.SCHEMA]
    assert sum(entry.schema == BundleIntake.SCHEMA for entry in logged) == moments + 1
    assert Counter(one.result for one in ended)[BridgeResult.SUCCESS] == moments + 1
    assert {one.error_code for one in ended} <= {None, "duplicate"}
    assert [entry.body for entry in found] == [b"event %d" % number for number in range(EVENTS * (moments + 1))]
    assert set(Counter(entry.header.parent_id for entry in found if entry.header).values()) == {1}
    assert partial >= {*named}, partial
    (region,) = report.regions
    assert (region.export_stream, region.consistent_upto_seq, region.gaps) == (EXPORT, EVENTS * (moments + 1), ())


def test_an_importer_killed_in_the_middle_finishes_exactly_once(place: Path) -> None:
    _assert_survives_kills(place, 4)


@pytest.mark.slow
def test_an_importer_killed_at_many_moments_finishes_exactly_once(place: Path) -> None:
    _assert_survives_kills(place, 60)
