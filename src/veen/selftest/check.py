"""A check is one claim about a hub, its section in the specification, and the code that tests it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
C = TypeVar("C")  # what the checks of a suite work with
_MAX_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class Check(Generic[C]):
    """`run` returns None or a note on what it covered, or raises `Failed` or `Skipped`."""

    id: str
    claim: str
    spec: str
    run: Callable[[C], str | None]


class Suite(Generic[C]):
    """Checks in the order of their definition."""

    def __init__(self) -> None:
        self._checks: list[Check[C]] = []

    def __iter__(self) -> Iterator[Check[C]]:
        return iter(self._checks)

    def claim(self, check_id: str, text: str, spec: str) -> Callable[[Callable[[C], str | None]], Check[C]]:
        """Turn a function into the check of a claim."""

        def register(run: Callable[[C], str | None]) -> Check[C]:
            check = Check(check_id, text, spec, run)
            self._checks.append(check)
            return check

        return register


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


@contextmanager
def case(name: str) -> Iterator[None]:
    """Name the case in the text of a failure."""
    try:
        yield
    except Failed as failed:
        raise Failed(f"{name}: {failed}") from None


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
