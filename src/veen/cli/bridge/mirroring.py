"""`veen bridge mirror`: the streams of one hub, at another."""

from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli import output
from veen.cli.bridge.group import SourceHub, SourcePin, app, routes, source_client
from veen.cli.client.options import AtHub
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.mirroring import Mirrored, Route
    from veen.client.client import Client

_COLUMNS = ("stream", "stream_seq", "msg_id", "copy_seq", "record_seq", "remark")


@taking(
    AtHub,
    app,
    "mirror",
    "veen bridge mirror wallets --source-hub https://a.example --hub https://b.example",
    "veen bridge mirror doors=from-a/doors --source-hub https://a.example --follow",
)
def mirror(
    asked: AtHub,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM[=TARGET]", help="what is mirrored, and as what")],
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None, typer.Option("--records", metavar="STREAM", help="where records go", show_default="to the copies")
    ] = None,
    records_only: Annotated[
        bool, typer.Option("--records-only", help="write no copies: for who cannot read the source")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="go on as entries come; of one stream")] = False,
) -> None:
    """Mirror streams of one hub at another, each message once, with its origin.

    Every message is validated first: the hub's signature, the client's, the proof. What is mirrored already is known
    from the target's log, so this can be stopped and run again, by anyone who reads and writes there.
    """
    from terminalface.command import Misuse

    wanted = routes(streams, records, copies=not records_only)
    if follow and len(wanted) != 1:
        raise Misuse("one stream at a time is followed", "run veen bridge mirror once for each")
    call = asked.call()

    async def work(target: "Client") -> "list[tuple[Route, Mirrored]]":
        from veen.bridge.mirroring import Mirrorer

        found: list[tuple[Route, Mirrored]] = []
        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            for route in wanted:
                async for one in Mirrorer(source, target, route).run(follow=follow):
                    if follow:
                        _tell([(route, one)], asked.as_json)
                    else:
                        found.append((route, one))
        return found

    _tell(call.run(work), asked.as_json)


def _tell(found: "list[tuple[Route, Mirrored]]", as_json: bool) -> None:
    rows: list[tuple[output.Value, ...]] = [
        (
            route.source,
            one.entry.stream_seq,
            one.entry.msg_id,
            None if one.copy is None else one.copy.stream_seq,
            one.record.stream_seq,
            one.unopened or "",
        )
        for route, one in found
    ]
    output.table(_COLUMNS, rows, as_json)
