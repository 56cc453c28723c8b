"""The sweep finds stores that break their promise, and fails if it could not try a fault."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from lab.sweep import BrokenPromise, Extent, StoreCase, sweep
from plumbing import durable, lmdb_env

LINES = 3


class Ledger(StoreCase):
    """Appends lines to a new file. A line that was confirmed must be there later, and no line twice."""

    syncs_file = syncs_folder = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.path = root / "ledger"
        self.confirmed: list[bytes] = []

    def operate(self) -> None:
        disk = durable.in_use()
        fd = disk.open_append(self.path)
        try:
            if self.syncs_folder:
                disk.sync_folder(self.root)
            for number in range(LINES):
                line = b"line %d\n" % number
                disk.write(fd, line)
                if self.syncs_file:
                    disk.sync(fd)
                self.confirmed.append(line)
        finally:
            os.close(fd)

    def check(self) -> None:
        found = self.path.read_bytes() if self.path.exists() else b""
        lines = re.findall(rb".*\n", found)
        assert lines[: len(self.confirmed)] == self.confirmed


class Unsynced(Ledger):
    syncs_file = False


class Nameless(Ledger):
    syncs_folder = False


class Rows(StoreCase):
    """Two rows in LMDB that belong together."""

    errors = (lmdb.Error,)
    commits = 1

    def operate(self) -> None:
        with lmdb_env.open_environment(self.root, max_dbs=1) as env:
            table = env.open_db(b"rows")
            for keys in ((b"a", b"b"),) if self.commits == 1 else ((b"a",), (b"b",)):
                with env.begin(write=True) as txn:
                    for key in keys:
                        txn.put(key, b"", db=table)

    def check(self) -> None:
        with lmdb_env.open_environment(self.root, max_dbs=1) as env:
            table = env.open_db(b"rows")
            with env.begin() as txn:
                assert len(list(txn.cursor(table))) in (0, 2)


class Halves(Rows):
    commits = 2


class Unseen(StoreCase):
    """Writes without the disk."""

    def operate(self) -> None:
        (self.root / "a").write_bytes(b"a")

    def check(self) -> None:
        pass


@pytest.mark.parametrize("case", [Ledger, Rows])
@pytest.mark.parametrize("extent", Extent)
def test_a_sound_store_passes(case: Callable[[Path], StoreCase], extent: Extent, tmp_path: Path) -> None:
    assert sweep(case, tmp_path, extent).points > 0


@pytest.mark.parametrize("case", [Unsynced, Nameless, Halves])
@pytest.mark.parametrize("extent", Extent)
def test_a_store_that_breaks_its_promise_is_found(
    case: Callable[[Path], StoreCase], extent: Extent, tmp_path: Path
) -> None:
    with pytest.raises(BrokenPromise, match="call"):
        sweep(case, tmp_path, extent)


def test_every_call_meets_every_fault(tmp_path: Path) -> None:
    report = sweep(Ledger, tmp_path, Extent.ALL)
    faults = {cell[1:] for cell in report.coverage.cells if cell[2] not in ("none", "kill", "power cut")}
    assert report.calls == 2 + 2 * LINES
    deaths = ("dies before", "dies during", "dies after")
    kinds = {"open": ("EIO", "ENOSPC"), "write": ("EIO", "ENOSPC"), "sync": ("failed sync",), "sync_folder": ("EIO",)}
    assert faults == {(call, fault) for call, errors in kinds.items() for fault in (*deaths, *errors)}


def test_an_operation_without_calls_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no call"):
        sweep(Unseen, tmp_path, Extent.SAMPLE)


def test_an_operation_whose_calls_depend_on_chance_is_an_error(tmp_path: Path) -> None:
    runs = iter(range(100))

    class Fickle(Ledger):
        def operate(self) -> None:
            if next(runs) < 2:
                super().operate()

    with pytest.raises(BrokenPromise, match="chance"):
        sweep(Fickle, tmp_path, Extent.SAMPLE)
