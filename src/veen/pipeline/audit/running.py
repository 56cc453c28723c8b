"""Where the tasks of an audit run: in processes of this machine, or on Spark. What they do is the same."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING

from veen.pipeline.audit.outcome import Outcome
from veen.pipeline.audit.task import audit_task
from veen.pipeline.planning import Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Runner = Callable[[Sequence[Task]], Iterable[Outcome]]


def in_processes(workers: int | None = None) -> Runner:
    """As many processes as there are cores; a single task is done here."""
    count = workers or os.cpu_count() or 1

    def run(tasks: Sequence[Task]) -> Iterator[Outcome]:
        if len(tasks) < 2 or count < 2:
            for task in tasks:
                yield from audit_task(task)
            return
        with ProcessPoolExecutor(min(count, len(tasks)), mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(_whole, task) for task in tasks]):
                yield from done.result()

    return run


def _whole(task: Task) -> list[Outcome]:
    return list(audit_task(task))


def on_spark(spark: "SparkSession") -> Runner:
    """Each task is a partition of a data source whose rows are outcomes."""

    def run(tasks: Sequence[Task]) -> Iterator[Outcome]:
        from veen.pipeline.audit import source

        spark.dataSource.register(source.AuditSource)
        frame = spark.read.format(source.FORMAT).option(source.TASKS, source.written(tasks)).load()
        for row in frame.collect():
            yield Outcome.decode(row[source.OUTCOME])

    return run
