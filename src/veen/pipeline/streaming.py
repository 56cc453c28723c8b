"""The stream form: where each label stands is the offset, and a batch is as many entries as are admitted.

An offset names every label by its source: `{"<source>": {"<label>": last stream_seq}}`. Entries up to it are done; what
a batch reads is fixed by two offsets, so a batch that is run again reads the same entries.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from veen.core import Malformed
from veen.pipeline import planning, reading
from veen.pipeline.datasource import TaskPartition
from veen.pipeline.planning import Piece
from veen.pipeline.selection import Selection
from veen.pipeline.sources import Chunk, DirectorySource, HubSource, open_source

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ENTRIES = 500_000  # in a batch: minutes of verification on one machine
Offset = dict[str, dict[str, int]]


class Tail:
    """Sources that grow: where their labels stand, and which pieces lie between two such places."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected
        self._sources: dict[str, DirectorySource | HubSource] = {}

    def beginning(self) -> Offset:
        """Before the first entry that is asked for; labels that come later begin there, too."""
        return {path: {} for path in self._selection.paths}

    def end(self) -> Offset:
        """After the last entry there is."""
        return {path: self._ends(self._chunks(path)) for path in self._selection.paths}

    def admitted(self, start: Offset, end: Offset, most: int | None) -> Offset:
        """As far as `most` entries go from `start` towards `end`: every label gets its share, the short ones first."""
        if most is None:
            return end
        spans = sorted(
            (last - self._done(start, path, label), path, label)
            for path, labels in end.items()
            for label, last in labels.items()
        )
        made: Offset = {path: dict(labels) for path, labels in start.items()}
        left = max(1, most)
        for number, (span, path, label) in enumerate(spans):
            share = min(span, -(-left // (len(spans) - number)))
            if share > 0:
                made.setdefault(path, {})[label] = self._done(start, path, label) + share
                left -= share
        return made

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """What lies between. Raises `Malformed` where the log no longer has it."""
        found: list[Piece] = []
        for path, labels in sorted(end.items()):
            papers = planning.pinned(self._source(path).papers(), self._selection.pin)
            wanted = {bytes.fromhex(label): (self._done(start, path, label), last) for label, last in labels.items()}
            reached: dict[bytes, int] = {}
            for chunk in self._chunks(path):
                done, last = wanted.get(chunk.label, (0, 0))
                first, upto = max(chunk.start_seq, done + 1), min(chunk.end_seq, last)
                if first <= upto:
                    found.append(Piece(self._source(path).url, papers.identity.hub_id, chunk, first, upto))
                    reached[chunk.label] = upto
            for label, (done, last) in wanted.items():
                if done < last != reached.get(label):
                    raise Malformed(path, f"label {label.hex()[:16]}… was seen up to {last}, and now ends before it")
        return found

    def _ends(self, chunks: Sequence[Chunk]) -> dict[str, int]:
        most = self._selection.seq_max
        return {chunk.label.hex(): chunk.end_seq if most is None else min(chunk.end_seq, most) for chunk in chunks}

    def _done(self, offset: Offset, path: str, label: str) -> int:
        return offset.get(path, {}).get(label, self._selection.seq_min - 1)

    def _chunks(self, path: str) -> list[Chunk]:
        source = self._source(path)
        papers = planning.pinned(source.papers(), self._selection.pin)
        chunks = source.chunks(self._selection.labels_of(papers))
        if self._selection.seq_max is None:
            return chunks
        return [chunk for chunk in chunks if chunk.start_seq <= self._selection.seq_max]

    def _source(self, path: str) -> DirectorySource | HubSource:
        if path not in self._sources:
            self._sources[path] = open_source(path)
        return self._sources[path]


class VeenStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's side of it. The driver plans; the executors read."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected
        self._tail = Tail(selected)
        self._limit: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # as Spark calls it
        return dict(self._tail.beginning())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._selection.max_entries or DEFAULT_ENTRIES)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = self._limit or self._tail.end()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(self._tail.admitted(start, end, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return dict(self._tail.end())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = self._tail.end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TaskPartition]:
        found = self._tail.pieces(start, end)
        return [TaskPartition(task) for task in planning.deal(found, self._selection.parallelism)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        yield from reading.batches(partition.value, self._selection)
