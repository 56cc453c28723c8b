"""Small files made into large ones: the same rows, in the order that look-ups want.

`compact` makes all of it as few files as can be, when someone asks for it. `tidy` is for whoever fills tables, after
each time: it leaves a file alone that outweighs all that came after it. So of a stream and day there are a handful of
files, however often something came in, and a row is written again a few times in its life.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

from veen.client import durable
from veen.client.durable import Disk
from veen.core import Unverified
from veen.pipeline.jobs import Runner, Tell, here, silent
from veen.pipeline.tables import merging
from veen.pipeline.tables.commit import Commit, FileRef, TablesView
from veen.pipeline.tables.layout import LOGGED
from veen.pipeline.tables.staging import Staged, file_ref, staged_name
from veen.pipeline.tables.store import Tables

MOST_ROWS = 1_000_000
MOST_COMMITS = 64  # since all was listed: whoever asks reads every one of them
OUTWEIGHS = 4  # times as many rows as all files after it: to merge such a file with those costs more than it saves
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
    with tables.merging() as folder, tables.writing() as view:
        before = len(view.files)
        groups = _groups(tables, folder, _small(view, most_rows))
        if not groups:
            return Compacted(before, before)
        made = _merged(run, groups, tell)
        return _replaced(tables, view, folder, list(zip(groups, made, strict=True)))


def tidy(tables: Tables, run: Runner = here, *, most_rows: int = MOST_ROWS, tell: Tell = silent) -> Compacted:
    """Merge what has become too many files, while others go on writing. Raises `Busy` where another does this."""
    if tables.unfinished:
        with tables.writing():
            pass  # what was begun is brought to its end first
    view = tables.view()
    before = len(view.files)
    if not due(view, most_rows) and view.number - view.base < MOST_COMMITS:
        return Compacted(before, before)
    with tables.merging() as folder:
        groups = _groups(tables, folder, due(tables.view(), most_rows))
        made = _merged(run, groups, tell)  # of files that nobody else removes: that takes the right to merge
        with tables.writing() as view:
            done = _replaced(tables, view, folder, list(zip(groups, made, strict=True)))
            return replace(done, before=before)


def _groups(tables: Tables, folder: Path, runs: Sequence[tuple[FileRef, ...]]) -> list[_Group]:
    return [_Group(str(tables.root.resolve()), str(folder.resolve()), run) for run in runs]


def _merged(run: Runner, groups: list[_Group], tell: Tell) -> list[FileRef]:
    return [Staged.decode(one).files[0] for one in run(merge, groups, tell)]


def _replaced(tables: Tables, view: TablesView, folder: Path, made: list[tuple[_Group, FileRef]]) -> Compacted:
    """Put merged files in the place of those they were made of, in a commit that lists all there is."""
    gone = {file.path for group, _ in made for file in group.files}
    kept = [file for path, file in view.files.items() if path not in gone]
    files = tuple(file for _, file in made)
    spans = tuple(view.spans.values())
    commit = Commit(view.number + 1, "compact", spans, (*kept, *files), tuple(sorted(gone)), base=True)
    tables.publish(commit, {file.path: folder / staged_name(file) for file in files})
    tables.forget(commit.number)
    return Compacted(len(view.files), len(commit.adds))


def _by_day(view: TablesView) -> Iterator[list[FileRef]]:
    """The files of each table, stream, day and label, in the order of their entries."""
    files = sorted(
        (file for file in view.files.values() if file.table in LOGGED),
        key=lambda file: (file.table, file.stream, file.day, file.label, file.first),
    )
    for _, found in groupby(files, key=lambda file: (file.table, file.stream, file.day, file.label)):
        yield list(found)


def _small(view: TablesView, most_rows: int) -> list[tuple[FileRef, ...]]:
    """Runs of files that can be one."""
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


def due(view: TablesView, most_rows: int = MOST_ROWS) -> list[tuple[FileRef, ...]]:
    """Runs of files to merge by now: from the last one back, as far as it is worth it."""
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
    """What a worker does: some files read, put together, and written aside."""
    first, last = group.files[0], group.files[-1]
    data = merging.merged(first.table, [read(Path(group.root), file) for file in group.files])
    made = file_ref(
        first.table, first.stream, first.day, (first.label, first.first, last.last), data, _bounds(group.files)
    )
    Disk().write_file(Path(group.folder) / staged_name(made), data, _PLAIN_FILE)
    return Staged([], [made]).encode()


def read(root: Path, file: FileRef) -> bytes:
    """A file whose bytes are those that were committed."""
    with durable.named(root / file.path):
        data = (root / file.path).read_bytes()
    if sha256(data).digest() != file.sha256:
        raise Unverified(file.path, "its bytes are not those that were written: veen pipeline verify says more")
    return data


def _bounds(files: Sequence[FileRef]) -> dict[str, Any]:
    def best(name: str, choose: Any) -> Any:
        return choose((value for file in files if (value := getattr(file, name)) is not None), default=None)

    bounds = {
        name: best(name, min if name in ("least", "ts_min") else max) for name in ("least", "most", "ts_min", "ts_max")
    }
    return {"rows": sum(file.rows for file in files), **bounds}
