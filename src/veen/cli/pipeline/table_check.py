"""`veen pipeline status` and `verify`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbing.cli.command import command
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.sanitize import short
from veen.cli.kit.state_options import options_command
from veen.cli.pipeline.pipeline_options import PipelineSource, TablesDir, app
from veen.cli.pipeline.table_run import span_data

if TYPE_CHECKING:
    from veen.pipeline.tables.verify import TablesVerified


@command(app, "status", "veen pipeline status tables", "veen pipeline status tables --json")
def status(tables: TablesDir, as_json: JsonOption = False) -> None:
    """Show which logs the tables were made from, and their row counts."""
    from veen.pipeline.tables import Table, Tables

    view = Tables(tables).view()
    counted: dict[tuple[bytes, str], int] = {}
    for file in view.files.values():
        key = (file.label, str(file.table))
        counted[key] = counted.get(key, 0) + file.rows
    spans = sorted(view.spans.values(), key=lambda span: (span.stream, span.epoch, span.label))
    names = (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)
    rows: list[tuple[output.Value, ...]] = [
        (
            short(span.label) if span.stream == span.label.hex() else span.stream,
            span.epoch,
            span.last,
            *(counted.get((span.label, str(name)), 0) for name in names),
            span.mmr_root and short(span.mmr_root),
        )
        for span in spans
    ]
    states: list[dict[str, output.Value]] = [
        {
            "stream": file.stream,
            "overlay": file.overlay,
            "upto_seq": file.last,
            "parts": file.rows,
            "state_hash": file.state_hash and short(file.state_hash),
        }
        for file in view.of(Table.STATE)
    ]
    data: dict[str, Any] = {
        "commits": view.number,
        "files": len(view.files),
        "stands_for": [
            {**span_data(span), **{str(name): counted.get((span.label, str(name)), 0) for name in names}}
            for span in spans
        ],
        "state": states,
    }
    columns = ("stream", "epoch", "upto_seq", *map(str, names), "mmr_root")
    output.table(columns, rows, as_json, data)
    if states and not as_json:
        output.table(tuple(states[0]), [tuple(one.values()) for one in states], as_json)


@options_command(
    PipelineSource,
    app,
    "verify",
    "veen pipeline verify tables --against hub",
    "veen pipeline verify tables --against hub --client reader",
)
def verify(
    asked: PipelineSource,
    tables: TablesDir,
    against: Annotated[
        list[str], typer.Option("--against", metavar="SOURCE", help="the data directory or hub they were made from")
    ],
) -> None:
    """Verify tables against the log they were made from.

    Every leaf is computed again from the table of entries, and the leaves must give the root that the hub signed.
    Events and quarantine together must have one row per entry. With --client or --key, every event is also opened and
    decoded again; streams without a key are named.

    The exit status is 8 if a row was changed, removed or added.
    """
    from veen.cli.kit.exit_status import DAMAGED_STATUS
    from veen.pipeline.tables import Tables
    from veen.pipeline.tables.verify import verify as check

    keys = asked.keys()
    with output.tally("verifying"):
        done = check(Tables(tables), asked.selection(against), keys if keys.references else None)
    _show(done, bool(keys.references) and not done.unopened, asked.as_json)
    if done.unopened and not asked.as_json:
        names = ", ".join(dict.fromkeys(one.stream for one in done.unopened))
        output.remark(f"no given key opens {names}: the content of its entries was not verified")
    if done.problems or done.unmatched:
        raise typer.Exit(DAMAGED_STATUS)


def _show(done: "TablesVerified", again: bool, as_json: bool) -> None:
    rows: list[tuple[output.Value, ...]] = [
        (Marked("damaged", Tone.BAD), one.where, one.label, one.stream_seq, one.what) for one in done.problems
    ]
    rows += [
        (Marked("unmatched", Tone.WARN), one.stream, one.label, one.last, "no source has this log")
        for one in done.unmatched
    ]
    sound = not rows
    facts: dict[str, output.Value] = {
        "verdict": Marked("sound", Tone.GOOD) if sound else Marked("damaged", Tone.BAD),
        "entries": done.entries,
        "events": done.events,
        "quarantined": done.quarantined,
        "opened_again": again,
    }
    if as_json:
        problems = [
            {"where": str(one.where), "label": one.label, "stream_seq": one.stream_seq, "what": one.what}
            for one in done.problems
        ]
        kinds = {"signed": done.signed, "unmatched": done.unmatched, "unopened": done.unopened}
        spans = {name: [span_data(one) for one in found] for name, found in kinds.items()}
        output.document({**facts, "problems": problems, **spans})
        return
    output.table(("severity", "where", "label", "entry", "what"), rows, as_json)
    output.facts(facts, as_json)
