"""`veen bridge veil receive`: what others were shown by the hub, held against what is known here."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veen.cli import output
from veen.cli.bridge.carrying import InGroup, Node, TokenFile, app, node_at
from veen.cli.client.options import AtHub
from veen.cli.failures import CONTRADICTED_STATUS, FAILED_STATUS
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.carriage.holding import Holder
    from veen.bridge.carriage.inbox import Inbox
    from veen.bridge.carriage.meeting import Meeting
    from veen.bridge.carriage.receiving import Told
    from veen.cli.client.calling import Call
    from veen.client import ClientDir
    from veen.client.client import Client
    from veen.client.trust import HubRecord

_COLUMNS = ("result", "what", "standing", "label", "upto_seq", "file", "reason")
_OFFLINE = "--offline holds things against what is kept here, without the hub"


@taking(
    AtHub,
    app,
    "receive",
    "veen bridge veil receive --node ~/veil --inbox heard",
    "veen bridge veil receive --node ~/veil --inbox heard --follow",
    "veen bridge veil receive --node ~/veil --inbox heard --offline --json",
)
def receive(
    asked: AtHub,
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
    from veen.cli.client import calling

    call = replace(asked.call(), allow_caught=True)  # what it signed elsewhere is compared all the same
    heard = _Hearing(node, token_file, inbox, group, streams or [], follow, asked.as_json)
    with calling.opened(asked.client, asked.passphrase_file) as folder:
        url = call.url()
        if offline:
            status = asyncio.run(heard.work(folder, calling.known_hub(folder, url), None))
        else:
            status = _with_hub(call, folder, url, heard)
    if status:
        raise typer.Exit(status)


def _with_hub(call: "Call", folder: "ClientDir", url: str, heard: "_Hearing") -> int:
    from veen.cli.failures import hinted
    from veen.core import Unavailable

    there = False

    async def met(client: "Client") -> int:
        nonlocal there
        there = True
        return await heard.work(folder, client.contact.trust.known, client)

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
        from veen.bridge.carriage.holding import Holder
        from veen.bridge.carriage.inbox import Inbox
        from veen.bridge.carriage.meeting import Meeting
        from veen.core import naming

        hub_id = known.identity.hub_id
        epoch = client.epoch() if client else known.profile.epoch(int(time.time()))
        ids = [naming.stream_id(one) for one in self._streams]
        labels = [naming.label(known.identity.routing_key, one, epoch) for one in ids]
        async with node_at(*self._node) as veil:
            meeting = await Meeting.enter(veil, hub_id, self._group)
            with Inbox(self._inbox, hub_id) as inbox:
                return await self._receive(meeting, inbox, Holder(folder, known, client, labels))

    async def _receive(self, meeting: "Meeting", inbox: "Inbox", holder: "Holder") -> int:
        from veen.bridge.carriage.holding import Standing
        from veen.bridge.carriage.receiving import Receiver

        receiver = Receiver(meeting, inbox, holder)
        if not self._follow:
            _tell([told async for told in receiver.receive()], inbox, self._as_json)
            return _status(inbox, holder.hub_id)
        async for told in receiver.follow():
            _tell([told], None, self._as_json)
            if told.standing is Standing.FORKED:
                await receiver.tell_others()
                return _status(inbox, holder.hub_id)
        return 0


def _status(inbox: "Inbox", hub_id: bytes) -> int:
    """What the hub was caught at, now or before, does not go away."""
    from veen.bridge.carriage.holding import Standing

    for one in inbox.found():
        shown = f"veen evidence verify {one.file} --pin {hub_id.hex()} shows it, to anyone"
        output.remark(f"THE HUB SIGNED TWO HISTORIES: {one.reason}: {shown}")
    if inbox.found():
        return CONTRADICTED_STATUS
    waiting = [kept for kept in inbox.open_heads() if kept.standing != Standing.UNASKED]
    for kept in waiting:
        output.remark(kept.reason)
    return FAILED_STATUS if waiting else 0


def _tell(found: "list[Told]", inbox: "Inbox | None", as_json: bool) -> None:
    told = [one.to_json() for one in found]
    if as_json and inbox is not None:
        proved = [{"file": one.file, "reason": one.reason} for one in inbox.found()]
        waiting = [{"standing": one.standing, "reason": one.reason} for one in inbox.open_heads()]
        output.document({"received": told, "counts": inbox.counts(), "contradictions": proved, "undecided": waiting})
    elif as_json:
        for one in told:
            output.document(one)
    else:
        output.table(_COLUMNS, [_row(one) for one in found], False)


def _row(one: "Told") -> tuple[output.Value, ...]:
    from veen.bridge.carriage.holding import OPEN, Standing
    from veen.bridge.carriage.receiving import REFUSED

    tones = {Standing.FORKED: Tone.BAD, Standing.AGREES: Tone.GOOD} | dict.fromkeys(OPEN, Tone.WARN)
    standing = Marked(one.standing, tones.get(one.standing, Tone.QUIET)) if one.standing else None
    result = Marked(one.result, Tone.WARN if one.result == REFUSED else Tone.QUIET)
    label = one.label.hex()[:16] + "…" if one.label else None
    file = str(one.file) if one.file else None
    return result, one.what.word if one.what else None, standing, label, one.size, file, one.reason
