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
from veen.pipeline.tables import merging
from veen.pipeline.tables.commit import Commit, FileRef, TablesView
from veen.pipeline.tables.layout import LOGGED
from veen.pipeline.tables.staging import Staged, file_ref, staged_name
from veen.pipeline.tables.store import Tables

MAX_ROWS = 1_000_000
MAX_COMMITS = 64  # since the last base commit; every reader reads all of them
OUTWEIGHS = 4  # a file with this many times the rows of all later files is not merged: it costs more than it saves
_PLAIN_FILE = 0o644


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
    data = merging.merged(first.table, [read(Path(group.root), file) for file in group.files])
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
