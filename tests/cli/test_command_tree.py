"""Every command has a summary, a working example and JSON output."""

import re

import pytest

from plumbing.cli import help_text
from plumbing.cli.help_text import Manual, Row
from tests import command_tree
from tests.cli.runner import Veen
from tests.command_tree import Found
from veen.cli.app import COMMANDS, app

TREE = command_tree.walk(app)
each = pytest.mark.parametrize("found", TREE, ids=lambda found: found.path)
each_leaf = pytest.mark.parametrize("found", [one for one in TREE if one.is_leaf], ids=lambda found: found.path)


def test_the_documented_commands_exist() -> None:
    hub = {"init", "start", "stop", "status", "key", "health", "metrics", "checkpoint", "verify", "rotate-key", "fork"}
    context = {"add", "list", "use", "show", "remove"}
    wanted = {f"veen hub {name}" for name in hub} | {f"veen context {name}" for name in context}
    assert wanted | {"veen fsck", "veen top", "veen explain", "veen version"} <= {found.path for found in TREE}


def test_every_command_is_listed_once() -> None:
    named = [entry.name for entries in COMMANDS.values() for entry in entries]
    assert sorted(named) == sorted(set(named))


@each
def test_a_command_has_a_one_line_summary(found: Found) -> None:
    command_tree.check_line(found)


@each_leaf
def test_a_command_has_an_example_of_itself_and_answers_in_json(found: Found) -> None:
    command_tree.check_leaf(found)


@each
def test_an_example_names_commands_and_options_that_exist(found: Found) -> None:
    command_tree.check_examples(found, TREE)


@each
def test_every_option_has_a_metavar_and_a_help_text(found: Found) -> None:
    command_tree.check_options(found)


@each
def test_help_is_the_same_page_in_a_pipe(found: Found, veen: Veen) -> None:
    command_tree.check_help(found, veen)


def test_the_list_of_commands_has_the_summaries_of_their_modules() -> None:
    command_tree.check_entries(COMMANDS, TREE)


def test_no_two_commands_have_the_same_summary() -> None:
    lines = [found.page.summary for found in TREE]
    assert len(set(lines)) == len(lines)


def test_a_group_without_a_command_lists_its_commands_and_fails(veen: Veen) -> None:
    command_tree.check_groups(veen, [], ["hub"], ["context"])


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (Row("--a", "it is"), "  --a      it is"),
        (Row("--a", "it is", ("required",)), "  --a      it is (required)"),
        (Row("--a", "one two three four five six seven eight"), "  --a      one two three four"),
    ],
)
def test_rows_line_up_and_wrap(row: Row, line: str) -> None:
    page = Manual("veen x", "s", "", "veen x", (), (Row("--other", "y"), row), (), ())
    text = help_text.as_text(page, 31, colour=False)
    assert line in text.splitlines()
    assert max(map(len, text.splitlines())) <= 31


def test_a_long_name_has_a_line_of_its_own() -> None:
    page = Manual("veen x", "s", "", "veen x", (), (Row("--a", "y"), Row("--" + "n" * 60, "z")), (), ())
    lines = help_text.as_text(page, 80, colour=False).splitlines()
    at = lines.index("  --" + "n" * 60)
    assert lines[at + 1].strip() == "z"


def test_colour_changes_nothing_but_colour() -> None:
    page = TREE[1].page
    painted = help_text.as_text(page, 80, colour=True)
    assert "\x1b[1m" in painted
    assert re.sub(r"\x1b\[\d*m", "", painted) == help_text.as_text(page, 80, colour=False)
