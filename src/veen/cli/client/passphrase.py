"""Where a passphrase comes from: a file, the environment, or the person at the terminal. Never the command line."""

import getpass
import os
from pathlib import Path

from terminalface.command import Misuse

VARIABLE = "VEEN_PASSPHRASE"
_MOST_BYTES = 1 << 16
_OTHERWISE = f"give --passphrase-file FILE, or set {VARIABLE}"


def for_new(file: Path | None, none: bool, what: str) -> bytes | None:
    """The passphrase of a keystore that is to be made; None where it is to have none."""
    if none and file is not None:
        raise Misuse("--no-passphrase and --passphrase-file contradict each other", "give one of them")
    if none:
        return None
    return _given(file) or _chosen(what)


def for_existing(file: Path | None, what: str) -> bytes:
    """The passphrase that a keystore has."""
    return _given(file) or _asked(f"passphrase of {what}: ")


def _given(file: Path | None) -> bytes | None:
    if file is not None:
        return _of_file(file)
    return os.environb.get(VARIABLE.encode()) or None


def _of_file(file: Path) -> bytes:
    """Its first line, which is all it has: an editor's newline at the end is no part of it."""
    from veen.client.durable import read_file
    from veen.core import Unavailable

    try:
        found = read_file(file, _MOST_BYTES).removesuffix(b"\n").removesuffix(b"\r")
    except Unavailable as error:
        raise Misuse(f"the passphrase cannot be read: {error}", _OTHERWISE) from None
    if not found or b"\n" in found:
        raise Misuse(f"{file} must hold one line, the passphrase", "write it there without anything else")
    return found


def _chosen(what: str) -> bytes:
    """Asked for twice: one that was mistyped opens nothing, ever."""
    first = _asked(f"new passphrase for {what}: ")
    if not first:
        raise Misuse("an empty passphrase guards nothing", "choose one, or say --no-passphrase")
    if _asked("the same again: ") != first:
        raise Misuse("the two are not the same", "nothing was made; start again")
    return first


def _asked(question: str) -> bytes:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise Misuse("a passphrase is needed, and there is no terminal to ask for it", _OTHERWISE) from None
    return getpass.getpass(question).encode()
