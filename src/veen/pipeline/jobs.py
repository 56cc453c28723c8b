"""Run jobs in processes on this machine or on Spark. Jobs and results are plain values.

Jobs carry paths, labels and ranges only. Workers read keys themselves, so no secret travels to a cluster.
"""

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import get_context
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from veen.core import Malformed, Unavailable, Unverified, VeenError

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

    import pyarrow as pa
    from pyspark.sql import SparkSession

J = TypeVar("J")
Progress = Callable[[int, int], None]  # weight of the work done and in total
Outcome = tuple[bytes | None, str | None, str | None, str | None]  # result, or error kind, subject and reason

_POLL_SEC = 0.2
SCHEMA = "number bigint, result binary, kind string, subject string, reason string"
_KINDS: dict[str, type[VeenError]] = {kind.__name__: kind for kind in (Malformed, Unverified, Unavailable)}
_counted: "Synchronized[int]"  # in a worker process: the weight that all workers have done
_stop: "Event"


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class Runner(Protocol):
    """Runs jobs somewhere."""

    def __call__(self, work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
        """Return the results in job order. The first failure is raised as a `VeenError` and stops the rest."""
        ...


def weight_of(job: object) -> int:
    """How much a job counts in progress reports: its `weight`, if it has one."""
    weight: int = getattr(job, "weight", 1)
    return weight


def advance(weight: int) -> None:
    """Called by a job: report a part of its weight as done. Raises if no one waits for the job any more."""
    _advance.get()(weight)


_advance: ContextVar[Callable[[int], None]] = ContextVar("advance", default=lambda weight: None)


@contextmanager
def _counting(job: object, add: Callable[[int], None]) -> Iterator[None]:
    """Pass what the job reports to `add`, and at its end the rest of its weight."""
    rest = weight_of(job)

    def part(weight: int) -> None:
        nonlocal rest
        rest -= weight
        add(weight)

    token = _advance.set(part)
    try:
        yield
    finally:
        _advance.reset(token)
    add(rest)


def run_inline(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
    """Run the jobs one after the other in this process."""
    made: list[bytes] = []
    done, total = 0, sum(map(weight_of, jobs))

    def add(weight: int) -> None:
        nonlocal done
        done += weight
        progress(done, total)

    for job in jobs:
        with _counting(job, add):
            made.append(work(job))
    return made


def in_processes(workers: int | None = None) -> Runner:
    """Run the jobs in one process per core; a single job runs in this process.

    If this process stops waiting for any reason, the workers stop at their next `advance` or at the end of their job.
    """
    count = workers or os.cpu_count() or 1

    def run(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
        if len(jobs) < 2 or count < 2:
            return run_inline(work, jobs, progress)
        spawning, total = get_context("spawn"), sum(map(weight_of, jobs))
        counted, stop = spawning.Value("q", 0), spawning.Event()
        with ProcessPoolExecutor(min(count, len(jobs)), spawning, _initialize, (counted, stop)) as pool:
            with _sigint_blocked():  # submit starts the workers, which inherit the signal mask
                futures = [pool.submit(_run_job, work, job) for job in jobs]
            try:
                pending = set(futures)
                while pending:
                    done, pending = wait(pending, _POLL_SEC, FIRST_COMPLETED)
                    for one in done:
                        _result(one.result())
                    progress(counted.value, total)
                return [_result(one.result()) for one in futures]
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)  # do not start jobs whose result is discarded
                raise

    return run


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


def _run_job(work: Callable[[J], bytes], job: J) -> Outcome:
    with _counting(job, _count):
        return outcome(work, job)


def _count(weight: int) -> None:
    with _counted.get_lock():
        _counted.value += weight
    if _stop.is_set():
        raise CancelledError  # no one waits for it: the caller was interrupted


def on_spark(spark: "SparkSession") -> Runner:
    """Run each job as one partition of a DataFrame.

    Until all jobs are done, progress is an estimate from Spark's count of finished tasks.
    """

    def run(work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
        if not jobs:
            return []
        job_list, weight = list(jobs), sum(map(weight_of, jobs))

        def run_partition(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            freeze_loaded_objects()
            for batch in batches:
                numbers = batch.column(0).to_pylist()
                yield batch_of([(number, outcome(work, job_list[number])) for number in numbers])

        def weighted(done: int, total: int) -> None:
            progress(weight * done // total, weight)

        frame = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(run_partition, SCHEMA)
        with watched(spark, len(jobs), no_progress if progress is no_progress else weighted):
            rows = frame.collect()
        return results(rows, len(jobs))

    return run


def freeze_loaded_objects() -> None:
    """Exclude everything loaded so far from garbage collection.

    Spark collects after every task, and each collection would visit these objects.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def outcome(work: Callable[[J], bytes], job: J) -> Outcome:
    """Run one job. A `VeenError` is returned as text, since the exception object would not survive Spark."""
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
    """Encode outcomes, by job number, as an Arrow batch of `SCHEMA`."""
    import pyarrow as pa

    columns = list(zip(*((number, *found) for number, found in rows), strict=True)) or [()] * 5
    kinds = (pa.int64(), pa.binary(), pa.string(), pa.string(), pa.string())
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["number", "result", "kind", "subject", "reason"])


def results(rows: "Sequence[Any]", count: int) -> list[bytes]:
    """The results of all jobs in order. Raises the error of the first failed job."""
    found = {int(row["number"]): row for row in rows}
    if len(found) != count:
        raise Unavailable(f"Spark returned the results of {len(found)} of {count} jobs")
    return results_of([found[number] for number in range(count)])


def results_of(rows: "Sequence[Any]") -> list[bytes]:
    """The results in rows of `SCHEMA`, in row order. Raises the error of the first failed row."""
    return [_result((_bytes(row["result"]), row["kind"], row["subject"], row["reason"])) for row in rows]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@contextmanager
def watched(spark: "SparkSession", total: int, progress: Progress) -> Iterator[None]:
    """Report how many tasks Spark has finished while the body runs. An exception from `progress` cancels the work."""
    if progress is no_progress:
        yield
    elif is_remote(spark):
        with _subscribed(spark, total, progress):
            yield
    else:
        with _polled(spark, total, progress):
            yield


@contextmanager
def _polled(spark: "SparkSession", total: int, progress: Progress) -> Iterator[None]:
    context, name, stopped = spark.sparkContext, f"veen-{uuid4()}", threading.Event()
    raised: list[Exception] = []

    def report(done: int, total: int) -> None:
        try:
            if not raised:
                progress(done, total)
        except Exception as error:  # noqa: BLE001 # raised again below, in the caller's thread
            raised.append(error)
        if raised:
            context.cancelJobGroup(name)  # on every poll: Spark may not have started at the first

    context.setJobGroup(name, "veen pipeline", interruptOnCancel=True)
    poller = threading.Thread(target=_poll, args=(context.statusTracker(), name, total, report, stopped), daemon=True)
    poller.start()
    try:
        yield
    except Exception as error:
        if raised:  # Spark's own error only reports the cancellation
            raise raised[0] from error
        raise
    finally:
        stopped.set()
        poller.join()
        context.setLocalProperty("spark.jobGroup.id", "")
    if raised:
        raise raised[0]


def is_remote(spark: "SparkSession") -> bool:
    """Whether this is a Spark Connect session: Spark runs in another process or on another machine."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _poll(tracker: Any, name: str, total: int, progress: Progress, stopped: threading.Event) -> None:
    while not stopped.wait(_POLL_SEC):
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(name)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        progress(min(total, sum(stage.numCompletedTasks for stage in stages if stage)), total)
    progress(total, total)


@contextmanager
def _subscribed(spark: Any, total: int, progress: Progress) -> Iterator[None]:
    """The same for Spark Connect, which reports progress itself."""

    def report(stages: Any, **_: Any) -> None:
        progress(min(total, sum(stage.num_completed_tasks for stage in stages or ())), total)

    spark.registerProgressHandler(report)
    try:
        yield
    finally:
        spark.removeProgressHandler(report)
