"""`veen pipeline run`, `stream` and `compact`: tables made, kept up, and tidied."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import command
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.state_options import options_command
from veen.cli.pipeline.pipeline_options import Out, PipelineRun, Sources, TablesDir, app, told

if TYPE_CHECKING:
    from veen.pipeline.folding import Folded
    from veen.pipeline.jobs import Runner
    from veen.pipeline.tables import CommitSpan, Tables
    from veen.pipeline.tables.streaming import BatchCallback

Overlays = Annotated[
    list[str] | None,
    typer.Option("--fold", metavar="CLASS", help="fold every stream with this overlay, too", show_default=False),
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
    """Bring tables up to where the logs are.

    What the tables have is not read again, and a run that died is gone on with: in the end each entry is there once.
    Logs that are not those the tables stand for are refused. Spark starts only where there is something to do.
    That alone takes many seconds: --processes is quicker for a small log.
    """
    from veen.client.durable import Busy
    from veen.pipeline.tables import Tables, load
    from veen.pipeline.tables.compacting import tidy

    tables = Tables(out)
    with asked.runner() as runner:
        with told("reading") as tell:
            done = load(tables, asked.selection(source), asked.keys(), runner, progress=tell)
        with told("merging") as tell, suppress(Busy):  # then another process does that
            tidy(tables, runner, progress=tell)
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
        output.remark("what is in quarantine says why in its column reason; veen pipeline status counts it")


def _fold(tables: "Tables", overlays: list[str], spans: "tuple[CommitSpan, ...]", runner: "Runner") -> "list[Folded]":
    from veen.pipeline.folding import fold

    made = []
    for name in overlays:
        for stream in dict.fromkeys(span.stream for span in spans):
            with told(f"folding {stream}") as tell:
                made.append(fold(tables, name, stream, runner, progress=tell))
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
    once: Annotated[bool, typer.Option("--once", help="end when all that is there now is in the tables")] = False,
    max_entries: Annotated[
        int | None, typer.Option("--max-entries", metavar="N", min=1, help="entries in one batch at most")
    ] = None,
    every: Annotated[float, typer.Option("--every", metavar="SEC", min=0.1, help="between two looks")] = 1.0,
) -> None:
    """Keep tables up with logs as they grow, until interrupted.

    Each batch is one commit, exactly once: a batch that was under way when the process died is run again, and adds
    nothing that is there already.
    """
    from plumbing.cli.command import Misuse
    from veen.pipeline.tables import Tables
    from veen.pipeline.tables.streaming import follow

    if asked.processes is not None:
        raise Misuse("a stream runs on Spark", "leave --processes out; veen pipeline run needs no Spark with it")
    tables = Tables(out)
    spark = asked.begin()
    try:
        selection = asked.selection(source, max_entries=max_entries)
        query = follow(
            tables, selection, asked.keys(), spark, once=once, every_sec=every, on_batch=_tell(asked.as_json)
        )
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
    finally:
        spark.stop()


def _tell(as_json: bool) -> "BatchCallback":
    """A line for each run of entries that came in."""

    def tell(spans: "tuple[CommitSpan, ...]") -> None:
        for span in spans:
            if as_json:
                output.document(span_data(span))
            else:
                output.table(("stream", "first", "last"), [(span.stream, span.first, span.last)], False)
        sys.stdout.flush()

    return tell


def span_data(span: "CommitSpan") -> dict[str, output.Value]:
    """What tables stand for, as JSON."""
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
    processes: Annotated[int | None, typer.Option("--processes", metavar="N", min=1, help="at once")] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files into large ones. No row changes.

    Look-ups are quicker afterwards. Who reads the files directly at the moment they are replaced may see some rows
    twice, and should read again; commands and the query engine do not.
    """
    from veen.pipeline.jobs import in_processes
    from veen.pipeline.tables import Tables
    from veen.pipeline.tables.compacting import compact as merge

    with told("merging") as tell:
        done = merge(existing(Tables(tables)), in_processes(processes), progress=tell)
    output.facts({"files_before": done.before, "files_after": done.after}, as_json)


def existing(tables: "Tables") -> "Tables":
    """Tables that are there: a mistyped folder is not to become one."""
    tables.view()
    return tables
