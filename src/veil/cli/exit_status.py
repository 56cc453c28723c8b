"""Exit statuses and hints for every class of the error tree. A test checks that the tables cover it.

An error's own notes are its hints. An error without notes gets the hint of its class.
"""

import errno

import typer

from plumbing.cli import program
from veil.lanes import Unavailable
from veil.veil_errors import Malformed, Refused, Unverified

# Exit status and its meaning; `veen` uses the same numbers.
STATUS: dict[type[Exception], tuple[int, str]] = {
    typer.TyperException: (2, "the command line is invalid"),
    Malformed: (3, "bytes cannot be decoded as the expected object; do not retry"),
    Unverified: (4, "a signature, root or seal failed verification; do not retry"),
    Refused: (5, "the node rejected the request and gave a reason"),
    Unavailable: (6, "a node, a peer or a library is unavailable; retry later"),
    OSError: (6, "the operating system rejected a file or socket operation"),
}
# `veil bench` measured less than the promised rate.
MISSED_STATUS = 9
# `veil publish --wait` reached its time limit.
PENDING_STATUS = 14

HINTS: dict[type[Exception], str] = {
    Malformed: "check that this is the right file or text, and that it is complete",
    Unverified: "do not rely on it",
    Refused: "change the request; veil policy explain shows the tier of a node and the reasons for it",
    Unavailable: "nothing was changed; retry later",
    OSError: "check the path and your permissions",
}


def report(error: Exception) -> int | None:
    """Print the error and its hints on standard error and return the exit status; None for a bug of ours."""
    kind = next((kind for kind in type(error).__mro__ if kind in STATUS), None)
    if kind is None:
        return None
    program.print_error("veil", program.message_of(error), _hints(error, kind))
    return STATUS[kind][0]


def _hints(error: Exception, kind: type[Exception]) -> list[str]:
    own = list(getattr(error, "__notes__", ()))
    if own:
        return own
    if isinstance(error, typer.TyperException):
        return [program.usage_hint("veil", error)]
    if isinstance(error, OSError) and (error.errno == errno.EADDRINUSE or "attempting to bind" in str(error)):
        return ["choose another address with veil node set --api HOST:PORT; 127.0.0.1:0 takes any free port"]
    return [HINTS[kind]]
