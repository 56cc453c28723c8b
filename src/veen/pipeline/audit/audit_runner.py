"""The tasks of an audit as a data source: a partition each, whose rows are outcomes."""

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from veen.pipeline.audit.audit_task import audit_task
from veen.pipeline.audit.piece_outcome import PieceOutcome
from veen.pipeline.jobs import Tell, silent, watched
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.sources import Chunk

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

    from pyspark.sql import SparkSession


FORMAT, TASKS, OUTCOME = "veen-audit", "tasks", "outcome"


def written(tasks: Sequence[Task]) -> str:
    """Tasks as an option. They name places and public keys, nothing else."""
    rows = [[_row(piece) for piece in task] for task in tasks]
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def read(text: str) -> list[Task]:
    rows = json.loads(zlib.decompress(base64.b64decode(text)))
    return [tuple(_piece(row) for row in task) for task in rows]


def _row(piece: Piece) -> list[object]:
    chunk = piece.chunk
    of_chunk = [chunk.label.hex(), chunk.start_seq, chunk.end_seq, chunk.name, chunk.size, chunk.closed]
    peaks = None if piece.peaks is None else [peak.hex() for peak in piece.peaks]
    return [piece.source, piece.hub_id.hex(), of_chunk, piece.first, piece.last, peaks]


def _piece(row: list[Any]) -> Piece:
    source, hub_id, of_chunk, first, last, peaks = row
    chunk = Chunk(bytes.fromhex(of_chunk[0]), *of_chunk[1:])
    return Piece(
        source, bytes.fromhex(hub_id), chunk, first, last, None if peaks is None else tuple(map(bytes.fromhex, peaks))
    )


class AuditSource(DataSource):
    """Not for users: `veen.pipeline.audit` registers it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._tasks = options[TASKS]

    def schema(self) -> str:
        return f"{OUTCOME} string"

    def reader(self, schema: StructType) -> "AuditReader":
        return AuditReader(self._tasks)


class AuditReader(DataSourceReader):
    """Hands the tasks out."""

    def __init__(self, tasks: str) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in read(self._tasks)] or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for outcome in audit_task(partition.value):
            yield (outcome.encode(),)


Runner = Callable[[Sequence[Task]], Iterable[PieceOutcome]]
_LOOK_SEC = 0.2
_counted: "Synchronized[int]"
_ended: "Event"


def in_processes(workers: int | None = None, tell: Tell = silent) -> Runner:
    """As many processes as there are cores; a single task is done here. `tell` is told how many entries are done."""
    count = workers or os.cpu_count() or 1

    def run(tasks: Sequence[Task]) -> list[PieceOutcome]:
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


def _spread(tasks: Sequence[Task], workers: int, tell: Callable[[int], None]) -> list[PieceOutcome]:
    """Outcomes as they come. Whatever ends this process's waiting ends the workers soon after."""
    spawning = get_context("spawn")
    counted, ended = spawning.Value("q", 0), spawning.Event()
    with ProcessPoolExecutor(workers, spawning, _begin, (counted, ended)) as pool:
        with _undisturbed():  # and so are the workers, which begin with the first task
            pending = {pool.submit(_whole, task) for task in tasks}
        try:
            found: list[PieceOutcome] = []
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


def _whole(task: Task) -> list[PieceOutcome]:
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

    def run(tasks: Sequence[Task]) -> Iterator[PieceOutcome]:

        spark.dataSource.register(AuditSource)
        frame = spark.read.format(FORMAT).option(TASKS, written(tasks)).load()
        entries = sum(piece.entries for task in tasks for piece in task)

        def share(done: int, total: int) -> None:
            tell(entries * done // total, entries)

        with watched(spark, len(tasks), silent if tell is silent else share):
            rows = frame.collect()
        for row in rows:
            yield PieceOutcome.decode(row[OUTCOME])

    return run
