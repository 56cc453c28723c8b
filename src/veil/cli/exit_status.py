"""What a failed command says and the status it ends with: tables over the error tree, total by a test.

An error's own notes are its hints. Where it has none, its class has one.
"""

import errno

import typer

from plumbing.cli import program
from veil.lanes import Unavailable
from veil.veil_errors import Malformed, Refused, Unverified

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


def tell(error: Exception) -> int | None:
    """Say what is wrong, on standard error, and return the exit status; None where the mistake is ours."""
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
        return ["veil node set --api HOST:PORT names another place, and port 0, as in 127.0.0.1:0, any that is free"]
    return [HINTS[kind]]
