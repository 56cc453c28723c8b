"""Declaration of commands and groups on top of typer. Every command has examples."""

import difflib
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Any, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from plumbing.cli import ascii_fallback, help_text
from plumbing.cli.help_text import Row

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

USAGE_STATUS = 2
_MAX_UINT64 = (1 << 64) - 1
_RAW_ARGUMENTS = "plumbing.raw_arguments"
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?", re.ASCII)
_SHIELD = "\0"  # cannot occur in an argument of a process
# Command names of other programs, and what they are called here.
_SYNONYMS = {
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
    """Wrong or contradictory arguments. The hint says what to give instead."""

    exit_code = USAGE_STATUS

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.add_note(hint)


@contextmanager
def misuse(hint: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Report an error in a value of the command line as `Misuse`, with a hint."""
    try:
        yield
    except kind as error:
        raise Misuse(str(error), hint) from None


def is_colourful(stream: Any) -> bool:
    """Whether the stream is a terminal that shows colour."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def help_of(command: Any, ctx: Any) -> str:
    width = min(shutil.get_terminal_size().columns, help_text.WIDTH)
    return help_text.as_text(
        help_text.manual_of(command, ctx), width, colour=is_colourful(sys.stdout), say=ascii_fallback.for_stream
    )


def raw_arguments(ctx: typer.Context) -> tuple[str, ...]:
    """The arguments of the running command as they were typed."""
    arguments: tuple[str, ...] = ctx.meta[_RAW_ARGUMENTS]
    return arguments


class Command(TyperCommand):
    """A command with our help page; it records its raw arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_RAW_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def make_parser(self, ctx: Any) -> Any:
        """A parser that reads -5 as a number. No option has such a name."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_numbers(args: list[str]) -> tuple[Any, list[str], Any]:
            options, rest, order = parse([_SHIELD + one if _NEGATIVE_NUMBER.fullmatch(one) else one for one in args])
            return {name: _unshield(value) for name, value in options.items()}, _unshield(rest), order

        parser.parse_args = parse_numbers
        return parser

    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx).rstrip("\n")


def _unshield(value: Any) -> Any:
    if isinstance(value, str):
        return value.removeprefix(_SHIELD)
    return type(value)(map(_unshield, value)) if isinstance(value, list | tuple) else value


class Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx).rstrip("\n")

    def listing(self, ctx: Any) -> Iterator[tuple[str, Sequence[Row]]]:
        """The commands by heading, each with its summary."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        yield "commands", [Row(name, help_text.summary(one)) for name, one in found if one and not one.hidden]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, print the help and exit with a usage error."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            sys.stderr.write(self.get_help(ctx) + "\n")
            raise typer.Exit(USAGE_STATUS)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names:
            suggestion = _suggestion(ctx, args[0], names)
            hint = f"did you mean {suggestion}" if suggestion else f"{ctx.command_path} --help lists the commands"
            raise Misuse(f"{ctx.command_path} has no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)


def _suggestion(ctx: Any, word: str, names: Sequence[str]) -> str | None:
    """The command that the user probably meant: the same word at the top level, a synonym, or a similar name."""
    root = ctx.find_root()
    if word in root.command.list_commands(root):
        return f"{root.command_path} {word}"
    for known in _SYNONYMS.get(word, ()):
        if known in names:
            return f"{ctx.command_path} {known}"
    near = difflib.get_close_matches(word, names, 1)
    return f"{ctx.command_path} {near[0]}" if near else None


def group(name: str, text: str, cls: type[Group] = Group) -> typer.Typer:
    """A group of commands, such as `veen hub`."""
    return typer.Typer(name=name, help=text, cls=cls, rich_markup_mode=None, add_completion=False)


def single(name: str) -> typer.Typer:
    """A top-level command that is in no group."""
    return typer.Typer(name=name, rich_markup_mode=None, add_completion=False)


def command(app: typer.Typer, name: str, *examples: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a command. Its docstring is its help; the first sentence is its summary."""
    return app.command(name, cls=Command, epilog="\n".join(examples))


def option(usage: str, help: str, *, default: str | None = None, **more: Any) -> Any:
    """An option as the help shows it: `--out FILE`, or `--once` for a flag.

    `default` describes the default value, if the value itself does not.
    """
    if default is not None:
        more["show_default"] = default
    flags = [word for word in usage.split() if word.startswith("-")]
    more["metavar"] = " ".join(word for word in usage.split() if not word.startswith("-")) or None
    return typer.Option(*flags, help=help, **more)


def argument(metavar: str, help: str, *, default: str | None = None, **more: Any) -> Any:
    """A positional argument, such as `argument("FILE", "the file to write")`."""
    if default is not None:
        more["show_default"] = default
    return typer.Argument(metavar=metavar, help=help, **more)


def options_command(
    options: type[Any], app: typer.Typer, name: str, *examples: str, runner: Callable[..., None] | None = None
) -> Callable[[F], F]:
    """Declare a command whose first argument is a dataclass of options that several commands share.

        @options_command(HubOptions, app, "export", "veen bridge export --stream doors")
        def export(options: HubOptions, stream: Stream = None) -> None:
            ...

    A `runner` calls the command itself: it is called as `runner(work, options, **given)`.

    The help text lists the command's own options first, then the fields of the dataclass, those of its bases last.
    """
    shared_types, kind = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    defaults = {field.name: empty if field.default is MISSING else field.default for field in fields(options)}
    own_first = [name for base in options.__mro__ for name in inspect.get_annotations(base)]
    defaults = {name: defaults[name] for name in own_first if name in defaults}
    shared = [
        inspect.Parameter(name, kind, default=default, annotation=shared_types[name])
        for name, default in defaults.items()
    ]

    def declare(work: F) -> F:
        own_types = get_type_hints(work, include_extras=True)
        own = [*inspect.signature(work).parameters.values()][1:]
        parameters = [one.replace(kind=kind, annotation=own_types[one.name]) for one in own] + shared

        def run(**given: Any) -> None:
            _check_numbers(given)
            shared_values = options(**{one.name: given.pop(one.name) for one in shared})
            if runner is None:
                work(shared_values, **given)
            else:
                runner(work, shared_values, **given)

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command(app, name, *examples)(run)
        return work

    return declare


def _check_numbers(given: Mapping[str, Any]) -> None:
    """Numbers in encoded objects have 64 bits."""
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > _MAX_UINT64:
            raise Misuse(f"{name.replace('_', '-')}: {value} needs more than 64 bits", f"give at most {_MAX_UINT64}")
