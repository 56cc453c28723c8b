"""Merge several files into one, in the order of their table, without holding all rows at once.

Files of events are sorted by subject, so a range of subjects occupies a few row groups of each file. The ranges are
merged one after the other. All other files are concatenated.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from veen.pipeline.tables import layout
from veen.pipeline.tables.layout import Table

SLICE_ROWS = 100_000  # sorted at a time, approximately
_SUBJECT = "subject_id"


def merged(table: Table, files: Sequence[bytes], slice_rows: int = SLICE_ROWS) -> bytes:
    """The rows of consecutive Parquet files as one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    opened = [pq.ParquetFile(pa.BufferReader(data)) for data in files]
    parts = _events(opened, slice_rows) if table is Table.EVENTS else _in_order(opened)
    return layout.parquet_of(table, parts)


def _in_order(files: Sequence[Any]) -> Iterator[Any]:
    for file in files:
        for number in range(file.metadata.num_row_groups):
            yield file.read_row_group(number)


def _events(files: Sequence[Any], slice_rows: int) -> Iterator[Any]:
    import pyarrow as pa

    bounds = [[_bounds(file.metadata, number) for number in range(file.metadata.num_row_groups)] for file in files]
    cuts = _cuts(files, bounds, slice_rows)
    for low, high in zip([None, *cuts], [*cuts, None], strict=True):
        found = []
        for file, of_file in zip(files, bounds, strict=True):
            numbers = [number for number, (least, most) in enumerate(of_file) if _may_overlap(least, most, low, high)]
            if numbers:
                rows = file.read_row_groups(numbers)
                found.append(rows.filter(_within(rows[_SUBJECT], low, high)))
        if found:
            yield layout.sort_events(pa.concat_tables(found))


def _bounds(metadata: Any, number: int) -> tuple[str | None, str | None]:
    """The smallest and largest subject of a row group; None if unknown or if it has events without subject."""
    group = metadata.row_group(number)
    column = next(at for at in range(group.num_columns) if group.column(at).path_in_schema == _SUBJECT)
    statistics = group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return None, None
    return statistics.min, None if statistics.null_count is None or statistics.null_count else statistics.max


def _cuts(
    files: Sequence[Any], bounds: Sequence[Sequence[tuple[str | None, str | None]]], slice_rows: int
) -> list[str]:
    """The first subjects of ranges with about `slice_rows` rows each."""
    begins = sorted(
        (least, file.metadata.row_group(number).num_rows)
        for file, of_file in zip(files, bounds, strict=True)
        for number, (least, _) in enumerate(of_file)
        if least is not None
    )
    cuts: list[str] = []
    rows = 0
    for least, count in begins:
        if rows >= slice_rows and least != (cuts or [begins[0][0]])[-1]:
            cuts.append(least)
            rows = 0
        rows += count
    return cuts


def _may_overlap(least: str | None, most: str | None, low: str | None, high: str | None) -> bool:
    """Whether a row group may contain rows of a range; unknown bounds mean yes."""
    return (low is None or most is None or most >= low) and (high is None or least is None or least < high)


def _within(subjects: Any, low: str | None, high: str | None) -> Any:
    """The rows of a range. Rows without subject sort last, so they belong to the last range."""
    import pyarrow.compute as pc

    kept = pc.if_else(pc.is_null(subjects), high is None, True)
    if low is not None:
        kept = pc.and_(kept, pc.fill_null(pc.greater_equal(subjects, low), True))
    if high is not None:
        kept = pc.and_(kept, pc.fill_null(pc.less(subjects, high), False))
    return kept
