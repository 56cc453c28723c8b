"""One round of load on one hub, and what it cost whom."""

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

_QUIET_CORES = 0.15

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Round:
    """What happened between the first request and the log's having caught up with the last."""

    messages: int
    load: LoadResult
    usage: Usage  # until the log has caught up, so that no work is left out
    entries_per_sync: float
    sync_ms: float
    behind_bytes: float  # in the journal, when the last answer came
    behind_s: float  # from then until the log had it all
    others: float  # cores that everyone else had meanwhile, the kernel's own threads included

    @property
    def rate(self) -> float:
        return self.messages / self.load.seconds

    def each_us(self, seconds: float) -> float:
        return seconds / self.messages * 1e6


def run_round(hub: HubProcess, plan: Plan, messages: int, watch: AbstractContextManager[object] | None = None) -> Round:
    """Load the hub with a plan of so many messages. Raises `Unavailable` unless it accepts every one.

    `watch` is entered while requests are under way, and at no other time.
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
    """What a message cost in CPU, and what shared a sync."""
    return [
        BenchRow.of(f"{name}: CPU a message, hub", [one.each_us(one.usage.hub_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: CPU a message, workers", [one.each_us(one.usage.workers_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: CPU a message, generator", [one.each_us(one.load.generator_s) for one in rounds], "µs"),
        BenchRow.of(f"{name}: messages a sync", [one.entries_per_sync for one in rounds], ""),
        BenchRow.of(f"{name}: one write and sync", [one.sync_ms for one in rounds], "ms"),
    ]


def other_load(others: Sequence[float]) -> BenchRow:
    """What the machine did besides: the neighbours of a virtual machine, other processes, the kernel's own threads."""
    return BenchRow.of(f"what everyone else had, of {os.cpu_count()} cores", others, "cores")


def noise_warning(others: Sequence[float]) -> tuple[str, ...]:
    """A note that the machine was not quiet, where it was not."""
    if median(others) <= _QUIET_CORES:
        return ()
    return ("the machine was not quiet, so these figures are not what it can do: see the last row",)


def silent(_: str) -> None:
    """Tell nobody."""
