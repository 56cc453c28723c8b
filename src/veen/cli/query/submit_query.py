"""`veen query submit`, `status` and `result`: asking a service, and what it says."""

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
from veen.cli.query.query_options import Asks, app, remote
from veen.cli.query.render_result import RenderOptions

if TYPE_CHECKING:
    from veen.query.query_client import AcceptedQuery, FullResult, QueryClient

_TONES = {"completed": Tone.GOOD, "failed": Tone.BAD}
_WAIT_S = 10
_AGAIN_S = 5

Format: TypeAlias = Annotated[
    str | None,
    typer.Option("--format", metavar="WORD", help="table, json, csv, parquet or plot", show_default="table"),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="write it there: the format is that of .json, .csv, .parquet or .svg"),
]
Plot: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--over", metavar="FIELD", help="the time that a plot counts over", show_default="the first in the rows"
    ),
]


@options_command(
    Asks,
    app,
    "submit",
    "veen query submit query.json --service http://127.0.0.1:37420 --token-file token",
    "veen query submit --scope record/app/http --type login --field subject_id --evidence full",
    "veen query submit --scope record/app/http --metric count --group-by event_type --wait 10",
)
def submit(
    asked: Asks,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="a descriptor as JSON; what options say is put in its place")
    ] = None,
    scope: Annotated[list[str] | None, typer.Option("--scope", metavar="STREAM", help="a stream to ask")] = None,
    subject: Annotated[str | None, typer.Option("--subject", metavar="ID", help="only events of this subject")] = None,
    types: Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="only events of this type")] = None,
    time_from: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="recorded then or later: 2025-11-19T03:20:00Z")
    ] = None,
    time_to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="recorded before then")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="a field of a row, like payload.http.status", show_default="all"),
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", metavar="NAME", help="count, or min, max, sum, distinct of a field")
    ] = None,
    group_by: Annotated[
        list[str] | None, typer.Option("--group-by", metavar="NAME", help="for each value of it")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option("--evidence", metavar="WORD", help="none, full, or spot:RATE as in spot:0.1", show_default="none"),
    ] = None,
    query_id: Annotated[str | None, typer.Option("--id", metavar="TEXT", help="an id of your own")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for the record")] = None,
    wait: Annotated[
        int, durations.whole_option("--wait", least=0, most=30, help="wait for the answer, at most so long")
    ] = 0,
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Ask a service; the query is recorded before it is carried out.

    Where the answer is waited for and comes in time, it is shown as veen query result shows it.
    """
    wish = RenderOptions(form, out, over)
    wish.chosen()  # before anything is asked
    query = _given(file)
    kept = dict(query.get("filter") or {})
    window = {**(kept.get("time") or {}), **_set(**{"from": time_from, "to": time_to})}
    kept |= _set(subject_id=subject, event_type=types, time=window or None)
    query |= {"filter": kept, **_set(scope=scope, projection=names, query_id=query_id)}
    query.setdefault("projection", ["*"])
    if metrics or group_by:
        query["aggregate"] = {"group_by": group_by or [], "metrics": metrics or ["count"]}
    if evidence is not None or "evidence" not in query:
        query["evidence"] = _policy(evidence or "none")
    if reason is not None:
        query["meta"] = {**(query.get("meta") or {}), "reason": reason}
    with remote(asked) as service:
        found = _submitted(service, query, wait)
        _tell(service, found, asked, wait, wish)


def _submitted(service: "QueryClient", query: dict[str, Any], wait: int) -> "AcceptedQuery | FullResult":
    """While its tables are being filled, a service takes no query: say so, and ask again. Nothing is recorded yet."""
    from veen.query.query_errors import QueryCode, QueryFault

    said = ""
    while True:
        try:
            return service.submit(query, wait)
        except QueryFault as fault:
            if fault.code != QueryCode.TABLES_NOT_READY:
                raise
            if fault.message != said:
                output.remark(fault.message)
            said = fault.message
            time.sleep(_AGAIN_S if fault.retry_after is None else fault.retry_after)


def _tell(
    service: "QueryClient", found: "AcceptedQuery | FullResult", asked: Asks, wait: int, wish: RenderOptions
) -> None:
    from veen.query.query_client import AcceptedQuery

    if isinstance(found, AcceptedQuery):
        status = service.status(found.result_id)["status"] if wait else found.status
        if status != "completed":
            shown = {"query_id": found.query_id, "result_id": found.result_id, "status": status}
            output.facts(shown, asked.as_json)
            return
        found = service.result(found.result_id)
    names = render_result.named(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, wish)


@options_command(
    Asks, app, "status", "veen query status r-5f1c… --service http://127.0.0.1:37420 --token-file token --json"
)
def status(
    asked: Asks, result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="as veen query submit shows it")]
) -> None:
    """Say how far a query is."""
    with remote(asked) as service:
        found = service.status(result_id)
    word = str(found["status"])
    shown: dict[str, output.Value] = {name: found[name] for name in ("query_id", "result_id")}
    shown["status"] = Marked(word, _TONES.get(word, Tone.WARN))
    shown |= {name: found[name] for name in ("error_code", "message") if found[name] is not None}
    output.facts(shown, asked.as_json, found)


@options_command(
    Asks,
    app,
    "result",
    "veen query result r-5f1c… --service http://127.0.0.1:37420 --token-file token",
    "veen query result r-5f1c… --out rows.parquet",
    "veen query result r-5f1c… --format plot",
    "veen query result r-5f1c… --out counts.svg --over hub_commit_time",
)
def result(
    asked: Asks,
    result_id: Annotated[str, typer.Argument(metavar="RESULT_ID", help="as veen query submit shows it")],
    form: Format = None,
    out: Out = None,
    over: Plot = None,
) -> None:
    """Fetch a result: all of its rows, which must come to its digest.

    On a terminal a plot is of bars; in a file it is a picture, in SVG.
    """
    wish = RenderOptions(form, out, over)
    wish.chosen()  # before anything is asked
    with remote(asked) as service:
        found = service.result(result_id)
        names = render_result.named(service.descriptor(found.digest.query_id)[0])
    render_result.show(found, names, asked.as_json, wish)


def _given(file: Path | None) -> dict[str, Any]:
    from veen.client import durable
    from veen.core import canonical_json
    from veen.core.limits import MAX_JSON_BYTES

    if file is None:
        return {}
    found = canonical_json.parse(durable.read_file(file, MAX_JSON_BYTES), str(file))
    if not isinstance(found, dict):
        raise Misuse(f"{file} is not a JSON object", "give a descriptor: docs/query.md says what it has")
    return dict(found)


def _set(**given: object) -> dict[str, object]:
    return {name: value for name, value in given.items() if value is not None}


def _policy(text: str) -> dict[str, Any]:
    mode, given, rate = text.partition(":")
    if not given:
        return {"mode": mode}
    try:
        return {"mode": mode, "sample_rate": float(rate)}
    except ValueError:
        raise Misuse(f"{rate!r} is no rate", "give spot:0.1 for a tenth of the rows") from None
