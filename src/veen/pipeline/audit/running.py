"""Where the tasks of an audit run: in processes of this machine, or on Spark. What they do is the same."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING

from veen.pipeline.audit.outcome import Outcome
from veen.pipeline.audit.task import audit_task
from veen.pipeline.jobs import Tell, silent, watched
from veen.pipeline.planning import Task

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

    from pyspark.sql import SparkSession

Runner = Callable[[Sequence[Task]], Iterable[Outcome]]
_LOOK_SEC = 0.2
_counted: "Synchronized[int]"
_ended: "Event"


def in_processes(workers: int | None = None, tell: Tell = silent) -> Runner:
    """As many processes as there are cores; a single task is done here. `tell` is told how many entries are done."""
    count = workers or os.cpu_count() or 1

    def run(tasks: Sequence[Task]) -> list[Outcome]:
        entries = sum(piece.entries for task in tasks for piece in task)
        if len(tasks) < 2 or count < 2:
            done = 0

            def add(more: int) -> None:
                nonlocal done
                done += more
                tell(done, entries)

            return [outcome for task in tasks for outcome in audit_task(task, add)]
        return _spread(tasks, min(count, len(tasks)), lambda done: tell(done, entries))

    return run


def _spread(tasks: Sequence[Task], workers: int, tell: Callable[[int], None]) -> list[Outcome]:
    """Outcomes as they come. Whatever ends this process's waiting ends the workers soon after."""
    spawning = get_context("spawn")
    counted, ended = spawning.Value("q", 0), spawning.Event()
    with ProcessPoolExecutor(workers, spawning, _begin, (counted, ended)) as pool:
        with _undisturbed():  # and so are the workers, which begin with the first task
            pending = {pool.submit(_whole, task) for task in tasks}
        try:
            found: list[Outcome] = []
            while pending:
                done, pending = wait(pending, _LOOK_SEC, FIRST_COMPLETED)
                found += [outcome for one in done for outcome in one.result()]
                tell(counted.value)
            return found
        except BaseException:
            ended.set()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    """An interrupt waits until this is over, and never comes to a process that was begun in it."""
    before = pthread_sigmask(SIG_BLOCK, {SIGINT})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


def _begin(counted: "Synchronized[int]", ended: "Event") -> None:
    """A worker: what it shares with all others is known by these names."""
    global _counted, _ended
    _counted, _ended = counted, ended


def _whole(task: Task) -> list[Outcome]:
    return list(audit_task(task, _add))


def _add(more: int) -> None:
    with _counted.get_lock():
        _counted.value += more
    if _ended.is_set():
        raise CancelledError  # to nobody: the audit was ended


def on_spark(spark: "SparkSession", tell: Tell = silent) -> Runner:
    """Each task is a partition of a data source whose rows are outcomes.

    They come when all are done. Meanwhile, `tell` is told how many entries that is about, by Spark's own count of its
    tasks, which are of about equal weight.
    """

    def run(tasks: Sequence[Task]) -> Iterator[Outcome]:
        from veen.pipeline.audit import source

        spark.dataSource.register(source.AuditSource)
        frame = spark.read.format(source.FORMAT).option(source.TASKS, source.written(tasks)).load()
        entries = sum(piece.entries for task in tasks for piece in task)

        def share(done: int, total: int) -> None:
            tell(entries * done // total, entries)

        with watched(spark, len(tasks), silent if tell is silent else share):
            rows = frame.collect()
        for row in rows:
            yield Outcome.decode(row[source.OUTCOME])

    return run
