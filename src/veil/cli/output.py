"""Results as both commands show them, and remarks in the name of `veil`."""

from terminalface import output
from terminalface.output import (
    Json,
    Marked,
    Seen,
    Tone,
    Value,
    console,
    document,
    facts,
    moment,
    table,
    text_of,
)

__all__ = [
    "Json",
    "Marked",
    "Seen",
    "Tone",
    "Value",
    "console",
    "document",
    "facts",
    "moment",
    "remark",
    "table",
    "text_of",
]


def remark(text: str) -> None:
    """A word beside the result."""
    output.remark("veil", text)
