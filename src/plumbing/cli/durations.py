"""Options that take a duration: seconds, or a number with a unit."""

import re
from fractions import Fraction
from typing import Any

import typer

_METAVAR, _METAVAR_DAYS = "SECONDS|5m", "SECONDS|7d"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)([smhd]?)", re.ASCII)
_EXPECTED = "give seconds, or a number with s, m, h or d, as in 90, 15m or 7d"


def whole_option(name: str, *, help: str, least: int, most: int | None = None, show_default: bool | str = True) -> Any:
    """An option that takes a duration in whole seconds."""

    def parse(text: str | int) -> int:
        return whole_seconds(text, least, most)

    metavar = _METAVAR_DAYS if most is None or most >= 7 * _SECONDS["d"] else _METAVAR
    return typer.Option(name, metavar=metavar, help=help, show_default=show_default, parser=parse)


def option(name: str, *, help: str, least: float, most: float | None = None, show_default: bool | str = True) -> Any:
    """An option that takes a duration, down to fractions of a second."""

    def parse(text: str | float) -> float:
        return float(_seconds(text, least, most))

    return typer.Option(name, metavar=_METAVAR, help=help, show_default=show_default, parser=parse)


def whole_seconds(text: str | int, least: int, most: int | None = None) -> int:
    """Parse a duration of whole seconds."""
    seconds = _seconds(text, least, most)
    if seconds.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of seconds")
    return int(seconds)


def _seconds(text: str | float, least: float, most: float | None) -> Fraction:
    """The exact number of seconds. A default value arrives as a number, not as text."""
    match = _DURATION.fullmatch(f"{text}")
    if match is None:
        raise ValueError(f"{text!r} is not a duration; {_EXPECTED}")
    seconds = Fraction(match[1]) * _SECONDS[match[2]]
    if float(seconds) < least:
        raise ValueError(f"{text!r} is less than {_with_unit(least)}")
    if most is not None and float(seconds) > most:
        raise ValueError(f"{text!r} is more than {_with_unit(most)}")
    return seconds


def _with_unit(bound: float) -> str:
    return "1 second" if bound == 1 else f"{bound} seconds"
