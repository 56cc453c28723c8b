"""Bounds on the memory of a running query."""

from collections.abc import Callable
from dataclasses import dataclass


def _ignore(held: int, weight: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class QueryWatch:
    """`on` is called regularly with the rows and bytes held; an exception from it stops the query.

    A Spark worker cannot call it. A worker stops by itself at `max_held` or `max_bytes`; `on` sees that at the merge.
    """

    on: Callable[[int, int], None] = _ignore
    max_held: int | None = None
    max_bytes: int | None = None

    def exceeded(self, held: int, weight: int) -> bool:
        too_many = self.max_held is not None and held > self.max_held
        return too_many or (self.max_bytes is not None and weight > self.max_bytes)


UNWATCHED = QueryWatch()
