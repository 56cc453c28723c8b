"""Lengths of time as people write them: seconds, or a number with its unit."""

import re
from fractions import Fraction
from typing import Any

import typer

_SHORT, _LONG = "SECONDS|5m", "SECONDS|7d"  # as help shows what is taken
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WRITTEN = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)([smhd]?)", re.ASCII)
_ACCEPTED = "give seconds, or a number with s, m, h or d, as in 90, 15m or 7d"


def whole_option(name: str, *, help: str, least: int, most: int | None = None, show_default: bool | str = True) -> Any:
    """An option that takes a length of time in whole seconds."""

    def read(written: str | int) -> int:
        return whole_seconds(written, least, most)

    form = _LONG if most is None or most >= 7 * _SECONDS["d"] else _SHORT
    return typer.Option(name, metavar=form, help=help, show_default=show_default, parser=read)


def option(name: str, *, help: str, least: float, most: float | None = None, show_default: bool | str = True) -> Any:
    """An option that takes a length of time, down to parts of a second."""

    def read(written: str | float) -> float:
        return float(_seconds(written, least, most))

    return typer.Option(name, metavar=_SHORT, help=help, show_default=show_default, parser=read)


def whole_seconds(written: str | int, least: int, most: int | None = None) -> int:
    """The seconds of a length of time that has no parts of one."""
    found = _seconds(written, least, most)
    if found.denominator != 1:
        raise ValueError(f"{written!r} is not a whole number of seconds")
    return int(found)


def _seconds(written: str | float, least: float, most: float | None) -> Fraction:
    """The seconds, exactly. A default comes as the number that it is."""
    found = _WRITTEN.fullmatch(f"{written}")
    if found is None:
        raise ValueError(f"{written!r} is no length of time; {_ACCEPTED}")
    span = Fraction(found[1]) * _SECONDS[found[2]]
    if float(span) < least:
        raise ValueError(f"{written!r} is less than {_told(least)}")
    if most is not None and float(span) > most:
        raise ValueError(f"{written!r} is more than {_told(most)}")
    return span


def _told(bound: float) -> str:
    return "1 second" if bound == 1 else f"{bound} seconds"
