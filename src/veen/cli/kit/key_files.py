"""Identity cards as commands find them: in a client directory, or in a file that someone sent."""

import getpass
import os
from pathlib import Path

from plumbing.cli.command import Misuse
from veen.cli.kit.exit_status import hinted
from veen.client import Card, ReaderKey, StreamKey, durable
from veen.client.client_dir import CARD
from veen.client.identity_card import MAX_CARD_BYTES
from veen.core import DhKey, Malformed, Unavailable, Unverified


def read_card(path: Path) -> Card:
    """A card whose signatures hold. A client directory has its own, which takes no passphrase to read."""
    file = path / CARD if path.is_dir() else path
    try:
        data = durable.read_file(file, MAX_CARD_BYTES)
    except Unavailable as error:
        raise hinted(error, "a card is the card.cbor of a client directory") from None
    try:
        card = Card.decode(data)
        card.verify()
    except Malformed as error:
        raise hinted(Malformed(str(file), f"not an identity card: {error.reason}"), _ASK_AGAIN) from None
    except Unverified as error:
        raise hinted(Unverified(str(file), error.reason), _ASK_AGAIN) from None
    return card


_ASK_AGAIN = "ask its owner for card.cbor of the client directory"


_MOST_BYTES = 1 << 16


def read_stream_key(file: Path) -> ReaderKey | StreamKey:
    """The key in such a file, whichever half it is."""
    data = durable.read_file(file, _MOST_BYTES)
    try:
        return ReaderKey.decode(data)
    except Malformed:
        pass
    try:
        return StreamKey.decode(data)
    except Malformed as error:
        hint = "veen stream-key export makes such a file"
        raise hinted(Malformed(str(file), f"not the key of a stream: {error.reason}"), hint) from None


def public_half(key: ReaderKey | StreamKey) -> StreamKey:
    """What may be shown of it."""
    return StreamKey(key.name, DhKey(key.secret).public_key) if isinstance(key, ReaderKey) else key


PASSPHRASE_VARIABLE = "VEEN_PASSPHRASE"
_OTHERWISE = f"give --passphrase-file FILE, or set {PASSPHRASE_VARIABLE}"


def passphrase_for_new(file: Path | None, none: bool, what: str) -> bytes | None:
    """The passphrase of a keystore that is to be made; None where it is to have none."""
    if none and file is not None:
        raise Misuse("--no-passphrase and --passphrase-file contradict each other", "give one of them")
    if none:
        return None
    return _given(file) or _chosen(what)


def passphrase_for_existing(file: Path | None, what: str) -> bytes:
    """The passphrase that a keystore has."""
    return _given(file) or _asked(f"passphrase of {what}: ")


def _given(file: Path | None) -> bytes | None:
    if file is not None:
        return _of_file(file)
    return os.environb.get(PASSPHRASE_VARIABLE.encode()) or None


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
