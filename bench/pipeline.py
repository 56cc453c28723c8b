"""Reading and verifying on Spark, compared with the same work in plain processes of this machine.

Both run the same tasks with the same code: Arrow batches of verified entries. Only the distribution of tasks differs,
so the ratio is the overhead of Spark. All runs use warm processes, in turn. Spark ends workers that idle for a minute,
so each is warmed up again before it is measured.

Each ratio of rates has a ratio of CPU times, which other load on the machine changes less.
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

from bench.big_log import BigLog
from veen.bench import hub_process
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import Progress, silent
from veen.core import Limits, Unavailable
from veen.pipeline import Selection, Task, plan, select
from veen.pipeline.rows import batches
from veen.pipeline.selection import selection

ENTRIES, STREAMS, ROUNDS = 200_000, 4, 5
WARM_UP = {"seq_max": "100"}
CHUNK_ENTRIES = 10_000
LEAST_RATIO, LEAST_SPEEDUP_RATIO = 0.93, 0.93
PLAIN_ONE, PLAIN_TWO = "plain, 1 process", "plain, 2 processes"
SPARK_ONE, SPARK_TWO = "Spark, local[1]", "Spark, local[2]"
COLUMNS = ("label", "stream_seq", "hub_ts", "client_id", "leaf_hash")


def measure(progress: Progress = silent, rounds: int = ROUNDS, entries: int = ENTRIES) -> BenchReport:
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="veen-bench-"))) / "hub"
        progress(f"making {entries:,} entries")
        limits = Limits(max_checkpoint_interval=CHUNK_ENTRIES)
        BigLog(root, streams=STREAMS, limits=limits).grow(entries)
        selected = select(root, columns=COLUMNS, parallelism=2)
        progress("starting")
        runs: dict[str, PlainRun | SparkRun] = {
            PLAIN_TWO: stack.enter_context(plain(2, selected)),
            SPARK_TWO: stack.enter_context(spark("local[2]", selected)),
            PLAIN_ONE: stack.enter_context(plain(1, selected)),
            SPARK_ONE: stack.enter_context(spark("local[1]", selected)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        cpu: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds):
            for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
                progress(f"round {number + 1} of {rounds}: {name}")
                run.warm()
                used, start = cpu_of(run.processes()), perf_counter()
                if run() != entries:
                    raise Unavailable(f"{name} did not read every entry")
                seconds[name].append((perf_counter() - start) / entries)
                cpu[name].append((cpu_of(run.processes()) - used) / entries)
    notes = (f"{entries:,} entries in chunks of {CHUNK_ENTRIES:,}: hashes, two signatures, order and root of each",)
    return BenchReport("pipeline: read and verify", (*_rates(seconds, cpu), *_ratios(seconds, cpu)), notes)


def cpu_of(pids: list[int]) -> float:
    """CPU time of these processes so far. Processes that have ended are ignored; they used little."""
    total = 0.0
    for pid in pids:
        with suppress(Unavailable):
            total += hub_process.cpu_seconds(pid)
    return total


def _rates(seconds: dict[str, list[float]], cpu: dict[str, list[float]]) -> list[BenchRow]:
    rows = [BenchRow.of(name, [1 / took for took in times], "entries/s") for name, times in seconds.items()]
    return rows + [
        BenchRow.of(f"{name}: CPU for each", [one * 1e6 for one in used], "µs") for name, used in cpu.items()
    ]


def _ratios(seconds: dict[str, list[float]], cpu: dict[str, list[float]]) -> list[BenchRow]:
    """Ratios of adjacent runs. Greater is better."""
    two, one = _each(seconds, PLAIN_TWO, SPARK_TWO), _each(seconds, PLAIN_ONE, SPARK_ONE)
    plain_up, spark_up = _each(seconds, PLAIN_ONE, PLAIN_TWO), _each(seconds, SPARK_ONE, SPARK_TWO)
    followed = [ours / theirs for ours, theirs in zip(spark_up, plain_up, strict=True)]
    return [
        BenchRow.of("Spark's rate on two cores, of the plain loop's", two, "", least=LEAST_RATIO),
        BenchRow.of("the same by CPU", _each(cpu, PLAIN_TWO, SPARK_TWO), "", least=LEAST_RATIO),
        BenchRow.of("Spark's rate on one core, of the plain loop's", one, ""),
        BenchRow.of("the same by CPU, on one core", _each(cpu, PLAIN_ONE, SPARK_ONE), ""),
        BenchRow.of("from one core to two, the plain loop", plain_up, "times"),
        BenchRow.of("from one core to two, Spark", spark_up, "times"),
        BenchRow.of("Spark's speed-up, of the plain loop's", followed, "", least=LEAST_SPEEDUP_RATIO),
    ]


def _each(of: dict[str, list[float]], a: str, b: str) -> list[float]:
    return [first / second for first, second in zip(of[a], of[b], strict=True)]


@contextmanager
def plain(workers: int, selected: Selection) -> "Iterator[PlainRun]":
    """A pool of processes that run the tasks."""
    with get_context("spawn").Pool(workers) as pool:
        pool.map(_warm, range(workers))
        yield PlainRun(pool, selected)


class PlainRun:
    """Runs the tasks of a selection in a pool."""

    def __init__(self, pool: Pool, selected: Selection) -> None:
        self._pool = pool
        self._selected = selected

    def processes(self) -> list[int]:
        return [child.pid for child in active_children() if child.pid is not None]

    def warm(self) -> None:
        self._run(selection({**self._selected.options(), **WARM_UP}))

    def __call__(self) -> int:
        return self._run(self._selected)

    def _run(self, selected: Selection) -> int:
        return sum(self._pool.imap_unordered(_count, [(task, selected) for task in plan(selected)]))


def _warm(number: int) -> int:
    import pyarrow

    return number if pyarrow.__version__ else 0


def _count(job: tuple[Task, Selection]) -> int:
    return sum(batch.num_rows for batch in batches(*job))


@contextmanager
def spark(master: str, selected: Selection) -> "Iterator[SparkRun]":
    """A Spark driver in its own process, because a process can have only one master."""
    found = SparkRun(master, selected)
    try:
        yield found
    finally:
        found.close()


class SparkRun:
    """Reads the selection on request."""

    def __init__(self, master: str, selected: Selection) -> None:
        command = [sys.executable, "-m", "bench.pipeline", master, json.dumps(selected.options())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def processes(self) -> list[int]:
        return [self._process.pid, *hub_process.children(self._process.pid)]

    def warm(self) -> None:
        self._ask(WARM_UP)

    def __call__(self) -> int:
        return self._ask({})

    def _ask(self, options: dict[str, str]) -> int:
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(options)}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise Unavailable("Spark did not start or exited: run veen audit --spark to see its error")
        return int(line)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(master: str, options: dict[str, str]) -> None:
    """The driver: warm up on a small part, then read once for each input line, with the options in it."""
    from veen.pipeline import session

    found = session(master=master, in_python=True)  # as in `veen audit --spark`

    def read(given: dict[str, str]) -> int:
        return found.read.format("veen").options(**given).load().count()

    print(read({**options, **WARM_UP}), flush=True)
    for line in sys.stdin:
        print(read({**options, **json.loads(line)}), flush=True)
    found.stop()


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
