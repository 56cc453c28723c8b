"""A program of many commands: which there are, and what happens at its edges.

A command's module is imported when the command is named, so that `--help` does not wait for libraries it does not use.
"""

import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import typer
from typer.main import get_command

from terminalface.command import Group
from terminalface.manual import Row

MISSING_STATUS = 6
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, the module whose `app` it is, and its one line, which is also the first of its help."""

    name: str
    module: str
    summary: str


class Root(Group):
    """The program itself. Give its name, its commands by heading, and `tell`."""

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


def run(app: typer.Typer, program: str, arguments: Sequence[str] | None) -> None:
    """Run a program, whatever its terminal can show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a dash that a terminal does not have is no reason to fail
    get_command(app).main(arguments, program)


def _leave_the_pipe() -> NoReturn:
    """Whoever read this has enough. The interpreter flushes once more on its way out: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(BROKEN_PIPE_STATUS)
