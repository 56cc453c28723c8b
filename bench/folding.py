"""A million wallet events folded on Spark, beside the same fold entry by entry; and again after a thousand more."""

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.entrytables import Filler
from veen.bench.report import Report, Row
from veen.bench.rounds import Tell, silent
from veen.core import Unavailable
from veen.overlays import Entry, Event, Fold, state_hash
from veen.overlays.wallet import WALLETS, Deposit, Open, Transfer, Withdraw, wallet_id
from veen.pipeline.tables import Tables

EVENTS, WALLET_COUNT, MORE = 1_000_000, 10_000, 1_000
STREAM = "payments"
_BATCH = 50_000
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
            same = number - _BACK if number % 1_000 < 10 and number > 2 * wallets + _BACK else number
            yield Transfer(ids[at], ids[(at + 1) % wallets], 5, ts, sha256(b"transfer %d" % same).digest())


def entries(wallets: int, count: int) -> Iterator[Entry]:
    for stream_seq, event in enumerate(payments(wallets, count), 1):
        header, body = event.payload()
        msg_id = sha256(b"%d" % stream_seq).digest()
        hub_ts = _START + stream_seq // 100
        yield Entry(_LABEL, 0, stream_seq, hub_ts, owner(0), None, msg_id, header, body)


def measure(tell: Tell = silent, events: int = EVENTS, wallets: int = WALLET_COUNT) -> Report:
    with TemporaryDirectory(prefix="veen-bench-") as made:
        root = Path(made) / "tables"
        filler, log, one_by_one = Filler(Tables(root), STREAM), entries(wallets, events + MORE), Fold(WALLETS)
        walked = 0.0
        for start in range(0, events, _BATCH):
            tell(f"folding: {start:,} of {events:,} events made and folded one by one")
            some = [next(log) for _ in range(min(_BATCH, events - start))]
            filler.add(some)
            begun = perf_counter()
            one_by_one.extend(some)
            walked += perf_counter() - begun
        tell("folding: on Spark")
        first = _fold(root)
        _compare(first, one_by_one)
        some = list(log)
        filler.add(some)
        one_by_one.extend(some)
        tell("folding: a thousand more")
        again = _fold(root)
        _compare(again, one_by_one)
    rows = (
        Row.of("one by one, one process", [events / walked], "events/s"),
        Row.of("on Spark, local[2]", [events / first["seconds"]], "events/s"),
        Row.of("runs read at first", [first["chunks"]], "runs"),
        Row.of("events read after a thousand more", [again["entries"]], "events", most=MORE),
        Row.of("runs read after a thousand more", [again["chunks"]], "runs", most=1),
    )
    notes = (
        f"{events:,} events over {wallets:,} wallets, opened beforehand; both come to the same state hash",
        "without the start of Spark",
    )
    return Report("pipeline: fold", rows, notes)


def _compare(told: dict[str, Any], walked: Fold[Any, Any]) -> None:
    if told["state_hash"] != state_hash(walked.overlay, walked.states).hex():
        raise Unavailable("the fold on Spark came to another state than the walk")


def _fold(root: Path) -> dict[str, Any]:
    """In a process of its own, since Spark stays in one once it was started there."""
    command = [sys.executable, "-m", "bench.folding", str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise Unavailable("Spark did not start, or ended: veen audit --spark shows what it says")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def serve(root: str) -> None:
    from veen.pipeline import session
    from veen.pipeline.folding import fold
    from veen.pipeline.jobs import on_spark

    spark = session(master="local[2]")
    do = on_spark(spark)
    do(_warm, [1, 2])
    begun = perf_counter()
    made = fold(Tables(Path(root)), WALLETS.CLASS, STREAM, do)
    seconds = perf_counter() - begun
    told = {
        "seconds": seconds,
        "chunks": made.read.chunks,
        "entries": made.read.entries,
        "state_hash": made.state_hash.hex(),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


def _warm(number: int) -> bytes:
    import pyarrow

    return str(pyarrow.__version__).encode()


if __name__ == "__main__":
    serve(sys.argv[1])
