"""How a check ends other than well: the claim does not hold, or nothing here can tell."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
_LONGEST = 100


class Failed(Exception):
    """The claim does not hold; the text says what was seen."""


class Skipped(Exception):
    """The claim cannot be tried at this hub, with what was given; the text says why."""


def expect(holds: bool, otherwise: str) -> None:
    """Go on where it holds. Not an `assert`: it must be there however Python is started."""
    if not holds:
        raise Failed(otherwise)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Go on where both are the same."""
    if found != wanted:
        raise Failed(f"{what} is {_shown(found)}, not {_shown(wanted)}")


def only(items: Iterable[T], what: str) -> T:
    """The one item there must be."""
    found = list(items)
    if len(found) != 1:
        raise Failed(f"{len(found)} {what}, not one")
    return found[0]


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
