"""Events that a command sends: the state is asked first, and what it would refuse is not sent."""

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
from veen.client.submit_queue import Undecided
from veen.core import Refused, Unavailable, naming
from veen.overlays import Event, Overlay
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_at import StateAt
from veen.state.state_view import StateView

S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")


def send_checked(
    asked: SendOptions,
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
    """Send the event that `make` gives for the state as it is, unless the state refuses it; show its receipt.

    `shown` are facts of the command's own, and `data` the same for JSON. With --blind, `blind` is sent instead, where
    there is such an event.
    """

    async def speak(client: Client, name: str) -> SentEvent:
        expires_at = None if expires_in is None else client.session.clock.now() + expires_in
        if asked.blind:
            return await _blindly(client, name, blind, parent_id, expires_at)
        async with StateView.of(client, name, overlay, cached=not asked.no_cache) as view:
            channel = EventSender(view)
            async with view.reading() as reading:
                event = sendable(make(reading))
                channel.check(reading, event, parent_id)
            return await channel.send_unchecked(event, parent_id=parent_id, expires_at=expires_at)

    if asked.blind and blind is None:
        raise Misuse("this cannot be said without a look at the state", "leave out --blind")
    show_sent(run_at_hub(asked, overlay, speak, stream=stream, begins=begins), shown, asked, data)


async def _blindly(
    client: Client, name: str, event: Event | None, parent_id: bytes | None, expires_at: int | None
) -> SentEvent:
    assert event is not None
    return SentEvent(
        await client.send(
            name, sendable(event).encode(), schema=event.SCHEMA, parent_id=parent_id, expires_at=expires_at
        )
    )


def run_at_hub(
    asked: SendOptions,
    overlay: Overlay[S, M],
    work: Callable[[Client, str], Awaitable[T]],
    *,
    stream: str | None = None,
    begins: bool = False,
) -> T:
    """Do something at the hub that the options name, with leave to write where one is needed.

    With `begins` the stream is this client's own to begin: its key is made where there is none.
    """
    name = stream if asked.stream is None and stream is not None else context_file.need_stream(asked.stream)
    tokens = caps.read(path) if (path := context_file.cap_of(asked.cap)) else ()
    call = asked.call()
    url = call.url()

    async def met(client: Client) -> T:
        if tokens:
            client.dir.caps.add_all(cbor_sequence.encode(tokens))
        return await work(client, name)

    with (
        open_session.open_client_dir(asked.client, asked.passphrase_file) as folder,
        read_state.cache_hints(name, overlay.CLASS),
    ):
        if begins and folder.stream_keys.public(naming.stream_id(name)) is None:
            folder.stream_keys.create(name)
            output.remark(f"made the key of stream {name}: veen stream-key export {name} hands it to other readers")
        if folder.stream_keys.public(naming.stream_id(name)) is None:
            raise hinted(
                Unavailable(f"the key of stream {name!r} is not known here: nobody could read what is sent"),
                f"veen stream-key import FILE takes in the one that readers of {name} have",
                f"veen stream-key create {name} makes it, where nobody has one yet",
            )
        if not asked.blind:
            read_state.need_reader_key(folder, name)
        try:
            return call.run_with(folder, url, met)
        except EventRefused as error:
            raise hinted(error, "nothing was sent", f"veen fold --overlay {overlay.CLASS} shows the state") from None
        except Undecided as error:
            raise hinted(error, "do not send it again: veen send --outbox finishes it, and tells the outcome") from None


def show_sent(
    said: SentEvent, shown: Mapping[str, output.Value], asked: SendOptions, data: Mapping[str, object] | None = None
) -> None:
    """What is in the log now, and what became of it."""
    sent = said.sent
    rows: dict[str, output.Value] = {
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "hub_ts": output.moment(sent.receipt.hub_ts),
    }
    became: output.Value = Marked("taken", Tone.GOOD)
    if asked.blind:
        became = Marked("nobody looked: it was sent blind", Tone.WARN)
    elif not said.applied:
        became = Marked(f"changed nothing: {'; '.join(fault.reason for fault in said.faults)}", Tone.BAD)
    document = {
        **(shown if data is None else data),
        **rows,
        "hub_ts": sent.receipt.hub_ts,
        "epoch": sent.epoch,
        "label": sent.label,
        "mmr_root": sent.receipt.mmr_root,
        "receipt": sent.receipt.encode(),
        "taken": None if asked.blind else said.applied,
        "faults": [fault.reason for fault in said.faults],
    }
    output.facts({**shown, **rows, "state": became}, asked.as_json, document)
    if not asked.blind and not said.applied:
        # It is in the log, and another entry that came first made it one that changes nothing.
        raise hinted(
            Refused("E.STATE", "another entry came first, and the state did not take this one"),
            "look at the state again, and decide again",
        )
