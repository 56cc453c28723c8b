"""Result output shared with `veen`, and remarks prefixed with `veil`."""

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
    """Print a remark on standard error."""
    result_output.remark("veil", text)
