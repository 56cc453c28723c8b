"""A run and its report, and what a hub may leave out without failing."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.http.certificates import client_context, write_certificate
from tests.hub.client import ISSUER, make_dir, running
from tests.hub.disks import QuickDisk
from tests.selftest.breakages import crash, detail
from tests.selftest.broken_hub import Answer, Breakage, BrokenHub, Call, Forger, Handle, HangUp, status_says
from tests.selftest.check_runs import failures, outcomes, run_some, skipped
from veen import selftest
from veen.client.trust import UntrustedCertificate
from veen.core import Malformed, Unavailable, strict_json
from veen.core.hashing import U64_MAX
from veen.selftest import (
    ALL,
    SUITES,
    CheckOutcome,
    CheckResult,
    SelftestReport,
    core,
    fuzz,
    history_properties,
    recorder_suite,
)
from veen.selftest.check import Check
from veen.selftest.core import capabilities, log_growth, refusals, request_checks

SEED, COUNT = 3, 10


def run(hub: BrokenHub, suite: str = "core", seed: int = SEED) -> SelftestReport:
    return selftest.run(suite, hub.url, issuer=ISSUER, seed=seed, count=COUNT)


# The suites.


def test_the_public_names_are_stable() -> None:
    assert selftest.__all__ == ["ALL", "CheckOutcome", "CheckResult", "Progress", "SUITES", "SelftestReport", "run"]


def test_only_suites_that_exist_are_listed() -> None:
    assert list(SUITES) == ["core", "props", "fuzz", "recorder"]
    assert ALL not in SUITES


def test_every_check_has_a_unique_id_a_claim_and_a_section() -> None:
    checks = [check for suite in SUITES.values() for check in suite]
    assert [name for name, count in Counter(check.id for check in checks).items() if count > 1] == []
    assert len({check.claim for check in checks}) == len(checks)
    assert all(check.claim and check.spec.startswith("§") for check in checks)


CORE_MODULES = (capabilities, log_growth, refusals, request_checks)
MODULES = (*CORE_MODULES, history_properties, fuzz, recorder_suite)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_check_of_a_module_is_in_its_suite(module: ModuleType) -> None:
    made = [found for found in vars(module).values() if isinstance(found, Check)]
    assert made
    assert set(made) <= {check for suite in SUITES.values() for check in suite}


def test_every_module_of_the_core_suite_is_covered_here() -> None:
    files = {path.stem for path in Path(core.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in CORE_MODULES}


@pytest.mark.parametrize("suite", ["", "Core", "recorders", "none"])
def test_an_unknown_suite_is_a_value_error(suite: str) -> None:
    with pytest.raises(ValueError, match="unknown suite"):
        selftest.run(suite, "http://127.0.0.1:1", seed=1, count=1)


def test_a_count_of_zero_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        selftest.run("core", "http://127.0.0.1:1", seed=1, count=0)


# Reports.


def result(outcome: CheckOutcome) -> CheckResult:
    return CheckResult("core", "a.b", "claim", "§1", outcome, "", 0.25)


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        ((), False),
        ((CheckOutcome.SKIP,), False),
        ((CheckOutcome.PASS,), True),
        ((CheckOutcome.PASS, CheckOutcome.SKIP), True),
        ((CheckOutcome.PASS, CheckOutcome.FAIL), False),
        ((CheckOutcome.FAIL,), False),
    ],
)
def test_a_report_is_ok_if_nothing_failed_and_something_passed(found: tuple[CheckOutcome, ...], ok: bool) -> None:
    report = SelftestReport("core", "http://hub", None, 1, 1, tuple(map(result, found)))
    assert report.ok is ok
    assert sum(report.counts.values()) == len(found)


def test_a_report_converts_to_json(open_hub: BrokenHub) -> None:
    report = run(open_hub, "props")
    shown = strict_json.decode(strict_json.encode(report.to_json()), "report")
    assert isinstance(shown, dict)
    hub_id = open_hub.hub.service.hub_metadata.identity.hub_id
    assert (shown["suite"], shown["hub"], shown["hub_id"]) == ("props", open_hub.url, hub_id.hex())
    assert (shown["seed"], shown["count"], shown["ok"]) == (SEED, COUNT, True)
    assert shown["counts"] == {"pass": len(SUITES["props"]), "fail": 0, "skip": 0}
    results = shown["results"]
    assert isinstance(results, list)
    first = results[0]
    assert isinstance(first, dict)
    assert set(first) == {"suite", "id", "claim", "spec", "outcome", "reason", "ms"}


def test_progress_is_called_for_each_result(open_hub: BrokenHub) -> None:
    told: list[tuple[int, int, CheckResult]] = []
    report = selftest.run(
        "props", open_hub.url, issuer=ISSUER, seed=SEED, count=COUNT, progress=lambda *news: told.append(news)
    )
    total = len(report.results)
    assert told == [(number, total, found) for number, found in enumerate(report.results, 1)]


def test_the_same_seed_makes_the_same_choices(open_hub: BrokenHub) -> None:
    said = [[found.reason for found in run(open_hub, "props", seed).results] for seed in (5, 5, 6)]
    assert said[0] == said[1] != said[2]


# Missing and failing hubs.


def test_no_hub_at_all_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        selftest.run("core", "http://127.0.0.1:1", seed=1, count=1)


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub", "http://", "127.0.0.1:80"])
def test_an_invalid_url_is_malformed(url: str) -> None:
    with pytest.raises(Malformed):
        selftest.run("core", url, seed=1, count=1)


@pytest.mark.parametrize("suite", ["core", "props"])
def test_an_unreadable_status_fails_and_skips_all_other_checks(open_hub: BrokenHub, suite: str) -> None:
    with open_hub.broken(status_says(lambda shown: shown.pop("hub_pk"))):
        report = run(open_hub, suite)
    assert failures(report) == {"hub.status": "status: hub_pk is missing"}
    assert report.hub_id is None
    assert report.counts[CheckOutcome.PASS] == 0
    assert len(report.results) == len({check.id for check in SUITES[suite]} | {"hub.status"})


def after(calls: int, then: Callable[[Call], Answer]) -> Breakage:
    """Forward `calls` requests unchanged, then break."""

    def make(forger: Forger) -> Handle:
        count = Counter[str]()

        def handle(call: Call) -> Answer:
            count["calls"] += 1
            return call.ask() if count["calls"] <= calls else then(call)

        return handle

    return make


def hang_up(call: Call) -> Answer:
    raise HangUp


@pytest.mark.parametrize("then", [hang_up, lambda call: crash(call.ask())], ids=["silence", "crashes"])
def test_a_hub_that_dies_fails_checks_but_not_the_run(open_hub: BrokenHub, then: Callable[[Call], Answer]) -> None:
    with open_hub.broken(after(30, then)):
        report = run(open_hub)
    assert outcomes(report)["hub.status"] is CheckOutcome.PASS
    assert report.counts[CheckOutcome.FAIL] > len(SUITES["core"]) // 2
    assert len(report.results) == len(SUITES["core"])


ABSURD: dict[str, Callable[[dict[str, Any]], object]] = {
    "epoch": lambda shown: shown.update(epoch=U64_MAX),
    "hub_ts": lambda shown: shown.update(hub_ts=U64_MAX),
    "hub_ts of the past": lambda shown: shown.update(hub_ts=0),
    "limits": lambda shown: shown.update(limits=dict.fromkeys(shown["limits"], U64_MAX)),
    "no room": lambda shown: shown.update(limits=dict.fromkeys(shown["limits"], 0)),
    "epoch_sec": lambda shown: shown["profile"].update(epoch_sec=U64_MAX),
    "short epochs": lambda shown: shown["profile"].update(epoch_sec=1),
    "pad_block": lambda shown: shown["profile"].update(pad_block=65_536),
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_run_ends_with_any_status(open_hub: BrokenHub, name: str) -> None:
    with open_hub.broken(status_says(ABSURD[name])):
        report = run_some(open_hub.url, "hub", "append", "checkpoint", "epoch", "cap", "refuse", "tool", "fuzz.signed")
    assert len(report.results) > len(SUITES["core"]) // 2


# Optional behaviour of a hub.


def busy_at_first(forger: Forger) -> Handle:
    """Reject every request once as busy."""
    seen: set[tuple[str, bytes]] = set()

    def handle(call: Call) -> Answer:
        if (call.path, call.body) in seen:
            return call.ask()
        seen.add((call.path, call.body))
        busy = Answer(503, b"", {"content-type": call.headers.get("content-type", "application/json")})
        return replace(busy.error("E.UNAVAILABLE"), headers={**busy.headers, "retry-after": "0"})

    return handle


def test_a_busy_hub_is_retried(open_hub: BrokenHub) -> None:
    with open_hub.broken(busy_at_first):
        report = run_some(open_hub.url, "append", "page", "json", "cap.admits", "tool")
    assert failures(report) == {}


def test_a_hub_that_is_always_busy_fails(open_hub: BrokenHub) -> None:
    def always(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            busy = Answer(503, b"", {"content-type": "application/cbor", "retry-after": "0"})
            return call.ask() if call.method == "GET" else busy.error("E.UNAVAILABLE")

        return handle

    with open_hub.broken(always):
        report = run(open_hub, "props")
    assert report.counts[CheckOutcome.FAIL] == len(SUITES["props"])


def without(*paths: str) -> Breakage:
    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            if call.path.startswith(paths):
                return Answer(404, b"", {"content-type": "text/plain"})
            return call.ask()

        return handle

    return make


def test_tooling_that_is_not_offered_is_skipped(open_hub: BrokenHub) -> None:
    left_out = ("proof", "consistency", "submit-batch", "checkpoints", "attachments", "equivocation")
    with open_hub.broken(without(*(f"/tooling/{name}" for name in left_out))):
        report = run_some(open_hub.url, "append", "checkpoint", "tool")
    assert failures(report) == {}
    expected = {"append.proof-later", "checkpoint.grown", "tool.batch", "tool.checkpoints", "tool.equivocation"}
    assert skipped(report) == expected | {"tool.attachment", "tool.attachment-name"}


def test_capability_checks_are_skipped_without_authorize(open_hub: BrokenHub) -> None:
    with open_hub.broken(without("/tooling/authorize")):
        report = run_some(open_hub.url, "cap.authorize", "cap.admits", "cap.burst", "cap.subject", "cap.ttl")
    assert len(skipped(report)) == len(report.results) == 5
    assert not report.ok


def test_a_hub_without_json_does_not_fail(open_hub: BrokenHub) -> None:
    def make(forger: Forger) -> Handle:
        unknown = Answer(415, b"", {"content-type": "text/plain"})
        return lambda call: unknown if call.is_json else call.ask()

    with open_hub.broken(make):
        report = run_some(open_hub.url, "json.", "json.refusals", "request.", "append.")
    assert failures(report) == {}
    in_json = {name for name in outcomes(report) if name.startswith("json.")}
    assert len(in_json) == 4
    assert in_json <= skipped(report)


def test_a_hub_without_identity_record_is_checked_with_its_key(open_hub: BrokenHub) -> None:
    def bare(shown: dict[str, object]) -> None:
        for name in ("identity", "identity_sig", "routing_key"):
            del shown[name]

    with open_hub.broken(status_says(bare)):
        report = run_some(open_hub.url, "hub", "append", "checkpoint")
    assert failures(report) == {}
    assert outcomes(report)["hub.identity"] is CheckOutcome.SKIP
    assert outcomes(report)["append.receipt"] is CheckOutcome.PASS


def test_detail_enum_may_be_missing(open_hub: BrokenHub) -> None:
    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            return detail(answer, detail_enum=None) if call.path == "/v1/submit" and answer.status >= 400 else answer

        return handle

    with open_hub.broken(make):
        report = run_some(open_hub.url, "refuse", "share", "order")
    assert failures(report) == {}


def test_a_hub_behind_tls_is_reached_with_the_given_context(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    data_dir = make_dir(tmp_path, now=int(time.time()) - 60)
    with running(data_dir, time.time, QuickDisk(), tls_cert=cert, tls_key=key) as hub:
        url = f"https://localhost:{hub.port}"
        report = run_some(url, "append", "tool", tls=client_context(cert))
        assert failures(report) == {}
        assert outcomes(report)["tool.subscribe"] is CheckOutcome.PASS
        with pytest.raises(UntrustedCertificate):
            selftest.run("core", url, seed=SEED, count=COUNT)
