"""People around a hub who read and write the state of streams, with the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.runner import Ran, Veen
from tests.cli.town import STREAM, Town, town
from veen.client import ClientDir
from veen.core import naming

KEEPER = "keeper"


class People:
    """A town whose keeper reads and writes; the data directory can be read beside the hub."""

    def __init__(self, at: Town) -> None:
        self.town = at
        self.stream = STREAM

    def does(self, *arguments: object, stream: str | None = STREAM) -> Ran:
        """What the keeper does at the hub, which must succeed."""
        return self.town.veen.done(*arguments, *self._options(stream))

    def tries(self, *arguments: object, stream: str | None = STREAM) -> Ran:
        return self.town.veen(*arguments, *self._options(stream))

    def _options(self, stream: str | None) -> tuple[object, ...]:
        named = () if stream is None else ("--stream", stream)
        whose = ("--client", self.town.root / KEEPER, "--hub", self.town.url)
        return *whose, *named, "--pin", self.town.hub.data_dir

    def reads(self, data_dir: Path, *arguments: object, stream: str = STREAM) -> Ran:
        """The same from a data directory, without asking the hub."""
        options = ("--client", self.town.root / KEEPER, "--stream", stream, "--data-dir", data_dir)
        return self.town.veen(*arguments, *options)

    @property
    def data_dir(self) -> Path:
        return self.town.hub.data_dir


@contextmanager
def people(veen: Veen, root: Path, *streams: str) -> Iterator[People]:
    """The keeper has the reader key of the town's stream, and of streams of its own."""
    with town(veen, root) as at:
        with ClientDir.open(root / "reader") as reader, ClientDir.create(root / KEEPER, None, 1) as keeper:
            found = reader.stream_keys.secret(naming.stream_id(STREAM))
            assert found is not None
            keeper.stream_keys.import_secret(STREAM, found)
            for stream in streams:
                keeper.stream_keys.create(stream)
        yield People(at)
