"""Every check can fail: for each there is a hub that breaks just that, and it is noticed."""

import pytest

from tests.selftest.breakages import Case
from tests.selftest.brokenhub import BrokenHub
from tests.selftest.cases import CASES, ROWS
from tests.selftest.trying import BY_ID, one
from veen.core.admission import ADMISSION
from veen.selftest import CheckOutcome, CheckResult


def tried(hub: BrokenHub, check_id: str) -> CheckResult:
    """What becomes of one check, by itself."""
    return one(hub.url, check_id, hub.hub.service.hub_metadata.identity.hub_id)


def test_for_every_check_there_is_a_breakage() -> None:
    # A subscription does not come as one answer: its breakages are below.
    assert {case.check for case in CASES} | {"tool.subscribe"} == set(BY_ID)


def test_every_row_that_can_be_provoked_from_outside_has_a_check() -> None:
    assert {row.detail_enum for row in ADMISSION} - set(ROWS) == {"PREFILTER_REJECT", "ATT_ROOT"}
    assert {f"refuse.{row}" for row in ROWS} <= set(BY_ID)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_check_fails_where_its_claim_is_broken(case: Case, open_hub: BrokenHub, strict_hub: BrokenHub) -> None:
    hub = strict_hub if case.strict else open_hub
    with hub.broken(case.breakage):
        result = tried(hub, case.check)
    assert result.outcome is CheckOutcome.FAIL, result.reason
    assert result.id == case.check, result.reason
    assert result.reason


@pytest.mark.parametrize("at", [0, -1])
def test_a_subscription_that_brings_something_else_is_noticed(open_hub: BrokenHub, at: int) -> None:
    def alter(data: bytes) -> bytes:
        if len(data) < 400 or data.startswith(b"HTTP/"):
            return data
        changed = bytearray(data)
        changed[at] ^= 1
        return bytes(changed)

    open_hub.alter = alter
    try:
        result = tried(open_hub, "tool.subscribe")
    finally:
        open_hub.alter = lambda data: data
    assert result.outcome is CheckOutcome.FAIL, result.reason


def test_the_proxy_by_itself_breaks_nothing(open_hub: BrokenHub) -> None:
    assert tried(open_hub, "tool.subscribe").outcome is CheckOutcome.PASS
