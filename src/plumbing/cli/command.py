"""How commands are declared: one call for a group, one for a command, and every command has examples."""

import difflib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from plumbing.cli import ascii_fallback, help_text
from plumbing.cli.help_text import Row

P = ParamSpec("P")
R = TypeVar("R")

USAGE_STATUS = 2
_GIVEN = "plumbing.given"
_BELOW_ZERO = re.compile(r"-\d+(\.\d+)?", re.ASCII)
_SHIELD = "\0"  # no argument of a process has one
# What other programs call it.
_ELSEWHERE = {
    "delete": ("remove",),
    "list": ("show",),
    "ls": ("list", "show"),
    "new": ("create",),
    "remove": ("delete",),
    "rm": ("remove", "delete"),
    "run": ("start",),
    "show": ("list",),
}


class Misuse(typer.TyperException):
    """The command cannot be carried out as it was given; says why, and what to give instead."""

    exit_code = USAGE_STATUS

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.add_note(hint)


def is_colourful(stream: Any) -> bool:
    """Whether people look at it, and have not asked for plain text."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def help_of(command: Any, ctx: Any) -> str:
    width = min(shutil.get_terminal_size().columns, help_text.WIDTH)
    return help_text.as_text(
        help_text.manual_of(command, ctx), width, colour=is_colourful(sys.stdout), say=ascii_fallback.for_stream
    )


def raw_arguments(ctx: typer.Context) -> tuple[str, ...]:
    """The arguments of the command under way, as they were written."""
    found: tuple[str, ...] = ctx.meta[_GIVEN]
    return found


class Command(TyperCommand):
    """A command whose help is its manual, and that knows how it was given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = tuple(args)
        return super().parse_args(ctx, args)

    def make_parser(self, ctx: Any) -> Any:
        """One that takes -5 for the number that it is: no option is called so."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_numbers(args: list[str]) -> tuple[Any, list[str], Any]:
            given, rest, order = parse([_SHIELD + one if _BELOW_ZERO.fullmatch(one) else one for one in args])
            return {name: _unshielded(value) for name, value in given.items()}, _unshielded(rest), order

        parser.parse_args = parse_numbers
        return parser

    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx).rstrip("\n")


def _unshielded(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(_SHIELD)
    return type(value)(map(_unshielded, value)) if isinstance(value, list | tuple) else value


class Group(TyperGroup):
    """Commands under one name."""

    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx).rstrip("\n")

    def listing(self, ctx: Any) -> Iterator[tuple[str, Sequence[Row]]]:
        """The commands by heading, each with its one line."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        yield "commands", [Row(name, help_text.summary(one)) for name, one in found if one and not one.hidden]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command there is nothing to do but to say which there are."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            sys.stderr.write(self.get_help(ctx) + "\n")
            raise typer.Exit(USAGE_STATUS)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names:
            meant = _meant(ctx, args[0], names)
            hint = f"did you mean {meant}" if meant else f"{ctx.command_path} --help lists them"
            raise Misuse(f"{ctx.command_path} has no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)


def _meant(ctx: Any, word: str, names: Sequence[str]) -> str | None:
    """The command that a word may stand for. One written just so elsewhere is likelier than one that is near."""
    root = ctx.find_root()
    if word in root.command.list_commands(root):
        return f"{root.command_path} {word}"
    for known in _ELSEWHERE.get(word, ()):
        if known in names:
            return f"{ctx.command_path} {known}"
    near = difflib.get_close_matches(word, names, 1)
    return f"{ctx.command_path} {near[0]}" if near else None


def group(name: str, text: str) -> typer.Typer:
    """A group to declare commands in."""
    return typer.Typer(name=name, help=text, cls=Group, rich_markup_mode=None, add_completion=False)


def single(name: str) -> typer.Typer:
    """What holds a command that is in no group."""
    return typer.Typer(name=name, rich_markup_mode=None, add_completion=False)


def command(app: typer.Typer, name: str, *examples: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a command; its docstring is its help, and the first sentence of that is its one line."""
    return app.command(name, cls=Command, epilog="\n".join(examples))
