"""Queues before the executor: what takes long does not hold up what is short, and nobody's work fills the queue.

The executor's own queue knows neither bounds nor owners. Work waits here instead, and no more is handed over than may
be under way. Owners take turns, and what nobody waits for any more is not begun.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from veen.hub.rota import Rota


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do on the executor."""

    run: Callable[[], None]
    owner: object = None  # a connection
    is_lost: Callable[[], bool] = lambda: False


class Lane:
    """Work of one kind. On the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        at_once: int,
        most: int | None = None,
        share: int | None = None,
        on_relieved: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` jobs wait, of which `share` are one owner's; None is no bound.

        `on_relieved` is called once after refusals, when at most half of `share` wait.
        """
        self._loop = loop
        self._executor = executor
        self._free = at_once
        self._most = most
        self._share = share
        self._on_relieved = on_relieved
        self._is_refusing = False
        self._rota: Rota[Job] = Rota()

    @property
    def waiting(self) -> int:
        return self._rota.waiting

    def put(self, job: Job) -> bool:
        """False where it can neither be begun nor wait."""
        if self._free:
            self._begin(job)
            return True
        if not self._has_room(job.owner):
            self._is_refusing = True
            return False
        self._rota.put(job.owner, job)
        return True

    def _has_room(self, owner: object) -> bool:
        if self._share is not None and self._rota.count(owner) >= self._share:
            return False
        if self._most is not None and self.waiting >= self._most:
            self._rota.keep(lambda waiting: not waiting.is_lost())
            return self.waiting < self._most
        return True

    def _begin(self, job: Job) -> None:
        self._free -= 1
        try:
            self._executor.submit(self._do, job)
        except RuntimeError:  # it has closed: the hub stops, and nobody waits
            self._free += 1

    def _do(self, job: Job) -> None:
        """On the executor."""
        try:
            job.run()
        finally:
            self._loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._free += 1
        while self._free and (job := self._rota.take()) is not None:
            if not job.is_lost():
                self._begin(job)
        if self._is_refusing and self.waiting <= (self._share or 0) // 2:
            self._is_refusing = False
            self._on_relieved()
