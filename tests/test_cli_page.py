"""docs/cli.md is up to date, and its generator detects an outdated page."""

from pathlib import Path

import pytest

from tools import cli_page
from veen.cli.kit import exit_status
from veen.core import Limits

TEXT = cli_page.page()


def test_the_page_on_disk_is_up_to_date() -> None:
    assert cli_page.PAGE.read_bytes().decode() == TEXT
    assert cli_page.main(["--check"]) == 0


def test_every_command_has_a_section_and_a_line_that_links_to_it() -> None:
    pages = list(cli_page.manuals())
    assert len(pages) > 20
    for one in pages:
        assert TEXT.count(f"\n### {one.path}\n") == 1
        if one.path != "veen":
            anchor = one.path.replace(" ", "-")
            assert TEXT.count(f"| [`{one.path}`](#{anchor}) | {one.summary} |") == 1
        for example in one.examples:
            assert f"\n{example}\n" in TEXT


def test_every_option_is_on_the_page() -> None:
    for one in cli_page.manuals():
        section = TEXT.partition(f"\n### {one.path}\n")[2].partition("\n### ")[0]
        for row in (*one.arguments, *one.options):
            assert row.name == "--help" or f"| `{row.name.replace('|', chr(92) + '|')}` |" in section


def test_every_exit_status_is_listed_once() -> None:
    statuses = [status for status, _ in cli_page.statuses()]
    assert statuses == sorted(set(statuses))
    assert {status for status, _ in exit_status.STATUS.values()} <= set(statuses)
    assert {0, 1, 2, 7, 8, 130, 141} <= set(statuses)


def test_every_limit_is_listed_with_its_bounds() -> None:
    assert [kind.name for kind in cli_page.limit_kinds()] == [kind.name for kind in Limits.LAYOUT.kinds]
    for kind in cli_page.limit_kinds():
        assert f"| `{kind.name}` | {cli_page.default(kind)} | {kind.least} | {kind.most} |" in TEXT


def test_no_cell_breaks_its_table() -> None:
    rows = [line.replace("\\|", "") for line in TEXT.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {3, 5}


@pytest.mark.parametrize("text", ["", TEXT + "\n", TEXT.replace("\n", "\r\n")])
def test_check_reports_an_outdated_page_and_does_not_change_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cli.md"
    path.write_bytes(text.encode())
    assert cli_page.main(["--check"], path) == 1
    assert path.read_bytes() == text.encode()
    assert "out of date" in capsys.readouterr().err
    assert cli_page.main([], path) == 0
    assert cli_page.main(["--check"], path) == 0


def test_check_reports_a_missing_page(tmp_path: Path) -> None:
    assert cli_page.main(["--check"], tmp_path / "cli.md") == 1
