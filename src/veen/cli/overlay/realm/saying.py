"""What is said for a realm: the state is asked first, and what it would refuse is not sent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from veen.cli import contextfile, output
from veen.cli.client import calling
from veen.cli.client import cap as caps
from veen.cli.client.showing import short
from veen.cli.failures import hinted
from veen.cli.output import Marked, Tone
from veen.cli.overlay import saying
from veen.cli.overlay.realm.options import RealmReads, RealmSays
from veen.cli.overlay.realm.realm import AdminStream, Look, viewing
from veen.client import sequence
from veen.client.client import Client
from veen.client.lane import Undecided
from veen.core import Refused
from veen.overlays import Event
from veen.state.channel import Channel, NotTaken, Said
from veen.state.hubsource import HubSource
from veen.state.reading import Reading

S = TypeVar("S")
M = TypeVar("M")

_LEAVE = ("CAP_MISSING", "AUTH_REF", "CAP_TTL")


@dataclass(frozen=True, slots=True)
class Saying:
    """What to send, under what name it is listed, and what else is shown of it: for people, and for JSON."""

    event: Event
    name: bytes
    shown: Mapping[str, output.Value]
    data: Mapping[str, object]
    remark: str | None = None


def say(asked: RealmSays, stream: AdminStream[S, M], make: Callable[[Look[S, M]], Sequence[Saying]]) -> None:
    """Send what `make` gives for the state as it is, unless the state refuses it; show the receipts.

    Of several, those that the state refuses are named and left out, as long as there are others.
    """
    tokens = caps.read(path) if (path := contextfile.cap_of(asked.cap)) else ()
    call = asked.call()
    url = call.url()

    async def met(client: Client) -> list[tuple[Saying, Said]]:
        if tokens:
            client.dir.caps.add_all(sequence.encode(tokens))
        source, reads = HubSource(client), RealmReads(realm=asked.realm, no_cache=asked.no_cache)
        async with viewing(source, reads, stream) as viewed:
            channel = Channel(viewed.view)
            async with viewed.view.reading() as reading:
                wanted = _taken(channel, make(Look(viewed.view, reading, viewed.realm_id, source.now())), reading)
            return [(one, await channel.say_anyway(one.event)) for one in wanted]

    with calling.opened(asked.client, asked.passphrase_file) as folder:
        try:
            said = call.run_with(folder, url, met)
        except NotTaken as error:
            raise hinted(error, "nothing was sent") from None
        except Undecided as error:
            raise hinted(error, "do not send it again: veen send --outbox finishes it, and tells the outcome") from None
        except Refused as refused:
            if refused.detail_enum in _LEAVE:
                hinted(
                    refused, "veen authority streams shows the stream that a capability must name; --cap FILE has it"
                )
            raise
    _tell(said, asked)


def _taken(channel: Channel[S, M], wanted: Sequence[Saying], reading: Reading[S, M]) -> list[Saying]:
    """Those that the state would take. Raises `NotTaken` where it would take none."""
    taken: list[Saying] = []
    refused: list[tuple[Saying, NotTaken]] = []
    for one in wanted:
        try:
            channel.check(reading, one.event)
        except NotTaken as error:
            refused.append((one, error))
        else:
            taken.append(one)
    if not taken:
        raise refused[0][1]
    for one, refusal in refused:
        output.remark(f"{one.name.hex()[:12]}… is left out: {refusal.faults[0].reason}")
    for one in taken:
        if one.remark:
            output.remark(one.remark)
    return taken


def _tell(said: Sequence[tuple[Saying, Said]], asked: RealmSays) -> None:
    if len(said) == 1:
        ((one, outcome),) = said
        saying.tell(outcome, one.shown, asked.plain(), one.data)
        return
    rows, data = [], []
    for one, outcome in said:
        sent, faults = outcome.sent, "; ".join(fault.reason for fault in outcome.faults)
        became = Marked(f"changed nothing: {faults}", Tone.BAD) if faults else Marked("taken", Tone.GOOD)
        rows.append((short(one.name), sent.stream_seq, output.moment(sent.receipt.hub_ts), became))
        place = {"stream_seq": sent.stream_seq, "msg_id": sent.msg_id, "hub_ts": sent.receipt.hub_ts}
        data.append({**one.data, **place, "receipt": sent.receipt.encode(), "taken": outcome.taken})
    output.table(("target", "entry", "hub_ts", "state"), rows, asked.as_json, data)
