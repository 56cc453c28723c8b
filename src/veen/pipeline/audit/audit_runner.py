"""Run the tasks of an audit in processes or on Spark."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING

from veen.pipeline.audit.audit_task import audit_task
from veen.pipeline.audit.piece_outcome import PieceOutcome
from veen.pipeline.jobs import Progress, no_progress, watched
from veen.pipeline.read_plan import Task

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

    from pyspark.sql import SparkSession


Runner = Callable[[Sequence[Task]], Iterable[PieceOutcome]]
_POLL_SEC = 0.2
_counted: "Synchronized[int]"
_stop: "Event"


def in_processes(workers: int | None = None, progress: Progress = no_progress) -> Runner:
    """Audit in one process per core; a single task runs in this process. `progress` gets the number of entries done."""
    count = workers or os.cpu_count() or 1

    def run(tasks: Sequence[Task]) -> list[PieceOutcome]:
        entries = sum(piece.entries for task in tasks for piece in task)
        if len(tasks) < 2 or count < 2:
            done = 0

            def add(more: int) -> None:
                nonlocal done
                done += more
                progress(done, entries)

            return [outcome for task in tasks for outcome in audit_task(task, add)]
        return _run_in_pool(tasks, min(count, len(tasks)), lambda done: progress(done, entries))

    return run


def _run_in_pool(tasks: Sequence[Task], workers: int, progress: Callable[[int], None]) -> list[PieceOutcome]:
    """Collect outcomes as they arrive. If this process stops waiting for any reason, the workers stop soon after."""
    spawning = get_context("spawn")
    counted, stop = spawning.Value("q", 0), spawning.Event()
    with ProcessPoolExecutor(workers, spawning, _initialize, (counted, stop)) as pool:
        with _sigint_blocked():  # submit starts the workers, which inherit the signal mask
            pending = {pool.submit(_run_task, task) for task in tasks}
        try:
            found: list[PieceOutcome] = []
            while pending:
                done, pending = wait(pending, _POLL_SEC, FIRST_COMPLETED)
                found += [outcome for one in done for outcome in one.result()]
                progress(counted.value)
            return found
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this process and in processes that it starts meanwhile."""
    before = pthread_sigmask(SIG_BLOCK, {SIGINT})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


def _initialize(counted: "Synchronized[int]", stop: "Event") -> None:
    """Initialize a worker with the counter and the stop event that all workers share."""
    global _counted, _stop
    _counted, _stop = counted, stop


def _run_task(task: Task) -> list[PieceOutcome]:
    return list(audit_task(task, _add))


def _add(more: int) -> None:
    with _counted.get_lock():
        _counted.value += more
    if _stop.is_set():
        raise CancelledError  # no one waits for it: the audit was stopped


def on_spark(spark: "SparkSession", progress: Progress = no_progress) -> Runner:
    """Each task is a partition of a data source whose rows are outcomes.

    The outcomes arrive when all tasks are done. Until then `progress` gets an estimate from Spark's count of finished
    tasks, which have about equal weight.
    """

    def run(tasks: Sequence[Task]) -> Iterator[PieceOutcome]:
        from veen.pipeline.audit.audit_source import FORMAT, OUTCOME, TASKS, AuditSource, encode_tasks  # needs pyspark

        spark.dataSource.register(AuditSource)
        frame = spark.read.format(FORMAT).option(TASKS, encode_tasks(tasks)).load()
        entries = sum(piece.entries for task in tasks for piece in task)

        def share(done: int, total: int) -> None:
            progress(entries * done // total, entries)

        with watched(spark, len(tasks), no_progress if progress is no_progress else share):
            rows = frame.collect()
        for row in rows:
            yield PieceOutcome.decode(row[OUTCOME])

    return run
