"""Results as both commands show them, and remarks in the name of `veen`."""

from plumbing.cli import result_output
from plumbing.cli.result_output import (
    Formatted,
    Json,
    Marked,
    Report,
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
    "Formatted",
    "Json",
    "Marked",
    "Report",
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
    result_output.remark("veen", text)
