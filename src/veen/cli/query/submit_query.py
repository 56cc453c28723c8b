"""`veen query submit`, `status` and `result`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse
from veen.cli.kit import output
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command
from veen.cli.query import render_result
from veen.cli.query.query_options import ServiceOptions, app, remote
from veen.cli.query.render_result import RenderOptions
from veen.client import local_files
from veen.core import canonical_json
from veen.core.limits import MAX_JSON_BYTES

if TYPE_CHECKING:
    from veen.query.query_client import AcceptedQuery, FullResult, QueryClient

_TONES = {"completed": Tone.GOOD, "failed": Tone.BAD}
_RETRY_S = 5

Format: TypeAlias = Annotated[
    str | None,
    typer.Option("--format", metavar="WORD", help="table, json, csv, parquet or plot", show_default="table"),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="write the result to a file; the ending .json, .csv, .parquet or .svg sets the format",
    ),
]
Plot: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--over", metavar="FIELD", help="time field of a plot", show_default="the first time field of the rows"
    ),
]


@options_command(
    ServiceOptions,
    app,
    "submit",
    "veen query submit query.json --service http://127.0.0.1:37420 --token-file token",
    "veen query submit --scope record/app/http --type login --field subject_id --evidence full",
    "veen query submit --scope record/app/http --metric count --group-by event_type --wait 10",
)
def submit(
    asked: ServiceOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="a query descriptor as JSON; options override its fields")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option("--scope", metavar="STREAM", help="a stream to query")] = None,
    subject: Annotated[str | None, typer.Option("--subject", metavar="ID", help="only events of this subject")] = None,
    types: Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="only events of this type")] = None,
    time_from: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="only events recorded at or after this time, such as 2025-11-19T03:20:00Z"
        ),
    ] = None,
    time_to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="only events recorded before this time")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar="NAME", help="a field of the rows, such as payload.http.status", show_default="all"
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="count, or min, max, sum or distinct of a field"),
    ] = None,
    group_by: Annotated[
        list[str] | None, typer.Option("--group-by", metavar="NAME", help="group by this field")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option("--evidence", metavar="WORD", help="none, full, or spot:RATE as in spot:0.1", show_default="none"),
    ] = None,
    query_id: Annotated[str | None, typer.Option("--id", metavar="TEXT", help="choose the id of the query")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="reason of the query, for the record")
    ] = None,
    wait: Annotated[
        int, durations.whole_option("--wait", least=0, most=30, help="how long to wait for the result")
    ] = 0,
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Submit a query to a service; the query is recorded before it runs.

    With --wait, a result that arrives in time is shown as by veen query result.
    """
    options = RenderOptions(form, out, over)
    options.chosen()  # check the options before submitting
    query = _read_descriptor(file)
    filters = dict(query.get("filter") or {})
    window = {**(filters.get("time") or {}), **_without_none(**{"from": time_from, "to": time_to})}
    filters |= _without_none(subject_id=subject, event_type=types, time=window or None)
    query |= {"filter": filters, **_without_none(scope=scope, projection=names, query_id=query_id)}
    query.setdefault("projection", ["*"])
    if metrics or group_by:
        query["aggregate"] = {"group_by": group_by or [], "metrics": metrics or ["count"]}
    if evidence is not None or "evidence" not in query:
        query["evidence"] = _policy(evidence or "none")
    if reason is not None:
        query["meta"] = {**(query.get("meta") or {}), "reason": reason}
    with remote(asked) as service:
        found = _submit(service, query, wait)
        _show(service, found, asked, wait, options)


def _submit(service: "QueryClient", query: dict[str, Any], wait: int) -> "AcceptedQuery | FullResult":
    """Submit a query; retry while the service is loading its tables. It records the query only once it accepts it."""
    from veen.query.query_errors import QueryCode, QueryFault

    last_message = ""
    while True:
        try:
            return service.submit(query, wait)
        except QueryFault as fault:
            if fault.code != QueryCode.TABLES_NOT_READY:
                raise
            if fault.message != last_message:
                output.remark(fault.message)
            last_message = fault.message
            time.sleep(_RETRY_S if fault.retry_after is None else fault.retry_after)


def _show(
    service: "QueryClient",
    found: "AcceptedQuery | FullResult",
    asked: ServiceOptions,
    wait: int,
    options: RenderOptions,
) -> None:
    from veen.query.query_client import AcceptedQuery

    if isinstance(found, AcceptedQuery):
        status = service.status(found.result_id)["status"] if wait else found.status
        if status != "completed":
            shown = {"query_id": found.query_id, "result_id": found.result_id, "status": status}
            output.facts(shown, asked.as_json)
            return
        found = service.result(found.result_id)
    names = render_result.column_names(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, options)


@options_command(
    ServiceOptions,
    app,
    "status",
    "veen query status r-5f1c… --service http://127.0.0.1:37420 --token-file token --json",
)
def status(
    asked: ServiceOptions,
    result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="the id from veen query submit")],
) -> None:
    """Show the status of a query."""
    with remote(asked) as service:
        found = service.status(result_id)
    word = str(found["status"])
    shown: dict[str, output.Value] = {name: found[name] for name in ("query_id", "result_id")}
    shown["status"] = Marked(word, _TONES.get(word, Tone.WARN))
    shown |= {name: found[name] for name in ("error_code", "message") if found[name] is not None}
    output.facts(shown, asked.as_json, found)


@options_command(
    ServiceOptions,
    app,
    "result",
    "veen query result r-5f1c… --service http://127.0.0.1:37420 --token-file token",
    "veen query result r-5f1c… --out rows.parquet",
    "veen query result r-5f1c… --format plot",
    "veen query result r-5f1c… --out counts.svg --over hub_commit_time",
)
def result(
    asked: ServiceOptions,
    result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="the id from veen query submit")],
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Fetch all rows of a result and verify its digest.

    A plot consists of bars on a terminal and is an SVG picture in a file.
    """
    options = RenderOptions(form, out, over)
    options.chosen()  # check the options before fetching
    with remote(asked) as service:
        found = service.result(result_id)
        names = render_result.column_names(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, options)


def _read_descriptor(file: Path | None) -> dict[str, Any]:

    if file is None:
        return {}
    found = canonical_json.parse(local_files.read_file(file, MAX_JSON_BYTES), str(file))
    if not isinstance(found, dict):
        raise Misuse(f"{file} is not a JSON object", "give a query descriptor; docs/query.md describes its fields")
    return dict(found)


def _without_none(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _policy(text: str) -> dict[str, Any]:
    mode, colon, rate = text.partition(":")
    if not colon:
        return {"mode": mode}
    try:
        return {"mode": mode, "sample_rate": float(rate)}
    except ValueError:
        raise Misuse(f"{rate!r} is not a rate", "give spot:0.1 for a tenth of the rows") from None
