"""What the coverage of many seeds must have: every expected cell, and no call that is in no list."""

import pytest

from lab.coverage import AT_CREATION, CALLS, EXEMPT, EXPECTED, MACHINES, NEEDS, SHUFFLED, TARGETS, shortfall
from lab.disk import Coverage


@pytest.fixture
def full() -> Coverage:
    coverage = Coverage()
    for cell in EXPECTED:
        coverage.count(*cell)
    return coverage


def test_every_expected_cell_must_occur(full: Coverage) -> None:
    assert shortfall(full) == []
    for cell in (EXPECTED[0], ("hub", "clock", "-90000 s"), ("witness", "send", "stall")):
        assert cell in EXPECTED
        times = full.cells.pop(cell)
        assert shortfall(full) == [f"never occurred: {', '.join(cell)}"]
        full.cells[cell] = times


def test_a_call_that_is_in_no_list_is_named(full: Coverage) -> None:
    full.count("key", "write", "none")
    full.count("backup statement", "unlink", "none")
    assert shortfall(full) == []
    full.count("journal", "link", "none")
    full.count("other", "write", "none")
    lists = "in no list of lab/coverage.py"
    assert shortfall(full) == [f"{lists}: journal, link", f"{lists}: other, write"]


def test_no_call_is_in_two_lists_and_every_need_is_that_of_a_call() -> None:
    listed = {(artifact, call) for artifact, calls in CALLS.items() for call in calls}
    made = {(artifact, call) for artifact, calls in AT_CREATION.items() for call in calls}
    assert not listed & made
    assert not (listed | made) & EXEMPT.keys()
    assert not set(MACHINES) & {artifact for artifact, _ in listed | made}
    assert {*NEEDS} <= {*CALLS} | {f"{artifact} {call}" for artifact, call in listed}
    assert sorted(SHUFFLED) == sorted(TARGETS)
