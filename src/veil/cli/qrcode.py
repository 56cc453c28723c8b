"""Contacts as QR codes, made by `segno`."""

import io
import sys
from pathlib import Path

from terminalface import signs
from veil.lanes.lane import library


def for_terminal(text: str) -> str:
    segno = library("segno", "QR code")
    out = io.StringIO()
    # The compact form is drawn with blocks, the other with colours.
    segno.make(text, error="l", micro=False).terminal(out, compact=not signs.is_plain(sys.stdout))
    return out.getvalue()


def write_svg(text: str, path: Path) -> None:
    segno = library("segno", "QR code")
    with path.open("wb") as file:
        segno.make(text, error="l", micro=False).save(file, kind="svg", scale=4)
