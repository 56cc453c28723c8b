"""A hub, and a client with reader keys that runs commands over the state of streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.hub_fixture import STREAM, HubFixture, hub_fixture
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.core import naming

KEEPER = "keeper"


class StateFixture:
    """Runs commands as the client `keeper`, at the hub or offline on its data directory."""

    def __init__(self, at: HubFixture) -> None:
        self.town = at
        self.stream = STREAM

    def run(self, *arguments: object, stream: str | None = STREAM) -> Ran:
        """Run a command at the hub. It must succeed."""
        return self.town.veen.done(*arguments, *self._options(stream))

    def attempt(self, *arguments: object, stream: str | None = STREAM) -> Ran:
        return self.town.veen(*arguments, *self._options(stream))

    def _options(self, stream: str | None) -> tuple[object, ...]:
        named = () if stream is None else ("--stream", stream)
        session = ("--client", self.town.root / KEEPER, "--hub", self.town.url)
        return *session, *named, "--pin", self.town.hub.data_dir

    def run_offline(self, data_dir: Path, *arguments: object, stream: str = STREAM) -> Ran:
        """Run a command on a data directory, without the hub."""
        options = ("--client", self.town.root / KEEPER, "--stream", stream, "--data-dir", data_dir)
        return self.town.veen(*arguments, *options)

    @property
    def data_dir(self) -> Path:
        return self.town.hub.data_dir


@contextmanager
def state_hub(veen: Veen, root: Path, *streams: str) -> Iterator[StateFixture]:
    """Start a hub. The client gets the reader key of `STREAM`, and creates the keys of `streams`."""
    with hub_fixture(veen, root) as at:
        with ClientDir.open(root / "reader") as reader, ClientDir.create(root / KEEPER, None, 1) as keeper:
            found = reader.stream_keys.secret(naming.stream_id(STREAM))
            assert found is not None
            keeper.stream_keys.import_secret(STREAM, found)
            for stream in streams:
                keeper.stream_keys.create(stream)
        yield StateFixture(at)
