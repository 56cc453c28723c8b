"""A command-line program: its commands, its start, and how it reports errors and exits."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.main import get_command

from plumbing.cli import ascii_fallback, install_hint
from plumbing.cli.command import Group, is_colourful
from plumbing.cli.help_text import Row, lowered

_RED, _CYAN, _PLAIN = "\x1b[1;31m", "\x1b[36m", "\x1b[0m"
_VALUE_ERROR = "Value error, "


def print_error(program: str, message: str, hints: Sequence[str]) -> None:
    """Write an error and its hints to standard error."""
    colour = is_colourful(sys.stderr)
    for word, paint, text in [("error", _RED, message), *(("hint", _CYAN, one) for one in hints)]:
        prefix = f"{paint}{word}:{_PLAIN}" if colour else f"{word}:"
        sys.stderr.write(f"{program}: {prefix} {text}\n")


def message_of(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return _usage_message(error)
    if isinstance(error, OSError):
        reason = lowered(error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def usage_hint(program: str, error: typer.TyperException) -> str:
    """The hint for a usage error that has none of its own."""
    if near := _possibilities(error):
        return f"did you mean {' or '.join(near)}"
    ctx = getattr(error, "ctx", None)
    return f"{ctx.command_path if ctx else program} --help shows how it is used"


def _usage_message(error: typer.TyperException) -> str:
    """The message of typer or of an option's parser, in our style."""
    message = error.message if _possibilities(error) else error.format_message()
    parts = " ".join(message.split()).removesuffix(".").split(": ", 1)
    return ": ".join(lowered(part.removeprefix(_VALUE_ERROR)) for part in parts)


def _possibilities(error: typer.TyperException) -> list[str]:
    """Options with a similar name."""
    return sorted(getattr(error, "possibilities", None) or ())


MISSING_STATUS = 6
INTERRUPTED_STATUS = 130
BROKEN_PIPE_STATUS = 141
_STANDARD_FILES = 3  # file descriptors 0, 1 and 2


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command, where it is (`module` or `module:attribute`, default attribute `app`), and its summary."""

    name: str
    module: str
    summary: str


class ProgramGroup(Group):
    """The top-level group. It imports a command's module when the command is used."""

    PROGRAM: ClassVar[str]
    COMMANDS: ClassVar[Mapping[str, Sequence[CommandEntry]]]

    def report(self, error: Exception) -> int | None:
        """Print the error and return the exit status, or None for an error that is a bug."""
        return None

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entries in self.COMMANDS.values() for entry in entries]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = (entry for entries in self.COMMANDS.values() for entry in entries if entry.name == cmd_name)
        entry = next(found, None)
        if entry is not None and cmd_name not in self.commands:
            module, _, attribute = entry.module.partition(":")
            self.commands[cmd_name] = get_command(getattr(importlib.import_module(module), attribute or "app"))
        return self.commands.get(cmd_name)

    def listing(self, ctx: Any) -> Iterator[tuple[str, Sequence[Row]]]:
        for heading, entries in self.COMMANDS.items():
            yield heading, [Row(entry.name, entry.summary) for entry in entries]

    def main(self, *args: Any, **given: Any) -> NoReturn:
        """Run the command, print errors, and exit with a status."""
        try:
            status = super().main(*args, **{**given, "standalone_mode": False})
            sys.stdout.flush()
        except BrokenPipeError:
            _exit_broken_pipe()
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):  # typer turns a broken pipe into an exit
                _exit_broken_pipe()
            raise
        except Exception as error:
            reported = self.report(error)
            if reported is None:
                raise
            sys.exit(reported)
        if status == INTERRUPTED_STATUS:
            sys.stderr.write(f"{self.PROGRAM}: interrupted\n")
        sys.exit(status)


def program(
    name: str,
    text: str,
    commands: Mapping[str, Sequence[CommandEntry]],
    *examples: str,
    report: Callable[[Exception], int | None],
    version: Callable[[], str],
) -> typer.Typer:
    """A program with these commands by heading. `report` implements `ProgramGroup.report`."""

    class NamedProgram(ProgramGroup):
        PROGRAM = name
        COMMANDS = commands

        def report(self, error: Exception) -> int | None:
            return report(error)

    app = typer.Typer(name=name, cls=NamedProgram, rich_markup_mode=None, pretty_exceptions_enable=False)

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


def _open_closed_standard_files() -> None:
    """Open closed standard files on /dev/null, so no file opened later gets descriptor 0, 1 or 2."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < _STANDARD_FILES:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115  open as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def run(app: typer.Typer, program: str, arguments: Sequence[str] | None) -> None:
    """Run a program with any terminal encoding, with closed standard files, or as pid 1 of a container."""
    if os.getpid() == 1:
        from plumbing.service_process import leave_pid_1  # only in a container, and it loads asyncio

        leave_pid_1()
    _open_closed_standard_files()
    for stream in (sys.stdout, sys.stderr):
        ascii_fallback.prepare(stream)
    get_command(app).main(arguments, program)


def _exit_broken_pipe() -> NoReturn:
    """Exit after the reader of our output has closed it. The interpreter's last flush goes to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(BROKEN_PIPE_STATUS)


def veil() -> None:
    """The `veil` command."""
    _start("veil", "veil.cli.app", install_hint("veil"))


def _start(program: str, module: str, hint: str) -> None:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == program:
            raise
        sys.stderr.write(f"{program}: error: {error.name} is not installed\n")
        sys.stderr.write(f"{program}: hint: {hint}\n")
        sys.exit(MISSING_STATUS)
    main()
