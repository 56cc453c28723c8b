"""Work in pieces, done in processes of this machine or on Spark. A job is plain values, and so is what comes of it.

What is sent to a worker names places only: paths, labels, ranges. Keys are read where the work is done.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from veen.core import Malformed, Unavailable, Unverified, VeenError
from veen.pipeline.rows import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

J = TypeVar("J")
Tell = Callable[[int, int], None]  # jobs done, jobs in all
Outcome = tuple[bytes | None, str | None, str | None, str | None]  # a result, or an error: kind, what, reason

_LOOK_SEC = 0.2
SCHEMA = "number bigint, result binary, kind string, subject string, reason string"
_KINDS: dict[str, type[VeenError]] = {kind.__name__: kind for kind in (Malformed, Unverified, Unavailable)}


def silent(done: int, total: int) -> None:
    """Tell nobody."""


class Runner(Protocol):
    """Where jobs are done."""

    def __call__(self, work: Callable[[J], bytes], jobs: Sequence[J], tell: Tell = silent) -> list[bytes]:
        """What came of each job, in the order of the jobs. The first failure, as an error of ours, ends all of it."""
        ...


def here(work: Callable[[J], bytes], jobs: Sequence[J], tell: Tell = silent) -> list[bytes]:
    """One after the other, in this process."""
    made = []
    for job in jobs:
        made.append(work(job))
        tell(len(made), len(jobs))
    return made


def in_processes(workers: int | None = None) -> Runner:
    """In as many processes as there are cores; a single job is done here."""
    count = workers or os.cpu_count() or 1

    def run(work: Callable[[J], bytes], jobs: Sequence[J], tell: Tell = silent) -> list[bytes]:
        if len(jobs) < 2 or count < 2:
            return here(work, jobs, tell)
        with ProcessPoolExecutor(min(count, len(jobs)), mp_context=get_context("spawn")) as pool:
            under_way = [pool.submit(outcome, work, job) for job in jobs]
            try:
                for number, done in enumerate(as_completed(under_way), 1):
                    _result(done.result())
                    tell(number, len(jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)  # what is not begun would be done in vain
                raise
            return [_result(done.result()) for done in under_way]

    return run


def on_spark(spark: "SparkSession") -> Runner:
    """Each job is a partition of a DataFrame."""

    def run(work: Callable[[J], bytes], jobs: Sequence[J], tell: Tell = silent) -> list[bytes]:
        if not jobs:
            return []
        asked = list(jobs)

        def spread(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            settle()
            for batch in batches:
                numbers = batch.column(0).to_pylist()
                yield batch_of([(number, outcome(work, asked[number])) for number in numbers])

        frame = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(spread, SCHEMA)
        with watched(spark, len(jobs), tell):
            rows = frame.collect()
        return results(rows, len(jobs))

    return run


def outcome(work: Callable[[J], bytes], job: J) -> Outcome:
    """What came of a job. An error of ours is told in words, since it would not survive the way back as an object."""
    try:
        return work(job), None, None, None
    except VeenError as error:
        kind = next((one.__name__ for one in type(error).__mro__ if one.__name__ in _KINDS), Unavailable.__name__)
        return None, kind, getattr(error, "what", None), getattr(error, "reason", None) or str(error)


def _result(found: Outcome) -> bytes:
    result, kind, subject, reason = found
    if kind is not None:
        made = _KINDS[kind]
        raise made(reason or "") if made is Unavailable else made(subject or "job", reason or "")
    assert result is not None
    return result


def batch_of(rows: "Sequence[tuple[int, Outcome]]") -> "pa.RecordBatch":
    """Outcomes by the number of their job, for Spark to carry."""
    import pyarrow as pa

    columns = list(zip(*((number, *found) for number, found in rows), strict=True)) or [()] * 5
    kinds = (pa.int64(), pa.binary(), pa.string(), pa.string(), pa.string())
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["number", "result", "kind", "subject", "reason"])


def results(rows: "Sequence[Any]", count: int) -> list[bytes]:
    """The results of all jobs, or the error of the first that failed."""
    found = {int(row["number"]): row for row in rows}
    if len(found) != count:
        raise Unavailable(f"Spark answered {len(found)} of {count} jobs")
    return results_of([found[number] for number in range(count)])


def results_of(rows: "Sequence[Any]") -> list[bytes]:
    """The results in rows of `SCHEMA`, as they come; or the error of the first that failed."""
    return [_result((_bytes(row["result"]), row["kind"], row["subject"], row["reason"])) for row in rows]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@contextmanager
def watched(spark: "SparkSession", total: int, tell: Tell) -> Iterator[None]:
    """Tell how many tasks Spark has done, by its own account, while something runs. What `tell` raises ends it."""
    if tell is silent:
        yield
    elif is_remote(spark):
        with _followed(spark, total, tell):
            yield
    else:
        with _looked_at(spark, total, tell):
            yield


@contextmanager
def _looked_at(spark: "SparkSession", total: int, tell: Tell) -> Iterator[None]:
    context, name, over = spark.sparkContext, f"veen-{uuid4()}", threading.Event()
    raised: list[Exception] = []

    def told(done: int, total: int) -> None:
        try:
            if not raised:
                tell(done, total)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised below, where the work was begun
            raised.append(error)
        if raised:
            context.cancelJobGroup(name)  # at every look: at the first, Spark may not have begun with it

    context.setJobGroup(name, "veen pipeline", interruptOnCancel=True)
    looking = threading.Thread(target=_look, args=(context.statusTracker(), name, total, told, over), daemon=True)
    looking.start()
    try:
        yield
    except Exception as error:
        if raised:  # then this is only Spark's way of saying that it was cancelled
            raise raised[0] from error
        raise
    finally:
        over.set()
        looking.join()
        context.setLocalProperty("spark.jobGroup.id", "")
    if raised:
        raise raised[0]


def is_remote(spark: "SparkSession") -> bool:
    """Whether it is of Spark Connect: Spark itself is in another process, or on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _look(tracker: Any, name: str, total: int, tell: Tell, over: threading.Event) -> None:
    while not over.wait(_LOOK_SEC):
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(name)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        tell(min(total, sum(stage.numCompletedTasks for stage in stages if stage)), total)
    tell(total, total)


@contextmanager
def _followed(spark: Any, total: int, tell: Tell) -> Iterator[None]:
    """The same over Spark Connect, which tells by itself."""

    def told(stages: Any, **_: Any) -> None:
        tell(min(total, sum(stage.num_completed_tasks for stage in stages or ())), total)

    spark.registerProgressHandler(told)
    try:
        yield
    finally:
        spark.removeProgressHandler(told)
