"""One round of load on one hub, and its costs."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median

from veen.bench import hub_process
from veen.bench.bench_report import BenchRow
from veen.bench.hub_process import HubProcess, Usage
from veen.bench.load import LoadResult, Plan
from veen.core import Unavailable

_MAX_OTHER_CORES = 0.15  # above this, other processes distort the figures

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One round, from the first request until the log has caught up with the last."""

    messages: int
    load: LoadResult
    usage: Usage  # measured until the log has caught up, so no work is left out
    entries_per_sync: float
    sync_ms: float
    behind_bytes: float  # journal size when the last answer arrived
    behind_s: float  # time from then until the log had caught up
    others: float  # cores used by everything else meanwhile, including kernel threads

    @property
    def rate(self) -> float:
        return self.messages / self.load.seconds

    def each_us(self, seconds: float) -> float:
        return seconds / self.messages * 1e6


def run_round(hub: HubProcess, plan: Plan, messages: int, watch: AbstractContextManager[object] | None = None) -> Round:
    """Send a plan of `messages` messages to the hub. Raises `Unavailable` unless it accepts every one.

    `watch` is entered only while requests are in flight.
    """
    had, before, usage = hub.logged(), hub.metrics(), hub.usage()
    busy = hub_process.busy_seconds()
    with watch or nullcontext():
        load = hub.drive(plan)
    busy = hub_process.busy_seconds() - busy
    during = hub.usage().since(usage)
    after = hub.metrics()

    def grew(name: str) -> float:
        return after[name] - before[name]

    if grew("veen_submit_ok_total") != messages:
        raise Unavailable(f"the hub accepted {grew('veen_submit_ok_total'):.0f} of {messages} messages")
    behind_s = hub.settle(had + messages)
    ours = during.hub_s + during.workers_s + load.generator_s
    return Round(
        messages=messages,
        load=load,
        usage=hub.usage().since(usage),
        entries_per_sync=grew("veen_group_size_sum") / grew("veen_group_size_count"),
        sync_ms=grew("veen_fsync_latency_ms_sum") / grew("veen_fsync_latency_ms_count"),
        behind_bytes=after["veen_journal_bytes"],
        behind_s=behind_s,
        others=max(busy - ours, 0.0) / load.seconds,
    )


def cost_rows(name: str, rounds: Sequence[Round]) -> list[BenchRow]:
    """CPU per message, and messages per sync."""
    return [
        BenchRow.of(f"{name}: CPU a message, hub", [one.each_us(one.usage.hub_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: CPU a message, workers", [one.each_us(one.usage.workers_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: CPU a message, generator", [one.each_us(one.load.generator_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: messages a sync", [one.entries_per_sync for one in rounds], ""),
        BenchRow.of(f"{name}: one write and sync", [one.sync_ms for one in rounds], "ms"),
    ]


def other_load(others: Sequence[float]) -> BenchRow:
    """CPU used by other processes, other virtual machines on the same hardware, and kernel threads."""
    return BenchRow.of(f"CPU of other processes, of {os.cpu_count()} cores", others, "cores")


def noise_warning(others: Sequence[float]) -> tuple[str, ...]:
    """A note if the machine was not idle otherwise."""
    if median(others) <= _MAX_OTHER_CORES:
        return ()
    return ("other processes used the CPU, so this machine can do better: see the last row",)


def silent(_: str) -> None:
    """Report no progress."""
