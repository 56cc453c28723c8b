"""Keys and capabilities as people name them: in hex, or by the file that has them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plumbing.cli.command import Misuse
from veen.cli import cap
from veen.cli import cap as caps
from veen.cli.kit import context_file, key_files, open_session, output, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.sanitize import short
from veen.cli.realm.realm_state import AdminStream, Look, RealmReads, RealmSays, viewing
from veen.client import cbor_sequence
from veen.client.client import Client
from veen.client.submit_queue import Undecided
from veen.core import CapToken, Refused
from veen.overlays import Event
from veen.overlays.admin.revocation import token_target
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.hub_source import HubSource
from veen.state.state_at import StateAt

_BYTES = 32


def hex_id(text: str) -> bytes | None:
    """32 bytes in hex; None where it is something else."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == _BYTES else None


def client_ids(text: str) -> tuple[bytes, ...]:
    """A client_id, or those that a card lists."""
    named = hex_id(text)
    return (
        (named,) if named else key_files.read_card(_there(text, "a client_id, a client directory or a card")).client_ids
    )


def auth_refs(text: str) -> tuple[bytes, ...]:
    """An auth_ref, or those of the tokens in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token.auth_ref() for token in tokens(text))


def token_hashes(text: str) -> tuple[bytes, ...]:
    """The hash of a token, or of each in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token_target(token) for token in tokens(text))


def tokens(text: str) -> tuple[CapToken, ...]:
    return cap.read(_there(text, "64 hex digits or a file of capabilities"))


def _there(text: str, what: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise Misuse(f"{text!r} is not {what}", "give 64 hex digits, or the path of a file")
    return path


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
    tokens = caps.read(path) if (path := context_file.cap_of(asked.cap)) else ()
    call = asked.call()
    url = call.url()

    async def met(client: Client) -> list[tuple[Saying, SentEvent]]:
        if tokens:
            client.dir.caps.add_all(cbor_sequence.encode(tokens))
        source, reads = HubSource(client), RealmReads(realm=asked.realm, no_cache=asked.no_cache)
        async with viewing(source, reads, stream) as viewed:
            channel = EventSender(viewed.view)
            async with viewed.view.reading() as reading:
                wanted = _taken(channel, make(Look(viewed.view, reading, viewed.realm_id, source.now())), reading)
            return [(one, await channel.send_unchecked(one.event)) for one in wanted]

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        try:
            said = call.run_with(folder, url, met)
        except EventRefused as error:
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


def _taken(channel: EventSender[S, M], wanted: Sequence[Saying], reading: StateAt[S, M]) -> list[Saying]:
    """Those that the state would take. Raises `NotTaken` where it would take none."""
    taken: list[Saying] = []
    refused: list[tuple[Saying, EventRefused]] = []
    for one in wanted:
        try:
            channel.check(reading, one.event)
        except EventRefused as error:
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


def _tell(said: Sequence[tuple[Saying, SentEvent]], asked: RealmSays) -> None:
    if len(said) == 1:
        ((one, outcome),) = said
        send_event.show_sent(outcome, one.shown, asked.plain(), one.data)
        return
    rows, data = [], []
    for one, outcome in said:
        sent, faults = outcome.sent, "; ".join(fault.reason for fault in outcome.faults)
        became = Marked(f"changed nothing: {faults}", Tone.BAD) if faults else Marked("taken", Tone.GOOD)
        rows.append((short(one.name), sent.stream_seq, output.moment(sent.receipt.hub_ts), became))
        place = {"stream_seq": sent.stream_seq, "msg_id": sent.msg_id, "hub_ts": sent.receipt.hub_ts}
        data.append({**one.data, **place, "receipt": sent.receipt.encode(), "taken": outcome.applied})
    output.table(("target", "entry", "hub_ts", "state"), rows, asked.as_json, data)
