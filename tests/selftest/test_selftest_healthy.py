"""A correct hub passes; checks that cannot run are reported as skipped, with a reason."""

import time
from pathlib import Path

import pytest

from tests.hub.client import ISSUER, make_dir, running
from tests.hub.disks import QuickDisk
from tests.selftest.broken_hub import BrokenHub
from tests.selftest.check_runs import failures, outcomes, run_some, skipped
from veen import selftest
from veen.core import Limits, Profile, SigningKey
from veen.core.hashing import h
from veen.hub.admission_rules import Admission
from veen.selftest import CheckOutcome

SEED, COUNT = 7, 40


def test_a_strict_hub_passes_every_check(strict_hub: BrokenHub) -> None:
    hub_id = strict_hub.hub.service.hub_metadata.identity.hub_id
    report = selftest.run("all", strict_hub.url, issuer=ISSUER, pin=hub_id, seed=SEED, count=COUNT)
    assert failures(report) == {}
    assert skipped(report) == set()
    assert report.ok


def test_an_open_hub_passes_every_applicable_check(open_hub: BrokenHub) -> None:
    pin = h(open_hub.hub.hub_pk)
    report = selftest.run("all", open_hub.url, issuer=ISSUER, pin=pin, seed=SEED, count=COUNT)
    assert failures(report) == {}
    assert skipped(report) == {"cap.needed", "epoch.roll", "epoch.window", "refuse.EPOCH"}
    wanted = [(suite, check.id) for suite, checks in selftest.SUITES.items() for check in checks]
    assert [(result.suite, result.id) for result in report.results] == wanted


def test_without_an_issuer_key_capability_checks_are_skipped(open_hub: BrokenHub) -> None:
    report = selftest.run("core", open_hub.url, seed=SEED, count=COUNT)
    assert failures(report) == {}
    rows = {f"refuse.{row}" for row in ("AUTH_REF", "CAP_INVALID", "CAP_RATE", "CAP_TTL", "EPOCH")}
    caps = {result.id for result in report.results if result.id.startswith("cap.")} - {"cap.unknown"}
    assert skipped(report) == caps | rows | {"epoch.roll", "epoch.window", "hub.pin"}


def test_without_an_issuer_key_a_strict_hub_is_checked_up_to_admission(strict_hub: BrokenHub) -> None:
    report = selftest.run("all", strict_hub.url, seed=SEED, count=COUNT)
    assert failures(report) == {}
    passed = {name for name, outcome in outcomes(report).items() if outcome is CheckOutcome.PASS}
    assert {"refuse.SIG_INVALID", "refuse.CAP_MISSING", "cap.needed", "order.structural-auth", "hub.identity"} <= passed
    assert {"append.receipt", "share.turns", "props.order", "fuzz.messages", "refuse.DUPLICATE"} <= skipped(report)
    assert all(result.reason for result in report.results if result.outcome is CheckOutcome.SKIP)


def test_a_hub_whose_labels_expire_with_each_epoch_passes(tmp_path: Path) -> None:
    """No epoch window: a check that spans the end of an epoch is repeated."""
    data_dir = make_dir(tmp_path, Profile(epoch_sec=10), Limits(max_epoch_skew_sec=0), now=int(time.time()) - 60)
    with running(data_dir, time.time, QuickDisk(), admission=Admission.CAPABILITY) as hub:
        report = run_some(
            f"http://127.0.0.1:{hub.port}", "share", "checkpoint", "epoch", "refuse", "cap.ttl", "order.all"
        )
    assert failures(report) == {}
    assert skipped(report) == set()


@pytest.mark.parametrize("skew", [0, 86_400], ids=["one epoch", "a window of epochs"])
def test_epochs_are_tried_on_a_hub_whose_epochs_are_long(tmp_path: Path, skew: int) -> None:
    limits = Limits(max_epoch_skew_sec=skew)
    data_dir = make_dir(tmp_path, Profile(epoch_sec=86_400), limits, now=int(time.time()) - 60)
    with running(data_dir, time.time, QuickDisk(), admission=Admission.CAPABILITY) as hub:
        report = run_some(f"http://127.0.0.1:{hub.port}", "epoch", "refuse.EPOCH")
    assert failures(report) == {}
    assert skipped(report) == set()


@pytest.mark.parametrize("burst", [2, 20])
def test_a_hub_with_low_limits_passes(tmp_path: Path, burst: int) -> None:
    limits = Limits(max_msg_bytes=1024, max_hdr_bytes=200, max_body_bytes=800, max_cap_rate_burst=burst)
    data_dir = make_dir(tmp_path, Profile(pad_block=0), limits, now=int(time.time()) - 60)
    with running(data_dir, time.time, QuickDisk(), admission=Admission.CAPABILITY) as hub:
        report = run_some(
            f"http://127.0.0.1:{hub.port}", "share.resend", "share.refused", "refuse", "page.next", "fuzz"
        )
    assert failures(report) == {}
    assert skipped(report) == {"refuse.EPOCH"}


def test_an_issuer_the_hub_does_not_trust_makes_capabilities_fail(open_hub: BrokenHub) -> None:
    report = selftest.run("core", open_hub.url, issuer=SigningKey.generate(), seed=SEED, count=COUNT)
    assert "cap.authorize" in failures(report)
    assert not report.ok


@pytest.mark.parametrize("suite", ["props", "fuzz"])
def test_a_suite_can_run_alone(open_hub: BrokenHub, suite: str) -> None:
    report = selftest.run(suite, open_hub.url, issuer=ISSUER, seed=SEED, count=5)
    assert {result.suite for result in report.results} == {suite}
    assert [result.id for result in report.results] == [check.id for check in selftest.SUITES[suite]]
    assert failures(report) == {}
