"""Who runs the blocking work of a program: real threads, or a simulator that runs the same work at chosen moments."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Protocol


class Worker(Protocol):
    """Runs jobs one after the other, in order, off the thread that adds them. A job must not raise."""

    def add(self, job: Callable[[], None]) -> None: ...

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
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
