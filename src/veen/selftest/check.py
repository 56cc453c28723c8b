"""A check: one claim about a hub, the section it comes from, and how to try it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from veen.selftest.check_context import CheckContext

Body: TypeAlias = Callable[[CheckContext], str | None]


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns, or returns a word on what it covered, or raises `Failed` or `Skipped`."""

    id: str
    claim: str
    spec: str
    run: Body


def claim(check_id: str, text: str, spec: str) -> Callable[[Body], Check]:
    """Make a function the way to try a claim."""
    return lambda run: Check(check_id, text, spec, run)
