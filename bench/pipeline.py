"""Reading and verifying on Spark, beside the same work in plain processes of this machine.

Both do the same tasks with the same code: Arrow batches of verified entries. What differs is who hands the tasks out
and takes the batches, so the ratio is what Spark costs. Each runs in processes that are warm, in turn, in one run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children, get_context
from multiprocessing.pool import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.biglog import BigLog
from veen.bench import processes
from veen.bench.report import Report, Row
from veen.bench.rounds import Tell, silent
from veen.core import Limits, Unavailable
from veen.pipeline import Selection, Task, plan, select
from veen.pipeline.reading import batches

ENTRIES, STREAMS, ROUNDS = 200_000, 4, 3
CHUNK_ENTRIES = 10_000
LEAST_RATIO, LEAST_SPEEDUP_RATIO = 0.93, 0.93
PLAIN_ONE, PLAIN_TWO = "plain, 1 process", "plain, 2 processes"
SPARK_ONE, SPARK_TWO = "Spark, local[1]", "Spark, local[2]"
COLUMNS = ("label", "stream_seq", "hub_ts", "client_id", "leaf_hash")


def measure(tell: Tell = silent) -> Report:
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="veen-bench-"))) / "hub"
        tell(f"making {ENTRIES:,} entries")
        limits = Limits(max_checkpoint_interval=CHUNK_ENTRIES)
        BigLog(root, streams=STREAMS, limits=limits).grow(ENTRIES)
        selected = select(root, columns=COLUMNS, parallelism=2)
        tell("starting")
        runs: dict[str, PlainRun | SparkRun] = {
            PLAIN_TWO: stack.enter_context(plain(2, selected)),
            SPARK_TWO: stack.enter_context(spark("local[2]", selected)),
            PLAIN_ONE: stack.enter_context(plain(1, selected)),
            SPARK_ONE: stack.enter_context(spark("local[1]", selected)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        cpu: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
                tell(f"round {number + 1} of {ROUNDS}: {name}")
                used, start = cpu_of(run.processes()), perf_counter()
                if run() != ENTRIES:
                    raise Unavailable(f"{name} did not read every entry")
                seconds[name].append(perf_counter() - start)
                cpu[name].append(cpu_of(run.processes()) - used)
    return _report(seconds, cpu)


def cpu_of(pids: list[int]) -> float:
    """What these processes have used so far; one that has ended meanwhile used little."""
    total = 0.0
    for pid in pids:
        with suppress(Unavailable):
            total += processes.cpu_seconds(pid)
    return total


def _report(seconds: dict[str, list[float]], cpu: dict[str, list[float]]) -> Report:
    two, spark_two, one, spark_one = (seconds[name] for name in (PLAIN_TWO, SPARK_TWO, PLAIN_ONE, SPARK_ONE))
    ratios = [plain_s / spark_s for plain_s, spark_s in zip(two, spark_two, strict=True)]
    ups = [a / b for a, b in zip(one, two, strict=True)]
    spark_ups = [a / b for a, b in zip(spark_one, spark_two, strict=True)]
    followed = [a / b for a, b in zip(spark_ups, ups, strict=True)]
    rows = [Row.of(name, [ENTRIES / took for took in times], "entries/s") for name, times in seconds.items()]
    rows += [
        Row.of(f"{name}: CPU for each", [used / ENTRIES * 1e6 for used in cpu[name]], "µs")
        for name in (PLAIN_TWO, SPARK_TWO)
    ]
    rows += [
        Row.of("Spark's rate on two cores, of the plain loop's", ratios, "", least=LEAST_RATIO),
        Row.of("from one core to two, the plain loop", ups, "times"),
        Row.of("from one core to two, Spark", spark_ups, "times"),
        Row.of("Spark's speed-up, of the plain loop's", followed, "", least=LEAST_SPEEDUP_RATIO),
    ]
    notes = (f"{ENTRIES:,} entries in chunks of {CHUNK_ENTRIES:,}: hashes, two signatures, order and root of each",)
    return Report("pipeline: read and verify", tuple(rows), notes)


@contextmanager
def plain(workers: int, selected: Selection) -> "Iterator[PlainRun]":
    """A pool of processes that take the tasks one by one."""
    with get_context("spawn").Pool(workers) as pool:
        pool.map(_warm, range(workers))
        yield PlainRun(pool, selected)


class PlainRun:
    """The tasks of a selection, done in a pool."""

    def __init__(self, pool: Pool, selected: Selection) -> None:
        self._pool = pool
        self._selected = selected

    def processes(self) -> list[int]:
        return [child.pid for child in active_children() if child.pid is not None]

    def __call__(self) -> int:
        jobs = [(task, self._selected) for task in plan(self._selected)]
        return sum(self._pool.imap_unordered(_count, jobs))


def _warm(number: int) -> int:
    import pyarrow

    return number if pyarrow.__version__ else 0


def _count(job: tuple[Task, Selection]) -> int:
    return sum(batch.num_rows for batch in batches(*job))


@contextmanager
def spark(master: str, selected: Selection) -> "Iterator[SparkRun]":
    """A Spark driver in a process of its own, since a process has one master."""
    found = SparkRun(master, selected)
    try:
        yield found
    finally:
        found.close()


class SparkRun:
    """Reads the selection whenever it is told to."""

    def __init__(self, master: str, selected: Selection) -> None:
        command = [sys.executable, "-m", "bench.pipeline", master, json.dumps(selected.options())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def processes(self) -> list[int]:
        return [self._process.pid, *processes.children(self._process.pid)]

    def __call__(self) -> int:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise Unavailable("Spark did not start, or ended: veen audit --spark shows what it says")
        return int(line)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(master: str, options: dict[str, str]) -> None:
    """The driver: warm up on a little of it, then read all of it for each line that comes."""
    from veen.pipeline import session

    found = session(master=master)

    def read(given: dict[str, str]) -> int:
        return found.read.format("veen").options(**given).load().count()

    read({**options, "seq_max": "100"})
    print(0, flush=True)
    for _ in sys.stdin:
        print(read(options), flush=True)
    found.stop()


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
