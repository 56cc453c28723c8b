"""A million wallet events of a sealed log, folded on Spark, compared with a sequential fold; then a thousand more.

The log is a data directory as a hub writes it. Spark reads, verifies and opens it into tables and folds those. The
timed fold starts with the tables, as the sequential fold starts with entries in memory.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench.pipeline import cpu_of
from bench.sealed_log import SealedLog
from veen.bench import hub_process
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import Progress, silent
from veen.core import Unavailable
from veen.overlays import Event, Fold, FoldEntry, state_hash
from veen.overlays.wallet import WALLETS
from veen.overlays.wallet_ledger import Deposit, Open, Transfer, Withdraw, wallet_id
from veen.pipeline.tables import Tables

EVENTS, WALLET_COUNT, MORE = 1_000_000, 10_000, 1_000
STREAM = "payments"
_BATCH = 20_000
_BACK = 30_000  # a multiple of the wallets, so both transfers have the same wallets, and longer than one run
_LABEL, _REALM = sha256(b"a label").digest(), bytes(32)
_START = 1_700_000_000


def owner(number: int) -> bytes:
    return sha256(b"owner %d" % number).digest()


def payments(wallets: int, count: int) -> Iterator[Event]:
    """Open every wallet, then deposit and withdraw in turn; one transfer in a hundred repeats an earlier one."""
    ids = [wallet_id(_REALM, owner(number), "JPY") for number in range(wallets)]
    for number in range(count):
        at, ts = number * 7919 % wallets, _START + number // 100
        if number < wallets:
            yield Open(ids[number], _REALM, owner(number), "JPY", ts)
        elif number < 2 * wallets or number % 3 == 0:
            yield Deposit(ids[at], 1_000, ts)
        elif number % 3 == 1:
            yield Withdraw(ids[at], 10, ts)
        else:
            again = number % 1_000 < 10 and number > 2 * wallets + _BACK and number // _BACK % 2
            same = number - _BACK if again else number  # taken from a block whose own ids are new
            yield Transfer(ids[at], ids[(at + 1) % wallets], 5, ts, sha256(b"transfer %d" % same).digest())


def entries(wallets: int, count: int) -> Iterator[FoldEntry]:
    for stream_seq, event in enumerate(payments(wallets, count), 1):
        header, body = event.payload()
        msg_id = sha256(b"%d" % stream_seq).digest()
        hub_ts = _START + stream_seq // 100
        yield FoldEntry(_LABEL, 0, stream_seq, hub_ts, owner(0), None, msg_id, header, body)


def measure(progress: Progress = silent, events: int = EVENTS, wallets: int = WALLET_COUNT) -> BenchReport:
    with TemporaryDirectory(prefix="veen-bench-") as made:
        log, sequential = SealedLog(Path(made) / "hub", [STREAM], per_sec=100), Fold(WALLETS)
        key = log.key_file(STREAM, Path(made))
        written, read = payments(wallets, events + MORE), entries(wallets, events + MORE)
        sequential_s = 0.0
        for start in range(0, events, _BATCH):
            progress(f"folding: {start:,} of {events:,} events sealed and folded sequentially")
            count = min(_BATCH, events - start)
            sequential_s += _grow(log, sequential, islice(written, count), list(islice(read, count)))
        progress("folding: on Spark")
        first = _on_spark(Path(made), key)
        _compare(first, sequential)
        _grow(log, sequential, written, list(read))
        progress("folding: a thousand more")
        again = _on_spark(Path(made), key)
        _compare(again, sequential)
    rows = (
        BenchRow.of(
            "sealed entries read, verified and opened on Spark, local[2]", [events / first["load_s"]], "entries/s"
        ),
        BenchRow.of("folded one by one, one process", [events / sequential_s], "events/s"),
        BenchRow.of("folded on Spark, local[2]", [events / first["seconds"]], "events/s"),
        BenchRow.of("CPU for each, one by one", [sequential_s / events * 1e6], "µs"),
        BenchRow.of("CPU for each, on Spark", [first["cpu"] / events * 1e6], "µs"),
        BenchRow.of("runs read at first", [first["chunks"]], "runs"),
        BenchRow.of("entries of the log read after a thousand more", [again["loaded"]], "entries", most=MORE),
        BenchRow.of("events read after a thousand more", [again["entries"]], "events", most=MORE),
        BenchRow.of("runs read after a thousand more", [again["chunks"]], "runs", most=1),
    )
    notes = (
        f"{events:,} events over {wallets:,} wallets, opened beforehand; both come to the same state hash",
        "without the start of Spark",
    )
    return BenchReport("pipeline: fold", rows, notes)


def _grow(log: SealedLog, sequential: Fold[Any, Any], written: Iterable[Event], read: Sequence[FoldEntry]) -> float:
    """Add events to the log and to the sequential fold; returns the CPU time of the fold."""
    log.say((STREAM, event) for event in written)
    begun = process_time()
    sequential.extend(read)
    return process_time() - begun


def _compare(result: dict[str, Any], sequential_s: Fold[Any, Any]) -> None:
    if result["state_hash"] != state_hash(sequential_s.overlay, sequential_s.states).hex():
        raise Unavailable("the fold on Spark has another state than the sequential fold")


def _on_spark(root: Path, key: Path) -> dict[str, Any]:
    """Run in its own process, because Spark cannot be stopped within one."""
    command = [sys.executable, "-m", "bench.folding", str(root), str(key)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise Unavailable("Spark did not start or exited: run veen audit --spark to see its error")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def serve(root: str, key: str) -> None:
    from veen.pipeline import select, session
    from veen.pipeline.decoding import Keys
    from veen.pipeline.folding import fold
    from veen.pipeline.jobs import on_spark
    from veen.pipeline.tables import load

    spark, tables = session(master="local[2]"), Tables(Path(root) / "tables")
    do = on_spark(spark)
    do(_warm, [1, 2])
    begun = perf_counter()
    loaded = load(tables, select(f"{root}/hub"), Keys((key,)), do)
    load_s, used, begun = perf_counter() - begun, _used(), perf_counter()
    made = fold(tables, WALLETS.CLASS, STREAM, do)
    result = {
        "load_s": load_s,
        "loaded": loaded.entries,
        "seconds": perf_counter() - begun,
        "cpu": _used() - used,
        "chunks": made.read.chunks,
        "entries": made.read.entries,
        "state_hash": made.state_hash.hex(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    spark.stop()


def _used() -> float:
    """CPU time of this process and its descendants."""
    return cpu_of([os.getpid(), *hub_process.children(os.getpid())])


def _warm(number: int) -> bytes:
    import pyarrow

    return str(pyarrow.__version__).encode()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
