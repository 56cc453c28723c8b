"""Folding with a warm cache: the cost of a thousand times more events for a reader."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.call_times import Action, microseconds, per_call
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import Progress, silent
from veen.core import Mmr
from veen.overlays import AnyOverlay, At, Event, FoldEntry
from veen.overlays.kept_fold import Timeline
from veen.overlays.kept_fold_lmdb import Cache
from veen.overlays.kv import KV, Write
from veen.overlays.wallet import WALLETS
from veen.overlays.wallet_ledger import Deposit, Limit, Open, Withdraw, wallet_id

FEW, MANY = 1_000, 1_000_000
KEYS = 1_000
BUSY = b"busy"
MOST_TIMES = 20
_BATCH = 20_000
_DAY = 86_400
_LABEL = bytes(32)
_OWNER = b"\x01" * 32
WALLET = wallet_id(_LABEL, _OWNER, "JPY")


def writes(count: int) -> Iterator[Event]:
    """Every other write goes to one key, the rest to all others in scattered order."""
    for number in range(count):
        yield Write(BUSY if number % 2 else key(number // 2 * 7919 % KEYS), 0, b"value %d" % number)


def key(number: int) -> bytes:
    return b"key %d" % number


def payments(count: int) -> Iterator[Event]:
    """A wallet with a daily limit and a hundred deposits and withdrawals a day."""
    yield Open(WALLET, _LABEL, _OWNER, "JPY", 1)
    yield Limit(WALLET, 10_000, 1)
    for number in range(count - 2):
        ts = number * _DAY // 100
        yield Withdraw(WALLET, 60, ts) if number % 2 else Deposit(WALLET, 70, ts)


def entries(events: Iterator[Event]) -> Iterator[FoldEntry]:
    for stream_seq, event in enumerate(events, 1):
        header, body = event.payload()
        msg_id = sha256(b"%d" % stream_seq).digest()
        yield FoldEntry(_LABEL, 0, stream_seq, stream_seq, _OWNER, None, msg_id, header, body)


def fill(cache: Cache[Any, Any], events: Iterator[Event], progress: Callable[[int], None]) -> None:
    """Read a log batch by batch, as a reader does."""
    tree, log = Mmr(), entries(events)
    while batch := list(islice(log, _BATCH)):
        for entry in batch:
            tree.append(entry.msg_id)
        cache.extend(batch, tree.root())
        progress(tree.size)


def kv_reads(timeline: Timeline[Any, Any], count: int) -> dict[str, Action]:
    middle, last = At(0, count // 2 + 1), At(0, count)
    return {
        "kv, one key": partial(timeline.state, key(0)),
        "kv, one key half way back": partial(timeline.state, key(0), middle),
        "kv, the later half of a busy key summed up": partial(timeline.fold, BUSY, middle, last),
    }


def kv_folds(timeline: Timeline[Any, Any], count: int) -> dict[str, Action]:
    return {
        "kv, all keys": lambda: dict(timeline.states()),
        "kv, all keys half way back": lambda: dict(timeline.states(At(0, count // 2 + 1))),
    }


def wallet_reads(timeline: Timeline[Any, Any], count: int) -> dict[str, Action]:
    middle, last = At(0, count // 2 + 1), At(0, count)
    return {
        "wallet, its state": partial(timeline.state, WALLET),
        "wallet, its state half way back": partial(timeline.state, WALLET, middle),
        "wallet, the later half summed up": partial(timeline.fold, WALLET, middle, last),
    }


Reads = Callable[[Timeline[Any, Any], int], dict[str, Action]]


def compared(
    folder: Path,
    overlay: AnyOverlay,
    log: Callable[[int], Iterator[Event]],
    reads: dict[Reads, int],
    progress: Progress,
) -> Iterator[tuple[str, float, float]]:
    """`(what, seconds with few events, seconds with many)`, in turn; `reads` has the calls per round."""
    with ExitStack() as stack:
        timelines = {}
        for count in (FEW, MANY):
            cache = stack.enter_context(Cache(folder / f"{overlay.CLASS}-{count}", overlay))
            fill(cache, log(count), lambda done: progress(f"overlays: {overlay.CLASS}, {done:,} entries read"))
            timelines[count] = stack.enter_context(cache.reading())
        for make, calls in reads.items():
            actions = {
                f"{what}, {count:,}": run for count in timelines for what, run in make(timelines[count], count).items()
            }
            progress(f"overlays: {overlay.CLASS}, reading")
            times = per_call(actions, rounds=15, calls=calls)
            for what in make(timelines[FEW], FEW):
                yield what, times[f"{what}, {FEW:,}"], times[f"{what}, {MANY:,}"]


def measure(progress: Progress = silent) -> BenchReport:
    rows: list[BenchRow] = []
    with TemporaryDirectory(prefix="veen-bench-") as made:
        kv = compared(Path(made), KV, writes, {kv_reads: 50, kv_folds: 1}, progress)
        wallets = compared(Path(made), WALLETS, payments, {wallet_reads: 10}, progress)
        for what, few, many in (*kv, *wallets):
            rows += microseconds({f"{what}, {FEW:,} events": few, f"{what}, {MANY:,} events": many})
            rows.append(BenchRow.of(f"{what}: a thousand times the events", [many / few], "times", most=MOST_TIMES))
    return BenchReport("overlays", tuple(rows))
