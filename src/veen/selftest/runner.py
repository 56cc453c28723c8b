"""Runs every check of a suite against one hub and reports the results."""

import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from veen.core import Malformed, SigningKey, VeenError
from veen.core.strict_json import Json
from veen.selftest import core, fuzz, history_properties, recorder_suite
from veen.selftest.check import C, Check, Failed, Skipped
from veen.selftest.check_context import CheckContext, HubFacts
from veen.selftest.core import request_checks
from veen.selftest.probe import Probe


class CheckOutcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: claim, section of the specification, and outcome."""

    suite: str
    id: str
    claim: str
    spec: str
    outcome: CheckOutcome
    reason: str  # why it failed or was skipped; for a pass, an optional note on what it covered
    seconds: float

    def to_json(self) -> dict[str, Json]:
        shown = {**asdict(self), "outcome": str(self.outcome), "ms": round(self.seconds * 1e3)}
        del shown["seconds"]
        return shown


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """A whole run. Seed and count are enough to repeat its random choices."""

    suite: str
    url: str
    hub_id: bytes | None  # None if the status could not be read
    seed: int
    count: int
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """No check failed and at least one passed."""
        return not self.failures and any(result.outcome is CheckOutcome.PASS for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.outcome is CheckOutcome.FAIL)

    @property
    def counts(self) -> dict[CheckOutcome, int]:
        found = Counter(result.outcome for result in self.results)
        return {outcome: found[outcome] for outcome in CheckOutcome}

    def to_json(self) -> dict[str, Json]:
        return {
            "suite": self.suite,
            "hub": self.url,
            "hub_id": None if self.hub_id is None else self.hub_id.hex(),
            "seed": self.seed,
            "count": self.count,
            "ok": self.ok,
            "counts": {str(outcome): count for outcome, count in self.counts.items()},
            "results": [result.to_json() for result in self.results],
        }


Progress: TypeAlias = Callable[[int, int, CheckResult], None]  # checks done, checks in all, last result
HubCheck: TypeAlias = Check[CheckContext]

ALL = "all"
SUITES: Mapping[str, tuple[HubCheck, ...]] = MappingProxyType(
    {
        "core": core.CHECKS,
        "props": tuple(history_properties.CHECKS),
        "fuzz": tuple(fuzz.CHECKS),
        "recorder": tuple(recorder_suite.CHECKS),
    }
)


def checks_of(suite: str) -> tuple[tuple[str, HubCheck], ...]:
    """The checks of a suite, each with the name of its suite. Raises `ValueError` for an unknown suite."""
    if suite != ALL and suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; choose {', '.join(SUITES)} or {ALL}")
    return tuple((name, check) for name, checks in SUITES.items() if suite in (name, ALL) for check in checks)


def run(
    suite: str,
    url: str,
    *,
    issuer: SigningKey | None = None,
    operator: str | None = None,
    pin: bytes | None = None,
    seed: int,
    count: int,
    tls: ssl.SSLContext | None = None,
    progress: Progress | None = None,
) -> SelftestReport:
    """Run every check of a suite against the hub at `url`.

    `issuer` is the key of an issuer that the hub trusts; without it, checks that need a capability are skipped.
    `operator` is the operator's token; with it, streams are registered at an open hub that has epochs. It is sent only
    over TLS or to this machine, to a hub whose signed identity has `pin`, the `hub_id` or `H(hub_pk)`. `count` is the
    number of messages that `props` sends and of damaged inputs that each `fuzz` check sends. Raises `Unavailable` if no
    hub answers at all.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    probe = Probe(url, tls)
    try:
        return run_checks(checks_of(suite), probe, suite, issuer, pin, seed, count, progress or _no_progress, operator)
    finally:
        probe.close()


def run_checks(
    checks: Sequence[tuple[str, HubCheck]],
    probe: Probe,
    suite: str,
    issuer: SigningKey | None,
    pin: bytes | None,
    seed: int,
    count: int,
    progress: Progress,
    operator: str | None = None,
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
        note(_unrun("core", request_checks.status, CheckOutcome.FAIL, str(error)))
        for name, check in checks:
            if check is not request_checks.status:
                note(_unrun(name, check, CheckOutcome.SKIP, "the hub status cannot be read"))
    else:
        hub_id = facts.hub_id
        context = CheckContext(probe, facts, issuer=issuer, operator=operator, pin=pin, seed=seed, count=count)
        for name, check in checks:
            note(_run_check(name, check, context))
    return SelftestReport(suite, probe.url, hub_id, seed, count, tuple(results))


def _run_check(suite: str, check: HubCheck, context: CheckContext) -> CheckResult:
    """Run a check. If it fails while an epoch ends, run it once more: its labels may have expired meanwhile."""
    before = _epoch(context)
    context.begin(check.id)
    result = result_of(suite, check, context)
    if result.outcome is CheckOutcome.FAIL and _epoch(context) != before:
        context.begin(check.id)
        result = result_of(suite, check, context)
    return result


def _epoch(context: CheckContext) -> int:
    if not context.profile.epoch_sec:
        return 0
    try:
        return context.status().epoch
    except (Failed, VeenError):
        return -1  # the check itself will fail if the status cannot be read


def result_of(suite: str, check: Check[C], context: C) -> CheckResult:
    """Run a check once."""
    start = time.monotonic()
    try:
        outcome, reason = CheckOutcome.PASS, check.run(context) or ""
    except Skipped as skipped:
        outcome, reason = CheckOutcome.SKIP, str(skipped)
    except (Failed, VeenError) as failed:
        outcome, reason = CheckOutcome.FAIL, str(failed)
    return CheckResult(suite, check.id, check.claim, check.spec, outcome, reason, time.monotonic() - start)


def _unrun(suite: str, check: HubCheck, outcome: CheckOutcome, reason: str) -> CheckResult:
    return CheckResult(suite, check.id, check.claim, check.spec, outcome, reason, 0.0)


def _no_progress(done: int, total: int, result: CheckResult) -> None:
    pass
