"""Runs the air-gap claims, each with its own streams and keys."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from veen.core import VeenError
from veen.selftest.airgap.claims import CHECKS, AirgapClaim
from veen.selftest.airgap.two_hubs import BridgeRun, Zone
from veen.selftest.selftest_report import CheckOutcome, CheckResult, SelftestReport
from veen.selftest.verdict import Failed, Skipped

SUITE = "airgap"
_MAX_EVENTS = 200


def run(
    online: Zone,
    offline: Zone,
    *,
    seed: int,
    count: int,
    claims: tuple[AirgapClaim, ...] = CHECKS,
    progress: Callable[[int, int, CheckResult], None] | None = None,
) -> SelftestReport:
    """Test every claim between two hubs; events go from the first to the second."""
    results: list[CheckResult] = []
    for claim in claims:
        results.append(_run_claim(claim, (online, offline), seed, min(count, _MAX_EVENTS)))
        if progress:
            progress(len(results), len(claims), results[-1])
    return SelftestReport(SUITE, f"{online.url} -> {offline.url}", online.pin, seed, count, tuple(results))


def _run_claim(claim: AirgapClaim, zones: tuple[Zone, Zone], seed: int, count: int) -> CheckResult:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="veen-airgap-") as folder:
        bridge = BridgeRun(Path(folder), zones, seed, count)
        try:
            outcome, reason = CheckOutcome.PASS, bridge.do(claim.run) or ""
        except Skipped as skipped:
            outcome, reason = CheckOutcome.SKIP, str(skipped)
        except (Failed, VeenError) as failed:
            outcome, reason = CheckOutcome.FAIL, str(failed)
        finally:
            bridge.close()
    return CheckResult(SUITE, claim.id, claim.claim, claim.spec, outcome, reason, time.monotonic() - start)
