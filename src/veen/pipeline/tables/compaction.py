"""Merge small files into large ones: the same rows, in the order that lookups need.

`compact` makes as few files as possible, on request. `tidy` is for processes that load tables, after each load: it
keeps a file that is much larger than all files after it. A stream and day then has a handful of files however often
entries arrive, and a row is rewritten only a few times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

from veen.client import local_files
from veen.client.local_files import Disk
from veen.core import Unverified
from veen.pipeline.jobs import Progress, Runner, no_progress, run_inline
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import Commit, FileRef, TablesView
from veen.pipeline.tables.layout import LOGGED, Table
from veen.pipeline.tables.staged_files import Staged, file_ref, staged_name
from veen.pipeline.tables.store import Tables

MAX_ROWS = 1_000_000
MAX_COMMITS = 64  # since the last base commit; every reader reads all of them
OUTWEIGHS = 4  # a file with this many times the rows of all later files is not merged: it costs more than it saves
_PLAIN_FILE = 0o644
SLICE_ROWS = 100_000  # sorted at a time, approximately
_SUBJECT = "subject_id"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of files before and after."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive files of one table, day and label, to be merged into one."""

    root: str
    folder: str
    files: tuple[FileRef, ...]


def compact(
    tables: Tables, run: Runner = run_inline, *, most_rows: int = MAX_ROWS, progress: Progress = no_progress
) -> Compacted:
    """Merge all small files. No row changes. Earlier commits are removed."""
    with tables.merging() as folder, tables.writing() as view:
        before = len(view.files)
        groups = _groups(tables, folder, _small(view, most_rows))
        if not groups:
            return Compacted(before, before)
        made = _merged(run, groups, progress)
        return _replaced(tables, view, folder, list(zip(groups, made, strict=True)))


def tidy(
    tables: Tables, run: Runner = run_inline, *, most_rows: int = MAX_ROWS, progress: Progress = no_progress
) -> Compacted:
    """Merge files that became too many, while other processes write. Raises `Busy` if another process merges."""
    if tables.unfinished:
        with tables.writing():
            pass  # finish an interrupted commit first
    view = tables.view()
    before = len(view.files)
    if not due(view, most_rows) and view.number - view.base < MAX_COMMITS:
        return Compacted(before, before)
    with tables.merging() as folder:
        groups = _groups(tables, folder, due(tables.view(), most_rows))
        made = _merged(run, groups, progress)  # only the holder of the merge lock removes files
        with tables.writing() as view:
            done = _replaced(tables, view, folder, list(zip(groups, made, strict=True)))
            return replace(done, before=before)


def _groups(tables: Tables, folder: Path, runs: Sequence[tuple[FileRef, ...]]) -> list[_Group]:
    return [_Group(str(tables.root.resolve()), str(folder.resolve()), run) for run in runs]


def _merged(run: Runner, groups: list[_Group], progress: Progress) -> list[FileRef]:
    return [Staged.decode(one).files[0] for one in run(merge, groups, progress)]


def _replaced(tables: Tables, view: TablesView, folder: Path, made: list[tuple[_Group, FileRef]]) -> Compacted:
    """Replace files by the merged ones, in a base commit."""
    gone = {file.path for group, _ in made for file in group.files}
    kept = [file for path, file in view.files.items() if path not in gone]
    files = tuple(file for _, file in made)
    spans = tuple(view.spans.values())
    commit = Commit(view.number + 1, "compact", spans, (*kept, *files), tuple(sorted(gone)), base=True)
    tables.publish(commit, {file.path: folder / staged_name(file) for file in files})
    tables.forget(commit.number)
    return Compacted(len(view.files), len(commit.adds))


def _by_day(view: TablesView) -> Iterator[list[FileRef]]:
    """The files of each table, stream, day and label, in entry order."""
    files = sorted(
        (file for file in view.files.values() if file.table in LOGGED),
        key=lambda file: (file.table, file.stream, file.day, file.label, file.first),
    )
    for _, found in groupby(files, key=lambda file: (file.table, file.stream, file.day, file.label)):
        yield list(found)


def _small(view: TablesView, most_rows: int) -> list[tuple[FileRef, ...]]:
    """Runs of files that fit into one."""
    made: list[tuple[FileRef, ...]] = []
    for found in _by_day(view):
        run: list[FileRef] = []
        for file in found:
            if run and sum(one.rows for one in run) + file.rows > most_rows:
                made.append(tuple(run))
                run = []
            run.append(file)
        made.append(tuple(run))
    return [run for run in made if len(run) > 1]


def due(view: TablesView, most_rows: int = MAX_ROWS) -> list[tuple[FileRef, ...]]:
    """Runs of files that should be merged now: from the last one back, while merging pays."""
    made: list[tuple[FileRef, ...]] = []
    for found in _by_day(view):
        run: list[FileRef] = []
        rows = 0
        for file in reversed(found):
            if run and (rows + file.rows > most_rows or file.rows > OUTWEIGHS * rows):
                made.append(tuple(reversed(run)))
                run, rows = [], 0
            run.append(file)
            rows += file.rows
        made.append(tuple(reversed(run)))
    return [run for run in made if len(run) > 1]


def merge(group: _Group) -> bytes:
    """Worker: read files, merge them, and write the result to the merge folder."""
    first, last = group.files[0], group.files[-1]
    data = merged(first.table, [read(Path(group.root), file) for file in group.files])
    made = file_ref(
        first.table, first.stream, first.day, (first.label, first.first, last.last), data, _bounds(group.files)
    )
    Disk().write_file(Path(group.folder) / staged_name(made), data, _PLAIN_FILE)
    return Staged([], [made]).encode()


def read(root: Path, file: FileRef) -> bytes:
    """The bytes of a file. Raises `Unverified` if they are not those committed."""
    with local_files.named(root / file.path):
        data = (root / file.path).read_bytes()
    if sha256(data).digest() != file.sha256:
        raise Unverified(file.path, "its bytes differ from those committed; run veen pipeline verify for details")
    return data


def _bounds(files: Sequence[FileRef]) -> dict[str, Any]:
    def best(name: str, choose: Any) -> Any:
        return choose((value for file in files if (value := getattr(file, name)) is not None), default=None)

    bounds = {
        name: best(name, min if name in ("least", "ts_min") else max) for name in ("least", "most", "ts_min", "ts_max")
    }
    return {"rows": sum(file.rows for file in files), **bounds}


def merged(table: Table, files: Sequence[bytes], slice_rows: int = SLICE_ROWS) -> bytes:
    """The rows of consecutive Parquet files as one file, in the order of the table, without holding all rows at once.

    Files of events are sorted by subject, so a range of subjects occupies a few row groups of each file. The ranges are
    merged one after the other. All other files are concatenated.
    """
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

    bounds = [[_subjects(file.metadata, number) for number in range(file.metadata.num_row_groups)] for file in files]
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


def _subjects(metadata: Any, number: int) -> tuple[str | None, str | None]:
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
