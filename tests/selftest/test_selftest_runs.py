"""A run and its report: what is told, to whom, and what a hub may leave out without failing."""

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
from tests.selftest.brokenhub import Answer, Breakage, BrokenHub, Call, Handle, HangUp, Liar, status_says
from tests.selftest.trying import failures, outcomes, skipped, some
from veen import selftest
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
from veen.selftest.core import capabilities, checkpoints, log_growth, refusals, request_checks, tooling_checks
from veen.selftest.core import refusals as rows

SEED, COUNT = 3, 10


def run(hub: BrokenHub, suite: str = "core", seed: int = SEED) -> SelftestReport:
    return selftest.run(suite, hub.url, issuer=ISSUER, seed=seed, count=COUNT)


# The suites.


def test_the_public_names_are_these() -> None:
    assert selftest.__all__ == ["ALL", "CheckOutcome", "Progress", "SelftestReport", "CheckResult", "SUITES", "run"]


def test_only_suites_that_exist_are_listed() -> None:
    assert list(SUITES) == ["core", "props", "fuzz", "recorder"]
    assert ALL not in SUITES


def test_every_check_has_a_name_of_its_own_a_claim_and_a_source() -> None:
    checks = [check for suite in SUITES.values() for check in suite]
    assert [name for name, count in Counter(check.id for check in checks).items() if count > 1] == []
    assert len({check.claim for check in checks}) == len(checks)
    assert all(check.claim and check.spec.startswith("§") for check in checks)


MODULES = [
    *(
        log_growth,
        capabilities,
        checkpoints,
        request_checks,
        refusals,
        request_checks,
        rows,
        request_checks,
        log_growth,
        tooling_checks,
        tooling_checks,
    ),
    *(history_properties, fuzz, recorder_suite),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_check_is_left_out_of_its_suite(module: ModuleType) -> None:
    made = [found for found in vars(module).values() if isinstance(found, Check)]
    assert made
    assert set(made) <= set(module.CHECKS)
    assert set(module.CHECKS) <= {check for suite in SUITES.values() for check in suite}


def test_every_module_of_the_core_suite_is_looked_at_here() -> None:
    files = {path.stem for path in Path(core.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in MODULES[:-3]}


@pytest.mark.parametrize("suite", ["", "Core", "recorders", "none"])
def test_a_suite_that_is_not_there_is_our_own_mistake(suite: str) -> None:
    with pytest.raises(ValueError, match="no suite"):
        selftest.run(suite, "http://127.0.0.1:1", seed=1, count=1)


def test_a_run_of_nothing_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        selftest.run("core", "http://127.0.0.1:1", seed=1, count=0)


# What is told.


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
def test_a_report_is_good_when_nothing_failed_and_something_was_tried(
    found: tuple[CheckOutcome, ...], ok: bool
) -> None:
    report = SelftestReport("core", "http://hub", None, 1, 1, tuple(map(result, found)))
    assert report.ok is ok
    assert sum(report.counts.values()) == len(found)


def test_a_report_is_data_that_goes_into_json(open_hub: BrokenHub) -> None:
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


def test_progress_is_told_of_each_result_as_it_is_there(open_hub: BrokenHub) -> None:
    told: list[tuple[int, int, CheckResult]] = []
    report = selftest.run(
        "props", open_hub.url, issuer=ISSUER, seed=SEED, count=COUNT, progress=lambda *news: told.append(news)
    )
    total = len(report.results)
    assert told == [(number, total, found) for number, found in enumerate(report.results, 1)]


def test_the_same_seed_makes_the_same_choices(open_hub: BrokenHub) -> None:
    said = [[found.reason for found in run(open_hub, "props", seed).results] for seed in (5, 5, 6)]
    assert said[0] == said[1] != said[2]


# Hubs that are not there, or hardly.


def test_no_hub_at_all_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        selftest.run("core", "http://127.0.0.1:1", seed=1, count=1)


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub", "http://", "127.0.0.1:80"])
def test_what_is_no_url_is_malformed(url: str) -> None:
    with pytest.raises(Malformed):
        selftest.run("core", url, seed=1, count=1)


@pytest.mark.parametrize("suite", ["core", "props"])
def test_a_hub_whose_status_cannot_be_read_fails_and_nothing_else_is_tried(open_hub: BrokenHub, suite: str) -> None:
    with open_hub.broken(status_says(lambda shown: shown.pop("hub_pk"))):
        report = run(open_hub, suite)
    assert failures(report) == {"hub.status": "status: hub_pk is missing"}
    assert report.hub_id is None
    assert report.counts[CheckOutcome.PASS] == 0
    assert len(report.results) == len({check.id for check in SUITES[suite]} | {"hub.status"})


def after(calls: int, then: Callable[[Call], Answer]) -> Breakage:
    """Honest at first."""

    def make(liar: Liar) -> Handle:
        count = Counter[str]()

        def handle(call: Call) -> Answer:
            count["calls"] += 1
            return call.ask() if count["calls"] <= calls else then(call)

        return handle

    return make


def hang_up(call: Call) -> Answer:
    raise HangUp


@pytest.mark.parametrize("then", [hang_up, lambda call: crash(call.ask())], ids=["silence", "crashes"])
def test_a_hub_that_dies_fails_the_checks_and_not_the_run(open_hub: BrokenHub, then: Callable[[Call], Answer]) -> None:
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
def test_whatever_a_hub_says_of_itself_the_run_comes_to_its_end(open_hub: BrokenHub, name: str) -> None:
    with open_hub.broken(status_says(ABSURD[name])):
        report = some(open_hub.url, "hub", "append", "checkpoint", "epoch", "cap", "refuse", "tool", "fuzz.signed")
    assert len(report.results) > len(SUITES["core"]) // 2


# What a hub may do, or leave out.


def busy_at_first(liar: Liar) -> Handle:
    """Every request is turned away once."""
    seen: set[tuple[str, bytes]] = set()

    def handle(call: Call) -> Answer:
        if (call.path, call.body) in seen:
            return call.ask()
        seen.add((call.path, call.body))
        busy = Answer(503, b"", {"content-type": call.headers.get("content-type", "application/json")})
        return replace(busy.error("E.UNAVAILABLE"), headers={**busy.headers, "retry-after": "0"})

    return handle


def test_a_busy_hub_is_asked_again(open_hub: BrokenHub) -> None:
    with open_hub.broken(busy_at_first):
        report = some(open_hub.url, "append", "page", "json", "cap.admits", "tool")
    assert failures(report) == {}


def test_a_hub_that_is_always_busy_fails(open_hub: BrokenHub) -> None:
    def always(liar: Liar) -> Handle:
        def handle(call: Call) -> Answer:
            busy = Answer(503, b"", {"content-type": "application/cbor", "retry-after": "0"})
            return call.ask() if call.method == "GET" else busy.error("E.UNAVAILABLE")

        return handle

    with open_hub.broken(always):
        report = run(open_hub, "props")
    assert report.counts[CheckOutcome.FAIL] == len(SUITES["props"])


def without(*paths: str) -> Breakage:
    def make(liar: Liar) -> Handle:
        def handle(call: Call) -> Answer:
            if call.path.startswith(paths):
                return Answer(404, b"", {"content-type": "text/plain"})
            return call.ask()

        return handle

    return make


def test_tooling_that_is_not_offered_is_skipped(open_hub: BrokenHub) -> None:
    left_out = ("proof", "consistency", "submit-batch", "checkpoints", "attachments", "equivocation")
    with open_hub.broken(without(*(f"/tooling/{name}" for name in left_out))):
        report = some(open_hub.url, "append", "checkpoint", "tool")
    assert failures(report) == {}
    expected = {"append.proof-later", "checkpoint.grown", "tool.batch", "tool.checkpoints", "tool.equivocation"}
    assert skipped(report) == expected | {"tool.attachment", "tool.attachment-name"}


def test_capabilities_that_cannot_be_shown_are_skipped(open_hub: BrokenHub) -> None:
    with open_hub.broken(without("/tooling/authorize")):
        report = some(open_hub.url, "cap.authorize", "cap.admits", "cap.burst", "cap.subject", "cap.ttl")
    assert len(skipped(report)) == len(report.results) == 5
    assert not report.ok


def test_a_hub_that_does_not_speak_json_is_not_failed_for_it(open_hub: BrokenHub) -> None:
    def make(liar: Liar) -> Handle:
        unknown = Answer(415, b"", {"content-type": "text/plain"})
        return lambda call: unknown if call.is_json else call.ask()

    with open_hub.broken(make):
        report = some(
            open_hub.url,
            *(
                check.id
                for check in (
                    *request_checks.JSON_FORM_CHECKS,
                    *request_checks.REQUEST_CHECKS,
                    *log_growth.APPEND_CHECKS,
                )
            ),
        )
    assert failures(report) == {}
    assert all(outcomes(report)[check.id] is CheckOutcome.SKIP for check in request_checks.JSON_FORM_CHECKS)


def test_a_hub_that_shows_no_identity_is_taken_at_its_key(open_hub: BrokenHub) -> None:
    def bare(shown: dict[str, object]) -> None:
        for name in ("identity", "identity_sig", "routing_key"):
            del shown[name]

    with open_hub.broken(status_says(bare)):
        report = some(open_hub.url, "hub", "append", "checkpoint")
    assert failures(report) == {}
    assert outcomes(report)["hub.identity"] is CheckOutcome.SKIP
    assert outcomes(report)["append.receipt"] is CheckOutcome.PASS


def test_detail_enum_may_be_missing(open_hub: BrokenHub) -> None:
    def make(liar: Liar) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            return detail(answer, detail_enum=None) if call.path == "/v1/submit" and answer.status >= 400 else answer

        return handle

    with open_hub.broken(make):
        report = some(open_hub.url, "refuse", "share", "order")
    assert failures(report) == {}


def test_a_hub_behind_tls_is_tried_through_the_given_context(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    data_dir = make_dir(tmp_path, now=int(time.time()) - 60)
    with running(data_dir, time.time, QuickDisk(), tls_cert=cert, tls_key=key) as hub:
        url = f"https://localhost:{hub.port}"
        report = some(url, "append", "tool", tls=client_context(cert))
        assert failures(report) == {}
        assert outcomes(report)["tool.subscribe"] is CheckOutcome.PASS
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            selftest.run("core", url, seed=SEED, count=COUNT)
