"""From logs to tables: what they have not got yet is planned, read and verified by workers, and committed in rounds.

Where a log was brought in before, it must still be the log that it was: the root that the tables stand for is held
against the hub's own word, and another history is refused.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from veen.core import Malformed, Receipt, Unavailable, Unverified
from veen.pipeline import chunk_verifier, read_plan
from veen.pipeline.decoding import DecodedEntry, Decoder, Keys, LabelStream, streams_of
from veen.pipeline.extents import extent_of
from veen.pipeline.jobs import Runner, Tell, here, silent
from veen.pipeline.read_plan import Piece, Task
from veen.pipeline.rows import settle
from veen.pipeline.selection import Selection
from veen.pipeline.sources import Chunk, DirectoryChunks, HubChunks, open_source
from veen.pipeline.tables.commit import Commit, CommitSpan, TablesView
from veen.pipeline.tables.staging import Staged, Stager, staged_name
from veen.pipeline.tables.store import Tables
from veen.storage import frame
from veen.storage.entry_check import EntryCheck
from veen.storage.metadata import HubMetadata

ROUND_TASKS = 64  # in a commit: what dying costs at most


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One task, with all that a worker must know to stage it. It names places, never keys."""

    task: Task
    hub_id: bytes
    streams: tuple[LabelStream, ...]
    keys: Keys
    folder: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a run brought in."""

    entries: int
    events: int
    quarantined: int
    commits: int
    spans: tuple[CommitSpan, ...]  # where each label it read stands now


def load(tables: Tables, selection: Selection, keys: Keys, run: Runner = here, *, tell: Tell = silent) -> Loaded:
    """Bring the tables up to where the logs are. Doing it again, or after having died, gives the same tables."""
    counted, made = [0, 0, 0], 0
    touched: dict[bytes, None] = {}
    with tables.writing() as view:
        for path in selection.paths:
            source = open_source(path)
            hub_metadata = read_plan.pinned(source.hub_metadata(), selection.pin)
            chunks = chunks_of(
                source, hub_metadata, labels_of(selection, hub_metadata, keys, source), view, selection.seq_max
            )
            streams = possible_streams(source, hub_metadata, chunks, selection, keys)
            for label in streams:
                check_basis(source, hub_metadata, chunks, view, label)
            touched |= dict.fromkeys(streams)
            pieces = missing(source, hub_metadata, chunks, view, selection)
            for tasks in rounds(read_plan.deal(pieces, selection.parallelism)):
                staged = _round(tables, view, hub_metadata.identity.hub_id, tasks, streams, keys, run, tell)
                made += 1
                for file in staged.files:
                    counted[("entries", "events", "quarantine").index(file.table)] += file.rows
        spans = tuple(view.spans[label] for label in touched if label in view.spans)
    entries, events, quarantined = counted
    return Loaded(entries, events, quarantined, made, spans)


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
    tell: Tell,
) -> Staged:
    with tables.staging() as folder:
        of_task = [tuple(streams[label] for label in {piece.chunk.label: None for piece in task}) for task in tasks]
        jobs = [
            TableLoad(task, hub_id, named, keys, str(folder.resolve()))
            for task, named in zip(tasks, of_task, strict=True)
        ]
        return publish(tables, view, folder, [Staged.decode(one) for one in run(stage, jobs, tell)])


def publish(tables: Tables, view: TablesView, folder: Path, made: Sequence[Staged]) -> Staged:
    """Commit what workers staged, if it follows on what is there."""
    whole = Staged([span for one in made for span in one.spans], [file for one in made for file in one.files])
    joined: dict[bytes, CommitSpan] = {}
    for span in sorted(whole.spans, key=lambda span: (span.label, span.first)):
        known = joined.get(span.label)
        if known is None and span.first != view.upto(span.label) + 1:
            raise Malformed("tables", f"entry {span.first} does not follow on entry {view.upto(span.label)}")
        joined[span.label] = span if known is None else known.joined(span)
    if joined:
        commit = Commit(view.number + 1, "append", tuple(joined.values()), tuple(whole.files))
        tables.publish(commit, {file.path: folder / staged_name(file) for file in whole.files})
        view.take(commit)
    return whole


def stage(job: TableLoad) -> bytes:
    """What a worker does: read, verify, open, decode, write aside."""
    settle()
    streams = {stream.label: stream for stream in job.streams}
    stager = Stager(Path(job.folder), job.hub_id, streams, Decoder(streams, job.keys))
    known: dict[str, tuple[DirectoryChunks | HubChunks, HubMetadata]] = {}
    for piece in job.task:
        if piece.source not in known:
            source = open_source(piece.source)
            known[piece.source] = source, read_plan.pinned(source.hub_metadata(), job.hub_id)
        for found in found_in(*known[piece.source], piece):
            stager.add(found)
    return stager.finish().encode()


def found_in(source: DirectoryChunks | HubChunks, hub_metadata: HubMetadata, piece: Piece) -> Iterator[DecodedEntry]:
    """Every entry of a piece, judged; those that cannot be read, because of one before them, as well."""
    label, seq, why = piece.chunk.label, piece.first, "the chunk could not be read up to here"
    for one in chunk_verifier.judged(source, chunk_verifier.start(source, hub_metadata, piece), piece):
        if one.ends:
            why = str(one.failures[-1])
        if one.stream_seq == seq:
            faults = tuple((failure.check.value, str(failure)) for failure in one.failures)
            yield DecodedEntry(label, seq, one.message, one.receipt, faults)
            seq += 1
    for left in range(seq, piece.last + 1):
        yield DecodedEntry(label, left, None, None, ((EntryCheck.FRAME.value, why),))


def in_epochs(selection: Selection, hub_metadata: HubMetadata, ahead: int = 0) -> Selection:
    """With the epochs that the hub has had, and some that it will have, where none were asked for."""
    profile, skew = hub_metadata.profile, hub_metadata.limits.max_epoch_skew_sec
    if not profile.epoch_sec or selection.epochs != (0,):
        return selection
    born = hub_metadata.lineage.identities[-1].hub_keys[0].valid_from
    last = profile.epochs_around(int(time.time()), skew).stop + ahead
    return replace(selection, epochs=tuple(range(profile.epochs_around(born, skew).start, last)))


def labels_of(
    selection: Selection, hub_metadata: HubMetadata, keys: Keys, source: DirectoryChunks | HubChunks
) -> frozenset[bytes] | None:
    """The labels asked for. A hub does not list its labels: there, those of the streams whose keys are at hand."""
    if not selection.labels and not selection.streams and isinstance(source, HubChunks):
        selection = replace(selection, streams=keys.names())
    return in_epochs(selection, hub_metadata).labels_of(hub_metadata)


def chunks_of(
    source: DirectoryChunks | HubChunks,
    hub_metadata: HubMetadata,
    labels: frozenset[bytes] | None,
    view: TablesView,
    most: int | None,
) -> list[Chunk]:
    """What there is of these labels. A hub is asked only for what follows on what the tables have.

    Raises `Unverified` where entries up to `most` are missing that the tables have not got.
    """
    if isinstance(source, HubChunks):
        return source.chunks_since(labels, {label: span.last for label, span in view.spans.items()})
    extent = extent_of(source, hub_metadata, labels)
    for gap in extent.gaps:
        if gap.last > view.upto(gap.label) and (most is None or gap.first <= most):
            raise gap.refusal(source.url)
    return extent.chunks


def possible_streams(
    source: DirectoryChunks | HubChunks,
    hub_metadata: HubMetadata,
    chunks: Sequence[Chunk],
    selection: Selection,
    keys: Keys,
) -> dict[bytes, LabelStream]:
    """The streams of these chunks, by the names that were given or whose keys are at hand."""
    names = dict.fromkeys((*selection.streams, *keys.names()))
    # A hub is asked for the first entry of a label, which costs more than deriving labels.
    epochs = in_epochs(selection, hub_metadata).epochs if isinstance(source, HubChunks) else selection.epochs
    return streams_of(source, hub_metadata, chunks, names, epochs)


def missing(
    source: DirectoryChunks | HubChunks,
    hub_metadata: HubMetadata,
    chunks: Sequence[Chunk],
    view: TablesView,
    selection: Selection,
) -> list[Piece]:
    """The pieces that the tables have not got."""
    found = []
    for chunk in chunks:
        first = max(chunk.start_seq, view.upto(chunk.label) + 1)
        last = chunk.end_seq if selection.seq_max is None else min(chunk.end_seq, selection.seq_max)
        if first <= last:
            found.append(Piece(source.url, hub_metadata.identity.hub_id, chunk, first, last))
    return found


def check_basis(
    source: DirectoryChunks | HubChunks,
    hub_metadata: HubMetadata,
    chunks: Sequence[Chunk],
    view: TablesView,
    label: bytes,
) -> None:
    """Raise where the log is not the one that the tables stand for."""
    span = view.spans.get(label)
    if span is None:
        return
    if span.hub_id != hub_metadata.identity.hub_id:
        raise Unverified(str(source.url), f"the tables have label {label.hex()[:16]}… from another hub")
    receipt = signed_at(source, hub_metadata, chunks, label, span.last)
    if receipt is None:
        behind = Unavailable(
            f"{source.url}: label {label.hex()[:16]}… ends before entry {span.last}, which the tables have"
        )
        behind.add_note("a directory may be behind its hub: read it later, or ask the hub; a hub must not be behind")
        raise behind
    if span.mmr_root is not None and receipt.mmr_root != span.mmr_root:
        raise Unverified(
            str(source.url), f"label {label.hex()[:16]}… up to {span.last} is not the log the tables are of"
        )


def signed_at(
    source: DirectoryChunks | HubChunks, hub_metadata: HubMetadata, chunks: Sequence[Chunk], label: bytes, seq: int
) -> Receipt | None:
    """The hub's word on one place, its signature verified; None where the log does not reach it."""
    for chunk in chunks:
        if chunk.label == label and chunk.start_seq <= seq <= chunk.end_seq:
            at = chunk.start_seq
            for data, start in source.blocks(chunk):
                pos = start
                while pos < len(data):
                    if at == seq:
                        receipt = Receipt.decode(frame.read_unhashed(data, pos)[0].receipt)
                        hub_metadata.identity_at(label, seq).verify_receipt(receipt)
                        if (receipt.label, receipt.stream_seq) != (label, seq):
                            raise Unverified(str(source.url), f"the receipt of entry {seq} is of another place")
                        return receipt
                    pos, at = pos + frame.length_at(data, pos), at + 1
    return None
