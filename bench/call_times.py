"""Times of single calls on machines that are shared and noisy."""

from collections.abc import Callable, Mapping
from time import perf_counter

from veen.bench.bench_report import BenchRow

Action = Callable[[], object]


def per_call(actions: dict[str, Action], rounds: int = 40, calls: int = 100) -> dict[str, float]:
    """Seconds per call: the best of many short rounds, taken in turn so all actions meet the same conditions."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = perf_counter()
            for _ in range(calls):
                action()
            best[name] = min(best[name], (perf_counter() - start) / calls)
    return best


def microseconds(times: Mapping[str, float]) -> tuple[BenchRow, ...]:
    """A row for each time, given in seconds."""
    return tuple(BenchRow.of(what, [seconds * 1e6], "µs") for what, seconds in times.items())
