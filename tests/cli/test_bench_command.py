"""`veen bench` runs a measurement and reports whether the targets are met."""

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
    report = ran.json()
    assert ran.status == (0 if report["kept"] else MISSED_STATUS)
    assert report["name"] == "hub"
    assert any("of the one-core crypto limit" in row["what"] for row in report["rows"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["hub", "--rounds", "0"], ["labels", "--labels", "1"], ["growth", "--large", "x"]]
)
def test_invalid_sizes_are_usage_errors(arguments: list[str], veen: Veen) -> None:
    ran = veen("bench", *arguments)
    assert ran.status == 2
    assert ran.error.startswith("invalid value for ")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("value", "kept"), [(2.0, True), (1.0, True), (0.5, False)])
def test_a_missed_target_sets_the_exit_status(
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
    printed = capsys.readouterr()
    if as_json:
        assert f'"kept": {str(kept).lower()}' in printed.out
    else:
        first, second = printed.out.splitlines()
        assert first.split("\t")[4].endswith("kept" if kept else "MISSED")
        assert second == "other\t2\tms\t1 – 3\t"
        assert printed.err == "veen: a note\n"


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (99.5, "99.5"), (1.234, "1.23"), (0.0, "0")])
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert bench.number(value) == text
