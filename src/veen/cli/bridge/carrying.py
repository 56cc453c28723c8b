"""`veen bridge veil publish`: what a hub said, to others who know the hub."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface import durations
from terminalface.command import Misuse, group
from veen.cli import output
from veen.cli.client.options import AtHub
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.carriage.node import VeilNode
    from veen.bridge.carriage.publishing import Publisher, Said
    from veen.client.client import Client
    from veen.client.trust import HubRecord

app = group(
    "veil",
    """Compare what a hub told its clients, over a VEIL node.

    Clients of one hub meet in VEIL and show each other the checkpoints that the hub signed for them. Where it signed
    two histories, each of them ends up with a file that proves it. Neither the hub nor the network is believed.
    """,
)

_COLUMNS = ("what", "of", "upto_seq", "bytes", "objects", "digest")
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")

Node: TypeAlias = Annotated[
    str,
    typer.Option(
        "--node", metavar="DIR|URL", envvar="VEIL_DATA_DIR", help="the VEIL node: its folder, or where its API is"
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="the node's api.token, where --node is a URL")
]
InGroup: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="a VEIL group that the node is in",
        show_default="the one that all who know the hub share",
    ),
]


def node_at(node: str, token_file: Path | None) -> "VeilNode":
    """The node that was named."""
    from veen.bridge.carriage.node import VeilNode, read_token

    if "://" not in node:
        if token_file is not None:
            raise Misuse("a node's folder has its token", "give --token-file with a URL only")
        return VeilNode.of(Path(node))
    if not node.startswith(_LOOPBACK):
        raise Misuse(f"{node} is not on this machine", "a node's API is for this machine alone: http://127.0.0.1:PORT")
    if token_file is None:
        raise Misuse("a node lets in who has its token", "give --token-file FILE, or the node's folder as --node")
    return VeilNode(node, read_token(token_file))


@taking(
    AtHub,
    app,
    "publish",
    "veen bridge veil publish doors --node ~/veil",
    "veen bridge veil publish doors alarms --node ~/veil --every 60",
    "veen bridge veil publish --evidence lie.evidence --group auditors --node ~/veil",
)
def publish(
    asked: AtHub,
    node: Node,
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM", help="whose checkpoints, as the hub signs them now")
    ] = None,
    evidence: Annotated[
        list[Path] | None, typer.Option("--evidence", metavar="FILE", help="an evidence file about this hub")
    ] = None,
    bundle: Annotated[
        list[Path] | None, typer.Option("--bundle", metavar="FILE", help="a bundle of this hub's events")
    ] = None,
    group: InGroup = None,
    token_file: TokenFile = None,
    every: Annotated[
        float | None, durations.option("--every", least=0.1, help="go on for ever: again where a stream has grown")
    ] = None,
) -> None:
    """Show others what the hub signed: checkpoints of streams, evidence, bundles.

    Everything is verified first. It is on the node's disk when this returns, and leaves as soon as another node is
    there. A checkpoint names no stream; a bundle names its stream and who wrote when, and nothing that was written.
    """
    from veen.cli.client import calling

    files = [("evidence", path) for path in evidence or ()] + [("bundle", path) for path in bundle or ()]
    if not streams and not files:
        raise Misuse("there is nothing to publish", "name a STREAM, or give --evidence FILE or --bundle FILE")
    if every is not None and not streams:
        raise Misuse("--every is for streams", "name a STREAM")
    call = asked.call()

    async def work(known: "HubRecord", client: "Client | None") -> None:
        from veen.bridge.carriage.meeting import Meeting
        from veen.bridge.carriage.publishing import Publisher

        async with node_at(node, token_file) as veil:
            publisher = Publisher(await Meeting.enter(veil, known.identity.hub_id, group), known)
            rows = [await _file(publisher, what, path) for what, path in files]
            at: dict[str, bytes] = {}
            rows += await _checkpoints(publisher, client, streams or [], at) if client else []
            output.table(_COLUMNS, rows, asked.as_json)
            while every is not None and client is not None:
                await asyncio.sleep(every)
                rows = await _checkpoints(publisher, client, streams or [], at)
                if rows:
                    output.table(_COLUMNS, rows, asked.as_json)

    if streams:
        call.run(lambda client: work(client.contact.trust.known, client))
        return
    # What a hub was caught at can be shown without it.
    with calling.opened(asked.client, asked.passphrase_file) as folder:
        asyncio.run(work(calling.known_hub(folder, call.url()), None))


async def _file(publisher: "Publisher", what: str, path: Path) -> tuple[output.Value, ...]:
    from veen.bridge.carriage.items import MAX_CONTENT_BYTES
    from veen.client import durable

    data = durable.read_file(path, MAX_CONTENT_BYTES)
    said = await (publisher.evidence(data) if what == "evidence" else publisher.bundle(data))
    return _row(said, str(path), None)


async def _checkpoints(
    publisher: "Publisher", client: "Client", streams: list[str], at: dict[str, bytes]
) -> list[tuple[output.Value, ...]]:
    """Those of streams that are not where they were."""
    rows = []
    for stream in streams:
        found = await client.checkpoint(stream)
        if at.get(stream) != found.signing_digest():
            rows.append(_row(await publisher.checkpoint(client, found), stream, found.upto_seq))
            at[stream] = found.signing_digest()
    return rows


def _row(said: "Said", of: str, upto_seq: int | None) -> tuple[output.Value, ...]:
    return said.what.word, of, upto_seq, said.size, len(said.message_ids), said.digest
