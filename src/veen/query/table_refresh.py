"""The tables that a service answers from, kept up with the log and in few files, so that nobody has to see to it.

A query brings in what came since the last one. So that this is never much, the log is also looked at from time to time;
and after each look, files that have become too many are merged, beside the way of queries.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from veen.client.durable import Busy
from veen.core import Unavailable, VeenError
from veen.pipeline.decoding import Keys
from veen.pipeline.jobs import Progress, in_processes, no_progress, run_inline
from veen.pipeline.selection import Selection
from veen.pipeline.tables import Loaded, Tables, load
from veen.pipeline.tables.compacting import Compacted, tidy

LOOK_EVERY_S = 5.0
_MANY_JOBS = 4  # some thousand entries: processes take a second to start, and leave this one to those who ask

J = TypeVar("J")
Report = Callable[[str, BaseException], None]


class Stopped(Unavailable):
    """The service ends, and what was under way is left for the next run."""


class SharedRounds:
    """Work in rounds, one after the other. Who asks is given one that begins after that, and shares it with others."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._now: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self, wait_s: float | None = None) -> bool:
        """Whether such a round ended in time; where not, it goes on. Raises what the round raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._now))
            self._next.add_done_callback(_heard)
        asked = self._next
        done, _ = await asyncio.wait((asked,), timeout=wait_s)
        if done:
            asked.result()
        return bool(done)

    async def stop(self) -> None:
        left = [task for task in (self._now, self._next) if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _round(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._now, self._next = self._next, None
        await self._work()


def _heard(task: asyncio.Task[None]) -> None:
    """What a round raised is nobody's business where nobody waited for it to the end: the next one will tell."""
    if not task.cancelled():
        task.exception()


class TableRefresher:
    """Fills the tables of one service, and tidies them. Its methods block, and may be called by several threads."""

    def __init__(self, tables: Tables, selection: Selection, keys: Keys) -> None:
        self._tables = tables
        self._selection = selection
        self._keys = keys
        self._stopping = threading.Event()
        self.progress = 0, 0  # parts of the log that are read, of so many that are to be

    def refresh(self, epochs: Sequence[int]) -> Loaded:
        """Bring the tables up to where the log is. Raises `Busy` where another process does that."""
        self.progress = 0, 0
        selection = replace(self._selection, epochs=tuple(epochs))
        return load(self._tables, selection, self._keys, run_jobs, progress=self._on)

    def tidy(self) -> Compacted:
        """Merge files that have become too many. Raises `Busy` where another process changes the tables."""
        return tidy(self._tables, progress=self._check)

    def stop(self) -> None:
        """Let nothing begin that is not begun: what is committed stays, and the rest is for the next run."""
        self._stopping.set()

    def _on(self, done: int, total: int) -> None:
        self.progress = done, total
        self._check(done, total)

    def _check(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise Stopped("the service ends")


def run_jobs(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
    """A few jobs here, many in processes."""
    return in_processes()(work, jobs, progress) if len(jobs) >= _MANY_JOBS else run_inline(work, jobs, progress)


async def refresh_regularly(
    keeper: TableRefresher, refresh: Callable[[], Awaitable[None]], report: Report, every_s: float = LOOK_EVERY_S
) -> None:
    """Look at the log from time to time, until cancelled. What fails is told once, until it fails in another way."""
    said = ""
    while True:
        try:
            await refresh()
            with suppress(Busy):
                await asyncio.to_thread(keeper.tidy)
            said = ""
        except VeenError as error:
            if str(error) != said:
                report("tables", error)
            said = str(error)
        await asyncio.sleep(every_s)
