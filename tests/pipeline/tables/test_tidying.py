"""Tables that are filled in small steps stay in few files, while others write and read."""

import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

import pyarrow.parquet

from bench.entry_tables import Filler
from tests.pipeline.tables.crashing_disk import deaths
from tests.pipeline.tables.logs import OTHERS, Place, begun, everything, recorded, writes
from tests.pipeline.tables.test_verify import changed, rewrite
from veen.client.local_files import Busy
from veen.core import Unverified
from veen.overlays import FoldEntry
from veen.pipeline.engine import Engine, EventQuery
from veen.pipeline.jobs import Progress, no_progress, run_inline
from veen.pipeline.tables import FileRef, Table, Tables, TablesView
from veen.pipeline.tables.compaction import MAX_COMMITS, OUTWEIGHS, compact, due, tidy
from veen.pipeline.tables.verify import check_files, verify

J = TypeVar("J")


def ref(first: int, last: int, day: str = "2030-01-31", table: Table = Table.EVENTS) -> FileRef:
    """A file reference; only the numbers matter here."""
    path = f"{table}/{day}/{first}-{last}"
    return FileRef(table, path, OTHERS, day, b"label", first, last, last - first + 1, 0, b"")


def listing(*files: FileRef) -> TablesView:
    return TablesView(files={file.path: file for file in files})


def merged(view: TablesView) -> int:
    """Merge what is due, as `tidy` does with real files; returns the number of rewritten rows."""
    written = 0
    for run in due(view, 10_000):
        for file in run:
            del view.files[file.path]
        made = ref(run[0].first, run[-1].last)
        view.files[made.path] = made
        written += made.rows
    return written


@pytest.mark.parametrize("step", [1, 7, 100])
def test_files_stay_few_and_rows_are_rarely_rewritten_however_many_commits(step: int) -> None:
    view, written, most = TablesView(), 0, 0
    for first in range(1, 6_000, step):
        one = ref(first, first + step - 1)
        view.files[one.path] = one
        written += merged(view)
        most = max(most, len(view.files))
    assert most <= 6
    assert written <= 40 * 6_000
    assert due(view, 10_000) == []


def test_only_neighbours_of_one_table_day_and_label_are_merged() -> None:
    today = [ref(1, 10), ref(11, 20), ref(21, 30)]
    before, entries = ref(1, 10, "2030-01-30"), ref(1, 30, table=Table.ENTRIES)
    assert due(listing(before, entries, *today)) == [tuple(today)]
    assert due(listing(before, entries)) == []


@pytest.mark.parametrize(("rows", "together"), [(OUTWEIGHS * 10, True), (OUTWEIGHS * 10 + 1, False)])
def test_a_file_much_larger_than_all_later_ones_is_not_merged(rows: int, together: bool) -> None:
    assert bool(due(listing(ref(1, rows), ref(rows + 1, rows + 10)))) == together


def test_no_merged_file_exceeds_the_row_limit() -> None:
    files = [ref(first, first + 39) for first in range(1, 400, 40)]
    assert [sum(file.rows for file in run) for run in due(listing(*files), 100)] == [80] * 5
    assert due(listing(ref(1, 60), ref(61, 101)), 100) == []


def test_tidying_changes_no_row_and_leaves_no_merge_due(made: Place) -> None:
    for number in range(6):
        made.log.say(writes(3, 100 * number))
        made.load()
    before = everything(made.tables.root)
    done = tidy(made.tables)
    assert done.before > done.after
    assert everything(made.tables.root) == before
    assert due(made.tables.view()) == []
    assert verify(made.tables, made.selection, made.keys).problems == []
    number = made.tables.view().number
    assert tidy(made.tables) == type(done)(done.after, done.after)
    assert made.tables.view().number == number
    made.log.say(writes(2))
    assert made.load().entries == 2


def test_many_commits_become_one_base_commit(place: Path) -> None:
    """Each entry is of another day, so that there are no files to merge."""
    tables, label = Tables(place / "tables"), sha256(b"label").digest()
    filler = Filler(tables, OTHERS)
    for seq in range(1, MAX_COMMITS + 1):
        hub_ts = 1_700_000_000 + seq * 86_400
        filler.add([FoldEntry(label, 0, seq, hub_ts, bytes(32), None, bytes(32), *recorded(seq).payload())])
        assert tidy(tables).after == 2 * seq
        assert len(list((tables.own / "commits").iterdir())) == (seq if seq < MAX_COMMITS else 1)
    assert tables.view().upto(label) == MAX_COMMITS
    assert list(check_files(tables.root, tables.view())) == []


def test_a_crash_while_tidying_changes_no_row(made: Place, place: Path) -> None:
    for number in range(3):
        made.log.say(writes(6, 100 * number))
        made.load()
    before, died = everything(made.tables.root), 0
    for copied in deaths(made.tables.root, place, tidy):
        listed = Tables(copied).view()
        assert all((copied / path).exists() for path in listed.files)
        (tidy if died % 2 else compact)(Tables(copied))
        assert everything(copied) == before
        assert list(check_files(copied, Tables(copied).view())) == []
        assert due(Tables(copied).view()) == []
        assert not list((copied / "_veen" / "merging").glob("*"))
        died += 1
    assert died > 4


def test_after_a_crash_in_a_merge_the_committed_files_have_each_row_once(made: Place, place: Path) -> None:
    """A listing of the folder does not have that: merged files and their sources exist together for a moment."""
    several(made)
    rows, listed = len(everything(made.tables.root)["entries"]), set()
    for copied in deaths(made.tables.root, place, compact):
        committed = [copied / file.path for file in Tables(copied).view().of(Table.ENTRIES)]
        assert sum(pyarrow.parquet.read_metadata(path).num_rows for path in committed) == rows
        listed.add(len(everything(copied)["entries"]))
    assert listed > {rows}


class Interrupted(Tables):
    """Replaces all commits by one, once, between listing and reading them."""

    whole = False

    def _listed(self) -> list[Path]:
        found = super()._listed()
        if not self.whole:
            self.whole = True
            compact(Tables(self.root))
        return found


def test_commits_removed_while_they_are_read_are_read_again(made: Place) -> None:
    several(made)
    found = Interrupted(made.tables.root).view()
    assert found.files == made.tables.view().files
    assert len(found.files) == 5


class Meanwhile:
    """Runs jobs inline, and calls something else between two of them, once."""

    def __init__(self, something: Callable[[], object]) -> None:
        self._something = something

    def __call__(self, work: Callable[[J], bytes], jobs: Sequence[J], progress: Progress = no_progress) -> list[bytes]:
        done = run_inline(work, jobs[:1], progress)
        self._something()
        return done + run_inline(work, jobs[1:], progress)


def several(made: Place) -> None:
    for number in range(3):
        made.log.say(writes(8, 100 * number))
        made.log.say((OTHERS, recorded(one)) for one in range(8))
        made.load()


def test_entries_are_loaded_while_files_are_merged(made: Place) -> None:
    several(made)

    def come_in() -> None:
        made.log.say(writes(4, 900))
        assert made.load().entries == 4

    tidy(made.tables, Meanwhile(come_in))
    assert len(everything(made.tables.root)["entries"]) == 42 + 48 + 4
    assert verify(made.tables, made.selection, made.keys).problems == []


def test_a_second_merge_is_busy(made: Place) -> None:
    several(made)

    def try_it() -> None:
        for merge in (tidy, compact):
            with pytest.raises(Busy, match="to merge files"):
                merge(Tables(made.tables.root))

    tidy(made.tables, Meanwhile(try_it))
    assert due(made.tables.view()) == []


def test_tidying_refuses_damaged_files(made: Place) -> None:
    several(made)
    rewrite(made, Table.EVENTS, changed(5, event="{}"), cover=False)
    with pytest.raises(Unverified, match="its bytes differ from those committed"):
        tidy(made.tables)


def test_a_query_during_a_merge_sees_every_event_once(place: Path) -> None:
    made = begun(place, streams=(OTHERS,))
    made.log.say((OTHERS, recorded(number)) for number in range(4))
    made.load()
    tables, over, found, failed = made.tables, threading.Event(), [0], list[BaseException]()

    def query_repeatedly() -> None:
        engine = Engine(tables.root)
        try:
            while not over.is_set():
                rows = engine.run(EventQuery((OTHERS,), projection=("hub_commit_seq",))).rows
                assert [row["hub_commit_seq"] for row in rows] == list(range(1, len(rows) + 1))
                assert len(rows) >= found[-1]
                found.append(len(rows))
        except BaseException as error:  # noqa: BLE001 # asserted below
            failed.append(error)

    reader = threading.Thread(target=query_repeatedly)
    reader.start()
    for number in range(40):
        made.log.say([(OTHERS, recorded(number))])
        made.load()
        tidy(tables)
    over.set()
    reader.join()
    assert failed == []
    assert len(found) > 10
