"""`veen bridge veil publish`: what a hub said, to others who know the hub."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, FAILED_STATUS
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command

if TYPE_CHECKING:
    from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer
    from veen.bridge.veil_gossip.exchange import PublishedItem, Publisher, ReceivedReport
    from veen.bridge.veil_gossip.gossip_inbox import Inbox
    from veen.bridge.veil_gossip.gossip_items import GossipGroup
    from veen.bridge.veil_gossip.veil_node import VeilNode
    from veen.cli.kit.open_session import HubCall
    from veen.client import ClientDir
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
    from veen.bridge.veil_gossip.veil_node import VeilNode, read_token

    if "://" not in node:
        if token_file is not None:
            raise Misuse("a node's folder has its token", "give --token-file with a URL only")
        return VeilNode.of(Path(node))
    if not node.startswith(_LOOPBACK):
        raise Misuse(f"{node} is not on this machine", "a node's API is for this machine alone: http://127.0.0.1:PORT")
    if token_file is None:
        raise Misuse("a node lets in who has its token", "give --token-file FILE, or the node's folder as --node")
    return VeilNode(node, read_token(token_file))


@options_command(
    HubOptions,
    app,
    "publish",
    "veen bridge veil publish doors --node ~/veil",
    "veen bridge veil publish doors alarms --node ~/veil --every 60",
    "veen bridge veil publish --evidence lie.evidence --group auditors --node ~/veil",
)
def publish(
    asked: HubOptions,
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
    from veen.cli.kit import open_session

    files = [("evidence", path) for path in evidence or ()] + [("bundle", path) for path in bundle or ()]
    if not streams and not files:
        raise Misuse("there is nothing to publish", "name a STREAM, or give --evidence FILE or --bundle FILE")
    if every is not None and not streams:
        raise Misuse("--every is for streams", "name a STREAM")
    call = asked.call()

    async def work(known: "HubRecord", client: "Client | None") -> None:
        from veen.bridge.veil_gossip.exchange import Publisher
        from veen.bridge.veil_gossip.gossip_items import GossipGroup

        async with node_at(node, token_file) as veil:
            publisher = Publisher(await GossipGroup.join(veil, known.identity.hub_id, group), known)
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
        call.run(lambda client: work(client.session.trust.known, client))
        return
    # What a hub was caught at can be shown without it.
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        asyncio.run(work(open_session.known_hub(folder, call.url()), None))


async def _file(publisher: "Publisher", what: str, path: Path) -> tuple[output.Value, ...]:
    from veen.bridge.veil_gossip.gossip_items import MAX_CONTENT_BYTES
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


def _row(said: "PublishedItem", of: str, upto_seq: int | None) -> tuple[output.Value, ...]:
    return said.what.word, of, upto_seq, said.size, len(said.message_ids), said.digest


_RECEIVED_COLUMNS = ("result", "what", "standing", "label", "upto_seq", "file", "reason")
_OFFLINE = "--offline holds things against what is kept here, without the hub"


@options_command(
    HubOptions,
    app,
    "receive",
    "veen bridge veil receive --node ~/veil --inbox heard",
    "veen bridge veil receive --node ~/veil --inbox heard --follow",
    "veen bridge veil receive --node ~/veil --inbox heard --offline --json",
)
def receive(
    asked: HubOptions,
    node: Node,
    inbox: Annotated[
        Path, typer.Option("--inbox", metavar="DIR", help="where it is kept: bundles/, evidence/, and what was seen")
    ],
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="follow it, beside those that were read or written here"),
    ] = None,
    group: InGroup = None,
    token_file: TokenFile = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="go on as things come, until the hub is caught at a lie")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="ask no hub: hold things against what is kept here")
    ] = False,
) -> None:
    """Take in what others were shown, and hold it against what this client knows.

    What does not hold is refused and counted. Checkpoints are held against what was read here and against the hub's own
    word now. A hub that signed two histories is proved to: the evidence is kept, shown to the others, and the exit
    status is 11. It is 10 where the hub does not show what it signed for, which proves nothing yet.
    """
    from veen.cli.kit import open_session

    call = replace(asked.call(), allow_caught=True)  # what it signed elsewhere is compared all the same
    heard = _Hearing(node, token_file, inbox, group, streams or [], follow, asked.as_json)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        url = call.url()
        if offline:
            status = asyncio.run(heard.work(folder, open_session.known_hub(folder, url), None))
        else:
            status = _with_hub(call, folder, url, heard)
    if status:
        raise typer.Exit(status)


def _with_hub(call: "HubCall", folder: "ClientDir", url: str, heard: "_Hearing") -> int:
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    there = False

    async def met(client: "Client") -> int:
        nonlocal there
        there = True
        return await heard.work(folder, client.session.trust.known, client)

    try:
        return call.run_with(folder, url, met)
    except Unavailable as error:
        raise error if there else hinted(error, _OFFLINE) from None


class _Hearing:
    """One run: what was asked for, and what came of it."""

    def __init__(
        self,
        node: str,
        token_file: Path | None,
        folder: Path,
        group: str | None,
        streams: list[str],
        follow: bool,
        as_json: bool,
    ) -> None:
        self._node = node, token_file
        self._inbox = folder
        self._group = group
        self._streams = streams
        self._follow = follow
        self._as_json = as_json

    async def work(self, folder: "ClientDir", known: "HubRecord", client: "Client | None") -> int:
        """The exit status."""
        from veen.bridge.veil_gossip.checkpoint_compare import CheckpointComparer
        from veen.bridge.veil_gossip.gossip_inbox import Inbox
        from veen.bridge.veil_gossip.gossip_items import GossipGroup
        from veen.core import naming

        hub_id = known.identity.hub_id
        epoch = client.epoch() if client else known.profile.epoch(int(time.time()))
        ids = [naming.stream_id(one) for one in self._streams]
        labels = [naming.label(known.identity.routing_key, one, epoch) for one in ids]
        async with node_at(*self._node) as veil:
            meeting = await GossipGroup.join(veil, hub_id, self._group)
            with Inbox(self._inbox, hub_id) as inbox:
                return await self._receive(meeting, inbox, CheckpointComparer(folder, known, client, labels))

    async def _receive(self, meeting: "GossipGroup", inbox: "Inbox", holder: "CheckpointComparer") -> int:
        from veen.bridge.veil_gossip.checkpoint_compare import ComparisonResult
        from veen.bridge.veil_gossip.exchange import Receiver

        receiver = Receiver(meeting, inbox, holder)
        if not self._follow:
            _tell([told async for told in receiver.receive()], inbox, self._as_json)
            return _status(inbox, holder.hub_id)
        async for told in receiver.follow():
            _tell([told], None, self._as_json)
            if told.standing is ComparisonResult.FORKED:
                await receiver.publish_contradictions()
                return _status(inbox, holder.hub_id)
        return 0


def _status(inbox: "Inbox", hub_id: bytes) -> int:
    """What the hub was caught at, now or before, does not go away."""
    from veen.bridge.veil_gossip.checkpoint_compare import ComparisonResult

    for one in inbox.found():
        shown = f"veen evidence verify {one.file} --pin {hub_id.hex()} shows it, to anyone"
        output.remark(f"THE HUB SIGNED TWO HISTORIES: {one.reason}: {shown}")
    if inbox.found():
        return CONTRADICTED_STATUS
    waiting = [kept for kept in inbox.open_heads() if kept.standing != ComparisonResult.UNASKED]
    for kept in waiting:
        output.remark(kept.reason)
    return FAILED_STATUS if waiting else 0


def _tell(found: "list[ReceivedReport]", inbox: "Inbox | None", as_json: bool) -> None:
    told = [one.to_json() for one in found]
    if as_json and inbox is not None:
        proved = [{"file": one.file, "reason": one.reason} for one in inbox.found()]
        waiting = [{"standing": one.standing, "reason": one.reason} for one in inbox.open_heads()]
        output.document({"received": told, "counts": inbox.counts(), "contradictions": proved, "undecided": waiting})
    elif as_json:
        for one in told:
            output.document(one)
    else:
        output.table(_RECEIVED_COLUMNS, [_received_row(one) for one in found], False)


def _received_row(one: "ReceivedReport") -> tuple[output.Value, ...]:
    from veen.bridge.veil_gossip.checkpoint_compare import OPEN, ComparisonResult
    from veen.bridge.veil_gossip.exchange import REFUSED

    tones = {ComparisonResult.FORKED: Tone.BAD, ComparisonResult.AGREES: Tone.GOOD} | dict.fromkeys(OPEN, Tone.WARN)
    standing = Marked(one.standing, tones.get(one.standing, Tone.QUIET)) if one.standing else None
    result = Marked(one.result, Tone.WARN if one.result == REFUSED else Tone.QUIET)
    label = one.label.hex()[:16] + "…" if one.label else None
    file = str(one.file) if one.file else None
    return result, one.what.word if one.what else None, standing, label, one.size, file, one.reason
