"""The one timer of a server: a coarse clock for all connections, which are checked at every tick."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate


class ConnectionTimer:
    """Time in whole intervals, so that a request needs no timer and no system call.

    The clock counts ticks, not seconds. If the loop was blocked, no time passed for peers that could not be served.
    """

    __slots__ = ("_handle", "_interval_s", "_on_tick", "date", "now")

    def __init__(self, interval_s: float, on_tick: Callable[[], None]) -> None:
        self.now = 0.0
        self.date = _date()
        self._interval_s = interval_s
        self._on_tick = on_tick
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def overdue(self, since: float, limit_s: float) -> bool:
        """Whether more than `limit_s` have certainly passed: a time stamp is up to one interval old."""
        return self.now - since > limit_s + self._interval_s

    def _tick(self) -> None:
        self.now += self._interval_s
        self.date = _date()
        self.start()
        self._on_tick()


def _date() -> bytes:
    return formatdate(usegmt=True).encode()
