"""Keep the tables of a service up to date with the log, and in few files.

Each query loads the entries since the last one. To keep that small, a background task also loads regularly, and then
merges files that became too many, without delaying queries.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from veen.client.local_files import Busy
from veen.core import Unavailable, VeenError
from veen.pipeline.decoding import Keys
from veen.pipeline.jobs import Progress, in_processes, no_progress, run_inline
from veen.pipeline.selection import Selection
from veen.pipeline.tables import Loaded, Tables, load
from veen.pipeline.tables.compacting import Compacted, tidy

REFRESH_EVERY_S = 5.0
_POOL_MIN_JOBS = 4  # a few thousand entries; processes take a second to start but keep this one responsive

J = TypeVar("J")
Report = Callable[[str, BaseException], None]


class Stopped(Unavailable):
    """The service is stopping. The next run continues the work."""


class SharedRounds:
    """Work in consecutive rounds. Each caller gets a round that starts after its call, shared with other callers."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def run(self, wait_s: float | None = None) -> bool:
        """Whether a round finished in time; otherwise it continues. Raises the error of the round."""
        if self._next is None:
            self._next = asyncio.create_task(self._round(self._current))
            self._next.add_done_callback(_retrieve_exception)
        round_task = self._next
        done, _ = await asyncio.wait((round_task,), timeout=wait_s)
        if done:
            round_task.result()
        return bool(done)

    async def stop(self) -> None:
        pending = [task for task in (self._current, self._next) if task is not None]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _round(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        self._current, self._next = self._next, None
        await self._work()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception, so that asyncio does not log it. The next round reports a lasting problem."""
    if not task.cancelled():
        task.exception()


class TableRefresher:
    """Loads and merges the tables of one service. Its methods block and are thread-safe."""

    def __init__(self, tables: Tables, selection: Selection, keys: Keys) -> None:
        self._tables = tables
        self._selection = selection
        self._keys = keys
        self._stopping = threading.Event()
        self.progress = 0, 0  # parts of the log done and in total

    def refresh(self, epochs: Sequence[int]) -> Loaded:
        """Load the tables up to the end of the log. Raises `Busy` if another process does so."""
        self.progress = 0, 0
        selection = replace(self._selection, epochs=tuple(epochs))
        return load(self._tables, selection, self._keys, run_jobs, progress=self._on)

    def tidy(self) -> Compacted:
        """Merge files that became too many. Raises `Busy` if another process changes the tables."""
        return tidy(self._tables, progress=self._check)

    def stop(self) -> None:
        """Start no further jobs. Committed work stays; the next run does the rest."""
        self._stopping.set()

    def _on(self, done: int, total: int) -> None:
        self.progress = done, total
        self._check(done, total)

    def _check(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise Stopped("the service is stopping")


def run_jobs(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
    """Run few jobs in this process, many in processes."""
    return in_processes()(work, jobs, progress) if len(jobs) >= _POOL_MIN_JOBS else run_inline(work, jobs, progress)


async def refresh_regularly(
    keeper: TableRefresher, refresh: Callable[[], Awaitable[None]], report: Report, every_s: float = REFRESH_EVERY_S
) -> None:
    """Refresh and merge regularly until cancelled. A repeated error is reported once."""
    last_error = ""
    while True:
        try:
            await refresh()
            with suppress(Busy):
                await asyncio.to_thread(keeper.tidy)
            last_error = ""
        except VeenError as error:
            if str(error) != last_error:
                report("tables", error)
            last_error = str(error)
        await asyncio.sleep(every_s)
