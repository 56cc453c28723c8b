"""Runs of selected checks, so a test does not wait for checks that it does not need."""

import ssl

from tests.hub.client import ISSUER
from veen.selftest import SUITES, CheckOutcome, CheckResult, SelftestReport
from veen.selftest.probe import Probe
from veen.selftest.runner import HubCheck, run_checks

SEED, COUNT = 11, 40
BY_ID: dict[str, HubCheck] = {check.id: check for checks in SUITES.values() for check in checks}
# Each of these waits for a capability to expire.
WAITING = {"cap.ttl", "refuse.CAP_TTL", "order.all", "json.refusals"} | {
    name for name in BY_ID if name.startswith("order.") and "auth" in name
}


def run_some(url: str, *wanted: str, pin: bytes | None = None, tls: ssl.SSLContext | None = None) -> SelftestReport:
    """Run the checks whose names have one of these prefixes, or all. Checks that wait need their full name."""
    chosen = [
        ("some", check)
        for name, check in BY_ID.items()
        if name in wanted or (name not in WAITING and (not wanted or name.startswith(wanted)))
    ]
    assert chosen, f"no check matches {wanted}"
    probe = Probe(url, tls)
    try:
        return run_checks(chosen, probe, "some", ISSUER, pin, SEED, COUNT, lambda *_: None)
    finally:
        probe.close()


def run_one(url: str, check_id: str, pin: bytes | None = None) -> CheckResult:
    """Run one check. If the status cannot be read, the result is that of the status check."""
    probe = Probe(url)
    try:
        report = run_checks([("one", BY_ID[check_id])], probe, "one", ISSUER, pin, SEED, COUNT, lambda *_: None)
    finally:
        probe.close()
    return report.results[0]


def outcomes(report: SelftestReport) -> dict[str, CheckOutcome]:
    return {result.id: result.outcome for result in report.results}


def failures(report: SelftestReport) -> dict[str, str]:
    return {result.id: result.reason for result in report.failures}


def skipped(report: SelftestReport) -> set[str]:
    return {name for name, outcome in outcomes(report).items() if outcome is CheckOutcome.SKIP}
