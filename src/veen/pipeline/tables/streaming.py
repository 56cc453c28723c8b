"""Tables that follow a log: each batch of a streaming query becomes one commit, exactly once.

What makes it once is the tables themselves: a batch that is run again, because its query died before Spark had noted
it, finds its entries there and leaves them out. So a query may also be begun anew without its checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.client.durable import Busy
from veen.core import Malformed, Msg, Receipt, Unverified
from veen.pipeline import jobs, read_plan
from veen.pipeline.decoding import DecodedEntry, Decoder, Keys, LabelStream
from veen.pipeline.rows import settle
from veen.pipeline.selection import Selection, Verify
from veen.pipeline.sources import open_source
from veen.pipeline.tables.commit import CommitSpan
from veen.pipeline.tables.compacting import tidy
from veen.pipeline.tables.loading import check_basis, in_epochs, labels_of, possible_streams, publish
from veen.pipeline.tables.staging import Staged, Stager
from veen.pipeline.tables.store import CHECKPOINT, Tables

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AHEAD = 1_000  # epochs whose labels a stream over files looks out for; over a hub, each would be asked for in vain
COLUMNS = ("hub_id", "label", "stream_seq", "msg", "receipt", "ok", "faults")

Told = Callable[[tuple[CommitSpan, ...]], None]  # the runs that a batch brought in


@dataclass(frozen=True, slots=True)
class TableBatch:
    """What a worker must know to stage its part of a batch. It names places, never keys."""

    streams: tuple[LabelStream, ...]
    done: tuple[tuple[bytes, int], ...]  # how far each label is in the tables
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
    told: Told | None = None,
) -> "StreamingQuery":
    """A running query that brings in what comes; with `once`, what is there by now, and then it ends.

    Over Spark Connect, batches are taken where its server is, and nobody here is told of them.
    """
    tables_at = Tables(tables.root.resolve())
    names = dict.fromkeys((*selection.streams, *keys.names()))
    asked = replace(selection, columns=COLUMNS, verify=Verify.ENTRY)
    if not asked.labels and not asked.streams and any(path.startswith("http") for path in asked.paths):
        asked = replace(asked, streams=tuple(names))
    hub_metadata = open_source(asked.paths[0]).hub_metadata()
    asked = in_epochs(asked, hub_metadata, 0 if asked.paths[0].startswith("http") else AHEAD)
    with tables_at.writing():
        pass  # what was begun before is brought to its end, and a folder that cannot be written to is noticed now
    frame = spark.readStream.format("veen").options(**asked.options()).load()

    take = _taker(tables_at.root, asked, keys, None if jobs.is_remote(spark) else told)
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tables_at.own / CHECKPOINT))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_sec} seconds")
    return writer.start()


def _taker(root: Path, asked: Selection, keys: Keys, told: Told | None) -> "Callable[[DataFrame, int], None]":
    """What is done with a batch. Spark Connect sends it to its server, so it holds plain values only."""

    def take(batch: "DataFrame", number: int) -> None:
        tables = Tables(root)
        made = _take(tables, asked, keys, batch)
        with suppress(Busy):  # then another process does that
            tidy(tables)
        if told is not None:
            told(tuple(made.spans))

    return take


def _take(tables: Tables, selection: Selection, keys: Keys, batch: "DataFrame") -> Staged:
    """One batch, into the tables."""
    with tables.writing() as view, tables.staging() as folder:
        streams: dict[bytes, LabelStream] = {}
        for path in selection.paths:
            source = open_source(path)
            hub_metadata = read_plan.pinned(source.hub_metadata(), selection.pin)
            chunks = source.chunks(labels_of(selection, hub_metadata, keys, source))
            found = possible_streams(source, hub_metadata, chunks, selection, keys)
            for label in found:
                check_basis(source, hub_metadata, chunks, view, label)
            streams |= found
        done = tuple((label, view.upto(label)) for label in streams)
        work = TableBatch(tuple(streams.values()), done, keys, str(folder))

        def stage(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            yield from staged(batches, work)

        rows = batch.mapInArrow(stage, jobs.SCHEMA).collect()
        return publish(tables, view, folder, [Staged.decode(one) for one in jobs.results_of(rows)])


def staged(batches: "Iterator[pa.RecordBatch]", work: TableBatch) -> "Iterator[pa.RecordBatch]":
    """What a worker does with its part of a batch; an error of ours comes back in words."""
    settle()
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
    """An entry as the reader handed it over."""
    place = f"label {row['label'].hex()[:16]}…, entry {row['stream_seq']}"
    if "frame" in row["faults"]:
        raise Unverified(place, "nothing behind it in its chunk can be read: a run of its own puts that in quarantine")
    if row["receipt"] is None:
        raise Unverified(place, "the data directory does not hold it: veen audit names what is missing")
    message: Msg | None = None
    receipt: Receipt | None = None
    faults = tuple((name, "it does not hold") for name in row["faults"])
    try:
        receipt = Receipt.decode(row["receipt"])
        message = Msg.decode(row["msg"])
    except Malformed as error:
        faults = faults or (("form", str(error)),)
    return DecodedEntry(row["label"], row["stream_seq"], message, receipt, faults)
