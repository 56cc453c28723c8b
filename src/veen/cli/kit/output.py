"""The output functions of `plumbing.cli.result_output`, and remarks prefixed with `veen:`."""

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
    """Write a remark to standard error."""
    result_output.remark("veen", text)
