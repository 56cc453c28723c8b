"""The command group `veen pipeline` and its shared options."""

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
    """Build verified tables from logs on Spark, and verify them.

    Entries are verified, opened with reader keys and written as Parquet files: entries, events, state, and quarantine
    for entries that could not be decoded. The tables record the log they were made from.
    """,
)

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", help="data directories, or URLs of hubs")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="the folder of the tables")]
TablesDir = Annotated[Path, typer.Argument(metavar="TABLES", help="the folder of the tables")]


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """Options for the streams to read and the keys to open them."""

    stream: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="NAME", help="only this stream; else all", show_default=False),
    ] = None
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="FILE", help="an exported reader key", show_default=False),
    ] = None
    client: ClientDir = None
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--passphrase-file",
            metavar="FILE",
            envvar="VEEN_PASSPHRASE_FILE",
            help="file with the keystore's passphrase, on every worker; else VEEN_PASSPHRASE",
        ),
    ] = None
    pin: HubPin = None
    as_json: JsonOption = False

    def keys(self) -> "Keys":
        """References to the keys. Each worker reads the keys itself; they are never sent."""
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
    """Options for where the work runs, in addition."""

    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="run in N processes on this machine, without Spark"),
    ] = None
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="the Spark master; else all cores of this machine")
    ] = None
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="a Spark Connect server instead of --master")
    ] = None
    config: Annotated[
        Path | None, typer.Option("--spark-config", metavar="FILE", help="settings of Spark, as TOML or JSON")
    ] = None

    def begin(self) -> "SparkSession":
        return start(self.master, self.remote, self.config)

    @contextmanager
    def runner(self) -> "Iterator[Runner]":
        """The runner of jobs. Spark starts with the first job only."""
        from veen.pipeline.jobs import in_processes

        if self.processes is not None:
            if self.master or self.remote or self.config:
                raise Misuse("--processes cannot be used with Spark options", "give one or the other")
            yield in_processes(self.processes)
            return
        spark = LazySpark(self.begin)
        try:
            yield spark
        finally:
            spark.stop()


class LazySpark:
    """Runs jobs on Spark, which it starts for the first job."""

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
def task_progress(title: str) -> "Iterator[Progress]":
    """A progress bar that counts tasks."""
    from veen.pipeline.jobs import no_progress

    if not sys.stderr.isatty():
        yield no_progress
        return
    with output.tally(title, "tasks") as update:
        yield lambda done, total: update(done)
