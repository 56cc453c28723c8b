"""The command tree of a program, and checks for every command."""

import importlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption
from typer.main import get_command

from plumbing.cli import help_text
from plumbing.cli.help_text import Manual, Row
from plumbing.cli.program import CommandEntry
from tests.program_run import Program


@dataclass(frozen=True)
class Found:
    """A command and its place in the tree."""

    path: str
    command: Any
    page: Manual

    @property
    def is_leaf(self) -> bool:
        return not help_text.is_group(self.command)


def walk(app: typer.Typer) -> list[Found]:
    """The program and all its commands."""
    return list(_walk(get_command(app), None, str(app.info.name)))


def _walk(command: Any, parent: typer.Context | None, name: str) -> Iterator[Found]:
    ctx = typer.Context(command, parent=parent, info_name=name)
    yield Found(ctx.command_path, command, help_text.manual_of(command, ctx))
    if help_text.is_group(command):
        for under in command.list_commands(ctx):
            yield from _walk(command.get_command(ctx, under), ctx, under)


def check_line(found: Found) -> None:
    """It has a one-line summary."""
    assert 10 <= len(found.page.summary) <= 90
    assert found.page.summary[0].islower()
    assert not found.page.summary.endswith(".")


def check_help(found: Found, program: Program) -> None:
    """Help is the same in a pipe."""
    ran = program.done(*found.path.split()[1:], "--help")
    assert ran.out.startswith(f"{found.path}: {found.page.summary}\n")
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= help_text.WIDTH
    assert ran.err == ""


def check_leaf(found: Found) -> None:
    """It has an example and supports JSON."""
    assert any(example.startswith(found.path) for example in found.page.examples)
    assert [row for row in found.page.options if row.name == "--json"] == [Row("--json", "the result as JSON")]


def check_examples(found: Found, tree: Sequence[Found]) -> None:
    """Examples name existing commands and options."""
    by_path = {one.path: one for one in tree}
    for example in found.page.examples:
        assert len(example) <= help_text.WIDTH - 2
        words = shlex.split(re.split(r" (?:\||&&|>) ", example)[0])
        path = max((path for path in by_path if words[: len(path.split())] == path.split()), key=len)
        known = {name for param in by_path[path].command.params for name in param.opts}
        rest = words[len(path.split()) :]
        assert {word for word in rest if word.startswith("--")} <= known, example
        assert by_path[path].is_leaf, example


def check_options(found: Found) -> None:
    """Each option has a value name and a description."""
    for param in found.command.params:
        assert isinstance(param, TyperOption | TyperArgument)
        if isinstance(param, TyperOption) and (param.hidden or "completion" in (param.name or "")):
            continue
        assert param.help, param.name
        assert param.help[0].islower() or param.help[:2].isupper()
        assert not param.help.endswith(".")
        assert getattr(param, "is_flag", False) or param.metavar, param.name


def check_entries(commands: Mapping[str, Sequence[CommandEntry]], tree: Sequence[Found]) -> None:
    """The command list matches the modules."""
    by_path, program = {found.path: found for found in tree}, tree[0].path
    for entries in commands.values():
        for entry in entries:
            assert by_path[f"{program} {entry.name}"].page.summary == entry.summary
            module, _, attribute = entry.module.partition(":")
            assert getattr(importlib.import_module(module), attribute or "app").info.name == entry.name


def check_groups(program: Program, *groups: Sequence[str]) -> None:
    """A group without a command lists its commands and fails."""
    for arguments in groups:
        ran = program(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert f"usage: {ran.program}" in ran.err
