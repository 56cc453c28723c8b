"""Small files made into large ones: the same rows, in the order that look-ups want."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

from veen.client.durable import Disk
from veen.core import Unverified
from veen.pipeline.jobs import Runner, Tell, here, silent
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import Commit, FileRef, View
from veen.pipeline.tables.layout import LOGGED, Table
from veen.pipeline.tables.staging import Staged, file_ref, staged_name
from veen.pipeline.tables.store import Tables

MOST_ROWS = 1_000_000
_PLAIN_FILE = 0o644


@dataclass(frozen=True, slots=True)
class Compacted:
    """How many files there were, and are."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of one table, day and label that follow on each other, to be made into one."""

    root: str
    folder: str
    files: tuple[FileRef, ...]


def compact(tables: Tables, run: Runner = here, *, most_rows: int = MOST_ROWS, tell: Tell = silent) -> Compacted:
    """Merge what is small. No row changes, and the commits before this one are forgotten."""
    with tables.writing() as view, tables.staging() as folder:
        before = len(view.files)
        groups = [_Group(str(tables.root), str(folder), group) for group in _groups(view, most_rows)]
        if not groups:
            return Compacted(before, before)
        made = [file for one in run(merge, groups, tell) for file in Staged.decode(one).files]
        gone = {file.path for group in groups for file in group.files}
        kept = tuple(file for path, file in view.files.items() if path not in gone)
        commit = Commit(
            view.number + 1, "compact", tuple(view.spans.values()), (*kept, *made), tuple(sorted(gone)), base=True
        )
        tables.publish(commit, {file.path: folder / staged_name(file) for file in made})
        tables.forget(commit.number)
        return Compacted(before, len(commit.adds))


def _groups(view: View, most_rows: int) -> list[tuple[FileRef, ...]]:
    """Runs of files that are worth merging."""
    made: list[tuple[FileRef, ...]] = []
    files = sorted(
        (file for file in view.files.values() if file.table in LOGGED),
        key=lambda file: (file.table, file.stream, file.day, file.label, file.first),
    )
    for _, found in groupby(files, key=lambda file: (file.table, file.stream, file.day, file.label)):
        run: list[FileRef] = []
        for file in found:
            if run and sum(one.rows for one in run) + file.rows > most_rows:
                made.append(tuple(run))
                run = []
            run.append(file)
        made.append(tuple(run))
    return [run for run in made if len(run) > 1]


def merge(group: _Group) -> bytes:
    """What a worker does: some files read, put together, and written aside."""
    import pyarrow as pa

    first, last = group.files[0], group.files[-1]
    table = pa.concat_tables([read(Path(group.root), file) for file in group.files])
    if first.table is Table.EVENTS:
        table = layout.sort_events(table)
    data = layout.parquet(first.table, table)
    made = file_ref(
        first.table, first.stream, first.day, (first.label, first.first, last.last), data, _bounds(group.files)
    )
    Disk().write_file(Path(group.folder) / staged_name(made), data, _PLAIN_FILE)
    return Staged([], [made]).encode()


def read(root: Path, file: FileRef) -> Any:
    """The rows of a file whose bytes are those that were committed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = (root / file.path).read_bytes()
    if sha256(data).digest() != file.sha256:
        raise Unverified(file.path, "its bytes are not those that were written: veen pipeline verify says more")
    return pq.read_table(pa.BufferReader(data), schema=layout.schema(file.table))


def _bounds(files: Sequence[FileRef]) -> dict[str, Any]:
    def best(name: str, choose: Any) -> Any:
        return choose((value for file in files if (value := getattr(file, name)) is not None), default=None)

    bounds = {
        name: best(name, min if name in ("least", "ts_min") else max) for name in ("least", "most", "ts_min", "ts_max")
    }
    return {"rows": sum(file.rows for file in files), **bounds}
