"""A million wallet events of a sealed log, folded on Spark, beside the same fold entry by entry; and a thousand more.

The log is a data directory as a hub writes it. Spark reads, verifies and opens it into tables, and folds those; what is
timed as the fold begins with the tables, as the walk begins with entries that are in memory.
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
from bench.sealedlog import SealedLog
from veen.bench import hub_process
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.rounds import Progress, silent
from veen.core import Unavailable
from veen.overlays import Event, Fold, FoldEntry, state_hash
from veen.overlays.wallet import WALLETS, Deposit, Open, Transfer, Withdraw, wallet_id
from veen.pipeline.tables import Tables

EVENTS, WALLET_COUNT, MORE = 1_000_000, 10_000, 1_000
STREAM = "payments"
_BATCH = 20_000
_BACK = 30_000  # a multiple of the wallets, so that both are of the same ones, and more than one run
_LABEL, _REALM = sha256(b"a label").digest(), bytes(32)
_START = 1_700_000_000


def owner(number: int) -> bytes:
    return sha256(b"owner %d" % number).digest()


def payments(wallets: int, count: int) -> Iterator[Event]:
    """Every wallet is opened, then all are paid in and out of in turn; one transfer in a hundred came before."""
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
            same = number - _BACK if again else number  # of a block whose own ids are new
            yield Transfer(ids[at], ids[(at + 1) % wallets], 5, ts, sha256(b"transfer %d" % same).digest())


def entries(wallets: int, count: int) -> Iterator[FoldEntry]:
    for stream_seq, event in enumerate(payments(wallets, count), 1):
        header, body = event.payload()
        msg_id = sha256(b"%d" % stream_seq).digest()
        hub_ts = _START + stream_seq // 100
        yield FoldEntry(_LABEL, 0, stream_seq, hub_ts, owner(0), None, msg_id, header, body)


def measure(tell: Progress = silent, events: int = EVENTS, wallets: int = WALLET_COUNT) -> BenchReport:
    with TemporaryDirectory(prefix="veen-bench-") as made:
        log, walk = SealedLog(Path(made) / "hub", [STREAM], per_sec=100), Fold(WALLETS)
        key = log.key_file(STREAM, Path(made))
        said, read = payments(wallets, events + MORE), entries(wallets, events + MORE)
        walked = 0.0
        for start in range(0, events, _BATCH):
            tell(f"folding: {start:,} of {events:,} events sealed, and folded one by one")
            count = min(_BATCH, events - start)
            walked += _grow(log, walk, islice(said, count), list(islice(read, count)))
        tell("folding: on Spark")
        first = _on_spark(Path(made), key)
        _compare(first, walk)
        _grow(log, walk, said, list(read))
        tell("folding: a thousand more")
        again = _on_spark(Path(made), key)
        _compare(again, walk)
    rows = (
        BenchRow.of(
            "sealed entries read, verified and opened on Spark, local[2]", [events / first["load_s"]], "entries/s"
        ),
        BenchRow.of("folded one by one, one process", [events / walked], "events/s"),
        BenchRow.of("folded on Spark, local[2]", [events / first["seconds"]], "events/s"),
        BenchRow.of("CPU for each, one by one", [walked / events * 1e6], "µs"),
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


def _grow(log: SealedLog, walk: Fold[Any, Any], said: Iterable[Event], read: Sequence[FoldEntry]) -> float:
    """Add events to the log, and to the walk; how long the walk took."""
    log.say((STREAM, event) for event in said)
    begun = process_time()
    walk.extend(read)
    return process_time() - begun


def _compare(told: dict[str, Any], walked: Fold[Any, Any]) -> None:
    if told["state_hash"] != state_hash(walked.overlay, walked.states).hex():
        raise Unavailable("the fold on Spark came to another state than the walk")


def _on_spark(root: Path, key: Path) -> dict[str, Any]:
    """In a process of its own, since Spark stays in one once it was started there."""
    command = [sys.executable, "-m", "bench.folding", str(root), str(key)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise Unavailable("Spark did not start, or ended: veen audit --spark shows what it says")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


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
    told = {
        "load_s": load_s,
        "loaded": loaded.entries,
        "seconds": perf_counter() - begun,
        "cpu": _used() - used,
        "chunks": made.read.chunks,
        "entries": made.read.entries,
        "state_hash": made.state_hash.hex(),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


def _used() -> float:
    """CPU time of this process and all that it started."""
    return cpu_of([os.getpid(), *hub_process.children(os.getpid())])


def _warm(number: int) -> bytes:
    import pyarrow

    return str(pyarrow.__version__).encode()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
