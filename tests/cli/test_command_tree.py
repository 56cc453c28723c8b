"""Every command says what it is in one line, shows an example that would work, and answers in JSON."""

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperOption
from typer.main import get_command

from terminalface import manual
from terminalface.manual import Manual, Row
from tests.cli.runner import Veen
from veen.cli.app import COMMANDS, app


@dataclass(frozen=True)
class Found:
    """A command in its place."""

    path: str
    command: Any
    page: Manual


def walk(command: Any, parent: typer.Context | None, name: str) -> Iterator[Found]:
    ctx = typer.Context(command, parent=parent, info_name=name)
    yield Found(ctx.command_path, command, manual.manual(command, ctx))
    if manual.is_group(command):
        for under in command.list_commands(ctx):
            yield from walk(command.get_command(ctx, under), ctx, under)


TREE = list(walk(get_command(app), None, "veen"))
BY_PATH = {found.path: found for found in TREE}
LEAVES = [found for found in TREE if not manual.is_group(found.command)]
each = pytest.mark.parametrize("found", TREE, ids=lambda found: found.path)
each_leaf = pytest.mark.parametrize("found", LEAVES, ids=lambda found: found.path)


def test_the_tree_has_what_was_promised() -> None:
    hub = {"init", "start", "stop", "status", "key", "health", "metrics", "checkpoint", "verify", "rotate-key", "fork"}
    context = {"add", "list", "use", "show", "remove"}
    wanted = {f"veen hub {name}" for name in hub} | {f"veen context {name}" for name in context}
    assert wanted | {"veen fsck", "veen top", "veen explain", "veen version"} <= set(BY_PATH)


def test_every_command_is_listed_once() -> None:
    named = [entry.name for entries in COMMANDS.values() for entry in entries]
    assert sorted(named) == sorted(set(named))


@each
def test_a_command_has_one_line(found: Found) -> None:
    summary = found.page.summary
    assert 10 <= len(summary) <= 90
    assert not summary.endswith(".")
    assert summary[0].islower()


@each_leaf
def test_a_command_has_an_example_of_itself(found: Found) -> None:
    assert found.page.examples
    assert any(example.startswith(found.path) for example in found.page.examples)


@each
def test_an_example_names_commands_and_options_that_exist(found: Found) -> None:
    for example in found.page.examples:
        assert len(example) <= manual.WIDTH - 2
        words = shlex.split(re.split(r" (?:\||&&) ", example)[0])
        path = max((path for path in BY_PATH if words[: len(path.split())] == path.split()), key=len)
        known = {name for param in BY_PATH[path].command.params for name in param.opts}
        rest = words[len(path.split()) :]
        assert {word for word in rest if word.startswith("--")} <= known, example
        assert not manual.is_group(BY_PATH[path].command), example


@each_leaf
def test_a_command_answers_in_json(found: Found) -> None:
    assert [row for row in found.page.options if row.name == "--json"] == [Row("--json", "the result as JSON")]


@each
def test_every_option_says_what_it_takes_and_what_it_is_for(found: Found) -> None:
    for param in found.command.params:
        assert isinstance(param, TyperOption | TyperArgument)
        if isinstance(param, TyperOption) and (param.hidden or "completion" in (param.name or "")):
            continue
        assert param.help, param.name
        assert param.help[0].islower() or param.help[:2].isupper()
        assert not param.help.endswith(".")
        if not getattr(param, "is_flag", False):
            assert param.metavar, param.name


@each
def test_help_is_the_same_page_in_a_pipe(found: Found, veen: Veen) -> None:
    ran = veen.done(*found.path.split()[1:], "--help")
    assert ran.out.startswith(f"{found.path}: {found.page.summary}\n")
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= manual.WIDTH
    assert ran.err == ""


def test_the_list_of_commands_says_what_their_modules_say() -> None:
    for entries in COMMANDS.values():
        for entry in entries:
            own = BY_PATH[f"veen {entry.name}"]
            assert own.page.summary == entry.summary
            assert importlib.import_module(entry.module).app.info.name == entry.name


def test_no_two_commands_have_the_same_line() -> None:
    lines = [found.page.summary for found in TREE]
    assert len(set(lines)) == len(lines)


def test_a_group_without_a_command_lists_its_commands_and_fails(veen: Veen) -> None:
    for arguments in ([], ["hub"], ["context"]):
        ran = veen(*arguments)
        assert ran.status == 2
        assert ran.out == ""
        assert "usage: veen" in ran.err


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
    text = manual.as_text(page, 31, colour=False)
    assert line in text.splitlines()
    assert max(map(len, text.splitlines())) <= 31


def test_a_long_name_has_a_line_of_its_own() -> None:
    page = Manual("veen x", "s", "", "veen x", (), (Row("--a", "y"), Row("--" + "n" * 60, "z")), (), ())
    lines = manual.as_text(page, 80, colour=False).splitlines()
    at = lines.index("  --" + "n" * 60)
    assert lines[at + 1].strip() == "z"


def test_colour_changes_nothing_but_colour() -> None:
    page = TREE[1].page
    painted = manual.as_text(page, 80, colour=True)
    assert "\x1b[1m" in painted
    assert re.sub(r"\x1b\[\d*m", "", painted) == manual.as_text(page, 80, colour=False)
