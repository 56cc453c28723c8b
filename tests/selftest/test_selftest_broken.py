"""Every check can fail: for each there is a broken hub that it detects."""

import pytest

from tests.selftest.breakage_cases import CASES, ROWS
from tests.selftest.breakages import Case
from tests.selftest.broken_hub import BrokenHub
from tests.selftest.check_runs import BY_ID, run_one
from veen.core.admission import ADMISSION
from veen.selftest import CheckOutcome, CheckResult


def result_of(hub: BrokenHub, check_id: str) -> CheckResult:
    """Run one check against the proxy."""
    return run_one(hub.url, check_id, hub.hub.service.hub_metadata.identity.hub_id)


def test_for_every_check_there_is_a_breakage() -> None:
    # A subscription has no single answer to change: its breakages are below.
    assert {case.check for case in CASES} | {"tool.subscribe"} == set(BY_ID)


def test_every_row_that_can_be_provoked_from_outside_has_a_check() -> None:
    assert {row.detail_enum for row in ADMISSION} - set(ROWS) == {"PREFILTER_REJECT", "ATT_ROOT"}
    assert {f"refuse.{row}" for row in ROWS} <= set(BY_ID)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_check_fails_if_its_claim_is_broken(case: Case, open_hub: BrokenHub, strict_hub: BrokenHub) -> None:
    hub = strict_hub if case.strict else open_hub
    with hub.broken(case.breakage):
        result = result_of(hub, case.check)
    assert result.outcome is CheckOutcome.FAIL, result.reason
    assert result.id == case.check, result.reason
    assert result.reason


@pytest.mark.parametrize("at", [0, -1])
def test_an_altered_subscription_is_detected(open_hub: BrokenHub, at: int) -> None:
    def alter(data: bytes) -> bytes:
        if len(data) < 400 or data.startswith(b"HTTP/"):
            return data
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    open_hub.alter = alter
    try:
        result = result_of(open_hub, "tool.subscribe")
    finally:
        open_hub.alter = lambda data: data
    assert result.outcome is CheckOutcome.FAIL, result.reason


def test_the_proxy_by_itself_breaks_nothing(open_hub: BrokenHub) -> None:
    assert result_of(open_hub, "tool.subscribe").outcome is CheckOutcome.PASS
