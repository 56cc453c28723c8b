"""Where a client keeps its connections: one stream of one hub, looked at and written to between other errands."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from terminalface.command import Misuse
from veen.cli import contextfile, output
from veen.cli.client import calling
from veen.cli.client import cap as caps
from veen.cli.failures import hinted
from veen.cli.overlay import asking, saying
from veen.cli.overlay.declaring import Says
from veen.cli.overlay.directory import sendable
from veen.client import ClientDir, sequence
from veen.client.client import Client
from veen.client.lane import Undecided
from veen.core import naming
from veen.overlays import Event
from veen.overlays.connect import CONNECT, Connection
from veen.state.channel import Channel, NotTaken, Said
from veen.state.view import View

T = TypeVar("T")

STREAM = "connect"


class Home:
    """The hub and the stream that the options name, with the client directory open."""

    def __init__(self, asked: Says, folder: ClientDir) -> None:
        self.asked = asked
        self.folder = folder
        self.stream = STREAM if asked.stream is None else asked.stream
        self._call = asked.call()
        self._url = self._call.url()
        self._tokens = caps.read(path) if (path := contextfile.cap_of(asked.cap)) else ()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do something at this hub."""

        async def met(client: Client) -> T:
            if self._tokens:
                client.dir.caps.add_all(sequence.encode(self._tokens))
            return await work(client)

        with asking.advised(self.stream, CONNECT.CLASS):
            try:
                return self._call.run_with(self.folder, self._url, met)
            except NotTaken as error:
                raise hinted(error, "nothing was sent", "veen connect status shows how far it is") from None
            except Undecided as error:
                raise hinted(error, "do not send it again: veen send --outbox finishes it") from None

    def say(self, make: "Callable[[Client, Home], Awaitable[Event]]") -> tuple[Event, Said]:
        """Write down what `make` comes to, unless the connection does not allow it."""

        async def work(client: Client) -> tuple[Event, Said]:
            event = sendable(await make(client, self))
            self._begin()
            async with View.of(client, self.stream, CONNECT, cached=not self.asked.no_cache) as view:
                return event, await Channel(view).say(event)

        return self.run(work)

    def _begin(self) -> None:
        """The stream is this client's own: whoever writes there first makes its key."""
        if self.folder.stream_keys.public(naming.stream_id(self.stream)) is None:
            self.folder.stream_keys.create(self.stream)
            output.remark(f"made the key of stream {self.stream}, where your connections are kept")

    def connection(self, name: str) -> tuple[Connection, int]:
        """A connection as it is, and the hub's time."""

        async def work(client: Client) -> tuple[Connection, int]:
            async with (
                View.of(client, self.stream, CONNECT, cached=not self.asked.no_cache) as view,
                view.reading() as reading,
            ):
                return reading.state(name.encode()), view.source.now()

        return self.run(work)

    def tell(self, said: Said, shown: Mapping[str, output.Value], data: Mapping[str, object] | None = None) -> None:
        saying.tell(said, shown, self.asked, data)


@contextmanager
def at_home(asked: Says, *, begins: bool = False) -> Iterator[Home]:
    """Open the client directory. With `begins` the stream's key is made where there is none, once it is written to."""
    if asked.blind:
        raise Misuse("a connection is not begun without a look at it", "leave out --blind")
    with calling.opened(asked.client, asked.passphrase_file) as folder:
        home = Home(asked, folder)
        if not begins:
            asking.need_reader_key(folder, home.stream)
        yield home
