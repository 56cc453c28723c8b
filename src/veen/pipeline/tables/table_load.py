"""Load logs into tables: workers read and verify the entries that the tables lack, and rounds commit them.

A log that was loaded before must still be the same log: the root in the tables is compared with the root that the hub
signed, and another history is rejected.

`follow` makes a commit of each batch of a streaming query, exactly once. The tables themselves ensure that: if a batch
runs again because the query died before Spark recorded it, its entries are already in the tables and are skipped. A
query can therefore also restart without its checkpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.client.local_files import Busy
from veen.client.tree_follower import PrunedEntries
from veen.core import Malformed, Msg, Receipt, Unavailable, Unverified, proof
from veen.core.proof import Head
from veen.pipeline import chunk_verifier, jobs, read_plan
from veen.pipeline.decoding import DecodedEntry, Decoder, Keys, LabelStream, streams_of
from veen.pipeline.extents import Extent, explained, extent_of
from veen.pipeline.jobs import Progress, Runner, freeze_loaded_objects, no_progress, run_inline
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.selection import Selection, Verify, in_epochs
from veen.pipeline.sources import Chunk, ChunkSource, DirectoryChunks, HubChunks, by_label, open_source
from veen.pipeline.tables.commit import Commit, CommitSpan, TablesView
from veen.pipeline.tables.compaction import tidy
from veen.pipeline.tables.staged_files import Staged, Stager, staged_name
from veen.pipeline.tables.store import CHECKPOINT, Tables
from veen.storage import frame
from veen.storage.entry_check import EntryCheck
from veen.storage.metadata import HubMetadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROUND_TASKS = 64  # per commit: the most that a crash loses
AHEAD = 1_000  # future epochs to watch for in files; a hub would get one request for each
COLUMNS = ("hub_id", "label", "stream_seq", "msg", "receipt", "ok", "faults")

BatchCallback = Callable[[tuple[CommitSpan, ...]], None]  # the spans of one batch


@dataclass(frozen=True, slots=True)
class TableLoad:
    """A task with everything that a worker needs to stage it. It contains locations of keys, never keys."""

    task: Task
    hub_id: bytes
    streams: tuple[LabelStream, ...]
    keys: Keys
    folder: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load."""

    entries: int
    events: int
    quarantined: int
    commits: int
    spans: tuple[CommitSpan, ...]  # the current span of each label that was read


def load(
    tables: Tables, selection: Selection, keys: Keys, run: Runner = run_inline, *, progress: Progress = no_progress
) -> Loaded:
    """Bring the tables up to the end of the logs. Repeating it, also after a crash, gives the same tables.

    Raises `Unavailable` for a selected stream that neither a log nor the tables have.
    """
    counted, commit_count = [0, 0, 0], 0
    touched: dict[bytes, None] = {}
    wanted: dict[str, frozenset[bytes]] = {}
    known: dict[str, frozenset[bytes]] = {}
    with tables.writing() as view:
        for path in selection.paths:
            source = open_source(path)
            metadata = read_plan.pinned(source.metadata(), selection.pin)
            extent = missing_extent(
                source, metadata, labels_of(selection, metadata, keys, source), view, selection.seq_max
            )
            check_none_pruned(source, extent.with_pruned, view, selection.seq_max)
            chunks = extent.with_pruned
            known[source.url] = extent.labels | frozenset(view.spans)
            for name, labels in selection.labels_by_name(metadata).items():
                wanted[name] = wanted.get(name, frozenset()) | labels
            if path == selection.paths[-1]:
                read_plan.check_known(wanted, known, keys.names())
            streams = known_streams(source, metadata, chunks, selection, keys)
            for label in streams:
                check_basis(source, metadata, chunks, view, label)
            touched |= dict.fromkeys(streams)
            pieces = missing(source, metadata, extent.chunks, view, selection)
            for tasks in rounds(read_plan.deal(pieces, selection.parallelism)):
                staged = _round(tables, view, metadata.identity.hub_id, tasks, streams, keys, run, progress)
                commit_count += 1
                for file in staged.files:
                    counted[("entries", "events", "quarantine").index(file.table)] += file.rows
        spans = tuple(view.spans[label] for label in touched if label in view.spans)
    entries, events, quarantined = counted
    return Loaded(entries, events, quarantined, commit_count, spans)


def rounds(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    for start in range(0, len(tasks), ROUND_TASKS):
        yield tasks[start : start + ROUND_TASKS]


def _round(
    tables: Tables,
    view: TablesView,
    hub_id: bytes,
    tasks: Sequence[Task],
    streams: dict[bytes, LabelStream],
    keys: Keys,
    run: Runner,
    progress: Progress,
) -> Staged:
    with tables.staging() as folder:
        of_task = [tuple(streams[label] for label in {piece.chunk.label: None for piece in task}) for task in tasks]
        jobs = [
            TableLoad(task, hub_id, named, keys, str(folder.resolve()))
            for task, named in zip(tasks, of_task, strict=True)
        ]
        return publish(tables, view, folder, [Staged.decode(one) for one in run(stage, jobs, progress)])


def publish(tables: Tables, view: TablesView, folder: Path, results: Sequence[Staged]) -> Staged:
    """Commit what workers staged. Raises `Malformed` if it does not continue the tables."""
    whole = Staged([span for one in results for span in one.spans], [file for one in results for file in one.files])
    joined: dict[bytes, CommitSpan] = {}
    for span in sorted(whole.spans, key=lambda span: (span.label, span.first)):
        known = joined.get(span.label)
        last = view.upto(span.label) if known is None else known.last
        if span.first != last + 1:
            raise Malformed("tables", f"entry {span.first} does not follow on entry {last}")
        joined[span.label] = span if known is None else known.joined(span)
    if joined:
        commit = Commit(view.number + 1, "append", tuple(joined.values()), tuple(whole.files))
        tables.publish(commit, {file.path: folder / staged_name(file) for file in whole.files})
        view.take(commit)
    return whole


def stage(job: TableLoad) -> bytes:
    """Worker: read, verify, open and decode the entries of a task, and write staged files."""
    freeze_loaded_objects()
    streams = {stream.label: stream for stream in job.streams}
    stager = Stager(Path(job.folder), job.hub_id, streams, Decoder(streams, job.keys))
    known: dict[str, tuple[ChunkSource, HubMetadata]] = {}
    for piece in job.task:
        if piece.source not in known:
            source = open_source(piece.source)
            known[piece.source] = source, read_plan.pinned(source.metadata(), job.hub_id)
        try:
            for found in found_in(*known[piece.source], piece):
                stager.add(found)
        except PrunedEntries as pruned:
            raise _refusal(piece.chunk.label, pruned.message) from None
    return stager.finish().encode()


def found_in(source: ChunkSource, metadata: HubMetadata, piece: Piece) -> Iterator[DecodedEntry]:
    """Every entry of a piece after verification, including those that an earlier damaged entry makes unreadable.

    Raises `PrunedEntries` at a range that a hub pruned.
    """
    label, seq, reason = piece.chunk.label, piece.first, "the chunk could not be read up to here"
    try:
        for one in chunk_verifier.verified(source, chunk_verifier.start(source, metadata, piece), piece):
            if one.ends:
                reason = str(one.failures[-1])
            if one.stream_seq == seq:
                faults = tuple((failure.check.value, str(failure)) for failure in one.failures)
                yield DecodedEntry(label, seq, one.message, one.receipt, faults)
                seq += 1
    except PrunedEntries as pruned:
        if (end := pruned.tombstone.segment.end_seq) >= piece.first:
            raise
        yield from found_in(source, metadata, piece.after(end))
        return
    for unreadable in range(seq, piece.last + 1):
        yield DecodedEntry(label, unreadable, None, None, ((EntryCheck.FRAME.value, reason),))


def labels_of(selection: Selection, metadata: HubMetadata, keys: Keys, source: ChunkSource) -> frozenset[bytes] | None:
    """The selected labels. A hub does not list labels; there, the default is the streams whose keys are available."""
    if not selection.labels and not selection.streams and isinstance(source, HubChunks):
        selection = replace(selection, streams=keys.names())
    return selection.labels_of(metadata)


def missing_extent(
    source: ChunkSource,
    metadata: HubMetadata,
    labels: frozenset[bytes] | None,
    view: TablesView,
    most: int | None,
) -> Extent:
    """The extent of these labels. Only entries after those in the tables are requested from a hub.

    Raises `Unverified` if entries up to `most` are missing that the tables do not have.
    """
    if isinstance(source, HubChunks):
        chunks = source.chunks_since(labels, {label: span.last for label, span in view.spans.items()})
        return Extent(chunks, [], frozenset(chunk.label for chunk in chunks))
    extent = extent_of(source, metadata, labels)
    for gap in extent.gaps:
        if gap.last > view.upto(gap.label) and (most is None or gap.first <= most):
            raise gap.refusal(source.url)
    return extent


def check_none_pruned(source: ChunkSource, chunks: Sequence[Chunk], view: TablesView, most: int | None = None) -> None:
    """Raise `Unavailable` if entries that the tables lack were pruned: a fold over the rest would be wrong.

    A hub is asked about the first of them only; a range that was pruned in between is found when it is read.
    """
    for label, of_label in by_label(chunks).items():
        first = view.upto(label) + 1
        lacking = [one for one in of_label if first <= one.end_seq and (most is None or one.start_seq <= most)]
        found = _hub_pruned(source, lacking, first) if isinstance(source, HubChunks) else _pruned(lacking, first)
        if found is not None:
            error = _refusal(label, found)
            error.add_note("select other streams with --stream, or load from a backup that still has the entries")
            raise error


def _refusal(label: bytes, what: str) -> Unavailable:
    return Unavailable(f"label {label.hex()[:16]}…: {what}, and tables need every entry")


def _pruned(chunks: Sequence[Chunk], first: int) -> str | None:
    """The first pruned range among the chunks of a label in a directory."""
    start = end = 0
    for chunk in chunks:
        if chunk.pruned and (not end or chunk.start_seq == end + 1):
            start, end = start or max(first, chunk.start_seq), chunk.end_seq
    return f"entries {start} to {end} were pruned" if end else None


def _hub_pruned(source: HubChunks, chunks: Sequence[Chunk], first: int) -> str | None:
    """The same if the first entry was pruned by a hub."""
    try:
        if chunks:
            source.first_frame(replace(chunks[0], start_seq=max(first, chunks[0].start_seq)))
    except PrunedEntries as pruned:
        return pruned.message
    return None


def known_streams(
    source: ChunkSource,
    metadata: HubMetadata,
    chunks: Sequence[Chunk],
    selection: Selection,
    keys: Keys,
) -> dict[bytes, LabelStream]:
    """The streams of these chunks, by names in the selection or in the available keys."""
    names = dict.fromkeys((*selection.streams, *keys.names()))
    # Requesting the first entry of a label from a hub costs more than deriving labels.
    epochs = in_epochs(selection, metadata).epochs if isinstance(source, HubChunks) else selection.epochs or (0,)
    return streams_of(source, metadata, chunks, names, epochs)


def missing(
    source: ChunkSource,
    metadata: HubMetadata,
    chunks: Sequence[Chunk],
    view: TablesView,
    selection: Selection,
) -> list[Piece]:
    """The pieces that the tables do not have."""
    found = []
    for chunk in chunks:
        first = max(chunk.start_seq, view.upto(chunk.label) + 1)
        last = chunk.end_seq if selection.seq_max is None else min(chunk.end_seq, selection.seq_max)
        if first <= last:
            found.append(Piece(source.url, metadata.identity.hub_id, chunk, first, last))
    return found


def check_basis(
    source: ChunkSource, metadata: HubMetadata, chunks: Sequence[Chunk], view: TablesView, label: bytes
) -> None:
    """Raise `Unverified` if the log is not the one that the tables were made from."""
    span = view.spans.get(label)
    if span is None:
        return
    if span.hub_id != metadata.identity.hub_id:
        raise Unverified(str(source.url), f"the tables have label {label.hex()[:16]}… from another hub")
    head = signed_at(source, metadata, chunks, label, span.last)
    if head is None:
        lagging = Unavailable(
            f"{source.url}: label {label.hex()[:16]}… ends before entry {span.last}, which the tables have"
        )
        lagging.add_note("a directory may lag behind its hub: read it later, or read from the hub")
        raise lagging
    if span.mmr_root is not None and head.mmr_root != span.mmr_root:
        raise Unverified(
            str(source.url), f"label {label.hex()[:16]}… up to {span.last} differs from the log in the tables"
        )


def signed_at(
    source: ChunkSource, metadata: HubMetadata, chunks: Sequence[Chunk], label: bytes, seq: int
) -> Head | None:
    """The receipt of an entry with verified signature, or a checkpoint; None if the log does not reach it."""
    chunk = next((one for one in chunks if one.label == label and one.start_seq <= seq <= one.end_seq), None)
    if chunk is None:
        return None
    if isinstance(source, HubChunks):
        return source.head(label, seq)
    if chunk.pruned:
        return _receipt_of_pruned(source, metadata, chunk, seq)
    head = _receipt_in(source, chunk, seq)
    if head is None:
        return None
    metadata.lineage.verify_head(head, metadata.profile)
    if (proof.label_of(head), proof.size_of(head)) != (label, seq):
        raise Unverified(str(source.url), f"the receipt of entry {seq} belongs to another place")
    return head


def _receipt_in(source: ChunkSource, chunk: Chunk, seq: int) -> Receipt | None:
    at = chunk.start_seq
    for data, start in source.blocks(chunk):
        pos = start
        while pos < len(data):
            if at == seq:
                return Receipt.decode(frame.read_unhashed(data, pos)[0].receipt)
            pos, at = pos + frame.length_at(data, pos), at + 1
    return None


def _receipt_of_pruned(source: ChunkSource, metadata: HubMetadata, chunk: Chunk, seq: int) -> Receipt:
    """The receipt of a pruned entry, which the manifest signs; its own signature may have been pruned."""
    piece = Piece(source.url, metadata.identity.hub_id, chunk, seq, seq)
    (found,) = chunk_verifier.verified(source, chunk_verifier.start(source, metadata, piece), piece)
    if found.failures or found.receipt is None:
        raise Unverified(f"{source.url}/log/{chunk.name}", "; ".join(map(str, found.failures)))
    return found.receipt


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
            if isinstance(source, DirectoryChunks):
                chunks = explained(source, metadata, chunks)
            check_none_pruned(source, chunks, view, selection.seq_max)
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
