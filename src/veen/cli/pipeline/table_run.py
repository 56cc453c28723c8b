"""`veen pipeline run`, `stream` and `compact`."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import Misuse, command
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.state_options import options_command
from veen.cli.pipeline.pipeline_options import Out, PipelineRun, Sources, TablesDir, app, task_progress

if TYPE_CHECKING:
    from veen.pipeline.folding import Folded
    from veen.pipeline.jobs import Runner
    from veen.pipeline.tables import CommitSpan, Tables
    from veen.pipeline.tables.streaming import BatchCallback

Overlays = Annotated[
    list[str] | None,
    typer.Option("--fold", metavar="CLASS", help="also fold every stream with this overlay", show_default=False),
]


@options_command(
    PipelineRun,
    app,
    "run",
    "veen pipeline run hub --out tables --client reader",
    "veen pipeline run hub --out tables --key doors.key --fold kv",
    "veen pipeline run hub --out tables --client reader --master spark://10.0.0.5:7077",
)
def run(asked: PipelineRun, source: Sources, out: Out, fold: Overlays = None) -> None:
    """Bring tables up to date with the logs.

    Entries that are in the tables already are not read again. A run that was interrupted is continued, and each entry
    is in the tables exactly once. Logs that differ from those the tables were made from are rejected. Spark starts only
    if there is work, which takes many seconds; --processes is faster for a small log.
    """
    from veen.client.local_files import Busy
    from veen.pipeline.tables import Tables, load
    from veen.pipeline.tables.compacting import tidy

    tables = Tables(out)
    with asked.runner() as runner:
        with task_progress("reading") as progress:
            done = load(tables, asked.selection(source), asked.keys(), runner, progress=progress)
        with task_progress("merging") as progress, suppress(Busy):  # another process is compacting
            tidy(tables, runner, progress=progress)
        folded = list(_fold(tables, fold or [], done.spans, runner))
    facts: dict[str, output.Value] = {
        "entries": done.entries,
        "events": done.events,
        "quarantined": done.quarantined,
        "commits": done.commits,
    }
    facts |= {f"state of {one.stream}": f"{one.overlay.CLASS} {one.state_hash.hex()}" for one in folded}
    state = [
        {
            "stream": one.stream,
            "overlay": one.overlay.CLASS,
            "upto_seq": one.bounds[-1].upto_seq,
            "mmr_root": one.bounds[-1].mmr_root,
            "state_hash": one.state_hash,
            "parts": len(one.states),
            "entries_read": one.read.entries,
        }
        for one in folded
    ]
    data = {name: value for name, value in facts.items() if not name.startswith("state of ")}
    output.facts(facts, asked.as_json, {**data, "state": state, "stands_for": [span_data(one) for one in done.spans]})
    if done.quarantined and not asked.as_json:
        output.remark("the column reason of the quarantine table says why; veen pipeline status counts the rows")


def _fold(tables: "Tables", overlays: list[str], spans: "tuple[CommitSpan, ...]", runner: "Runner") -> "list[Folded]":
    from veen.pipeline.folding import fold

    made = []
    for name in overlays:
        for stream in dict.fromkeys(span.stream for span in spans):
            with task_progress(f"folding {stream}") as progress:
                made.append(fold(tables, name, stream, runner, progress=progress))
    return made


@options_command(
    PipelineRun,
    app,
    "stream",
    "veen pipeline stream hub --out tables --client reader",
    "veen pipeline stream http://127.0.0.1:37411 --out tables --key doors.key --stream doors --once",
)
def stream(
    asked: PipelineRun,
    source: Sources,
    out: Out,
    once: Annotated[bool, typer.Option("--once", help="exit when the tables are up to date")] = False,
    max_entries: Annotated[
        int | None, typer.Option("--max-entries", metavar="N", min=1, help="maximum entries per batch")
    ] = None,
    every: Annotated[float, typer.Option("--every", metavar="SEC", min=0.1, help="time between two checks")] = 1.0,
) -> None:
    """Keep tables up to date with growing logs until interrupted.

    Each batch is committed exactly once. A batch that was interrupted by a crash runs again and adds no row twice.
    """
    from veen.pipeline.tables import Tables
    from veen.pipeline.tables.streaming import follow

    if asked.processes is not None:
        raise Misuse("veen pipeline stream needs Spark", "leave out --processes, or use veen pipeline run")
    tables = Tables(out)
    spark = asked.begin()
    try:
        selection = asked.selection(source, max_entries=max_entries)
        query = follow(
            tables, selection, asked.keys(), spark, once=once, every_sec=every, on_batch=_span_printer(asked.as_json)
        )
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
    finally:
        spark.stop()


def _span_printer(as_json: bool) -> "BatchCallback":
    """Prints one line for each range of new entries."""

    def show(spans: "tuple[CommitSpan, ...]") -> None:
        for span in spans:
            if as_json:
                output.document(span_data(span))
            else:
                output.table(("stream", "first", "last"), [(span.stream, span.first, span.last)], False)
        sys.stdout.flush()

    return show


def span_data(span: "CommitSpan") -> dict[str, output.Value]:
    """A range of the log that tables were made from, as JSON."""
    return {
        "stream": span.stream,
        "epoch": span.epoch,
        "label": span.label,
        "hub_id": span.hub_id,
        "first_seq": span.first,
        "upto_seq": span.last,
        "mmr_root": span.mmr_root,
    }


@command(app, "compact", "veen pipeline compact tables")
def compact(
    tables: TablesDir,
    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", min=1, help="number of processes")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files into large ones; no row changes.

    Lookups are faster afterwards. A program that reads the files directly while they are replaced may see some rows
    twice and should read again. Commands and the query engine are not affected.
    """
    from veen.pipeline.jobs import in_processes
    from veen.pipeline.tables import Tables
    from veen.pipeline.tables.compacting import compact as merge

    with task_progress("merging") as progress:
        done = merge(existing(Tables(tables)), in_processes(processes), progress=progress)
    output.facts({"files_before": done.before, "files_after": done.after}, as_json)


def existing(tables: "Tables") -> "Tables":
    """Raise if the tables do not exist, so a mistyped folder is not created."""
    tables.view()
    return tables
