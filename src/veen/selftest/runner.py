"""Runs every check of a suite against one hub and reports the results."""

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


def checks_of(suite: str) -> tuple[tuple[str, Check], ...]:
    """The checks of a suite, each with the name of its suite. Raises `ValueError` for an unknown suite."""
    if suite != ALL and suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; choose {', '.join(SUITES)} or {ALL}")
    return tuple((name, check) for name, checks in SUITES.items() if suite in (name, ALL) for check in checks)


Progress: TypeAlias = Callable[[int, int, CheckResult], None]  # checks done, checks in all, last result


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
    """Run every check of a suite against the hub at `url`.

    `issuer` is the key of an issuer that the hub trusts; without it, checks that need a capability are skipped. `pin`
    is the `hub_id` or `H(hub_pk)` that the hub must have. `count` is the number of messages that `props` sends and of
    damaged inputs that each `fuzz` check sends. Raises `Unavailable` if no hub answers at all.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    probe = Probe(url, tls)
    try:
        return run_checks(checks_of(suite), probe, suite, issuer, pin, seed, count, progress or _no_progress)
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
    """Run these checks in order."""
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
                note(_result(name, check, CheckOutcome.SKIP, "the hub status cannot be read", 0.0))
    else:
        hub_id = facts.hub_id
        context = CheckContext(probe, facts, issuer=issuer, pin=pin, seed=seed, count=count)
        for name, check in checks:
            note(_run_check(name, check, context))
    return SelftestReport(suite, probe.url, hub_id, seed, count, tuple(results))


def _run_check(suite: str, check: Check, context: CheckContext) -> CheckResult:
    """Run a check. If it fails while an epoch ends, run it once more: its labels may have expired meanwhile."""
    before = _epoch(context)
    result = _run_once(suite, check, context)
    if result.outcome is CheckOutcome.FAIL and _epoch(context) != before:
        result = _run_once(suite, check, context)
    return result


def _epoch(context: CheckContext) -> int:
    if not context.profile.epoch_sec:
        return 0
    try:
        return context.status().epoch
    except (Failed, VeenError):
        return -1  # the check itself will fail if the status cannot be read


def _run_once(suite: str, check: Check, context: CheckContext) -> CheckResult:
    context.begin(check.id)
    start = time.monotonic()
    try:
        outcome, reason = CheckOutcome.PASS, check.run(context) or ""
    except Skipped as skipped:
        outcome, reason = CheckOutcome.SKIP, str(skipped)
    except (Failed, VeenError) as failed:
        outcome, reason = CheckOutcome.FAIL, str(failed)
    return _result(suite, check, outcome, reason, time.monotonic() - start)


def _result(suite: str, check: Check, outcome: CheckOutcome, reason: str, seconds: float) -> CheckResult:
    return CheckResult(suite, check.id, check.claim, check.spec, outcome, reason, seconds)


def _no_progress(done: int, total: int, result: CheckResult) -> None:
    pass
