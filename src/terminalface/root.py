"""A program of many commands: which there are, and what happens at its edges.

A command's module is imported when the command is named, so that `--help` does not wait for libraries it does not use.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.main import get_command

from terminalface import signs
from terminalface.command import Group
from terminalface.manual import Row

MISSING_STATUS = 6
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141
_STANDARD_FILES = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, the module whose `app` it is, and its one line, which is also the first of its help."""

    name: str
    module: str
    summary: str


class Root(Group):
    """The program itself."""

    PROGRAM: ClassVar[str]
    COMMANDS: ClassVar[Mapping[str, Sequence[Entry]]]

    def tell(self, error: Exception) -> int | None:
        """Say what went wrong; the exit status, or None where nobody foresaw it."""
        return None

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entries in self.COMMANDS.values() for entry in entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = (entry for entries in self.COMMANDS.values() for entry in entries if entry.name == cmd_name)
        entry = next(found, None)
        if entry is not None and cmd_name not in self.commands:
            self.commands[cmd_name] = get_command(importlib.import_module(entry.module).app)
        return self.commands.get(cmd_name)

    def listing(self, ctx: Any) -> Iterator[tuple[str, Sequence[Row]]]:
        for heading, entries in self.COMMANDS.items():
            yield heading, [Row(entry.name, entry.summary) for entry in entries]

    def main(self, *args: Any, **given: Any) -> NoReturn:
        """Run, and turn whatever comes of it into a line or two and an exit status."""
        try:
            status = super().main(*args, **{**given, "standalone_mode": False})
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_the_pipe()
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):  # as the library ends then
                _leave_the_pipe()
            raise
        except Exception as error:
            told = self.tell(error)
            if told is None:
                raise
            sys.exit(told)
        if status == INTERRUPTED_STATUS:
            sys.stderr.write(f"{self.PROGRAM}: interrupted\n")
        sys.exit(status)


def program(
    name: str,
    text: str,
    commands: Mapping[str, Sequence[Entry]],
    *examples: str,
    tell: Callable[[Exception], int | None],
    version: Callable[[], str],
) -> typer.Typer:
    """A program of these commands, by heading. `tell` is what `Root.tell` does."""

    class Own(Root):
        PROGRAM = name
        COMMANDS = commands

        def tell(self, error: Exception) -> int | None:
            return tell(error)

    app = typer.Typer(name=name, cls=Own, rich_markup_mode=None, pretty_exceptions_enable=False)

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(version())
            raise typer.Exit

    @app.callback(help=text, epilog="\n".join(examples))
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="show the version", callback=show_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    return app


def _open_what_was_closed() -> None:
    """Standard files that were closed lead nowhere: no file of ours may get their numbers, and what is said to them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < _STANDARD_FILES:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  open as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def run(app: typer.Typer, program: str, arguments: Sequence[str] | None) -> None:
    """Run a program, whatever its terminal can show, and though it has none."""
    _open_what_was_closed()
    for stream in (sys.stdout, sys.stderr):
        signs.prepare(stream)
    get_command(app).main(arguments, program)


def _leave_the_pipe() -> NoReturn:
    """Whoever read this has enough. The interpreter flushes once more on its way out: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(BROKEN_PIPE_STATUS)
