"""`veen bench`: measure a hub on this machine."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import command, group, option
from veen.bench import scaling, throughput
from veen.bench.bench_report import BenchReport, BenchRow
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import MISSED_STATUS
from veen.cli.kit.output import Marked, Tone

app = group(
    "bench",
    """Measure a hub on this machine and compare it with the targets.

    The command starts hubs in a temporary folder and removes them afterwards. Most figures are ratios within one run,
    because machines differ and drift. The exit status is 9 if a target is missed.
    """,
)

Rounds: TypeAlias = Annotated[int | None, option("--rounds N", "how many times each figure is measured", min=1)]
Folder: TypeAlias = Annotated[Path | None, option("--folder DIR", "working folder; it selects the disk")]


@command(app, "hub", "veen bench hub", "veen bench hub --rounds 3 --alone --json")
def hub(
    rounds: Rounds = None,
    connections: Annotated[int | None, option("--connections N", "number of concurrent clients", min=1)] = None,
    per_connection: Annotated[int | None, option("--per-connection N", "messages per client and round", min=1)] = None,
    alone: Annotated[
        bool, option("--alone", "do not measure Redis and NATS for comparison, even if they are installed")
    ] = False,
    folder: Folder = None,
    as_json: JsonOption = False,
) -> None:
    """Measure submits per second and latency, compared with the cryptography alone."""
    with _progress() as progress:
        report = throughput.measure_hub(
            rounds=rounds or throughput.ROUNDS,
            connections=connections or throughput.CONNECTIONS,
            per_connection=per_connection or throughput.PER_CONNECTION,
            beside=not alone,
            folder=folder,
            progress=progress,
        )
    _show(report, as_json)


@command(app, "labels", "veen bench labels", "veen bench labels --labels 1000")
def labels(
    count: Annotated[int | None, option("--labels N", "number of labels", min=2)] = None,
    rounds: Rounds = None,
    folder: Folder = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the cost of writing to many labels in turn, compared with one label."""
    with _progress() as progress:
        chosen, turns = count or throughput.LABELS, rounds or throughput.LABEL_ROUNDS
        report = throughput.measure_labels(labels=chosen, rounds=turns, folder=folder, progress=progress)
    _show(report, as_json)


@command(app, "growth", "veen bench growth", "veen bench growth --large 100000")
def growth(
    large: Annotated[int | None, option("--large N", "entries of the larger log", min=2)] = None,
    rounds: Rounds = None,
    folder: Folder = None,
    as_json: JsonOption = False,
) -> None:
    """Measure whether time and memory stay flat as a log grows."""
    with _progress() as progress:
        most, turns = large or scaling.LARGE, rounds or scaling.ROUNDS
        report = scaling.measure_growth(large=most, rounds=turns, folder=folder, progress=progress)
    _show(report, as_json)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A status line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        yield lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(report: BenchReport, as_json: bool) -> None:
    if as_json:
        output.document(report.as_json())
    else:
        for note in report.notes:
            output.remark(note)
        rows = [(row.what, number(row.value), row.unit, _spread(row), _target(row)) for row in report.rows]
        output.table(("what", "median", "unit", "min to max", "target"), rows, as_json)
    if not report.kept:
        raise typer.Exit(MISSED_STATUS)


def number(value: float) -> str:
    """The value with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _spread(row: BenchRow) -> str:
    return f"{number(row.low)} – {number(row.high)}" if row.low != row.high else ""


def _target(row: BenchRow) -> Marked:
    return Marked(row.promise, Tone.GOOD if row.kept else Tone.BAD)
