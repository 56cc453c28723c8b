"""Costs of a hub when its log is a hundred times longer: one label of 10^4 entries compared with one of 10^6."""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median

from veen.bench import hub_process
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import HubProcess, Memory, Progress, noise_warning, other_load, silent
from veen.bench.load import LoadResult, MessageWriters, request
from veen.core import Unavailable
from veen.core.envelopes import ProofAtRequest

SMALL, LARGE = 10_000, 1_000_000
ROUNDS = 7
TURNS = 6
EACH = 20
PROOFS = 600
CONNECTIONS = 64
STREAM = "growth"
PARTS = (": anonymous", ": pages of files")
_BATCH = 64
_SLICE = 40_960
_WARM_UP = 20
_JOURNAL_ENTRIES = 3_000  # fewer than trigger a catch-up, so they are still in the journal when the hub is killed
_MIB = 1 << 20
_MAX_SUBMIT_RATIO, _MAX_PROOF_RATIO, _MAX_START_S, _MAX_MEMORY_MIB = 1.1, 3, 2, 64


@dataclass(frozen=True, slots=True)
class ScalingSample:
    """One start of a hub at one size."""

    start_s: float
    replayed: int
    submit_us: tuple[float, ...]  # wall time per message, one for each turn
    cpu_us: float  # CPU of the hub per message, until its log has them all
    proof_us: float  # sequential requests, as seen by the client
    made_us: float  # as measured by the hub, without HTTP


_SUBMIT_FIGURES: Mapping[str, Callable[[ScalingSample], Sequence[float]]] = {
    "submit at {:,}": lambda one: one.submit_us,
    "submit at {:,}: CPU of the hub": lambda one: [one.cpu_us],
}
_PROOF_FIGURES: Mapping[str, Callable[[ScalingSample], Sequence[float]]] = {
    "proof at {:,}, over HTTP": lambda one: [one.proof_us],
    "proof at {:,}, made": lambda one: [one.made_us],
}


def measure_growth(
    *,
    small: int = SMALL,
    large: int = LARGE,
    rounds: int = ROUNDS,
    each: int = EACH,
    proofs: int = PROOFS,
    folder: Path | None = None,
    progress: Progress = silent,
) -> BenchReport:
    """Grow one hub and record its memory; then load a small and a large hub in turn, and request proofs from both.

    Each round restarts both: the small hub from a copy, so it stays small; the large hub is killed at the end.
    """
    readings: dict[int, list[ScalingSample]] = {small: [], large: []}
    others = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-bench-", dir=folder)))
        short, long = HubProcess.init(place / "short"), HubProcess.init(place / "long")
        with HubProcess(short) as hub:
            _fill(hub, small, progress)
        with HubProcess(long) as hub:
            memory = [_fill(hub, upto, progress) for upto in _sizes(small, large)]
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            copy = Path(shutil.copytree(short, place / f"short-{number}"))
            with HubProcess(copy) as first, HubProcess(long) as second:
                found, busy = _by_turns({small: first, large: second}, each, proofs)
                second.drive(_writers(second).plan(_JOURNAL_ENTRIES))
                second.kill()
            others.append(busy)
            for size, reading in found.items():
                readings[size].append(reading)
        starts = [(reading.start_s, reading.replayed) for reading in readings[large]]
        for _ in range(2):
            with HubProcess(long) as hub:
                starts.append((hub.start_s, hub.replayed))
    after_stop, after_kill = [starts[0], starts[-1]], starts[1:-1]
    kills, replayed = zip(*after_kill, strict=True)
    rows = [
        *_compare(readings, _MAX_SUBMIT_RATIO, _SUBMIT_FIGURES),
        *_compare(readings, _MAX_PROOF_RATIO, _PROOF_FIGURES),
        BenchRow.of(
            f"start at {large:,}, after a stop", [seconds for seconds, _ in after_stop], "s", most=_MAX_START_S
        ),
        BenchRow.of(f"start at {large:,}, after a kill", kills, "s", most=_MAX_START_S),
        BenchRow.of("entries replayed from the journal", replayed, ""),
        *_memory_rows(memory, _sizes(small, large)),
        other_load(others),
    ]
    note = f"one label, {CONNECTIONS} connections, {rounds} rounds of {TURNS} turns of {each * CONNECTIONS:,} messages"
    return BenchReport("growth", tuple(rows), (f"{note}, {os.cpu_count()} cores", *noise_warning(others)))


def _sizes(small: int, large: int) -> list[int]:
    """The sizes at which memory is read: tenfold steps."""
    sizes = [small]
    while sizes[-1] * 10 < large:
        sizes.append(sizes[-1] * 10)
    return [*sizes, large]


def _fill(hub: HubProcess, upto: int, progress: Progress) -> Memory:
    """Send batches until the label has `upto` entries; returns the memory of the hub then."""
    has = hub.logged()
    before = hub.accepted() - has
    while has < upto:
        progress(f"{has:,} of {upto:,} entries")
        count = min(upto - has, _SLICE)
        # New clients each time: per-client state must not grow either.
        hub.drive(_writers(hub).plan(count, _BATCH))
        has += count
    if hub.accepted() - before != upto:
        raise Unavailable(f"the hub accepted {hub.accepted() - before} of {upto} messages")
    hub.settle(upto)
    return hub.memory()


def _writers(hub: HubProcess) -> MessageWriters:
    return MessageWriters(hub.target, CONNECTIONS, [STREAM])


def _by_turns(hubs: Mapping[int, HubProcess], each: int, proofs: int) -> tuple[dict[int, ScalingSample], float]:
    """Costs of a submit and a proof at each size, measured in turn; and the cores used by other processes."""
    messages = each * CONNECTIONS
    plans = {}
    for size, hub in hubs.items():
        writers = _writers(hub)
        hub.drive(writers.plan(_WARM_UP * CONNECTIONS))
        plans[size] = [writers.plan(messages) for _ in range(TURNS)]
    _settle(hubs.values())
    before = {size: hub.usage() for size, hub in hubs.items()}
    loads: dict[int, list[LoadResult]] = {size: [] for size in hubs}
    busy, start = hub_process.busy_seconds(), time.perf_counter()
    for turn in range(TURNS):
        # Alternate which hub goes first.
        for size in sorted(hubs, reverse=bool(turn % 2)):
            loads[size].append(hubs[size].drive(plans[size][turn]))
    seconds, busy = time.perf_counter() - start, hub_process.busy_seconds() - busy
    spent = [hub.usage().since(before[size]) for size, hub in hubs.items()]
    ours = sum(one.hub_s + one.children_s for one in spent) + sum(
        one.generator_s for two in loads.values() for one in two
    )
    readings = {}
    _settle(hubs.values())
    for size, hub in hubs.items():
        cpu_us = hub.usage().since(before[size]).hub_s / (TURNS * messages) * 1e6
        submit_us = tuple(one.seconds / messages * 1e6 for one in loads[size])
        readings[size] = ScalingSample(hub.start_s, hub.replayed, submit_us, cpu_us, *_proof_us(hub, size, proofs))
    return readings, max(busy - ours, 0.0) / seconds


def _settle(hubs: Iterable[HubProcess]) -> None:
    for hub in hubs:
        hub.settle(hub.entries())


def _proof_us(hub: HubProcess, size: int, proofs: int) -> tuple[float, float]:
    """Time of proofs for random leaves in the tree of that size: over HTTP, and inside the hub."""
    label, chosen = hub.target.label(STREAM), random.Random(size)
    requests = [ProofAtRequest(label, chosen.randrange(1, size + 1), size).encode() for _ in range(proofs)]
    before = hub.metrics()
    answered = hub.drive([[request(b"/tooling/proof", body) for body in requests]])
    after = hub.metrics()
    made_ms = after["veen_proof_latency_ms_sum"] - before["veen_proof_latency_ms_sum"]
    return answered.seconds / proofs * 1e6, made_ms / proofs * 1e3


def _compare(
    readings: Mapping[int, Sequence[ScalingSample]],
    most: float,
    figures: Mapping[str, Callable[[ScalingSample], Sequence[float]]],
) -> list[BenchRow]:
    """Each figure at both sizes, and the ratio of the large log to the small one in the same round."""
    rows = []
    for size, samples in sorted(readings.items()):
        for what, of in figures.items():
            rows.append(BenchRow.of(what.format(size), [median(of(one)) for one in samples], "µs"))
    (small, at_small), (large, at_large) = sorted(readings.items())
    for what, of in figures.items():
        ratios = [median(map(truediv, of(after), of(before))) for before, after in zip(at_small, at_large, strict=True)]
        rows.append(BenchRow.of(what.format(large), ratios, f"of that at {small:,}", most=most))
    return rows


def _memory_rows(memory: Sequence[Memory], sizes: Sequence[int]) -> list[BenchRow]:
    """Resident memory, and how much of it is anonymous or file-backed; the system can reclaim file pages any time."""
    rows = []
    for size, found in zip(sizes, memory, strict=True):
        rows += [
            BenchRow.of(f"resident at {size:,}", [found.resident / _MIB], "MiB"),
            BenchRow.of(f"resident at {size:,}{PARTS[0]}", [found.anonymous / _MIB], "MiB"),
            BenchRow.of(f"resident at {size:,}{PARTS[1]}", [found.files / _MIB], "MiB"),
        ]
    first, last = memory[0], memory[-1]
    span = f"from {sizes[0]:,} to {sizes[-1]:,}"
    return [
        *rows,
        BenchRow.of(f"resident {span}", [(last.resident - first.resident) / _MIB], "MiB more", most=_MAX_MEMORY_MIB),
        BenchRow.of(f"resident {span}{PARTS[0]}", [(last.anonymous - first.anonymous) / _MIB], "MiB more"),
    ]
