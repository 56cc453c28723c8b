"""`python -m bench [NAME…]`: run all measurements, or the named ones, and report which promises are kept."""

import sys
from collections.abc import Callable

from bench import (
    client,
    decode,
    folding,
    http_posts,
    overlays,
    pipeline,
    prove,
    questions,
    seal,
    send_trace,
    signing,
    veil_codec,
    veil_node,
    verifier,
)
from veen.bench import scaling, throughput
from veen.bench.bench_report import BenchReport
from veen.bench.hub_process import Progress, silent
from veen.core import VeenError


def show_progress(text: str) -> None:
    """Print progress on a line that the next one replaces."""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


progress: Progress = show_progress if sys.stderr.isatty() else silent

MEASUREMENTS: dict[str, Callable[[], BenchReport]] = {
    "decode": decode.measure,
    "seal": seal.measure,
    "prove": prove.measure,
    "client": client.measure,
    "send-trace": send_trace.measure,
    "signing": signing.measure,
    "http": http_posts.measure,
    "hub": lambda: throughput.measure_hub(progress=progress),
    "labels": lambda: throughput.measure_labels(progress=progress),
    "growth": lambda: scaling.measure_growth(progress=progress),
    "overlays": lambda: overlays.measure(progress),
    "veil": veil_codec.measure,
    "veil-node": veil_node.measure,
    "pipeline": lambda: pipeline.measure(progress),
    "folding": lambda: folding.measure(progress),
    "questions": lambda: questions.measure(progress),
    "verifier": verifier.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        return failed(f"unknown measurement {unknown[0]}", f"choose from {', '.join(MEASUREMENTS)}", 2)
    kept = True
    for name in names or MEASUREMENTS:
        try:
            report = MEASUREMENTS[name]()
        except VeenError as error:
            return failed(f"{name}: {error}", "temporary files are removed; run it again", 1)
        progress("")
        print(f"{report.text()}\n", flush=True)
        kept = kept and report.kept
    return 0 if kept else 1


def failed(error: str, hint: str, status: int) -> int:
    print(f"veen: error: {error}\nveen: hint: {hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
