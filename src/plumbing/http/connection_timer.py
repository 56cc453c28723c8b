"""The one timer of a server. It keeps the coarse clock that connections read, and looks at each of them in turn."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate


class Sweep:
    """Time in whole intervals: a request costs no timer and no system call.

    The clock counts sweeps, not seconds. If the loop stood still, no time passed for the peers that could not be heard.
    """

    __slots__ = ("_handle", "_interval_s", "_visit", "date", "now")

    def __init__(self, interval_s: float, visit: Callable[[], None]) -> None:
        self.now = 0.0
        self.date = _date()
        self._interval_s = interval_s
        self._visit = visit
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._interval_s, self._sweep)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def overdue(self, since: float, limit_s: float) -> bool:
        """Whether more than `limit_s` have surely passed: a stamp is up to one interval older than what it marks."""
        return self.now - since > limit_s + self._interval_s

    def _sweep(self) -> None:
        self.now += self._interval_s
        self.date = _date()
        self.start()
        self._visit()


def _date() -> bytes:
    return formatdate(usegmt=True).encode()
