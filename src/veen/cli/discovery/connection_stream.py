"""The stream of a client's connections, and calls over streams: send a request and wait for its reply."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TypeVar

from plumbing.cli.command import Misuse
from veen.cli import cap as caps
from veen.cli.discovery.directory_view import sendable
from veen.cli.kit import context_file, open_session, output, read_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import SendOptions
from veen.client import ClientDir, cbor_sequence
from veen.client.client import Client
from veen.client.sender import Undecided
from veen.core import Unavailable, naming
from veen.overlays import Applied, At, Event
from veen.overlays.connect import CONNECT, ServiceConnection
from veen.overlays.rpc import RPC, Call, CallRequest, Reply, call_part
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_view import StateView
from veen.state.watch import watch


async def call_over_stream(
    client: Client, stream: str | bytes, request: CallRequest, timeout_s: float
) -> tuple[Reply, int]:
    """Send a request and return its reply and the reply's `hub_ts`. Raises `Unavailable` after `timeout_s`."""
    answers = stream if request.reply_to is None else request.reply_to
    async with StateView.of(client, answers, RPC) as view:
        await view.sync()
        with view.kept() as timeline:
            before = timeline.upto() or At(client.epoch(), 0)  # the request is sent after this place, so is the reply
        sent = await client.send(stream, request.encode(), schema=request.SCHEMA)
        try:
            async with asyncio.timeout(timeout_s):
                return await _reply(view, before, call_part(sent.msg_id))
        except TimeoutError:
            pass
    raise hinted(
        Unavailable(f"there was no reply within {timeout_s:g} seconds"),
        f"the request is entry {sent.stream_seq}; check that the server of the stream runs, or give a longer --timeout",
    )


async def _reply(view: StateView[Call, Call], after: At, part: bytes) -> tuple[Reply, int]:
    async with aclosing(watch(view, after=after)) as coming:
        async for seen in coming:
            for outcome in seen.outcomes:
                event = outcome.step.event if isinstance(outcome, Applied) else None
                if isinstance(outcome, Applied) and outcome.step.part == part and isinstance(event, Reply):
                    return event, seen.entry.hub_ts
    raise AssertionError("watch() never ends")


T = TypeVar("T")

STREAM = "connect"


class ConnectionSession:
    """The hub and the connection stream that the options name, with the client directory open."""

    def __init__(self, options: SendOptions, folder: ClientDir) -> None:
        self.options = options
        self.folder = folder
        self.stream = STREAM if options.stream is None else options.stream
        self._call = options.call()
        self._url = self._call.url()
        self._tokens = caps.read(path) if (path := context_file.cap_of(options.cap)) else ()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run `work` with a client of the hub."""

        async def with_caps(client: Client) -> T:
            if self._tokens:
                client.dir.caps.add_all(cbor_sequence.encode(self._tokens))
            return await work(client)

        with read_state.cache_hints(self.stream, CONNECT.CLASS):
            try:
                return self._call.run_with(self.folder, self._url, with_caps)
            except EventRefused as error:
                raise hinted(error, "nothing was sent", "veen connect status shows the connection's phase") from None
            except Undecided as error:
                raise hinted(error, "do not send it again: veen send --outbox completes it") from None

    def send(self, make: "Callable[[Client, ConnectionSession], Awaitable[Event]]") -> tuple[Event, SentEvent]:
        """Send the event that `make` returns, unless the state of the connection rejects it."""

        async def work(client: Client) -> tuple[Event, SentEvent]:
            event = sendable(await make(client, self))
            self._create_stream_key()
            async with StateView.of(client, self.stream, CONNECT, cached=not self.options.no_cache) as view:
                return event, await EventSender(view).send(event)

        return self.run(work)

    def _create_stream_key(self) -> None:
        """Create the stream's key if there is none: the stream is the client's own."""
        if self.folder.stream_keys.public(naming.stream_id(self.stream)) is None:
            self.folder.stream_keys.create(self.stream)
            output.remark(f"created the key of stream {self.stream}, which holds your connections")

    def connection(self, name: str) -> tuple[ServiceConnection, int]:
        """Return the state of a connection, and the hub's time."""

        async def work(client: Client) -> tuple[ServiceConnection, int]:
            async with (
                StateView.of(client, self.stream, CONNECT, cached=not self.options.no_cache) as view,
                view.reading() as reading,
            ):
                return reading.state(name.encode()), view.source.now()

        return self.run(work)

    def show_sent(
        self, sent: SentEvent, shown: Mapping[str, output.Value], data: Mapping[str, object] | None = None
    ) -> None:
        send_event.show_sent(sent, shown, self.options, data)


@contextmanager
def open_connections(options: SendOptions, *, begins: bool = False) -> Iterator[ConnectionSession]:
    """Open the client directory. Without `begins`, the stream's key must exist; else the first `send` creates it."""
    if options.blind:
        raise Misuse("this command needs to read the connection before it sends", "leave out --blind")
    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        session = ConnectionSession(options, folder)
        if not begins:
            read_state.need_reader_key(folder, session.stream)
        yield session
