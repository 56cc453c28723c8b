"""`veen bridge veil publish` and `receive`: clients of one hub compare its checkpoints over VEIL."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option, options_command
from veen.bridge.veil_gossip.checkpoint_compare import OPEN, CheckpointComparer, ComparisonResult
from veen.bridge.veil_gossip.exchange import REFUSED, PublishedItem, Publisher, ReceivedReport, Receiver
from veen.bridge.veil_gossip.gossip_inbox import Inbox
from veen.bridge.veil_gossip.gossip_items import MAX_CONTENT_BYTES, GossipGroup
from veen.bridge.veil_gossip.veil_node import VeilNode, read_token
from veen.cli.kit import open_session, output
from veen.cli.kit.common_options import HubOptions
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, FAILED_STATUS, hinted
from veen.cli.kit.open_session import HubCall
from veen.cli.kit.output import Marked, Tone
from veen.client import ClientDir, local_files
from veen.client.client import Client
from veen.client.trust import HubRecord
from veen.core import Unavailable, naming

app = group(
    "veil",
    """Compare what a hub signed for its clients, over a VEIL node.

    Clients of one hub exchange the checkpoints that the hub signed for them. If the hub signed two histories, each
    client gets a file that proves it. Neither the hub nor the network is trusted.
    """,
)

_COLUMNS = ("what", "of", "upto_seq", "bytes", "objects", "digest")
_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")

Node: TypeAlias = Annotated[
    str, option("--node DIR|URL", "the VEIL node: its folder, or the URL of its API", envvar="VEIL_DATA_DIR")
]
TokenFile: TypeAlias = Annotated[Path | None, option("--token-file FILE", "the node's api.token, if --node is a URL")]
InGroup: TypeAlias = Annotated[
    str | None,
    option("--group NAME", "a VEIL group of the node", show_default="the group of everyone who knows the hub"),
]


def node_at(node: str, token_file: Path | None) -> VeilNode:
    if "://" not in node:
        if token_file is not None:
            raise Misuse("--token-file needs a URL as --node", "leave it out: the node's folder has its token")
        return VeilNode.of(Path(node))
    if not node.startswith(_LOOPBACK):
        raise Misuse(f"{node} is not on this machine", "give a local URL: http://127.0.0.1:PORT")
    if token_file is None:
        raise Misuse("missing --token-file", "give --token-file FILE, or the node's folder as --node")
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
    streams: Annotated[list[str] | None, argument("STREAM", "streams whose newest checkpoints are published")] = None,
    evidence: Annotated[list[Path] | None, option("--evidence FILE", "an evidence file about this hub")] = None,
    bundle: Annotated[list[Path] | None, option("--bundle FILE", "a bundle of this hub's events")] = None,
    group: InGroup = None,
    token_file: TokenFile = None,
    every: Annotated[
        float | None,
        durations.option(
            "--every", least=0.1, help="run until interrupted, and publish again after a stream has grown"
        ),
    ] = None,
) -> None:
    """Publish checkpoints, evidence and bundles of the hub to other clients.

    Everything is verified first. When the command returns, the items are on the node's disk; they are sent as soon as
    another node is connected. A checkpoint does not reveal the name of a stream. A bundle reveals the stream, the
    writers and the times, but no content.
    """
    files = [("evidence", path) for path in evidence or ()] + [("bundle", path) for path in bundle or ()]
    if not streams and not files:
        raise Misuse("nothing to publish", "name a STREAM, or give --evidence FILE or --bundle FILE")
    if every is not None and not streams:
        raise Misuse("--every needs a stream", "name a STREAM")
    call = asked.call()

    async def work(known: HubRecord, client: Client | None) -> None:
        async with node_at(node, token_file) as veil:
            publisher = Publisher(await GossipGroup.join(veil, known.identity.hub_id, group), known)
            rows = [await _file(publisher, what, path) for what, path in files]
            published: dict[str, bytes] = {}
            rows += await _checkpoints(publisher, client, streams or [], published) if client else []
            output.table(_COLUMNS, rows, asked.as_json)
            while every is not None and client is not None:
                await asyncio.sleep(every)
                rows = await _checkpoints(publisher, client, streams or [], published)
                if rows:
                    output.table(_COLUMNS, rows, asked.as_json)

    if streams:
        call.run(lambda client: work(client.session.trust.known, client))
        return
    # Files are published without contacting the hub.
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        asyncio.run(work(open_session.known_hub(folder, call.url()), None))


async def _file(publisher: Publisher, what: str, path: Path) -> tuple[output.Value, ...]:
    data = local_files.read_file(path, MAX_CONTENT_BYTES)
    item = await (publisher.evidence(data) if what == "evidence" else publisher.bundle(data))
    return _row(item, str(path), None)


async def _checkpoints(
    publisher: Publisher, client: Client, streams: list[str], published: dict[str, bytes]
) -> list[tuple[output.Value, ...]]:
    """Publish the checkpoints that have changed since the last call."""
    rows = []
    for stream in streams:
        found = await client.checkpoint(stream)
        if published.get(stream) != found.signing_digest():
            rows.append(_row(await publisher.checkpoint(client, found), stream, found.upto_seq))
            published[stream] = found.signing_digest()
    return rows


def _row(item: PublishedItem, of: str, upto_seq: int | None) -> tuple[output.Value, ...]:
    return item.what.word, of, upto_seq, item.size, len(item.message_ids), item.digest


_RECEIVED_COLUMNS = ("result", "what", "comparison", "label", "upto_seq", "file", "reason")
_OFFLINE_HINT = "--offline compares with the state of this client only, without the hub"


@options_command(
    HubOptions,
    app,
    "receive",
    "veen bridge veil receive --node ~/veil --inbox received",
    "veen bridge veil receive --node ~/veil --inbox received --follow",
    "veen bridge veil receive --node ~/veil --inbox received --offline --json",
)
def receive(
    asked: HubOptions,
    node: Node,
    inbox: Annotated[Path, option("--inbox DIR", "folder for received items: bundles/, evidence/ and state")],
    streams: Annotated[
        list[str] | None,
        option("--stream NAME", "also compare this stream, besides those that this client has read or written"),
    ] = None,
    group: InGroup = None,
    token_file: TokenFile = None,
    follow: Annotated[bool, option("--follow", "wait for new items until a contradiction of the hub is found")] = False,
    offline: Annotated[
        bool, option("--offline", "do not contact the hub; compare with the state of this client only")
    ] = False,
) -> None:
    """Receive items of other clients and compare them with what is known here.

    Items that fail verification are refused and counted. Checkpoints are compared with what this client has read and
    with the hub's current answer. If the hub signed two histories, the evidence is saved and published to the others,
    and the exit status is 11. It is 10 if the hub does not show a log that matches its signature, which is not proof
    yet.
    """
    call = replace(asked.call(), allow_caught=True)  # comparing is useful for a caught hub too
    job = _ReceiveJob(node, token_file, inbox, group, streams or [], follow, asked.as_json)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        url = call.url()
        if offline:
            status = asyncio.run(job.work(folder, open_session.known_hub(folder, url), None))
        else:
            status = _with_hub(call, folder, url, job)
    if status:
        raise typer.Exit(status)


def _with_hub(call: HubCall, folder: ClientDir, url: str, job: "_ReceiveJob") -> int:
    connected = False

    async def receive(client: Client) -> int:
        nonlocal connected
        connected = True
        return await job.work(folder, client.session.trust.known, client)

    try:
        return call.run_with(folder, url, receive)
    except Unavailable as error:
        raise error if connected else hinted(error, _OFFLINE_HINT) from None


@dataclass(frozen=True, slots=True)
class _ReceiveJob:
    node: str
    token_file: Path | None
    inbox: Path
    group: str | None
    streams: list[str]
    follow: bool
    as_json: bool

    async def work(self, folder: ClientDir, known: HubRecord, client: Client | None) -> int:
        """Receive and compare; returns the exit status."""
        hub_id = known.identity.hub_id
        epoch = client.epoch() if client else known.profile.epoch(int(time.time()))
        ids = [naming.stream_id(one) for one in self.streams]
        labels = [naming.label(known.identity.routing_key, one, epoch) for one in ids]
        async with node_at(self.node, self.token_file) as veil:
            gossip_group = await GossipGroup.join(veil, hub_id, self.group)
            with Inbox(self.inbox, hub_id) as inbox:
                return await self._receive(gossip_group, inbox, CheckpointComparer(folder, known, client, labels))

    async def _receive(self, gossip_group: GossipGroup, inbox: Inbox, comparer: CheckpointComparer) -> int:
        receiver = Receiver(gossip_group, inbox, comparer)
        if not self.follow:
            _show([report async for report in receiver.receive()], inbox, self.as_json)
            return _status(inbox, comparer.hub_id)
        async for report in receiver.follow():
            _show([report], None, self.as_json)
            if report.standing is ComparisonResult.FORKED:
                await receiver.publish_contradictions()
                return _status(inbox, comparer.hub_id)
        return 0


def _status(inbox: Inbox, hub_id: bytes) -> int:
    """The exit status; it covers contradictions of this run and of earlier ones."""
    for one in inbox.found():
        proof = f"veen evidence verify {one.file} --pin {hub_id.hex()} proves it to anyone"
        output.remark(f"THE HUB SIGNED TWO HISTORIES: {one.reason}: {proof}")
    if inbox.found():
        return CONTRADICTED_STATUS
    waiting = [kept for kept in inbox.open_heads() if kept.standing != ComparisonResult.UNASKED]
    for kept in waiting:
        output.remark(kept.reason)
    return FAILED_STATUS if waiting else 0


def _show(found: list[ReceivedReport], inbox: Inbox | None, as_json: bool) -> None:
    data = [one.to_json() for one in found]
    if as_json and inbox is not None:
        proved = [{"file": one.file, "reason": one.reason} for one in inbox.found()]
        waiting = [{"standing": one.standing, "reason": one.reason} for one in inbox.open_heads()]
        output.document({"received": data, "counts": inbox.counts(), "contradictions": proved, "undecided": waiting})
    elif as_json:
        for one in data:
            output.document(one)
    else:
        output.table(_RECEIVED_COLUMNS, [_received_row(one) for one in found], False)


def _received_row(one: ReceivedReport) -> tuple[output.Value, ...]:
    tones = {ComparisonResult.FORKED: Tone.BAD, ComparisonResult.AGREES: Tone.GOOD} | dict.fromkeys(OPEN, Tone.WARN)
    standing = Marked(one.standing, tones.get(one.standing, Tone.QUIET)) if one.standing else None
    result = Marked(one.result, Tone.WARN if one.result == REFUSED else Tone.QUIET)
    label = one.label.hex()[:16] + "…" if one.label else None
    file = str(one.file) if one.file else None
    return result, one.what.word if one.what else None, standing, label, one.size, file, one.reason
