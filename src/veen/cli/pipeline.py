"""`veen pipeline`: verified tables from logs."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plumbing.cli.command import Misuse, argument, command, group, option, options_command
from veen.cli.kit import context_file, output, pinning
from veen.cli.kit.common_options import ClientDir, HubPin, JsonOption
from veen.cli.kit.exit_status import DAMAGED_STATUS
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Result, fields_of
from veen.client.local_files import Busy
from veen.pipeline import Selection, folding, select
from veen.pipeline.decoding import Keys
from veen.pipeline.folding import Folded
from veen.pipeline.jobs import Progress, Runner, in_processes, no_progress, on_spark
from veen.pipeline.session import command_session
from veen.pipeline.tables import CommitSpan, Table, Tables, load
from veen.pipeline.tables.compaction import compact as merge
from veen.pipeline.tables.compaction import tidy
from veen.pipeline.tables.table_load import BatchCallback, follow
from veen.pipeline.tables.verify import TablesVerified
from veen.pipeline.tables.verify import verify as check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


J = TypeVar("J")

app = group(
    "pipeline",
    """Build verified tables from logs on Spark, and verify them.

    Entries are verified, opened with reader keys and written as Parquet files: entries, events, state, and quarantine
    for entries that could not be decoded. The tables record the log they were made from.
    """,
)

Sources = Annotated[list[str], argument("SOURCE", "data directories, or URLs of hubs")]
Out = Annotated[Path, option("--out DIR", "the folder of the tables")]
SparkMaster = Annotated[str | None, option("--master URL", "the Spark master; else all cores of this machine")]
SparkRemote = Annotated[str | None, option("--remote URL", "a Spark Connect server instead of --master")]
SparkConfig = Annotated[Path | None, option("--spark-config FILE", "settings of Spark, as TOML or JSON")]
TablesDir = Annotated[Path, argument("TABLES", "the folder of the tables")]


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """Options for the streams to read and the keys to open them."""

    stream: Annotated[list[str] | None, option("--stream NAME", "only this stream; else all", show_default=False)] = (
        None
    )
    key: Annotated[list[Path] | None, option("--key FILE", "an exported reader key", show_default=False)] = None
    client: ClientDir = None
    passphrase_file: Annotated[
        Path | None,
        option(
            "--passphrase-file FILE",
            "file with the keystore's passphrase, on every worker; else VEEN_PASSPHRASE",
            envvar="VEEN_PASSPHRASE_FILE",
        ),
    ] = None
    pin: HubPin = None
    as_json: JsonOption = False

    def keys(self) -> Keys:
        """References to the keys. Each worker reads the keys itself; they are never sent."""
        folder = self.client or context_file.selected().client
        named = [*([folder] if folder else []), *(self.key or [])]
        paths = tuple(str(Path(one).resolve()) for one in named)
        passphrase = None if self.passphrase_file is None else str(self.passphrase_file.resolve())
        return Keys(paths, passphrase)

    def selection(self, sources: list[str], **more: object) -> Selection:
        paths = [one if "://" in one else str(Path(one).resolve()) for one in sources]
        return select(paths, stream=self.stream, pin=pinning.pinned_key(self.pin), **more)


@dataclass(frozen=True, slots=True)
class PipelineRun(PipelineSource):
    """Options for where the work runs, in addition."""

    processes: Annotated[
        int | None, option("--processes N", "run in N processes on this machine, without Spark", min=1)
    ] = None
    master: SparkMaster = None
    remote: SparkRemote = None
    config: SparkConfig = None

    def begin(self) -> "SparkSession":
        return command_session(self.master, self.remote, self.config)

    @contextmanager
    def runner(self) -> Iterator[Runner]:
        """The runner of jobs. Spark starts with the first job only."""
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

    def __call__(self, work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress | None = None) -> list[bytes]:
        if not jobs:
            return []
        if self._spark is None:
            self._spark = self._begin()
        return on_spark(self._spark)(work, jobs, progress or no_progress)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()


Overlays = Annotated[
    list[str] | None, option("--fold CLASS", "also fold every stream with this overlay", show_default=False)
]


@options_command(
    PipelineRun,
    app,
    "run",
    "veen pipeline run hub --out tables --client reader",
    "veen pipeline run hub --out tables --key doors.key --fold kv",
    "veen pipeline run hub --out tables --client reader --master spark://10.0.0.5:7077",
)
def run(asked: PipelineRun, source: Sources, out: Out, fold: Overlays = None) -> None:
    """Bring tables up to date with the logs.

    Entries that are in the tables already are not read again. A run that was interrupted is continued, and each entry
    is in the tables exactly once. Logs that differ from those the tables were made from are rejected. Spark starts only
    if there is work, which takes many seconds; --processes is faster for a small log.
    """
    tables = Tables(out)
    with asked.runner() as runner:
        with output.tally("reading", "tasks") as progress:
            done = load(tables, asked.selection(source), asked.keys(), runner, progress=progress)
        with output.tally("merging", "tasks") as progress, suppress(Busy):  # another process is compacting
            tidy(tables, runner, progress=progress)
        folded = list(_fold(tables, fold or [], done.spans, runner))
    counts = fields_of(done, "entries", "events", "quarantined", "commits")
    state = [
        {
            "stream": one.stream,
            "overlay": one.overlay.CLASS,
            "upto_seq": one.bounds[-1].upto_seq,
            "mmr_root": one.bounds[-1].mmr_root,
            "state_hash": one.state_hash,
            "parts": len(one.states),
            "entries_read": one.read.entries,
        }
        for one in folded
    ]
    states = {f"state of {one.stream}": f"{one.overlay.CLASS} {one.state_hash.hex()}" for one in folded}
    data = {**counts, "state": state, "stands_for": [span_data(one) for one in done.spans]}
    output.facts({**counts, **states}, asked.as_json, data)
    if done.quarantined and not asked.as_json:
        output.remark("the column reason of the quarantine table says why; veen pipeline status counts the rows")


def _fold(tables: Tables, overlays: list[str], spans: tuple[CommitSpan, ...], runner: Runner) -> list[Folded]:
    made = []
    for name in overlays:
        for stream in dict.fromkeys(span.stream for span in spans):
            with output.tally(f"folding {stream}", "tasks") as progress:
                made.append(folding.fold(tables, name, stream, runner, progress=progress))
    return made


@options_command(
    PipelineRun,
    app,
    "stream",
    "veen pipeline stream hub --out tables --client reader",
    "veen pipeline stream http://127.0.0.1:37411 --out tables --key doors.key --stream doors --once",
)
def stream(
    asked: PipelineRun,
    source: Sources,
    out: Out,
    once: Annotated[bool, option("--once", "exit when the tables are up to date")] = False,
    max_entries: Annotated[int | None, option("--max-entries N", "maximum entries per batch", min=1)] = None,
    every: Annotated[float, option("--every SEC", "time between two checks", min=0.1)] = 1.0,
) -> None:
    """Keep tables up to date with growing logs until interrupted.

    Each batch is committed exactly once. A batch that was interrupted by a crash runs again and adds no row twice.
    """
    if asked.processes is not None:
        raise Misuse("veen pipeline stream needs Spark", "leave out --processes, or use veen pipeline run")
    tables = Tables(out)
    spark = asked.begin()
    try:
        selection = asked.selection(source, max_entries=max_entries)
        query = follow(
            tables, selection, asked.keys(), spark, once=once, every_sec=every, on_batch=_span_printer(asked.as_json)
        )
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
    finally:
        spark.stop()


def _span_printer(as_json: bool) -> BatchCallback:
    """Prints one line for each range of new entries."""

    def show(spans: tuple[CommitSpan, ...]) -> None:
        for span in spans:
            if as_json:
                output.document(span_data(span))
            else:
                output.table(("stream", "first", "last"), [(span.stream, span.first, span.last)], False)
        sys.stdout.flush()

    return show


def span_data(span: CommitSpan) -> dict[str, Any]:
    """A range of the log that tables were made from, as JSON."""
    bounds = {"first_seq": span.first, "upto_seq": span.last, "mmr_root": span.mmr_root}
    return {**fields_of(span, "stream", "epoch", "label", "hub_id"), **bounds}


@command(app, "status", "veen pipeline status tables", "veen pipeline status tables --json")
def status(tables: TablesDir, as_json: JsonOption = False) -> None:
    """Show which logs the tables were made from, and their row counts."""
    view = Tables(tables).view()
    counted: Counter[tuple[bytes, Table]] = Counter()
    for file in view.files.values():
        counted[file.label, file.table] += file.rows
    spans = sorted(view.spans.values(), key=lambda span: (span.stream, span.epoch, span.label))
    names = (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)
    stands_for = [{**span_data(span), **{str(name): counted[span.label, name] for name in names}} for span in spans]
    states = [
        {
            "stream": file.stream,
            "overlay": file.overlay,
            "upto_seq": file.last,
            "parts": file.rows,
            "state_hash": file.state_hash,
        }
        for file in view.of(Table.STATE)
    ]
    data = {"commits": view.number, "files": len(view.files), "stands_for": stands_for, "state": states}
    columns: list[Column] = [("stream", _stream_name), "epoch", "upto_seq", *map(str, names), "mmr_root"]
    Result(data, rows="stands_for", columns=columns).show(as_json)
    if states and not as_json:
        Result(states, columns=tuple(states[0])).show(as_json)


def _stream_name(span: Mapping[str, Any]) -> object:
    """The name; a stream without a known name is called by its label."""
    return span["label"] if span["stream"] == span["label"].hex() else span["stream"]


@options_command(
    PipelineSource,
    app,
    "verify",
    "veen pipeline verify tables --against hub",
    "veen pipeline verify tables --against hub --client reader",
)
def verify(
    asked: PipelineSource,
    tables: TablesDir,
    against: Annotated[list[str], option("--against SOURCE", "the data directory or hub they were made from")],
) -> None:
    """Verify tables against the log they were made from.

    Every leaf is computed again from the table of entries, and the leaves must give the root that the hub signed.
    Events and quarantine together must have one row per entry. With --client or --key, every event is also opened and
    decoded again; streams without a key are named.

    The exit status is 8 if a row was changed, removed or added.
    """
    keys = asked.keys()
    with output.tally("verifying"):
        done = check(Tables(tables), asked.selection(against), keys if keys.references else None)
    _show(done, bool(keys.references) and not done.unopened, asked.as_json)
    if done.unopened and not asked.as_json:
        names = ", ".join(dict.fromkeys(one.stream for one in done.unopened))
        output.remark(f"no given key opens {names}: the content of its entries was not verified")
    if done.problems or done.unmatched:
        raise typer.Exit(DAMAGED_STATUS)


def _show(done: TablesVerified, again: bool, as_json: bool) -> None:
    rows: list[tuple[output.Value, ...]] = [
        (Marked("damaged", Tone.BAD), one.where, one.label, one.stream_seq, one.what) for one in done.problems
    ]
    rows += [
        (Marked("unmatched", Tone.WARN), one.stream, one.label, one.last, "no source has this log")
        for one in done.unmatched
    ]
    verdict = Marked("damaged", Tone.BAD) if rows else Marked("sound", Tone.GOOD)
    facts = {"verdict": verdict, **fields_of(done, "entries", "events", "quarantined"), "opened_again": again}
    if as_json:
        problems = [fields_of(one, "where", "label", "stream_seq", "what") for one in done.problems]
        kinds = {"signed": done.signed, "unmatched": done.unmatched, "unopened": done.unopened}
        spans = {name: [span_data(one) for one in found] for name, found in kinds.items()}
        output.document({**facts, "problems": problems, **spans})
        return
    output.table(("severity", "where", "label", "entry", "what"), rows, as_json)
    output.facts(facts, as_json)


@command(app, "compact", "veen pipeline compact tables")
def compact(
    tables: TablesDir,
    processes: Annotated[int | None, option("--processes N", "number of processes", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files into large ones; no row changes.

    Lookups are faster afterwards. A program that reads the files directly while they are replaced may see some rows
    twice and should read again. Commands and the query engine are not affected.
    """
    with output.tally("merging", "tasks") as progress:
        made = Tables(tables)
        made.view()  # raises if the tables do not exist, so a mistyped folder is not created
        done = merge(made, in_processes(processes), progress=progress)
    output.facts({"files_before": done.before, "files_after": done.after}, as_json)
