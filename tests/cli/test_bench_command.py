"""`veen bench` runs a measurement from end to end and says whether its promises are kept."""

from pathlib import Path

import pytest
import typer

from tests.cli.runner import Veen
from veen.bench.bench_report import BenchReport, BenchRow
from veen.cli import bench
from veen.cli.kit.exit_status import MISSED_STATUS


@pytest.mark.slow
def test_a_hub_is_measured_and_nothing_is_left_behind(veen: Veen, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    small = ["--rounds", 1, "--connections", 2, "--per-connection", 2, "--alone", "--folder", folder]
    ran = veen("bench", "hub", *small, "--json")
    told = ran.json()
    assert ran.status == (0 if told["kept"] else MISSED_STATUS)
    assert told["name"] == "hub"
    assert any("of the one-core crypto limit" in row["what"] for row in told["rows"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["hub", "--rounds", "0"], ["labels", "--labels", "1"], ["growth", "--large", "x"]]
)
def test_what_cannot_be_measured_is_misuse(arguments: list[str], veen: Veen) -> None:
    ran = veen("bench", *arguments)
    assert ran.status == 2
    assert ran.error.startswith("invalid value for ")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("value", "kept"), [(2.0, True), (1.0, True), (0.5, False)])
def test_a_missed_promise_is_an_exit_status(
    value: float, kept: bool, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = BenchReport(
        "x", (BenchRow.of("speed", [value], "", least=1.0), BenchRow.of("other", [1.0, 3.0], "ms")), ("a note",)
    )
    if kept:
        bench._show(report, as_json)
    else:
        with pytest.raises(typer.Exit) as caught:
            bench._show(report, as_json)
        assert caught.value.exit_code == MISSED_STATUS
    told = capsys.readouterr()
    if as_json:
        assert f'"kept": {str(kept).lower()}' in told.out
    else:
        first, second = told.out.splitlines()
        assert first.split("\t")[4].endswith("kept" if kept else "MISSED")
        assert second == "other\t2\tms\t1 – 3\t"
        assert told.err == "veen: a note\n"


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (99.5, "99.5"), (1.234, "1.23"), (0.0, "0")])
def test_figures_have_three_digits_that_count(value: float, text: str) -> None:
    assert bench.number(value) == text
