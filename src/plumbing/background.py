"""The work of a program beside its main flow: jobs in threads, and coroutines that no caller awaits.

Jobs run in real threads, or in a simulator that runs them at chosen moments.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Protocol


class Worker(Protocol):
    """Runs jobs one after the other, in order, off the thread that adds them. A job must not raise."""

    def add(self, job: Callable[[], None], /) -> None: ...

    def close(self) -> None:
        """Wait until all jobs have run, and end."""


class Background:
    """Starts the threads of a program."""

    def worker(self, name: str) -> Worker:
        return _WorkerThread(name)

    def pool(self, threads: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads, name)


class _WorkerThread:
    """A daemon: a job that hangs on a broken disk must not keep the process from exiting."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.add = self._jobs.put
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class CoreShare:
    """Keeps the work of one thread below a share of one core, so that it does not delay other programs."""

    def __init__(self, share: float, wait: Callable[[float], object] = time.sleep) -> None:
        """The share that is used between this call and the last `pause`."""
        self._share = share
        self._wait = wait
        self._resumed = time.thread_time()

    def pause(self) -> None:
        """Wait in proportion to the processor time since the last pause."""
        self._wait((time.thread_time() - self._resumed) * (1 / self._share - 1))
        self._resumed = time.thread_time()


class Tasks:
    """Coroutines that run until they end or `stop` cancels them. The event loop alone would not keep them alive."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel all, and wait until they have ended."""
        for task in self._running:
            task.cancel()
        await self.finish()
