"""Threads of a simulated process. A job runs as one step, at a moment that the seed chooses."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any, TypeVar

from lab.world import Process
from plumbing.background import Background, Worker

T = TypeVar("T")


# Pools whose jobs wait for other threads or machines.
_WAITING = ("witness", "retention")


class SimulatedThreads(Background):
    """The threads of one process: every job is one step at a later moment, or a strand if it waits for others."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def worker(self, name: str) -> Worker:
        return SimulatedWorker(self._process)

    def pool(self, threads: int, name: str) -> Executor:
        return WaitingPool(self._process, threads) if name in _WAITING else SimulatedPool(self._process, threads)


class SimulatedWorker:
    """One thread: the next job begins after the last one."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._jobs: deque[Callable[[], None]] = deque()

    def add(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._process.later(self._next, self._process.world.delay())

    def close(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def _next(self) -> None:
        if self._jobs:
            job = self._jobs[0]
            job()
            if self._jobs and self._jobs[0] is job:
                self._jobs.popleft()
            if self._jobs:
                self._process.later(self._next, self._process.world.delay())


class SimulatedPool(Executor):
    """Several threads: jobs overtake each other. With one thread they keep their order."""

    def __init__(self, process: Process, threads: int) -> None:
        self._process = process
        self._waiting: dict[int, Callable[[], None]] = {}
        self._numbers = count()
        self._worker = SimulatedWorker(process) if threads == 1 else None
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        number = next(self._numbers)

        def run() -> None:
            if self._waiting.pop(number, None) is None or not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._waiting[number] = run
        if self._worker:
            self._worker.add(run)
        else:
            self._process.later(run, self._process.world.delay())
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        for run in tuple(self._waiting.values()):
            run()


class WaitingPool(Executor):
    """Threads whose jobs are strands."""

    def __init__(self, process: Process, threads: int) -> None:
        self._process = process
        self._idle = self._threads = threads
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except Exception as error:  # noqa: BLE001  the caller gets it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            self._idle += 1
            self._next()

        self._waiting.append(run)
        self._next()
        return future

    def _next(self) -> None:
        if self._idle and self._waiting:
            self._idle -= 1
            self._process.later(self._waiting.popleft(), self._process.world.delay(), waits=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        self._process.world.wait(lambda: self._idle == self._threads and not self._waiting)
