"""`veen bridge mirror` and `compare`: streams of one hub copied to another."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.bridge.mirror import Comparison, MirroredMessage, Mirrorer, MirrorRoute
from veen.cli.bridge.bridge_options import SourceHub, SourcePin, app, routes, source_client
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command
from veen.client.client import Client

MirroredStreams: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="STREAM[=TARGET]", help="a stream of the source, and its name at the target")
]
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
    streams: MirroredStreams,
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None,
        typer.Option("--records", metavar="STREAM", help="stream for the records", show_default="that of the copies"),
    ] = None,
    records_only: Annotated[
        bool, typer.Option("--records-only", help="write no copies, if you cannot read the source")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="wait for new entries; for one stream")] = False,
) -> None:
    """Copy streams of one hub to another, each message once, with its origin.

    The signatures of hub and client and the inclusion proof of every message are verified first. The target's log shows
    which messages are mirrored already, so the command can be stopped and repeated by any client that can read and
    write there.
    """
    wanted = routes(streams, records, copies=not records_only)
    if follow and len(wanted) != 1:
        raise Misuse("--follow needs exactly one stream", "run veen bridge mirror once for each stream")
    call = asked.call()

    async def work(target: Client) -> list[tuple[MirrorRoute, MirroredMessage]]:

        found: list[tuple[MirrorRoute, MirroredMessage]] = []
        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            for route in wanted:
                async for one in Mirrorer(source, target, route).run(follow=follow):
                    if follow:
                        _show([(route, one)], asked.as_json)
                    else:
                        found.append((route, one))
        return found

    _show(call.run(work), asked.as_json)


def _show(found: list[tuple[MirrorRoute, MirroredMessage]], as_json: bool) -> None:
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
    streams: MirroredStreams,
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None,
        typer.Option("--records", metavar="STREAM", help="stream of the records", show_default="that of the copies"),
    ] = None,
    records_only: Annotated[bool, typer.Option("--records-only", help="there are no copies")] = False,
) -> None:
    """Compare a mirror with its source, message by message.

    Every record is compared with the source's receipt, every copy with the original. The exit status is 10 if they
    differ.
    """

    wanted = routes(streams, records, copies=not records_only)
    call = asked.call()

    async def work(target: Client) -> list[Comparison]:
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
