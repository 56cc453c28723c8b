"""The group `veen pipeline`, and the options that its commands share."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.kit import context_file, output
from veen.cli.kit.client_options import HubPin
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.spark_session import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veen.pipeline import Selection
    from veen.pipeline.decoding import Keys
    from veen.pipeline.jobs import Progress, Runner

J = TypeVar("J")

ORDER = ["run", "stream", "status", "verify", "compact"]

app = group(
    "pipeline",
    """Make verified tables of whole logs, on Spark, and check them.

    Entries are verified, opened with the keys of their readers and written as Parquet that anyone can read: entries,
    events, state, and in quarantine what failed. The tables say which log they stand for.
    """,
)

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", help="data directories, or hubs by their address")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="the folder of the tables")]
TablesDir = Annotated[Path, typer.Argument(metavar="TABLES", help="the folder of the tables")]


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """What to read, and with whose keys."""

    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="only these streams; else all there are", show_default=False),
    ] = None
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="FILE", help="a reader key that was exported", show_default=False),
    ] = None
    client: ClientDir = None
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--passphrase-file",
            metavar="FILE",
            envvar="VEEN_PASSPHRASE_FILE",
            help="where the keystore's passphrase is, for every worker; else VEEN_PASSPHRASE",
        ),
    ] = None
    pin: HubPin = None
    as_json: JsonOption = False

    def keys(self) -> "Keys":
        """Where the keys are. They are read by whoever opens entries, and travel nowhere."""
        from veen.pipeline.decoding import Keys

        folder = self.client or context_file.selected().client
        named = [*([folder] if folder else []), *(self.key or [])]
        paths = tuple(str(Path(one).resolve()) for one in named)
        passphrase = None if self.passphrase_file is None else str(self.passphrase_file.resolve())
        return Keys(paths, passphrase)

    def selection(self, sources: list[str], **more: object) -> "Selection":
        from veen.cli.kit import pinning
        from veen.pipeline import select

        paths = [one if "://" in one else str(Path(one).resolve()) for one in sources]
        return select(paths, stream=self.stream, pin=pinning.pinned_key(self.pin), **more)


@dataclass(frozen=True, slots=True)
class PipelineRun(PipelineSource):
    """And where the work is done."""

    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="in processes of this machine, without Spark"),
    ] = None
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="of Spark; else every core of this machine")
    ] = None
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="a Spark Connect server, instead of --master")
    ] = None
    config: Annotated[
        Path | None, typer.Option("--spark-config", metavar="FILE", help="settings of Spark's own, as TOML or JSON")
    ] = None

    def begin(self) -> "SparkSession":
        return start(self.master, self.remote, self.config)

    @contextmanager
    def runner(self) -> "Iterator[Runner]":
        """Where jobs are done. Spark is started with the first of them, and not where there is none."""
        from veen.pipeline.jobs import in_processes

        if self.processes is not None:
            if self.master or self.remote or self.config:
                raise Misuse("--processes and the options of Spark contradict each other", "give one or the other")
            yield in_processes(self.processes)
            return
        late = LateSpark(self.begin)
        try:
            yield late
        finally:
            late.stop()


class LateSpark:
    """Does jobs on Spark, which it starts for the first of them."""

    def __init__(self, begin: "Callable[[], SparkSession]") -> None:
        self._begin = begin
        self._spark: SparkSession | None = None

    def __call__(
        self, work: Callable[[J], bytes], jobs: Sequence[J], progress: "Progress | None" = None
    ) -> list[bytes]:
        from veen.pipeline.jobs import no_progress, on_spark

        if not jobs:
            return []
        if self._spark is None:
            self._spark = self._begin()
        return on_spark(self._spark)(work, jobs, progress or no_progress)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()


@contextmanager
def told(title: str) -> "Iterator[Progress]":
    """A bar that Spark's own count of its tasks moves."""
    from veen.pipeline.jobs import no_progress

    if not sys.stderr.isatty():
        yield no_progress
        return
    with output.tally(title, "tasks") as tell:
        yield lambda done, total: tell(done)
