"""A call over a stream, as a command makes it: the request is sent, and its reply waited for."""

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
from veen.client.submit_queue import Undecided
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
    """The reply to a request, and its `hub_ts`. Raises `Unavailable` where none comes in time."""
    answers = stream if request.reply_to is None else request.reply_to
    async with StateView.of(client, answers, RPC) as view:
        await view.sync()
        with view.kept() as timeline:
            before = timeline.upto() or At(client.epoch(), 0)  # the reply comes after this, since the request does
        sent = await client.send(stream, request.encode(), schema=request.SCHEMA)
        try:
            async with asyncio.timeout(timeout_s):
                return await _reply(view, before, call_part(sent.msg_id))
        except TimeoutError:
            pass
    raise hinted(
        Unavailable(f"nobody answered within {timeout_s:g} seconds"),
        f"the request is entry {sent.stream_seq}; see that whoever serves that stream runs, or give it more --timeout",
    )


async def _reply(view: StateView[Call, Call], after: At, part: bytes) -> tuple[Reply, int]:
    async with aclosing(watch(view, after=after)) as coming:
        async for seen in coming:
            for outcome in seen.outcomes:
                event = outcome.step.event if isinstance(outcome, Applied) else None
                if isinstance(outcome, Applied) and outcome.step.part == part and isinstance(event, Reply):
                    return event, seen.entry.hub_ts
    raise AssertionError("a watch has no end")


T = TypeVar("T")

STREAM = "connect"


class Home:
    """The hub and the stream that the options name, with the client directory open."""

    def __init__(self, asked: SendOptions, folder: ClientDir) -> None:
        self.asked = asked
        self.folder = folder
        self.stream = STREAM if asked.stream is None else asked.stream
        self._call = asked.call()
        self._url = self._call.url()
        self._tokens = caps.read(path) if (path := context_file.cap_of(asked.cap)) else ()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do something at this hub."""

        async def met(client: Client) -> T:
            if self._tokens:
                client.dir.caps.add_all(cbor_sequence.encode(self._tokens))
            return await work(client)

        with read_state.cache_hints(self.stream, CONNECT.CLASS):
            try:
                return self._call.run_with(self.folder, self._url, met)
            except EventRefused as error:
                raise hinted(error, "nothing was sent", "veen connect status shows how far it is") from None
            except Undecided as error:
                raise hinted(error, "do not send it again: veen send --outbox finishes it") from None

    def say(self, make: "Callable[[Client, Home], Awaitable[Event]]") -> tuple[Event, SentEvent]:
        """Write down what `make` comes to, unless the connection does not allow it."""

        async def work(client: Client) -> tuple[Event, SentEvent]:
            event = sendable(await make(client, self))
            self._begin()
            async with StateView.of(client, self.stream, CONNECT, cached=not self.asked.no_cache) as view:
                return event, await EventSender(view).send(event)

        return self.run(work)

    def _begin(self) -> None:
        """The stream is this client's own: whoever writes there first makes its key."""
        if self.folder.stream_keys.public(naming.stream_id(self.stream)) is None:
            self.folder.stream_keys.create(self.stream)
            output.remark(f"made the key of stream {self.stream}, where your connections are kept")

    def connection(self, name: str) -> tuple[ServiceConnection, int]:
        """A connection as it is, and the hub's time."""

        async def work(client: Client) -> tuple[ServiceConnection, int]:
            async with (
                StateView.of(client, self.stream, CONNECT, cached=not self.asked.no_cache) as view,
                view.reading() as reading,
            ):
                return reading.state(name.encode()), view.source.now()

        return self.run(work)

    def tell(
        self, said: SentEvent, shown: Mapping[str, output.Value], data: Mapping[str, object] | None = None
    ) -> None:
        send_event.show_sent(said, shown, self.asked, data)


@contextmanager
def at_home(asked: SendOptions, *, begins: bool = False) -> Iterator[Home]:
    """Open the client directory. With `begins` the stream's key is made where there is none, once it is written to."""
    if asked.blind:
        raise Misuse("a connection is not begun without a look at it", "leave out --blind")
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        home = Home(asked, folder)
        if not begins:
            read_state.need_reader_key(folder, home.stream)
        yield home
