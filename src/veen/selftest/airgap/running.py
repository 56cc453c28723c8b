"""A run of the claims: each with streams and keys of its own."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from veen.core import VeenError
from veen.selftest.airgap.claims import CHECKS, Claim
from veen.selftest.airgap.crossing import Crossing, Zone
from veen.selftest.report import Outcome, Report, Result
from veen.selftest.verdict import Failed, Skipped

SUITE = "airgap"
_MOST_EVENTS = 200


def run(
    online: Zone,
    offline: Zone,
    *,
    seed: int,
    count: int,
    claims: tuple[Claim, ...] = CHECKS,
    progress: Callable[[int, int, Result], None] | None = None,
) -> Report:
    """Try every claim between two hubs, from the first to the second."""
    results: list[Result] = []
    for claim in claims:
        results.append(_tried(claim, (online, offline), seed, min(count, _MOST_EVENTS)))
        if progress:
            progress(len(results), len(claims), results[-1])
    return Report(SUITE, f"{online.url} -> {offline.url}", online.pin, seed, count, tuple(results))


def _tried(claim: Claim, zones: tuple[Zone, Zone], seed: int, count: int) -> Result:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="veen-airgap-") as folder:
        crossing = Crossing(Path(folder), zones, seed, count)
        try:
            outcome, reason = Outcome.PASS, crossing.do(claim.run) or ""
        except Skipped as skipped:
            outcome, reason = Outcome.SKIP, str(skipped)
        except (Failed, VeenError) as failed:
            outcome, reason = Outcome.FAIL, str(failed)
        finally:
            crossing.close()
    return Result(SUITE, claim.id, claim.claim, claim.spec, outcome, reason, time.monotonic() - start)
