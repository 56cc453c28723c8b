"""The data source behind `spark.read.format("veen")` and `spark.readStream.format("veen")`.

Filters are not pushed down: Spark 4.3 reuses the filters of one scan of a DataFrame for the next. Options that are set
before the DataFrame exists prune the read instead.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from veen.core import Malformed
from veen.pipeline import read_plan, rows
from veen.pipeline.extents import Extent, extent_of
from veen.pipeline.read_plan import Piece
from veen.pipeline.selection import Selection, Verify, check_columns, selection
from veen.pipeline.sources import ChunkSource, by_label, open_source

if TYPE_CHECKING:
    import pyarrow as pa


FORMAT = "veen"


class VeenSource(DataSource):
    """Data directories or a hub as a DataFrame of entries."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._selection = selection(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return rows.schema_text(self._selection.shown())

    def reader(self, schema: StructType) -> "VeenReader":
        return VeenReader(_with_columns(self._selection, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name

        return VeenStreamReader(_with_columns(self._selection, schema))


def _with_columns(selected: Selection, schema: StructType) -> Selection:
    """Select the columns of a schema that the user may have given."""
    names = tuple(schema.fieldNames())
    check_columns(names, selected.verify)
    return replace(selected, columns=names)


class VeenReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected

    def partitions(self) -> Sequence[InputPartition]:
        # Without partitions Spark plans one itself and calls `read(None)`.
        return [InputPartition(task) for task in read_plan.plan(self._selection)] or [InputPartition(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        yield from rows.batches(partition.value, self._selection)


DEFAULT_ENTRIES = 500_000  # per batch: minutes of verification on one machine
Offset = dict[str, dict[str, int]]


class GrowingSources:
    """Growing sources: the current end of each label, and the pieces between two offsets."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected
        self._sources: dict[str, ChunkSource] = {}

    def beginning(self) -> Offset:
        """The offset before the first selected entry. Labels that appear later start there too."""
        return {path: {} for path in self._selection.paths}

    def end(self) -> Offset:
        """The offset after the last entry; with `verify=entry`, after the last entry that is known to be missing."""
        return {path: self._ends(self._extent(path)) for path in self._selection.paths}

    def check_whole(self, start: Offset) -> None:
        """Raise `Unverified` if entries after an offset are missing and the read must be complete."""
        for path in self._selection.paths if self._selection.verify is Verify.FULL else ():
            for gap in self._extent(path).gaps:
                if gap.last > self._done(start, path, gap.label.hex()):
                    raise gap.refusal(self._source(path).url)

    def admitted(self, start: Offset, end: Offset, most: int | None) -> Offset:
        """Advance from `start` towards `end` by at most `most` entries, shared among labels, short ones first."""
        if most is None:
            return end
        spans = sorted(
            (last - self._done(start, path, label), path, label)
            for path, labels in end.items()
            for label, last in labels.items()
        )
        advanced: Offset = {path: dict(labels) for path, labels in start.items()}
        left = max(1, most)
        for number, (span, path, label) in enumerate(spans):
            share = min(span, -(-left // (len(spans) - number)))
            if share > 0:
                advanced.setdefault(path, {})[label] = self._done(start, path, label) + share
                left -= share
        return advanced

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """The pieces between two offsets. Raises `Malformed` if the log no longer has them."""
        found: list[Piece] = []
        for path, labels in sorted(end.items()):
            metadata = read_plan.pinned(self._source(path).metadata(), self._selection.pin)
            extent = self._extent(path)
            chunks = by_label(extent.chunks)
            for name, last in labels.items():
                label, done = bytes.fromhex(name), self._done(start, path, name)
                gaps = [gap for gap in extent.gaps if gap.label == label]
                url, within = self._source(path).url, (done + 1, last)
                of_label = read_plan.planned(url, metadata, chunks.get(label, []), gaps, within, self._selection.verify)
                pruned = (one for one in extent.pruned if one.label == label)
                held = any(one.start_seq <= last <= one.end_seq for one in pruned)
                if done < last and not held and (not of_label or of_label[-1].last != last):
                    raise Malformed(path, f"label {name[:16]}… had {last} entries before and now has fewer")
                found += of_label
        return found

    def _ends(self, extent: Extent) -> dict[str, int]:
        ends = {chunk.label: chunk.end_seq for chunk in extent.with_pruned}
        if self._selection.verify is Verify.ENTRY:
            ends |= {gap.label: max(gap.last, ends.get(gap.label, 0)) for gap in extent.gaps}
        most = self._selection.seq_max
        return {label.hex(): end if most is None else min(end, most) for label, end in ends.items()}

    def _done(self, offset: Offset, path: str, label: str) -> int:
        return offset.get(path, {}).get(label, self._selection.seq_min - 1)

    def _extent(self, path: str) -> Extent:
        """The extent of a source, up to `seq_max`."""
        source = self._source(path)
        metadata = read_plan.pinned(source.metadata(), self._selection.pin)
        check = self._selection.verify is not Verify.NONE
        extent = extent_of(source, metadata, self._selection.labels_of(metadata), check=check)
        most = self._selection.seq_max
        if most is None:
            return extent
        chunks = [chunk for chunk in extent.chunks if chunk.start_seq <= most]
        gaps = [gap for gap in extent.gaps if gap.first <= most]
        return replace(extent, chunks=chunks, gaps=gaps)

    def _source(self, path: str) -> ChunkSource:
        if path not in self._sources:
            self._sources[path] = open_source(path)
        return self._sources[path]


class VeenStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. The driver plans; the executors read."""

    def __init__(self, selected: Selection) -> None:
        self._selection = selected
        self._tail = GrowingSources(selected)
        self._limit: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 # Spark's name
        return dict(self._tail.beginning())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._selection.max_entries or DEFAULT_ENTRIES)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._tail.check_whole(start)
        end = self._limit or self._tail.end()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(self._tail.admitted(start, end, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return dict(self._tail.end())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._limit = self._tail.end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = self._tail.pieces(start, end)
        return [InputPartition(task) for task in read_plan.deal(found, self._selection.parallelism)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        yield from rows.batches(partition.value, self._selection)
