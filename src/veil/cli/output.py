"""Results as both commands show them, and remarks in the name of `veil`."""

from plumbing.cli import result_output
from plumbing.cli.result_output import (
    Formatted,
    Json,
    Marked,
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
    "Formatted",
    "Json",
    "Marked",
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
    result_output.remark("veil", text)
