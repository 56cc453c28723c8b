"""What is said of a command that failed: an error, hints after it, and the words of the library and of the system."""

import sys
from collections.abc import Sequence

import typer

from terminalface.command import is_colourful
from terminalface.manual import lowered

_RED, _CYAN, _PLAIN = "\x1b[1;31m", "\x1b[36m", "\x1b[0m"
_VALUE_ERROR = "Value error, "


def say(program: str, message: str, hints: Sequence[str]) -> None:
    """On standard error, in the name of a program."""
    colour = is_colourful(sys.stderr)
    for word, paint, text in [("error", _RED, message), *(("hint", _CYAN, one) for one in hints)]:
        told = f"{paint}{word}:{_PLAIN}" if colour else f"{word}:"
        sys.stderr.write(f"{program}: {told} {text}\n")


def message_of(error: Exception) -> str:
    """What is wrong, as the command line says it."""
    if isinstance(error, typer.TyperException):
        return _usage_message(error)
    if isinstance(error, OSError):
        reason = lowered(error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def usage_hint(program: str, error: typer.TyperException) -> str:
    """What to do where a command was not given as it must be, and the error does not say it itself."""
    if near := _possibilities(error):
        return f"did you mean {' or '.join(near)}"
    ctx = getattr(error, "ctx", None)
    return f"{ctx.command_path if ctx else program} --help shows how it is used"


def _usage_message(error: typer.TyperException) -> str:
    """What the library says in sentences."""
    told = error.message if _possibilities(error) else error.format_message()
    parts = " ".join(told.split()).removesuffix(".").split(": ", 1)
    return ": ".join(lowered(part.removeprefix(_VALUE_ERROR)) for part in parts)


def _possibilities(error: typer.TyperException) -> list[str]:
    """The options that may have been meant."""
    return sorted(getattr(error, "possibilities", None) or ())
