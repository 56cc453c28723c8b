"""Timing on machines that are shared and noisy."""

from collections.abc import Callable
from time import perf_counter

Action = Callable[[], object]


def per_call(actions: dict[str, Action], rounds: int = 40, calls: int = 100) -> dict[str, float]:
    """Seconds per call: the best of many short rounds, taken in turn so that all actions meet the same weather."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = perf_counter()
            for _ in range(calls):
                action()
            best[name] = min(best[name], (perf_counter() - start) / calls)
    return best
