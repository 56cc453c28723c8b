"""What stands for the signs of ours that whoever looks may not have: an ellipsis, a dash, a tick, a box, a bar.

A stream that cannot carry a sign gets the ASCII for it. So does one that could, where the locale is C: on a terminal,
on standard error, in help. Results in a pipe are the same in any locale, and letters are kept wherever they get by.
"""

import codecs
import locale
import sys
from io import TextIOWrapper
from typing import TextIO

_ASCII = {
    "…": "...",
    "–": "-",
    "§": "s.",
    "µ": "u",
    "✓": "ok",
    "•": "*",
    "─": "-",
    "━": "-",
    "│": "|",
    "┃": "|",
    **dict.fromkeys(map(chr, range(0x2504, 0x2580)), "+"),  # what else boxes are drawn with
    **dict.fromkeys(map(chr, range(0x2580, 0x25A0)), "#"),  # blocks, of which bars are made
}
_TABLE = str.maketrans(_ASCII)
_OTHERS_LOST, _OTHERS_KEPT = "plumbing.lost", "plumbing.kept"


def to_ascii(text: str) -> str:
    """The text with nothing in place of our signs but ASCII."""
    return text.translate(_TABLE)


def for_stream(text: str, stream: TextIO | None = None) -> str:
    """The text as standard output, or another stream, can show it."""
    return to_ascii(text) if needs_ascii(stream or sys.stdout) else text


def needs_ascii(stream: TextIO) -> bool:
    """Whether ASCII is what its reader has."""
    return not is_unicode(stream) or locale.setlocale(locale.LC_CTYPE) == "C"


def is_unicode(stream: TextIO) -> bool:
    """Whether any text goes through."""
    return (stream.encoding or "utf-8").lower().startswith("utf")


def prepare(stream: TextIO) -> None:
    """Let nothing fail for a sign that a stream cannot carry or its terminal does not have."""
    if not isinstance(stream, TextIOWrapper):
        return
    if not is_unicode(stream):
        stream.reconfigure(errors=_OTHERS_LOST)
    elif needs_ascii(stream) and (stream.isatty() or stream is sys.stderr):
        stream.reconfigure(encoding="ascii", errors=_OTHERS_KEPT)
    else:
        stream.reconfigure(errors="replace")


def _lost(error: UnicodeError) -> tuple[str | bytes, int]:
    """What a stream cannot carry, and is none of our signs, is a question mark."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end


def _kept(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is none of our signs goes out as it came: a name, or what somebody wrote."""
    assert isinstance(error, UnicodeEncodeError)
    return to_ascii(error.object[error.start : error.end]).encode("utf-8", "replace"), error.end


codecs.register_error(_OTHERS_LOST, _lost)
codecs.register_error(_OTHERS_KEPT, _kept)
