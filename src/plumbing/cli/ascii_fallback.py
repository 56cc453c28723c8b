"""ASCII replacements for the symbols in our output: ellipsis, dash, tick, box lines and bars.

A stream whose encoding lacks a symbol gets the replacement. In the C locale, terminals, standard error and help get
it too, although UTF-8 would pass. Results in a pipe are the same in every locale. Letters are never replaced unless the
encoding lacks them.
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
    **dict.fromkeys(map(chr, range(0x2504, 0x2580)), "+"),  # the other box-drawing characters
    **dict.fromkeys(map(chr, range(0x2580, 0x25A0)), "#"),  # block elements, used in bars
}
_TABLE = str.maketrans(_ASCII)
# Names of the codec error handlers: other characters become a question mark, or pass through as UTF-8.
_REPLACE_OTHERS, _KEEP_OTHERS = "plumbing.replace", "plumbing.keep"


def to_ascii(text: str) -> str:
    """Replace our symbols by ASCII; leave other characters alone."""
    return text.translate(_TABLE)


def for_stream(text: str, stream: TextIO | None = None) -> str:
    """The text as `stream` (default: standard output) can show it."""
    return to_ascii(text) if needs_ascii(stream or sys.stdout) else text


def needs_ascii(stream: TextIO) -> bool:
    return not is_unicode(stream) or locale.setlocale(locale.LC_CTYPE) == "C"


def is_unicode(stream: TextIO) -> bool:
    """Whether the stream can encode every character."""
    return (stream.encoding or "utf-8").lower().startswith("utf")


def prepare(stream: TextIO) -> None:
    """Make sure that no write fails because of a character that the stream cannot encode."""
    if not isinstance(stream, TextIOWrapper):
        return
    if not is_unicode(stream):
        stream.reconfigure(errors=_REPLACE_OTHERS)
    elif needs_ascii(stream) and (stream.isatty() or stream is sys.stderr):
        stream.reconfigure(encoding="ascii", errors=_KEEP_OTHERS)
    else:
        stream.reconfigure(errors="replace")


def _replace_others(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end


def _keep_others(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    return to_ascii(error.object[error.start : error.end]).encode("utf-8", "replace"), error.end


codecs.register_error(_REPLACE_OTHERS, _replace_others)
codecs.register_error(_KEEP_OTHERS, _keep_others)
