"""Tables whose writer fails or dies at any call have every entry of the log once when the writer has run again."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from lab.sweep import Extent, StoreCase, sweep
from tests.pipeline.tables.logs import DOORS, Place, begun, everything, writes
from veen.core import VeenError
from veen.pipeline import select
from veen.pipeline.folding import fold
from veen.pipeline.tables import Tables, load
from veen.pipeline.tables.compaction import compact
from veen.pipeline.tables.verify import verify

ENTRIES, STEP = 6, 3


class Writing(StoreCase):
    """A writer that follows a log in steps and merges files. Only its public functions are used."""

    errors = (VeenError, OSError)
    log: Place  # shared by all points: writers only read it
    expected: dict[str, list[dict[str, Any]]]
    states: dict[bytes, Any]

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.loaded = 0  # rows that a load reported

    @property
    def tables(self) -> Tables:
        return Tables(self.root / "tables")

    def operate(self) -> None:
        self._load(STEP)
        self._load(None)
        compact(self.tables)

    def check(self) -> None:
        with self.tables.writing():
            pass  # recovery
        found = everything(self.tables.root)
        assert len(found["entries"]) >= self.loaded, "rows that were reported are lost"
        for table, rows in found.items():
            assert all(row in self.expected[table] for row in rows), f"a row of {table} is not in the log"
            assert len({(row["label"], row["stream_seq"]) for row in rows}) == len(rows), f"{table} has a row twice"
        self._load(None)
        compact(self.tables)
        assert everything(self.tables.root) == self.expected
        assert verify(self.tables, self.log.selection, self.log.keys).problems == []
        folded = fold(self.tables, "kv", DOORS)
        assert dict(folded.states) == self.states

    def _load(self, seq_max: int | None) -> None:
        self.loaded += load(self.tables, select(self.log.log.folders.root, seq_max=seq_max), self.log.keys).entries


class Folding(Writing):
    """Keeps a fold of tables that grow."""

    def operate(self) -> None:
        for seq_max in (STEP, None):
            self._load(seq_max)
            fold(self.tables, "kv", DOORS)


def prepared(case: type[Writing], place: Path) -> type[Writing]:
    """The case with a log, and with the tables that it must give."""
    made = begun(place, streams=(DOORS,))
    made.log.say(writes(ENTRIES))
    load(Tables(place / "plain"), made.selection, made.keys)
    states = dict(fold(Tables(place / "plain"), "kv", DOORS).states)
    return type(case.__name__, (case,), {"log": made, "expected": everything(place / "plain"), "states": states})


def test_tables_have_every_entry_once_after_a_fault_at_any_call(tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    report = sweep(prepared(Writing, tmp_path), tmp_path / "points", Extent.SAMPLE)
    assert report.points >= report.calls > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", [Writing, Folding])
def test_tables_have_every_entry_once_after_every_fault_of_every_call(case: type[Writing], tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    report = sweep(prepared(case, tmp_path), tmp_path / "points", Extent.ALL)
    assert report.points >= report.calls > 0
