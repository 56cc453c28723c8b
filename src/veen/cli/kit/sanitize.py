"""Untrusted bytes made safe to print: no control character of a message reaches the terminal."""

from datetime import UTC, datetime

from veen.cli.kit.output import Formatted

_JOINERS = "\u200c\u200d"  # needed between letters and within emoji; every other unprintable character is escaped
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONGEST = 2_000
_LONGEST_HEX = 32


def printable(text: str) -> str:
    """Return the text on one line, with every character escaped that could move the cursor or hide text."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark in _JOINERS else _escaped(mark) for mark in text)


def _escaped(mark: str) -> str:
    number = ord(mark)
    return _ESCAPES.get(mark) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def text_of(body: bytes) -> str | None:
    """Return the body as text, or None if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def line_of(body: bytes) -> str:
    """Return the whole body on one line, for a pipe."""
    text = text_of(body)
    return f"hex:{body.hex()}" if text is None else printable(text)


def preview(body: bytes) -> str:
    """Return the start of the body on one line, for a terminal."""
    text = text_of(body)
    if text is None:
        more = "…" if len(body) > _LONGEST_HEX else ""
        return f"{size(len(body))}, not text: {body[:_LONGEST_HEX].hex()}{more}"
    return shortened(text)


def shortened(text: str) -> str:
    """Return the start of the text on one line."""
    if len(text) > _LONGEST:
        return f"{printable(text[:_LONGEST])}… ({size(len(text.encode()))})"
    return printable(text)


def size(count: int) -> str:
    """Format a number of bytes, such as 1.5 MiB."""
    if count < 1 << 10:
        return f"{count} byte{'' if count == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB"):
        count_in = count / (1 << 10)
        if count_in < 1 << 10 or unit == "GiB":
            return f"{count_in:.1f} {unit}"
        count = int(count_in)
    raise AssertionError("the last unit always returns")


def short_hex(name: bytes) -> str:
    """Return the first 12 hex digits of a hash or key."""
    return f"{name.hex()[:12]}…"


def short(name: bytes) -> Formatted:
    """Show the short form on a terminal and all hex digits in a pipe."""
    return Formatted(name.hex(), short_hex(name))


def when(hub_ts: int) -> str:
    """Format a hub time for a table column."""
    try:
        return f"{datetime.fromtimestamp(hub_ts, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(hub_ts)
