"""docs/errors.md is up to date, and its generator detects an outdated page."""

from pathlib import Path

import pytest

from tools import error_page
from veen.core.admission import ADMISSION, ADMISSION_STATUS, API_MEANING, API_STATUS

LINES = error_page.page().splitlines()


def test_the_page_on_disk_is_up_to_date() -> None:
    assert error_page.PAGE.read_bytes().decode() == error_page.page()
    assert error_page.main(["--check"]) == 0


def test_each_admission_row_is_one_line_with_all_its_fields() -> None:
    for row in ADMISSION:
        cells = [f"`{row.detail_enum}`", f"`{row.code}`", row.stage, row.failure, row.advice]
        lines = [line for line in LINES if f"| `{row.detail_enum}` |" in line]
        assert len(lines) == 1
        assert all(f"| {cell} |" in lines[0] for cell in [*cells, ADMISSION_STATUS[row.code]])


def test_the_rows_are_in_the_order_of_the_checks() -> None:
    listed = [line.split("`")[3] for line in LINES if line.startswith(("| pre", "| str", "| auth", "| commit"))]
    assert listed == [row.detail_enum for row in ADMISSION]


def test_each_code_of_the_endpoints_is_explained_and_no_other() -> None:
    assert set(API_MEANING) == set(API_STATUS)
    for code, status in API_STATUS.items():
        assert len([line for line in LINES if line.startswith(f"| `{code}` | {status} | ")]) == 1


def test_no_cell_breaks_its_table() -> None:
    rows = [line for line in LINES if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7, 5}
    assert len(rows) == 2 + len(ADMISSION) + 2 + len(API_STATUS)


def test_a_written_page_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "errors.md"
    assert error_page.main([], path) == 0
    assert error_page.main(["--check"], path) == 0


@pytest.mark.parametrize("text", ["", error_page.page() + "\n", error_page.page().replace("\n", "\r\n")])
def test_check_reports_an_outdated_page_and_does_not_change_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "errors.md"
    path.write_bytes(text.encode())
    assert error_page.main(["--check"], path) == 1
    assert path.read_bytes() == text.encode()
    assert "out of date" in capsys.readouterr().err


def test_check_reports_a_missing_page(tmp_path: Path) -> None:
    assert error_page.main(["--check"], tmp_path / "errors.md") == 1


def test_an_unknown_option_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        error_page.main(["--chek"])
    assert caught.value.code == 2
    assert "--chek" in capsys.readouterr().err
