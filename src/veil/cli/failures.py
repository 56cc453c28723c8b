"""What a failed command says and the status it ends with: tables over the error tree, total by a test.

An error's own notes are its hints. Where it has none, its class has one.
"""

import errno
import sys

import typer

from terminalface.command import is_colourful
from terminalface.manual import lowered
from veil.errors import Malformed, Refused, Unverified
from veil.lanes import Unavailable

# Status, and what it means: the same as those of `veen`.
STATUS: dict[type[Exception], tuple[int, str]] = {
    typer.TyperException: (2, "the command was not given as it must be"),
    Malformed: (3, "bytes are not the object they claim to be; never worth a retry"),
    Unverified: (4, "a signature, root or seal does not hold; never worth a retry"),
    Refused: (5, "the node refused, and said why"),
    Unavailable: (6, "a node, a peer or a library is not there; may work later"),
    OSError: (6, "the system refused a file or a socket"),
}
# A measurement missed what was promised.
MISSED_STATUS = 9
# What was waited for did not happen in the time it was given.
PENDING_STATUS = 14

HINTS: dict[type[Exception], str] = {
    Malformed: "it is damaged, or another kind of thing than belongs there",
    Unverified: "do not rely on it",
    Refused: "change what is asked; veil policy explain says why a node is treated as it is",
    Unavailable: "nothing was decided; the same command may work later",
    OSError: "check that the path is right and that you may use it",
}
_RED, _CYAN, _PLAIN = "\x1b[1;31m", "\x1b[36m", "\x1b[0m"


def tell(error: Exception) -> int | None:
    """Say what is wrong, on standard error, and return the exit status; None where the mistake is ours."""
    kind = next((kind for kind in type(error).__mro__ if kind in STATUS), None)
    if kind is None:
        return None
    colour = is_colourful(sys.stderr)
    for word, paint, text in [("error", _RED, _message(error)), *(("hint", _CYAN, one) for one in _hints(error, kind))]:
        sys.stderr.write(f"veil: {paint}{word}:{_PLAIN} {text}\n" if colour else f"veil: {word}: {text}\n")
    return STATUS[kind][0]


def _hints(error: Exception, kind: type[Exception]) -> list[str]:
    own = list(getattr(error, "__notes__", ()))
    if own:
        return own
    if isinstance(error, typer.TyperException):
        near = sorted(getattr(error, "possibilities", None) or ())
        ctx = getattr(error, "ctx", None)
        usage = f"{ctx.command_path if ctx else 'veil'} --help shows how it is used"
        return [f"did you mean {' or '.join(near)}" if near else usage]
    if isinstance(error, OSError) and (error.errno == errno.EADDRINUSE or "attempting to bind" in str(error)):
        return ["veil node set --api HOST:PORT names another place, and port 0, as in 127.0.0.1:0, any that is free"]
    return [HINTS[kind]]


def _message(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        has_near = bool(getattr(error, "possibilities", None))
        told = " ".join((error.message if has_near else error.format_message()).split()).removesuffix(".")
        return ": ".join(lowered(part) for part in told.split(": ", 1))
    if isinstance(error, OSError):
        reason = lowered(error.strerror or str(error) or type(error).__name__)
        return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)
