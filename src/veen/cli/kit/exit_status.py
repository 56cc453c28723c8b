"""Exit statuses and hints of failed commands: tables over the error tree. A test proves that they cover it.

An error's own notes are its hints. An error without notes gets the hint of its class.
"""

import errno
from typing import TypeVar

import typer

from plumbing.cli import program
from veen.core import Malformed, Refused, Unavailable, Unverified, VeenError
from veen.core.admission import API_MEANING, BY_DETAIL, UNREGISTERED, WRONG_CLOCK
from veen.storage.journal import JournalBroken

E = TypeVar("E", bound=VeenError)

# Status and meaning. 2 is the shells' status for misuse, 70 the EX_SOFTWARE of sysexits.h.
STATUS: dict[type[Exception], tuple[int, str]] = {
    typer.TyperException: (2, "the command line is wrong"),
    Malformed: (3, "bytes are not the object they should be; do not retry"),
    Unverified: (4, "a signature, hash or proof is invalid, or no signer was named; do not retry"),
    Refused: (5, "the hub rejected the request, with a code"),
    Unavailable: (6, "a disk or a peer did not answer, or is not in the required state; may work later"),
    OSError: (6, "the system refused a file or a socket"),
    JournalBroken: (70, "the hub's disk failed; the hub stopped at once"),
}
# Results of checking a data directory; the command itself did not fail.
REPAIRABLE_STATUS, DAMAGED_STATUS = 7, 8
# The log is intact, but a secret key that the hub needs is missing.
KEYLESS_STATUS = 12
# A measurement missed its target.
MISSED_STATUS = 9
# FAILED: a check of `veen selftest` failed, or the two sides of a bridge differ. CONTRADICTED: evidence proves that a
# hub contradicted itself.
FAILED_STATUS, CONTRADICTED_STATUS = 10, 11
# An operation violates a rule of its profile.
VIOLATED_STATUS = 13

LISTEN_HINT = "--listen HOST:PORT names another address; port 0, as in 127.0.0.1:0, takes any free port"
_CHECK_PATH = "check the path and its permissions"
# Causes of an `Unavailable` that mean a wrong path on the command line.
_PATH_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_DAMAGED = "stored data of the hub is damaged"  # part of a hub's own message
_DAMAGED_HINT = "the hub's operator can stop the hub and run veen fsck DIR to locate the damage"

HINTS: dict[type[Exception], str] = {
    Malformed: "it is damaged, or a different kind of file or message",
    Unverified: "do not rely on it",
    Unavailable: "nothing was decided; the same command may work later",
    OSError: _CHECK_PATH,
    JournalBroken: "the disk is not reliable; check it before you start the hub again",
}


def report_error(error: Exception) -> int | None:
    """Report an error with hints on standard error and return its exit status; None for a bug of ours."""
    kind = kind_of(error)
    if kind is None:
        return None
    program.print_error("veen", program.message_of(error), hints(error, kind))
    return STATUS[kind][0]


def kind_of(error: Exception) -> type[Exception] | None:
    """Return the nearest base class of an error that `STATUS` lists."""
    return next((kind for kind in type(error).__mro__ if kind in STATUS), None)


def hints(error: Exception, kind: type[Exception]) -> list[str]:
    own = [*getattr(error, "__notes__", ()), *_evidence_hints(error)]
    if hasattr(error, "untrusted_url"):
        return _CERTIFICATE_HINTS
    if isinstance(error, Refused) and not (own and _is_unknown(error)):
        code = f"{error.code}/{error.detail_enum}" if error.detail_enum in BY_DETAIL else error.code
        advised = _DAMAGED_HINT if _DAMAGED in error.message else advice(error)
        return [*own, advised, f"veen explain {code} describes this error"]
    if own:
        return own
    if isinstance(error, typer.TyperException):
        return [program.usage_hint("veen", error)]
    if _is_about_listening(error):
        return [LISTEN_HINT]
    if kind is Unavailable and isinstance(error.__context__, _PATH_ERRORS):
        return [_CHECK_PATH]
    if kind is Unavailable and _DAMAGED in str(error):
        return [_DAMAGED_HINT]
    return [HINTS[kind]]


def _evidence_hints(error: Exception) -> list[str]:
    """Name the file in which the client saved a hub's contradicting statements."""
    file, hub_id = getattr(error, "evidence", None), getattr(error, "hub_id", None)
    if not isinstance(error, Unverified) or file is None or hub_id is None:
        return []
    if getattr(error, "proven", False):
        verify = f"veen evidence verify {file} --pin {hub_id.hex()}"
        return ["do not rely on the hub, and keep the evidence", f"{verify} proves it to others"]
    return [f"do not rely on it; {file} contains what the hub signed, which is not yet a proof for others"]


def _is_about_listening(error: Exception) -> bool:
    """Return whether a server could not bind its address: as our servers, the system or asyncio report it."""
    if isinstance(error, OSError):
        return error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL) or "attempting to bind" in str(error)
    return str(error).startswith("cannot listen")


def _is_unknown(error: Refused) -> bool:
    """Return whether `veen explain` has no text for this code."""
    return error.detail_enum not in BY_DETAIL and error.code not in API_MEANING


_EPOCH_HINTS: dict[object, str] = {
    UNREGISTERED: "the hub's operator registers it: veen hub stream add NAME; authorizing a capability does, too",
    WRONG_CLOCK: "send it again; if that fails, compare the clocks of both machines: veen hub status shows the hub's",
}


_CERTIFICATE_HINTS = [
    "copy the certificate from the hub's machine, and pin it: --pin cert.pem",
    "or name its authority in VEEN_TLS_CA, or for a context: veen context add NAME --hub URL --ca ca.pem",
]
# By the `read_access` of a hub that refused a read.
_READ_HINTS: dict[object, str] = {
    "signed": "the operator adds a key with veen hub start --reader HEX; commands without --client sign as VEEN_READER",
    "mtls": "name a certificate that the hub's authority signed, and its key, in VEEN_TLS_CERT and VEEN_TLS_KEY",
}


_OLDER_COPY = "compare the hub with its witnesses: it shows an older or another copy of its log"
# By the `detail_enum` of a witness that refused to cosign.
_WITNESS_HINTS: dict[object, str] = {
    "FORK": "do not rely on the hub: it signed two histories, and the witness keeps both checkpoints as evidence",
    "OLDER": _OLDER_COPY,
    "PROOF": _OLDER_COPY,
    "OLD_KEY": _OLDER_COPY,
    "RETIRED_KEY": "ask for a checkpoint that the hub signed with its present key",
    "USED_RESET": "veen hub recover makes a new statement, under a new key",
}


def advice(error: Refused) -> str:
    """Return the advice for an error code."""
    if error.detail_enum in _WITNESS_HINTS:
        return _WITNESS_HINTS[error.detail_enum]
    read_access, cause = error.detail.get("read_access"), error.detail.get("cause")
    if error.code == "E.UNAUTHORIZED" and read_access in _READ_HINTS:
        return _READ_HINTS[read_access]
    if error.detail_enum == "EPOCH" and cause in _EPOCH_HINTS:
        return _EPOCH_HINTS[cause]
    row = BY_DETAIL.get(error.detail_enum or "")
    if row is not None:
        return row.advice
    return API_MEANING[error.code][1] if error.code in API_MEANING else "ask the hub's operator"


def hinted(error: E, *hints: str) -> E:
    """Add hints to an error and return it."""
    for hint in hints:
        error.add_note(hint)
    return error
