"""A check: one claim about a hub, its section in the specification, and the code that tests it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from veen.selftest.check_context import CheckContext

Body: TypeAlias = Callable[[CheckContext], str | None]


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns None or a note on what it covered, or raises `Failed` or `Skipped`."""

    id: str
    claim: str
    spec: str
    run: Body


def claim(check_id: str, text: str, spec: str) -> Callable[[Body], Check]:
    """Turn a function into the check of a claim."""
    return lambda run: Check(check_id, text, spec, run)
