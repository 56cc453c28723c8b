"""Contacts as QR codes, made by `segno`."""

import io
from pathlib import Path

from veil.lanes.lane import library


def for_terminal(text: str) -> str:
    segno = library("segno", "QR code")
    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, compact=True)
    return out.getvalue()


def write_svg(text: str, path: Path) -> None:
    segno = library("segno", "QR code")
    with path.open("wb") as file:
        segno.make(text, error="l", micro=False).save(file, kind="svg", scale=4)
