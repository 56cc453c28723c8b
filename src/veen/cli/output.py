"""Results as both commands show them, and remarks in the name of `veen`."""

from terminalface import output
from terminalface.output import (
    Json,
    Marked,
    Report,
    Seen,
    Tone,
    Value,
    console,
    document,
    facts,
    line,
    moment,
    progress,
    table,
    tally,
    text_of,
)

__all__ = [
    "Json",
    "Marked",
    "Report",
    "Seen",
    "Tone",
    "Value",
    "console",
    "document",
    "facts",
    "line",
    "moment",
    "progress",
    "remark",
    "table",
    "tally",
    "text_of",
]


def remark(text: str) -> None:
    """A word beside the result."""
    output.remark("veen", text)
