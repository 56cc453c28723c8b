"""Bytes as people write them: text as it is, anything else after hex: or from a file after @."""

from pathlib import Path

from terminalface.command import Misuse

_HEX, _FILE = "hex:", "@"


def data_of(text: str) -> bytes:
    """The bytes that a word stands for."""
    if not text.startswith(_HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(_HEX))
    except ValueError:
        raise Misuse(f"{text!r} is not hex", "give hex: and an even number of hex digits") from None


def content_of(text: str) -> bytes:
    """The same, or a file's content after @."""
    return Path(text[1:]).read_bytes() if text.startswith(_FILE) else data_of(text)


def id_of(text: str, what: str) -> bytes:
    """32 bytes in hex: a message, a wallet, a task."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise Misuse(f"{text!r} is not {what}: 64 hex digits", "commands that list them show them whole with --json")
    return found
