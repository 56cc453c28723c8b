"""`python -m bench [NAME…]`: run all measurements, or the named ones, and say which promises are kept."""

import sys
from collections.abc import Callable

from bench import decode, growth, hub, prove, seal
from bench.report import Ratio, microseconds, ratios

MEASUREMENTS: dict[str, Callable[[], tuple[dict[str, float], list[Ratio]]]] = {
    "decode": decode.measure,
    "seal": seal.measure,
    "prove": prove.measure,
    "hub": hub.measure,
    "growth": growth.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        print(f"veen: error: no measurement is called {unknown[0]}", file=sys.stderr)
        print(f"veen: hint: there are {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or MEASUREMENTS:
        times, rows = MEASUREMENTS[name]()
        print(f"{name}\n{microseconds(times)}\n\n{ratios(rows)}\n")
        missed += sum(not row.kept for row in rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
