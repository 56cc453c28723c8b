"""What strangers wrote, as it can be shown: no byte of it reaches a terminal as a command."""

from datetime import UTC, datetime

from veen.cli.kit.output import Formatted

_JOINERS = "\u200c\u200d"  # between letters and within emoji; all else that is not printable is written out
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONGEST = 2_000
_LONGEST_HEX = 32


def printable(text: str) -> str:
    """On one line, with whatever would move the cursor or hide something written out."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark in _JOINERS else _escaped(mark) for mark in text)


def _escaped(mark: str) -> str:
    number = ord(mark)
    return _ESCAPES.get(mark) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def text_of(body: bytes) -> str | None:
    """The body, if it is text."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def line_of(body: bytes) -> str:
    """The whole body on one line, for a pipe."""
    text = text_of(body)
    return f"hex:{body.hex()}" if text is None else printable(text)


def preview(body: bytes) -> str:
    """As much of the body as people want to see."""
    text = text_of(body)
    if text is None:
        more = "…" if len(body) > _LONGEST_HEX else ""
        return f"{size(len(body))} that are not text: {body[:_LONGEST_HEX].hex()}{more}"
    if len(text) > _LONGEST:
        return f"{printable(text[:_LONGEST])}… ({size(len(body))})"
    return printable(text)


def size(count: int) -> str:
    """A number of bytes as people say it."""
    if count < 1 << 10:
        return f"{count} byte{'' if count == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB"):
        count_in = count / (1 << 10)
        if count_in < 1 << 10 or unit == "GiB":
            return f"{count_in:.1f} {unit}"
        count = int(count_in)
    raise AssertionError("there is a last unit")


def short_hex(name: bytes) -> str:
    """A hash or key as people tell them apart."""
    return f"{name.hex()[:12]}…"


def short(name: bytes) -> Formatted:
    """The same where people look; the whole of it elsewhere."""
    return Formatted(name.hex(), short_hex(name))


def when(hub_ts: int) -> str:
    """A hub's time, as short as a column allows."""
    try:
        return f"{datetime.fromtimestamp(hub_ts, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(hub_ts)
