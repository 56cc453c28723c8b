"""Send events to a realm's streams, and parse the keys and capabilities that they name."""

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
from veen.cli.realm.realm_state import AdminStream, RealmReadOptions, RealmSendOptions, RealmState, open_view
from veen.client import cbor_sequence
from veen.client.client import Client
from veen.client.sender import Undecided
from veen.core import CapToken, Refused
from veen.overlays import Event
from veen.overlays.authorization import token_target
from veen.state.entry_source import HubSource
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_view import StateAt

_ID_BYTES = 32


def hex_id(text: str) -> bytes | None:
    """Parse 32 bytes in hex; None if the text is something else."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == _ID_BYTES else None


def client_ids(text: str) -> tuple[bytes, ...]:
    """Parse a client_id, or read those on a card."""
    named = hex_id(text)
    if named:
        return (named,)
    return key_files.read_card(_existing_path(text, "a client_id, a client directory or a card")).client_ids


def auth_refs(text: str) -> tuple[bytes, ...]:
    """Parse an auth_ref, or compute those of the capabilities in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token.auth_ref() for token in tokens(text))


def token_hashes(text: str) -> tuple[bytes, ...]:
    """Parse a token hash, or compute those of the capabilities in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token_target(token) for token in tokens(text))


def tokens(text: str) -> tuple[CapToken, ...]:
    return cap.read(_existing_path(text, "64 hex digits or a file of capabilities"))


def _existing_path(text: str, what: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise Misuse(f"{text!r} is not {what}", "give 64 hex digits, or the path of a file")
    return path


S = TypeVar("S")
M = TypeVar("M")

_CAPABILITY_ERRORS = ("CAP_MISSING", "AUTH_REF", "CAP_TTL")


@dataclass(frozen=True, slots=True)
class PreparedEvent:
    """An event to send, the name under which it is listed, and what to show of it: for people and for JSON."""

    event: Event
    name: bytes
    shown: Mapping[str, output.Value]
    data: Mapping[str, object]
    remark: str | None = None


def send_events(
    options: RealmSendOptions, stream: AdminStream[S, M], make: Callable[[RealmState[S, M]], Sequence[PreparedEvent]]
) -> None:
    """Send the events that `make` returns for the current state, and show their receipts.

    Events that the state rejects are reported and skipped. If it rejects all of them, `EventRefused` is raised.
    """
    tokens = caps.read(path) if (path := context_file.cap_of(options.cap)) else ()
    call = options.call()
    url = call.url()

    async def run(client: Client) -> list[tuple[PreparedEvent, SentEvent]]:
        if tokens:
            client.dir.caps.add_all(cbor_sequence.encode(tokens))
        source, reads = HubSource(client), RealmReadOptions(realm=options.realm, no_cache=options.no_cache)
        async with open_view(source, reads, stream) as viewed:
            channel = EventSender(viewed.view)
            async with viewed.view.reading() as reading:
                events = _accepted(
                    channel, make(RealmState(viewed.view, reading, viewed.realm_id, source.now())), reading
                )
            return [(one, await channel.send_unchecked(one.event)) for one in events]

    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        try:
            sent = call.run_with(folder, url, run)
        except EventRefused as error:
            raise hinted(error, "nothing was sent") from None
        except Undecided as error:
            raise hinted(error, "do not send it again: veen send --outbox completes it and shows the outcome") from None
        except Refused as refused:
            if refused.detail_enum in _CAPABILITY_ERRORS:
                hinted(refused, "give --cap FILE with a capability for the stream that veen authority streams shows")
            raise
    _show_all_sent(sent, options)


def _accepted(
    channel: EventSender[S, M], events: Sequence[PreparedEvent], reading: StateAt[S, M]
) -> list[PreparedEvent]:
    """Return the events that the state accepts. Raises `EventRefused` if it rejects all of them."""
    accepted: list[PreparedEvent] = []
    refused: list[tuple[PreparedEvent, EventRefused]] = []
    for one in events:
        try:
            channel.check(reading, one.event)
        except EventRefused as error:
            refused.append((one, error))
        else:
            accepted.append(one)
    if not accepted:
        raise refused[0][1]
    for one, refusal in refused:
        output.remark(f"skipped {one.name.hex()[:12]}…: {refusal.faults[0].reason}")
    for one in accepted:
        if one.remark:
            output.remark(one.remark)
    return accepted


def _show_all_sent(events: Sequence[tuple[PreparedEvent, SentEvent]], options: RealmSendOptions) -> None:
    if len(events) == 1:
        ((one, outcome),) = events
        send_event.show_sent(outcome, one.shown, options.plain(), one.data)
        return
    rows, data = [], []
    for one, outcome in events:
        sent, faults = outcome.sent, "; ".join(fault.reason for fault in outcome.faults)
        state = Marked(f"not applied: {faults}", Tone.BAD) if faults else Marked("applied", Tone.GOOD)
        rows.append((short(one.name), sent.stream_seq, output.moment(sent.receipt.hub_ts), state))
        place = {"stream_seq": sent.stream_seq, "msg_id": sent.msg_id, "hub_ts": sent.receipt.hub_ts}
        data.append({**one.data, **place, "receipt": sent.receipt.encode(), "taken": outcome.applied})
    output.table(("target", "entry", "hub_ts", "state"), rows, options.as_json, data)
