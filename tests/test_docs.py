"""The docs match the project: make targets, links, the import map, limits and error codes."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from veen.hub import submit
from veen.hub.conditions import Reason

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def code(page: str) -> Iterator[str]:
    """The lines of the code blocks of a page, and its code spans."""
    blocks = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for block in blocks.findall(page):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", blocks.sub("", page))


def make_targets(page: str) -> set[str]:
    """The make targets that a page names, without variables, options and comments."""
    commands = [line.partition("#")[0].split() for line in code(page)]
    words = [word for command in commands if command[:1] == ["make"] for word in command[1:]]
    return {word for word in words if "=" not in word and not word.startswith("-")}


def test_targets_are_found_in_blocks_and_spans_only() -> None:
    page = "make nothing of this\n`make a b` and `make`\n```sh\nmake c PYTHON=python3.12  # make d\nmake -s e\n```\n"
    assert make_targets(page) == {"a", "b", "c", "e"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_of_a_page_exists(page: Path) -> None:
    assert make_targets(page.read_text("utf-8")) - TARGETS == set()


def test_the_readme_names_make_demo_and_make_test() -> None:
    assert {"demo", "test"} <= make_targets((ROOT / "README.md").read_text("utf-8"))


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


def test_every_make_target_is_listed_by_help() -> None:
    described = set(re.findall(r"^([a-z-]+):.*## \S", MAKEFILE, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
    assert TARGETS == described == phony


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_the_architecture_page_shows_the_enforced_import_map() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    arrows = settings["tool"]["importlinter"]["contracts"][0]["arrows"]
    roots = tuple(settings["tool"]["importlinter"]["root_packages"])
    assert [line for line in code(ARCHITECTURE) if line.startswith(roots) and " -> " in line] == arrows


def test_every_admission_error_is_documented() -> None:
    from veen.core.admission import ADMISSION

    rows = (ROOT / "docs" / "errors.md").read_text("utf-8").splitlines()
    missing = [rule for rule in ADMISSION if not any(rule.code in row and str(rule.detail_enum) in row for row in rows)]
    assert len(ADMISSION) > 0
    assert missing == []


def test_the_python_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_limits_page_has_the_limit_of_signatures_in_verification() -> None:
    page = (ROOT / "docs" / "limits.md").read_text("utf-8")
    assert f"| signatures in verification | {submit.MAX_CHECKS};" in page


def test_the_limits_page_lists_every_bad_state() -> None:
    page = (ROOT / "docs" / "limits.md").read_text("utf-8")
    assert [reason for reason in Reason if f"\n| `{reason}` |" not in page] == []
