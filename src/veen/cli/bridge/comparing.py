"""`veen bridge compare`: whether two hubs agree on what was mirrored."""

from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli import output
from veen.cli.bridge.group import SourceHub, SourcePin, app, routes, source_client
from veen.cli.client.options import AtHub
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.comparing import Comparison
    from veen.client.client import Client

_COLUMNS = ("what", "stream", "stream_seq", "reason")


@taking(
    AtHub,
    app,
    "compare",
    "veen bridge compare wallets --source-hub https://a.example --hub https://b.example",
)
def compare(
    asked: AtHub,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM[=TARGET]", help="what is mirrored, and as what")],
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None, typer.Option("--records", metavar="STREAM", help="where records are", show_default="at the copies")
    ] = None,
    records_only: Annotated[bool, typer.Option("--records-only", help="there are no copies")] = False,
) -> None:
    """Hold what a mirror wrote against what the source hub says, message by message.

    Every record against the source's receipt, every copy against the original. The exit status is 10 where they differ.
    """
    from veen.cli.failures import FAILED_STATUS

    wanted = routes(streams, records, copies=not records_only)
    call = asked.call()

    async def work(target: "Client") -> "list[Comparison]":
        from veen.bridge import comparing

        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            return [await comparing.compare(source, target, route) for route in wanted]

    found = call.run(work)
    names = [route.source for route in wanted]
    if asked.as_json:
        output.document([{"stream": name, **one.to_json()} for name, one in zip(names, found, strict=True)])
    else:
        rows: list[tuple[output.Value, ...]] = []
        for name, one in zip(names, found, strict=True):
            rows += [(Marked(d.what, Tone.BAD), name, d.stream_seq, d.reason) for d in one.differences]
            if one.clean:
                rows.append((Marked("same", Tone.GOOD), name, one.source_entries, f"{one.copies} copies"))
        output.table(_COLUMNS, rows, False)
    if not all(one.clean for one in found):
        raise typer.Exit(FAILED_STATUS)
