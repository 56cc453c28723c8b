"""`python -m bench [NAME…]`: run all measurements, or the named ones, and say which promises are kept."""

import sys
from collections.abc import Callable

from bench import client, decode, folding, overlays, pipeline, prove, questions, seal, veil_codec, veil_node
from veen.bench import hub_throughput, many_labels, scaling
from veen.bench.bench_report import BenchReport
from veen.bench.rounds import Progress, silent
from veen.core import VeenError


def say(words: str) -> None:
    """Progress, on a line that the next one replaces."""
    print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)


tell: Progress = say if sys.stderr.isatty() else silent

MEASUREMENTS: dict[str, Callable[[], BenchReport]] = {
    "decode": decode.measure,
    "seal": seal.measure,
    "prove": prove.measure,
    "client": client.measure,
    "hub": lambda: hub_throughput.run(tell=tell),
    "labels": lambda: many_labels.run(tell=tell),
    "growth": lambda: scaling.run(tell=tell),
    "overlays": lambda: overlays.measure(tell),
    "veil": veil_codec.measure,
    "veil-node": veil_node.measure,
    "pipeline": lambda: pipeline.measure(tell),
    "folding": lambda: folding.measure(tell),
    "questions": lambda: questions.measure(tell),
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        return failed(f"no measurement is called {unknown[0]}", f"there are {', '.join(MEASUREMENTS)}", 2)
    kept = True
    for name in names or MEASUREMENTS:
        try:
            report = MEASUREMENTS[name]()
        except VeenError as error:
            return failed(f"{name}: {error}", "nothing is left behind; run it again", 1)
        tell("")
        print(f"{report.text()}\n", flush=True)
        kept = kept and report.kept
    return 0 if kept else 1


def failed(error: str, hint: str, status: int) -> int:
    print(f"veen: error: {error}\nveen: hint: {hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
