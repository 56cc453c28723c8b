"""`veen bridge mirror`: the streams of one hub, at another."""

from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli.bridge.bridge_options import SourceHub, SourcePin, app, routes, source_client
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command

if TYPE_CHECKING:
    from veen.bridge.mirror import Comparison, MirroredMessage, MirrorRoute
    from veen.client.client import Client


_COLUMNS = ("stream", "stream_seq", "msg_id", "copy_seq", "record_seq", "remark")


@options_command(
    HubOptions,
    app,
    "mirror",
    "veen bridge mirror wallets --source-hub https://a.example --hub https://b.example",
    "veen bridge mirror doors=from-a/doors --source-hub https://a.example --follow",
)
def mirror(
    asked: HubOptions,
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
    from plumbing.cli.command import Misuse

    wanted = routes(streams, records, copies=not records_only)
    if follow and len(wanted) != 1:
        raise Misuse("one stream at a time is followed", "run veen bridge mirror once for each")
    call = asked.call()

    async def work(target: "Client") -> "list[tuple[MirrorRoute, MirroredMessage]]":
        from veen.bridge.mirror import Mirrorer

        found: list[tuple[MirrorRoute, MirroredMessage]] = []
        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            for route in wanted:
                async for one in Mirrorer(source, target, route).run(follow=follow):
                    if follow:
                        _tell([(route, one)], asked.as_json)
                    else:
                        found.append((route, one))
        return found

    _tell(call.run(work), asked.as_json)


def _tell(found: "list[tuple[MirrorRoute, MirroredMessage]]", as_json: bool) -> None:
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


_DIFFERENCE_COLUMNS = ("what", "stream", "stream_seq", "reason")


@options_command(
    HubOptions,
    app,
    "compare",
    "veen bridge compare wallets --source-hub https://a.example --hub https://b.example",
)
def compare(
    asked: HubOptions,
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
    from veen.cli.kit.exit_status import FAILED_STATUS

    wanted = routes(streams, records, copies=not records_only)
    call = asked.call()

    async def work(target: "Client") -> "list[Comparison]":
        from veen.bridge import mirror

        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            return [await mirror.compare(source, target, route) for route in wanted]

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
        output.table(_DIFFERENCE_COLUMNS, rows, False)
    if not all(one.clean for one in found):
        raise typer.Exit(FAILED_STATUS)
