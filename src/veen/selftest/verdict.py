"""How a check ends unless it passes: `Failed` or `Skipped`."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
_MAX_SHOWN_CHARS = 100


class Failed(Exception):
    """The claim is false; the text says what was observed."""


class Skipped(Exception):
    """The claim cannot be tested at this hub with the given options; the text says why."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise `Failed` unless `holds`. Not an `assert`, because `python -O` must not remove it."""
    if not holds:
        raise Failed(otherwise)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Raise `Failed` unless both are equal."""
    if found != wanted:
        raise Failed(f"{what} is {_format(found)}, not {_format(wanted)}")


def only(items: Iterable[T], what: str) -> T:
    """The single item; raise `Failed` if there is not exactly one."""
    found = list(items)
    if len(found) != 1:
        raise Failed(f"found {len(found)} {what}, expected one")
    return found[0]


def _format(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return f"({', '.join(map(_format, value))})"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
