"""Results on standard output: tables and colour on a terminal, tab-separated lines in a pipe, or JSON.

Progress bars and remarks go to standard error.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from plumbing.cli import ascii_fallback
from plumbing.cli.command import is_colourful

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Value: TypeAlias = "str | int | float | bool | bytes | Marked | Formatted | None"
Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | Value"
Report: TypeAlias = Callable[[int, int], None]  # done, total


class Tone(StrEnum):
    """The meaning of a value; it sets the colour on a terminal."""

    GOOD = "green"
    WARN = "yellow"
    BAD = "bold red"
    QUIET = "dim"


@dataclass(frozen=True, slots=True)
class Marked:
    """A value with a tone."""

    text: str
    tone: Tone

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Formatted:
    """A value for pipes and JSON, and its form on a terminal."""

    text: str
    display: str

    def __str__(self) -> str:
        return self.text


def moment(seconds: float | None) -> Formatted | None:
    """A time in seconds since 1970; a terminal shows a date."""
    if seconds is None:
        return None
    try:
        shown = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # outside the range of datetime
        shown = str(seconds)
    return Formatted(str(seconds) if isinstance(seconds, int) else f"{seconds:.3f}".rstrip("0").rstrip("."), shown)


def facts(rows: Mapping[str, Value], as_json: bool, data: object = None) -> None:
    """Print names and values. JSON output shows `data` instead, if given."""
    if as_json:
        document(rows if data is None else data)
    elif not sys.stdout.isatty():
        for name, value in rows.items():
            sys.stdout.write(f"{name}\t{_plain(value)}\n")
    else:
        console().print(_grid(rows))


def table(columns: Sequence[str], rows: Sequence[Sequence[Value]], as_json: bool, data: object = None) -> None:
    """Print rows. A terminal and JSON show the column names, a pipe gets the rows only."""
    if as_json:
        document([dict(zip(columns, row, strict=True)) for row in rows] if data is None else data)
    elif not sys.stdout.isatty():
        for row in rows:
            sys.stdout.write("\t".join(map(_plain, row)) + "\n")
    elif rows:
        console().print(_columns(columns, rows))


def document(data: object) -> None:
    """Print JSON: bytes as lowercase hex, on one line in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(data, default=_json_value, indent=indent) + "\n")


def line(data: object) -> None:
    """Print JSON on one line. Characters are escaped only if the stream cannot encode them."""
    sys.stdout.write(json.dumps(data, ensure_ascii=not ascii_fallback.is_unicode(sys.stdout)) + "\n")


def remark(program: str, text: str) -> None:
    """Print a note beside the result, on standard error."""
    sys.stderr.write(f"{program}: {text}\n")


def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, no_color=not is_colourful(sys.stdout), soft_wrap=False)


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A progress bar in bytes on a terminal, nothing elsewhere. Yields the function that updates it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    # Redirect standard output through the bar only if both are on the terminal; output into a pipe stays untouched.
    shared = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=shared) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def tally(title: str, unit: str = "", total: int | None = None) -> Iterator[Callable[..., None]]:
    """A counting bar on a terminal, nothing elsewhere. Yields the function that updates it.

    The function takes the count and ignores further arguments. Without a unit the bar shows only that work goes on.
    """
    if not sys.stderr.isatty():
        yield lambda done, *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    count = (TextColumn("{task.completed:,.0f} " + unit),) if unit else ()
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn())
    shared = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=shared) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, *_: bar.update(task, completed=done)


def _grid(rows: Mapping[str, Value]) -> "RenderableType":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, text_of(value))
    return grid


def _columns(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> "RenderableType":
    from rich.table import Table

    found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for at, name in enumerate(columns):
        cells = [row[at] for row in rows if row[at] is not None]
        numbers = bool(cells) and all(isinstance(one, int | float) and not isinstance(one, bool) for one in cells)
        style = "cyan" if at == 0 else ""
        found.add_column(name, justify="right" if numbers else "left", overflow="fold", style=style)
    for row in rows:
        found.add_row(*map(text_of, row))
    return found


def text_of(value: Value) -> "Text":
    """A value as rich text. Markup in it is not interpreted."""
    from rich.text import Text

    # Replace symbols before rich measures the text: replacements may be wider.
    if isinstance(value, Marked):
        return Text(ascii_fallback.for_stream(value.text), style=str(value.tone))
    if isinstance(value, Formatted):
        return Text(ascii_fallback.for_stream(value.display))
    return (
        Text(ascii_fallback.for_stream("–"), style="dim")
        if value is None
        else Text(ascii_fallback.for_stream(_plain(value)))
    )


def _plain(value: Value) -> str:
    """A value as one field of a tab-separated line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case bytes():
            return value.hex()
        case int() | float():
            return str(value)
        case _:
            return " ".join(str(value).split())


def _json_value(value: object) -> str:
    match value:
        case bytes():
            return value.hex()
        case Marked() | Formatted():
            return value.text
    raise TypeError(f"{type(value).__name__} is not JSON")
