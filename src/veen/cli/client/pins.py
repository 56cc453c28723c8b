"""Whom to believe, as people say it."""

from pathlib import Path

from terminalface.command import Misuse
from veen.cli.client import keyfiles
from veen.cli.failures import hinted
from veen.client.trust import Pin
from veen.core import Malformed, VeenError
from veen.core.dh import KEY_BYTES

WHERE_FROM = (
    "veen hub key, where the hub runs, shows its hub_id; a copy of its hub-identity.json and hub-identity.sig, side by "
    "side, will do, too"
)


def parse(text: str) -> Pin:
    """What --pin names."""
    try:
        return Pin.parse(text)
    except Malformed as error:
        raise Misuse(str(error), WHERE_FROM) from None
    except VeenError as error:
        raise hinted(error, WHERE_FROM) from None


def anchor(text: str | None) -> bytes | None:
    """A hub's id or a key's fingerprint, from what --pin names: what can be held against a hub's own word."""
    if text is None:
        return None
    found = parse(text)
    if found.certificate is not None:
        raise Misuse("a certificate says nothing of what a hub signed", "pin the hub's id or a key's fingerprint")
    return found.key if found.record is None else found.record.hub_id


def reader(text: str | None) -> bytes | None:
    """A stream's public key, from what --reader names."""
    if text is None:
        return None
    try:
        key = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        key = b""
    if len(key) == KEY_BYTES:
        return key
    file = Path(text)
    if not file.is_file():
        hint = "veen stream-key show NAME, where it is read, shows its public_key; a file from export will do, too"
        raise Misuse(f"--reader {text}: neither 64 hex digits nor a file", hint)
    return keyfiles.public_half(keyfiles.read(file)).public_key
