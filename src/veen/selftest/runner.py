"""A run: every check of a suite against one hub, and a report of what became of each."""

import ssl
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from veen.core import Malformed, SigningKey, VeenError
from veen.selftest.check import Check
from veen.selftest.core import standing
from veen.selftest.hubfacts import HubFacts
from veen.selftest.probe import Probe
from veen.selftest.report import Outcome, Report, Result
from veen.selftest.suites import named
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, Skipped

Progress: TypeAlias = Callable[[int, int, Result], None]  # how many are done, of how many, and the last of them


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
) -> Report:
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
) -> Report:
    """Try these checks, in order."""
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        progress(len(results), len(checks), result)

    hub_id = None
    try:
        facts = HubFacts.read(probe.get("/tooling/status").json())
    except (Failed, Malformed) as error:
        note(_result("core", standing.status, Outcome.FAIL, str(error), 0.0))
        for name, check in checks:
            if check is not standing.status:
                note(_result(name, check, Outcome.SKIP, "what the hub says of itself cannot be read", 0.0))
    else:
        hub_id = facts.hub_id
        trial = Trial(probe, facts, issuer=issuer, pin=pin, seed=seed, count=count)
        for name, check in checks:
            note(_tried(name, check, trial))
    return Report(suite, probe.url, hub_id, seed, count, tuple(results))


def _tried(suite: str, check: Check, trial: Trial) -> Result:
    """A check that fails while an epoch ends is tried once more: its labels may have run out under it."""
    before = _epoch(trial)
    result = _once(suite, check, trial)
    if result.outcome is Outcome.FAIL and _epoch(trial) != before:
        result = _once(suite, check, trial)
    return result


def _epoch(trial: Trial) -> int:
    if not trial.profile.epoch_sec:
        return 0
    try:
        return trial.status().epoch
    except (Failed, VeenError):
        return -1  # a hub that has no answer to this will fail the check, too


def _once(suite: str, check: Check, trial: Trial) -> Result:
    trial.begin(check.id)
    start = time.monotonic()
    try:
        outcome, reason = Outcome.PASS, check.run(trial) or ""
    except Skipped as skipped:
        outcome, reason = Outcome.SKIP, str(skipped)
    except (Failed, VeenError) as failed:
        outcome, reason = Outcome.FAIL, str(failed)
    return _result(suite, check, outcome, reason, time.monotonic() - start)


def _result(suite: str, check: Check, outcome: Outcome, reason: str, seconds: float) -> Result:
    return Result(suite, check.id, check.claim, check.spec, outcome, reason, seconds)


def _silently(done: int, total: int, result: Result) -> None:
    pass
