"""A report shows each promise and whether it is kept."""

import json

import pytest

from bench.call_times import microseconds
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import noise_warning, other_load


@pytest.mark.parametrize(
    ("values", "least", "most", "kept"),
    [
        ([1.0], None, None, True),
        ([0.9, 1.0, 9.0], 1.0, None, True),
        ([0.9, 0.99, 9.0], 1.0, None, False),
        ([5.0], None, 5.0, True),
        ([5.01], None, 5.0, False),
        ([2.0], 1.0, 3.0, True),
        ([0.5], 1.0, 3.0, False),
        ([3.5], 1.0, 3.0, False),
    ],
)
def test_a_promise_is_about_the_median(
    values: list[float], least: float | None, most: float | None, kept: bool
) -> None:
    row = BenchRow.of("it", values, "", least=least, most=most)
    assert row.kept is kept
    assert ("MISSED" in row.promise) is not kept
    assert BenchReport("all", (BenchRow.of("other", [1], ""), row)).kept is kept
    assert ("MISSED" in BenchReport("all", (row,)).text()) is not kept


def test_a_row_shows_its_spread_and_a_single_value_has_none() -> None:
    report = BenchReport("all", (BenchRow.of("many", [1, 2, 4], "s"), BenchRow.of("one", [3], "s")), ("a note",))
    name, note, many, one = report.text().splitlines()
    assert (name, note) == ("all", "  a note")
    assert "2.00 s" in many
    assert "1.00 – 4.00" in many
    assert one.split() == ["one", "3.00", "s"]


def test_a_report_can_be_read_by_machines() -> None:
    report = BenchReport("all", (BenchRow.of("it", [2.0], "/s", least=3.0),), ("a note",))
    assert json.loads(json.dumps(report.as_json())) == {
        "name": "all",
        "kept": False,
        "rows": [
            {
                "what": "it",
                "value": 2.0,
                "unit": "/s",
                "low": 2.0,
                "high": 2.0,
                "least": 3.0,
                "most": None,
                "kept": False,
            }
        ],
        "notes": ["a note"],
    }


def test_times_become_rows_of_microseconds() -> None:
    (row,) = microseconds({"sign": 25e-6})
    assert (row.what, round(row.value, 6), row.unit) == ("sign", 25.0, "µs")


@pytest.mark.parametrize(("others", "warned"), [([0.0, 0.05, 1.5], False), ([0.05, 0.4, 0.5], True)])
def test_a_busy_machine_gets_a_warning(others: list[float], warned: bool) -> None:
    assert bool(noise_warning(others)) is warned
    assert other_load(others).high == max(others)
