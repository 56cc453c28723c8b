"""Who keeps an eye on a question that is being answered, so that it takes no more than it may."""

from collections.abc import Callable
from dataclasses import dataclass


def _nobody(held: int, weight: int) -> None:
    """Let it go on."""


@dataclass(frozen=True, slots=True)
class QueryWatch:
    """`on` hears now and then how many rows are held and how many bytes they are; what it raises ends the work.

    A worker of Spark cannot ask it. It stops by itself once it holds more than the two bounds, and `on` hears of it.
    """

    on: Callable[[int, int], None] = _nobody
    max_held: int | None = None
    max_bytes: int | None = None

    def exceeded(self, held: int, weight: int) -> bool:
        too_many = self.max_held is not None and held > self.max_held
        return too_many or (self.max_bytes is not None and weight > self.max_bytes)


UNWATCHED = QueryWatch()
