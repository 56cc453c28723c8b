"""A run: every check of a suite against one hub, and a report of what became of each."""

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from veen.core import Malformed, SigningKey, VeenError
from veen.selftest import core, fuzz, history_properties, recorder_suite
from veen.selftest.check import Check
from veen.selftest.check_context import CheckContext
from veen.selftest.core import tooling_checks
from veen.selftest.hub_facts import HubFacts
from veen.selftest.probe import Probe
from veen.selftest.selftest_report import CheckOutcome, CheckResult, SelftestReport
from veen.selftest.verdict import Failed, Skipped

ALL = "all"
SUITES: Mapping[str, tuple[Check, ...]] = MappingProxyType(
    {"core": core.CHECKS, "props": history_properties.CHECKS, "fuzz": fuzz.CHECKS, "recorder": recorder_suite.CHECKS}
)


def named(suite: str) -> tuple[tuple[str, Check], ...]:
    """The checks of a suite, each with the name of the suite it is of. Raises `ValueError` for a name there is not."""
    if suite != ALL and suite not in SUITES:
        raise ValueError(f"there is no suite {suite!r}, only {', '.join(SUITES)} and {ALL}")
    return tuple((name, check) for name, checks in SUITES.items() if suite in (name, ALL) for check in checks)


Progress: TypeAlias = Callable[[int, int, CheckResult], None]  # how many are done, of how many, and the last of them


def run(
    suite: str,
    url: str,
    *,
    issuer: SigningKey | None = None,
    pin: bytes | None = None,
    seed: int,
    count: int,
    tls: ssl.SSLContext | None = None,
    progress: Progress | None = None,
) -> SelftestReport:
    """Try every claim of a suite at the hub at `url`.

    `issuer` is the key of an issuer the hub trusts: without it, what needs a capability is skipped. `pin` is the
    `hub_id` or the `H(hub_pk)` the hub must have. `count` is how many messages `props` sends, and how many damaged
    inputs each check of `fuzz` tries. Raises `Unavailable` where no hub answers at all.
    """
    if count < 1:
        raise ValueError("a run tries at least one input")
    probe = Probe(url, tls)
    try:
        return run_checks(named(suite), probe, suite, issuer, pin, seed, count, progress or _silently)
    finally:
        probe.close()


def run_checks(
    checks: Sequence[tuple[str, Check]],
    probe: Probe,
    suite: str,
    issuer: SigningKey | None,
    pin: bytes | None,
    seed: int,
    count: int,
    progress: Progress,
) -> SelftestReport:
    """Try these checks, in order."""
    results: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        results.append(result)
        progress(len(results), len(checks), result)

    hub_id = None
    try:
        facts = HubFacts.read(probe.get("/tooling/status").json())
    except (Failed, Malformed) as error:
        note(_result("core", tooling_checks.status, CheckOutcome.FAIL, str(error), 0.0))
        for name, check in checks:
            if check is not tooling_checks.status:
                note(_result(name, check, CheckOutcome.SKIP, "what the hub says of itself cannot be read", 0.0))
    else:
        hub_id = facts.hub_id
        trial = CheckContext(probe, facts, issuer=issuer, pin=pin, seed=seed, count=count)
        for name, check in checks:
            note(_tried(name, check, trial))
    return SelftestReport(suite, probe.url, hub_id, seed, count, tuple(results))


def _tried(suite: str, check: Check, trial: CheckContext) -> CheckResult:
    """A check that fails while an epoch ends is tried once more: its labels may have run out under it."""
    before = _epoch(trial)
    result = _once(suite, check, trial)
    if result.outcome is CheckOutcome.FAIL and _epoch(trial) != before:
        result = _once(suite, check, trial)
    return result


def _epoch(trial: CheckContext) -> int:
    if not trial.profile.epoch_sec:
        return 0
    try:
        return trial.status().epoch
    except (Failed, VeenError):
        return -1  # a hub that has no answer to this will fail the check, too


def _once(suite: str, check: Check, trial: CheckContext) -> CheckResult:
    trial.begin(check.id)
    start = time.monotonic()
    try:
        outcome, reason = CheckOutcome.PASS, check.run(trial) or ""
    except Skipped as skipped:
        outcome, reason = CheckOutcome.SKIP, str(skipped)
    except (Failed, VeenError) as failed:
        outcome, reason = CheckOutcome.FAIL, str(failed)
    return _result(suite, check, outcome, reason, time.monotonic() - start)


def _result(suite: str, check: Check, outcome: CheckOutcome, reason: str, seconds: float) -> CheckResult:
    return CheckResult(suite, check.id, check.claim, check.spec, outcome, reason, seconds)


def _silently(done: int, total: int, result: CheckResult) -> None:
    pass
