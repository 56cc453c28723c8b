"""Tables that follow a log: each batch of a streaming query becomes one commit, exactly once.

The tables themselves make it exactly once: if a batch runs again because the query died before Spark recorded it, its
entries are already in the tables and are skipped. A query can therefore also restart without its checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.client.local_files import Busy
from veen.core import Malformed, Msg, Receipt, Unverified
from veen.pipeline import jobs, read_plan
from veen.pipeline.decoding import DecodedEntry, Decoder, Keys, LabelStream
from veen.pipeline.jobs import freeze_loaded_objects
from veen.pipeline.selection import Selection, Verify, in_epochs
from veen.pipeline.sources import open_source
from veen.pipeline.tables.commit import CommitSpan
from veen.pipeline.tables.compaction import tidy
from veen.pipeline.tables.staged_files import Staged, Stager
from veen.pipeline.tables.store import CHECKPOINT, Tables
from veen.pipeline.tables.table_load import check_basis, known_streams, labels_of, publish

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AHEAD = 1_000  # future epochs to watch for in files; a hub would get one request for each
COLUMNS = ("hub_id", "label", "stream_seq", "msg", "receipt", "ok", "faults")

BatchCallback = Callable[[tuple[CommitSpan, ...]], None]  # the spans of one batch


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Everything a worker needs to stage its part of a batch. It contains locations of keys, never keys."""

    streams: tuple[LabelStream, ...]
    done: tuple[tuple[bytes, int], ...]  # last entry of each label in the tables
    keys: Keys
    folder: str


def follow(
    tables: Tables,
    selection: Selection,
    keys: Keys,
    spark: "SparkSession",
    *,
    once: bool = False,
    every_sec: float = 1,
    on_batch: BatchCallback | None = None,
) -> "StreamingQuery":
    """Start a query that loads entries as they arrive; with `once`, it loads the present ones and ends.

    Over Spark Connect the server processes the batches, and `on_batch` is not called.
    """
    tables_at = Tables(tables.root.resolve())
    names = dict.fromkeys((*selection.streams, *keys.names()))
    selected = replace(selection, columns=COLUMNS, verify=Verify.ENTRY)
    if not selected.labels and not selected.streams and any(path.startswith("http") for path in selected.paths):
        selected = replace(selected, streams=tuple(names))
    metadata = open_source(selected.paths[0]).metadata()
    selected = in_epochs(selected, metadata, 0 if selected.paths[0].startswith("http") else AHEAD)
    with tables_at.writing():
        pass  # finish an interrupted commit, and fail early if the folder is not writable
    frame = spark.readStream.format("veen").options(**selected.options()).load()

    take = _batch_handler(tables_at.root, selected, keys, None if jobs.is_remote(spark) else on_batch)
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tables_at.own / CHECKPOINT))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_sec} seconds")
    return writer.start()


def _batch_handler(
    root: Path, selected: Selection, keys: Keys, on_batch: BatchCallback | None
) -> "Callable[[DataFrame, int], None]":
    """The batch handler. Spark Connect sends it to its server, so it captures plain values only."""

    def take(batch: "DataFrame", number: int) -> None:
        tables = Tables(root)
        made = _load_batch(tables, selected, keys, batch)
        with suppress(Busy):  # another process is merging
            tidy(tables)
        if on_batch is not None:
            on_batch(tuple(made.spans))

    return take


def _load_batch(tables: Tables, selection: Selection, keys: Keys, batch: "DataFrame") -> Staged:
    """Load one batch."""
    with tables.writing() as view, tables.staging() as folder:
        streams: dict[bytes, LabelStream] = {}
        for path in selection.paths:
            source = open_source(path)
            metadata = read_plan.pinned(source.metadata(), selection.pin)
            chunks = source.chunks(labels_of(selection, metadata, keys, source))
            found = known_streams(source, metadata, chunks, selection, keys)
            for label in found:
                check_basis(source, metadata, chunks, view, label)
            streams |= found
        done = tuple((label, view.upto(label)) for label in streams)
        work = TableBatch(tuple(streams.values()), done, keys, str(folder))

        def stage(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            yield from staged(batches, work)

        rows = batch.mapInArrow(stage, jobs.SCHEMA).collect()
        return publish(tables, view, folder, [Staged.decode(one) for one in jobs.results_of(rows)])


def staged(batches: "Iterator[pa.RecordBatch]", work: TableBatch) -> "Iterator[pa.RecordBatch]":
    """Worker: stage one part of a batch. A `VeenError` is returned as text."""
    freeze_loaded_objects()
    yield jobs.batch_of([(0, jobs.outcome(lambda given: _stage(given, work), batches))])


def _stage(batches: "Iterator[pa.RecordBatch]", work: TableBatch) -> bytes:
    streams, done = {one.label: one for one in work.streams}, dict(work.done)
    decoder, stagers = Decoder(streams, work.keys), dict[bytes, Stager]()
    for batch in batches:
        for row in batch.to_pylist():
            if row["stream_seq"] > done.get(row["label"], 0):
                stager = stagers.get(row["hub_id"])
                if stager is None:
                    stager = stagers[row["hub_id"]] = Stager(Path(work.folder), row["hub_id"], streams, decoder)
                stager.add(_found(row))
    whole = [stager.finish() for stager in stagers.values()]
    return Staged([span for one in whole for span in one.spans], [file for one in whole for file in one.files]).encode()


def _found(row: dict[str, Any]) -> DecodedEntry:
    """The entry in a row of the reader."""
    place = f"label {row['label'].hex()[:16]}…, entry {row['stream_seq']}"
    if "frame" in row["faults"]:
        what = "the rest of its chunk cannot be read; veen pipeline run puts those entries in quarantine"
        raise Unverified(place, what)
    if row["receipt"] is None:
        raise Unverified(place, "the data directory does not have it; run veen audit to list what is missing")
    message: Msg | None = None
    receipt: Receipt | None = None
    faults = tuple((name, "it does not hold") for name in row["faults"])
    try:
        receipt = Receipt.decode(row["receipt"])
        message = Msg.decode(row["msg"])
    except Malformed as error:
        faults = faults or (("form", str(error)),)
    return DecodedEntry(row["label"], row["stream_seq"], message, receipt, faults)
