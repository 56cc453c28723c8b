"""Send an event after checking it against the current state: an event that the state would reject is not sent."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from plumbing.cli.command import Misuse
from veen.cli import cap as caps
from veen.cli.discovery.directory_view import sendable
from veen.cli.kit import context_file, open_session, output, read_state
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import SendOptions
from veen.client import cbor_sequence
from veen.client.client import Client
from veen.client.sender import Undecided
from veen.core import Refused, Unavailable, naming
from veen.overlays import Event, Overlay
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_view import StateAt, StateView

S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")


def send_checked(
    options: SendOptions,
    overlay: Overlay[S, M],
    make: Callable[[StateAt[S, M]], Event],
    shown: Mapping[str, output.Value],
    *,
    data: Mapping[str, object] | None = None,
    stream: str | None = None,
    parent_id: bytes | None = None,
    expires_in: int | None = None,
    blind: Event | None = None,
    begins: bool = False,
) -> None:
    """Send the event that `make` returns for the current state, unless the state rejects it, and show its receipt.

    `shown` are the command's own facts for people and `data` the same for JSON. With --blind, `blind` is sent without
    reading the state; None means that the command does not support --blind. `begins` is passed to `run_at_hub`.
    """

    async def send(client: Client, name: str) -> SentEvent:
        expires_at = None if expires_in is None else client.session.clock.now() + expires_in
        if options.blind:
            assert blind is not None
            return SentEvent(
                await client.send(
                    name, sendable(blind).encode(), schema=blind.SCHEMA, parent_id=parent_id, expires_at=expires_at
                )
            )
        async with StateView.of(client, name, overlay, cached=not options.no_cache) as view:
            channel = EventSender(view)
            async with view.reading() as reading:
                event = sendable(make(reading))
                channel.check(reading, event, parent_id)
            return await channel.send_unchecked(event, parent_id=parent_id, expires_at=expires_at)

    if options.blind and blind is None:
        raise Misuse("this command needs to read the state before it sends", "leave out --blind")
    show_sent(run_at_hub(options, overlay, send, stream=stream, begins=begins), shown, options, data)


def run_at_hub(
    options: SendOptions,
    overlay: Overlay[S, M],
    work: Callable[[Client, str], Awaitable[T]],
    *,
    stream: str | None = None,
    begins: bool = False,
) -> T:
    """Run `work` with a client of the hub that the options name, with the capability that they name, if any.

    `begins` is for streams that this client itself starts: it creates the stream's key if there is none.
    """
    name = stream if options.stream is None and stream is not None else context_file.need_stream(options.stream)
    tokens = caps.read(path) if (path := context_file.cap_of(options.cap)) else ()
    call = options.call()
    url = call.url()

    async def run(client: Client) -> T:
        if tokens:
            client.dir.caps.add_all(cbor_sequence.encode(tokens))
        return await work(client, name)

    with (
        open_session.open_client_dir(options.client, options.passphrase_file) as folder,
        read_state.cache_hints(name, overlay.CLASS),
    ):
        if begins and folder.stream_keys.public(naming.stream_id(name)) is None:
            folder.stream_keys.create(name)
            output.remark(
                f"created the key of stream {name}; veen stream-key export {name} writes it for other readers"
            )
        if folder.stream_keys.public(naming.stream_id(name)) is None:
            raise hinted(
                Unavailable(f"the client directory has no key of stream {name!r}, and messages are sealed to it"),
                f"veen stream-key import FILE adds the key that readers of {name} exported",
                f"veen stream-key create {name} creates it, if the stream is new",
            )
        if not options.blind:
            read_state.need_reader_key(folder, name)
        try:
            return call.run_with(folder, url, run)
        except EventRefused as error:
            raise hinted(error, "nothing was sent", f"veen fold --overlay {overlay.CLASS} shows the state") from None
        except Undecided as error:
            raise hinted(error, "do not send it again: veen send --outbox completes it and shows the outcome") from None


def show_sent(
    event: SentEvent, shown: Mapping[str, output.Value], options: SendOptions, data: Mapping[str, object] | None = None
) -> None:
    """Show the receipt, and whether the state applied the event."""
    sent = event.sent
    rows: dict[str, output.Value] = {
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "hub_ts": output.moment(sent.receipt.hub_ts),
    }
    outcome: output.Value = Marked("applied", Tone.GOOD)
    if options.blind:
        outcome = Marked("not checked (--blind)", Tone.WARN)
    elif not event.applied:
        outcome = Marked(f"not applied: {'; '.join(fault.reason for fault in event.faults)}", Tone.BAD)
    document = {
        **(shown if data is None else data),
        **rows,
        "hub_ts": sent.receipt.hub_ts,
        "epoch": sent.epoch,
        "label": sent.label,
        "mmr_root": sent.receipt.mmr_root,
        "receipt": sent.receipt.encode(),
        "taken": None if options.blind else event.applied,
        "faults": [fault.reason for fault in event.faults],
    }
    output.facts({**shown, **rows, "state": outcome}, options.as_json, document)
    if not options.blind and not event.applied:
        # The event is in the log, but an entry between the check and this one made it a fault.
        raise hinted(
            Refused("E.STATE", "another entry came first, so the state did not apply this one"),
            "read the state again before you send another event",
        )
