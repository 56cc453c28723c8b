"""What a failed command says and the status it ends with: tables over the error tree, total by a test.

An error's own notes are its hints. Where it has none, its class has one.
"""

import errno
from typing import TypeVar

import typer

from plumbing.cli import program
from veen.core import Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.admission import API_MEANING, BY_DETAIL
from veen.storage.journal import JournalBroken

E = TypeVar("E", bound=VeenError)

# Status, and what it means. 2 is the shells' own for misuse, 70 the system's for what must not happen.
STATUS: dict[type[Exception], tuple[int, str]] = {
    typer.TyperException: (2, "the command was not given as it must be"),
    Malformed: (3, "bytes are not the object they claim to be; never worth a retry"),
    Unverified: (4, "a signature, hash or proof does not hold, or nobody named the signer; never worth a retry"),
    Refused: (5, "the hub refused, and said why"),
    Unavailable: (6, "a disk or a peer did not answer, or is not in the state that this needs; may work later"),
    OSError: (6, "the system refused a file or a socket"),
    JournalBroken: (70, "the hub's disk broke its word; the hub ended at once"),
}
# What a check of a data directory found; not errors of the command.
REPAIRABLE_STATUS, DAMAGED_STATUS = 7, 8
# The log holds, and a secret key that a hub needs is not there.
KEYLESS_STATUS = 12
# A measurement missed what was promised.
MISSED_STATUS = 9
# A hub failed a check of `veen selftest`, or two of a bridge do not agree; evidence shows a hub contradicting itself.
FAILED_STATUS, CONTRADICTED_STATUS = 10, 11
# An operation violates a rule of its profile.
VIOLATED_STATUS = 13

LISTEN_HINT = "--listen HOST:PORT names another place, and port 0, as in 127.0.0.1:0, any that is free"
_CHECK_PATH = "check that the path is right and that you may use it"
# What the system says of a path that was given, behind an error that names the file.
_OF_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
# As a hub says it of its own data.
_DAMAGED = "stored data of the hub is damaged"
_DAMAGED_HUB = "whoever runs the hub finds out more with veen fsck DIR, while it is stopped"

HINTS: dict[type[Exception], str] = {
    Malformed: "it is damaged, or another kind of thing than belongs there",
    Unverified: "do not rely on it",
    Unavailable: "nothing was decided; the same command may work later",
    OSError: _CHECK_PATH,
    JournalBroken: "the disk cannot be trusted any more; check it, then start again",
}


def report_error(error: Exception) -> int | None:
    """Say what is wrong, on standard error, and return the exit status; None where the mistake is ours."""
    kind = kind_of(error)
    if kind is None:
        return None
    program.print_error("veen", program.message_of(error), hints(error, kind))
    return STATUS[kind][0]


def kind_of(error: Exception) -> type[Exception] | None:
    """The row of the table that an error falls under: its nearest ancestor there."""
    return next((kind for kind in type(error).__mro__ if kind in STATUS), None)


def hints(error: Exception, kind: type[Exception]) -> list[str]:
    own = [*getattr(error, "__notes__", ()), *_kept(error)]
    if isinstance(error, Refused) and not (own and _is_unknown(error)):
        code = error.code if error.detail_enum is None else f"{error.code}/{error.detail_enum}"
        advised = _DAMAGED_HUB if _DAMAGED in error.message else advice(error)
        return [*own, advised, f"veen explain {code} says more"]
    if own:
        return own
    if isinstance(error, typer.TyperException):
        return [program.usage_hint("veen", error)]
    if _is_about_listening(error):
        return [LISTEN_HINT]
    if kind is Unavailable and isinstance(error.__context__, _OF_PATHS):
        return [_CHECK_PATH]
    if kind is Unavailable and _DAMAGED in str(error):
        return [_DAMAGED_HUB]
    return [HINTS[kind]]


def _kept(error: Exception) -> list[str]:
    """Which file keeps what a hub signed, where a client saved any."""
    file, hub_id = getattr(error, "evidence", None), getattr(error, "hub_id", None)
    if not isinstance(error, Unverified) or file is None or hub_id is None:
        return []
    if getattr(error, "proven", False):
        verify = f"veen evidence verify {file} --pin {hub_id.hex()}"
        return ["do not rely on the hub, and keep the evidence", f"{verify} shows it, to anyone"]
    return [f"do not rely on it; {file} keeps what the hub signed, which does not prove it to others yet"]


def _is_about_listening(error: Exception) -> bool:
    """Whether a port cannot be had: in the words of our servers, or as the system and its library say it."""
    if isinstance(error, OSError):
        return error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) or "attempting to bind" in str(error)
    return str(error).startswith("cannot listen")


def _is_unknown(error: Refused) -> bool:
    """Whether no hub says no in these words: then `veen explain` knows nothing of it."""
    return error.detail_enum not in BY_DETAIL and error.code not in API_MEANING


def advice(error: Refused) -> str:
    """What to do about a refusal, from the table of its code."""
    row = BY_DETAIL.get(error.detail_enum or "")
    if row is not None:
        return row.advice
    return API_MEANING[error.code][1] if error.code in API_MEANING else "ask whoever runs the hub"


def hinted(error: E, *hints: str) -> E:
    """The error with these hints."""
    for hint in hints:
        error.add_note(hint)
    return error
