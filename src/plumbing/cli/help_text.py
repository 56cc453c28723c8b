"""The help page of a command: summary, usage, options, examples. `--help` and docs/cli.md are made from it."""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

WIDTH = 100
_FIRST_COLUMN = 34
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    text: str
    notes: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        return f"{self.text} ({', '.join(self.notes)})" if self.notes else self.text


@dataclass(frozen=True, slots=True)
class Manual:
    """The content of a help page."""

    path: str
    summary: str
    text: str
    usage: str
    arguments: tuple[Row, ...]
    options: tuple[Row, ...]
    commands: tuple[tuple[str, tuple[Row, ...]], ...]  # by heading
    examples: tuple[str, ...]


# typer has no public types for a command and its context, hence Any.
def manual_of(command: Any, ctx: Any) -> Manual:
    shown = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    return Manual(
        ctx.command_path,
        summary(command),
        "\n\n".join(inspect.cleandoc(command.help or "").split("\n\n")[1:]),
        _usage(command, ctx, shown),
        tuple(_argument(param) for param in shown if isinstance(param, TyperArgument)),
        tuple(_option(param) for param in shown if isinstance(param, TyperOption)),
        tuple((heading, tuple(rows)) for heading, rows in command.listing(ctx)) if is_group(command) else (),
        tuple((command.epilog or "").splitlines()),
    )


def is_group(command: object) -> bool:
    return isinstance(command, TyperGroup)


def summary(command: Any) -> str:
    """The first paragraph of a command's help, in lower case and without the full stop."""
    first = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return lowered(first.removesuffix("."))


def lowered(text: str) -> str:
    """The text with its first letter in lower case, unless it starts with an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _usage(command: Any, ctx: Any, shown: Sequence[Any]) -> str:
    needed = [_names(param) for param in shown if isinstance(param, TyperOption) and param.required]
    arguments = [_place(param) for param in shown if isinstance(param, TyperArgument)]
    rest = ["COMMAND …"] if is_group(command) else ["[options]"]
    return " ".join([ctx.command_path, *arguments, *needed, *rest])


def _place(param: TyperArgument) -> str:
    name = str(param.metavar or param.name.upper())
    name += "…" if param.nargs == -1 else ""
    return name if param.required else f"[{name}]"


def _argument(param: TyperArgument) -> Row:
    return Row(_place(param), param.help or "", tuple(_notes(param)))


def _option(param: TyperOption) -> Row:
    text = param.help or ""
    # typer's own options have a capital and a full stop.
    return Row(_names(param), lowered(text.removesuffix(".")), tuple(_notes(param)))


def _names(param: TyperOption) -> str:
    names = ", ".join([*param.opts, *param.secondary_opts])
    return names if param.is_flag or param.count else f"{names} {param.metavar or 'VALUE'}"


def _notes(param: TyperOption | TyperArgument) -> Iterator[str]:
    if getattr(param, "multiple", False):
        yield "may be repeated"
    if param.envvar:
        yield f"or {param.envvar}"
    if isinstance(param.show_default, str):
        yield f"default {param.show_default}"
    elif isinstance(param.default, int | float) and not isinstance(param.default, bool):
        yield f"default {param.default:g}"
    if isinstance(param, TyperOption) and param.required:
        yield "required"


def as_text(page: Manual, width: int, *, colour: bool, say: Callable[[str], str] = str) -> str:
    """The page as text, at most `width` wide. `say` replaces symbols that the terminal cannot show."""

    def bold(text: str) -> str:
        return typer.style(text, bold=True) if colour else text

    blocks = [f"{bold(page.path)}: {page.summary}", f"{bold('usage:')} {say(page.usage)}"]
    blocks += [textwrap.fill(" ".join(part.split()), width) for part in say(page.text).split("\n\n") if part]
    listed = [*page.commands, ("arguments", page.arguments), ("options", page.options)]
    sections = [(heading, [Row(say(row.name), say(row.description)) for row in rows]) for heading, rows in listed]
    # One column width for the whole page, so its sections line up.
    names = [len(row.name) for _, rows in sections for row in rows if len(row.name) <= _FIRST_COLUMN]
    first = max(names, default=0) + 2
    for heading, rows in sections:
        if rows:
            lines = [line for row in rows for line in _row_lines(row, first, width, colour)]
            blocks.append("\n".join([bold(f"{heading}:"), *lines]))
    if page.examples:
        lines = [_INDENT + say(line) for line in page.examples]
        blocks.append("\n".join([bold("examples:"), *lines]))
    return "\n\n".join(blocks) + "\n"


def _row_lines(row: Row, first: int, width: int, colour: bool) -> Iterator[str]:
    room = max(width - len(_INDENT) - first, 20)
    description = textwrap.wrap(row.description, room) or [""]
    name = _INDENT + (typer.style(row.name, fg="cyan") if colour else row.name)
    gap = " " * (len(_INDENT) + first)
    if len(row.name) > first - 2:
        yield name
    else:
        yield name + " " * (first - len(row.name)) + description.pop(0)
    for line in description:
        yield gap + line
