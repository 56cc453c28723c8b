"""The model of LMDB answers as LMDB does, and its commits are atomic in a crash."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lab.disk import Died, Fault, Platter, SeededSurvival, SimulatedDisk, Survival, at_call
from lab.memory_lmdb import MemoryLmdb
from plumbing import lmdb_env
from tests.storage.hubs import Hub, index_rows, node_files, receipts, small_history

PLAIN, SORTED = b"plain", b"sorted"
KEYS = st.binary(min_size=0, max_size=2) | st.sampled_from([b"k" * 511, b"k" * 512])
VALUES = st.binary(min_size=1, max_size=3).map(lambda value: value.ljust(3, b"\0"))
TABLE = st.sampled_from([PLAIN, SORTED])
# A move that starts anywhere, then moves that need a position, as our code makes them.
STARTS = st.one_of(
    st.sampled_from([("first",), ("last",), ("next",), ("prev",), ("iterate",)]),
    st.tuples(st.sampled_from(["set_key", "set_range"]), KEYS),
    st.tuples(st.just("set_range_dup"), KEYS, VALUES),
)
MOVES = st.lists(st.sampled_from(["next", "prev", "next_dup", "prev_dup", "last_dup", "iterate", "iterate_dup"]))


def result(act: Any, *given: Any, **named: Any) -> Any:
    """What a call returns or raises."""
    try:
        return act(*given, **named)
    except lmdb.Error as error:
        return type(error)


def walk(cursor: Any, start: tuple[Any, ...], moves: list[str], *, is_sorted: bool) -> list[Any]:
    """What a cursor shows on a walk. It ends with the first move that fails."""
    seen: list[Any] = []
    for name, *given in chain([start], ((move,) for move in moves)):
        if name.endswith("_dup") and not is_sorted:
            continue
        if name == "iterate":
            return [*seen, list(cursor)]
        if name == "iterate_dup":
            return [*seen, list(cursor.iternext_dup())]
        found = result(getattr(cursor, name), *given)
        seen.append((name, found, bytes(cursor.key()), bytes(cursor.value())) if found is True else (name, found))
        if found is not True:
            break
    return seen


class Both(RuleBasedStateMachine):
    """LMDB and the model, with the same calls."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = Path(tempfile.mkdtemp())
        self._model = MemoryLmdb()
        self._txns: list[Any] = []
        self._readers: list[tuple[Any, Any]] = []

    @initialize()
    def open(self) -> None:
        options: dict[str, Any] = {"map_size": 1 << 20, "max_dbs": 2, "sync": False}
        self._envs = [
            lmdb.open(str(self._scratch / "real"), **options),
            self._model.open(str(self._scratch / "model"), **options),
        ]
        assert self.both("open_db", b"missing", create=False) is lmdb.NotFoundError
        self._tables = [
            {PLAIN: env.open_db(PLAIN), SORTED: env.open_db(SORTED, dupsort=True, dupfixed=True)} for env in self._envs
        ]
        assert self.both("open_db", b"third") is lmdb.DbsFullError

    def both(self, name: str, *given: Any, **named: Any) -> Any:
        real, model = (result(getattr(env, name), *given, **named) for env in self._envs)
        assert real == model
        return real

    def pairs(self) -> Iterator[tuple[Any, dict[bytes, Any]]]:
        return zip(self._txns, self._tables, strict=True)

    def same(self, found: Iterator[Any]) -> Any:
        real, model = found
        assert real == model
        return real

    @precondition(lambda self: not self._txns)
    @rule()
    def begin(self) -> None:
        self._txns = [env.begin(write=True) for env in self._envs]

    @precondition(lambda self: self._txns)
    @rule(table=TABLE, key=KEYS, value=VALUES)
    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        self.same(result(txn.put, key, value, db=dbs[table]) for txn, dbs in self.pairs())

    @precondition(lambda self: self._txns)
    @rule(table=TABLE, key=KEYS, value=VALUES | st.just(b""))
    def delete(self, table: bytes, key: bytes, value: bytes) -> None:
        self.same(result(txn.delete, key, value, db=dbs[table]) for txn, dbs in self.pairs())

    @precondition(lambda self: self._txns)
    @rule(table=TABLE, rows=st.lists(st.tuples(KEYS.filter(lambda key: 0 < len(key) < 512), VALUES)))
    def put_many(self, table: bytes, rows: list[tuple[bytes, bytes]]) -> None:
        for txn, dbs in self.pairs():
            txn.cursor(dbs[table]).putmulti(rows, dupdata=True)

    @precondition(lambda self: self._txns)
    @rule(table=TABLE, key=KEYS, start=STARTS, moves=MOVES)
    def read_own_writes(self, table: bytes, key: bytes, start: tuple[Any, ...], moves: list[str]) -> None:
        self.same(result(txn.get, key, db=dbs[table]) for txn, dbs in self.pairs())
        self.same(
            iter([walk(txn.cursor(dbs[table]), start, moves, is_sorted=table is SORTED) for txn, dbs in self.pairs()])
        )

    @precondition(lambda self: self._txns)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        for txn in self._txns:
            txn.commit() if commit else txn.abort()
        self._txns = []

    @rule()
    def begin_reading(self) -> None:
        if len(self._readers) < 3:
            self._readers.append((self._envs[0].begin(), self._envs[1].begin()))

    @precondition(lambda self: self._readers)
    @rule(table=TABLE, key=KEYS, start=STARTS, moves=MOVES, last=st.booleans())
    def read_snapshot(self, table: bytes, key: bytes, start: tuple[Any, ...], moves: list[str], last: bool) -> None:
        txns = self._readers[0]
        pairs = list(zip(txns, self._tables, strict=True))
        self.same(result(txn.get, key, db=dbs[table]) for txn, dbs in pairs)
        self.same(iter([walk(txn.cursor(dbs[table]), start, moves, is_sorted=table is SORTED) for txn, dbs in pairs]))
        self.same(iter([txn.stat(dbs[table])["entries"] for txn, dbs in pairs]))
        self.same(iter([result(txn.put, b"k", b"v", db=dbs[table]) for txn, dbs in pairs]))
        if last:
            del self._readers[0]
            for txn in txns:
                txn.abort()

    @precondition(lambda self: not self._txns)
    @rule()
    def reopen(self) -> None:
        for txn in chain(*self._readers):
            txn.abort()
        self._readers = []
        for env in self._envs:
            env.close()
        self.open()

    @rule()
    def a_kill_leaves_every_commit_and_nothing_else(self) -> None:
        """The files as they are now, opened by another process."""
        copies = []
        for name, opener in (("real", lmdb.open), ("model", MemoryLmdb().open)):
            copy = self._scratch / f"{name} copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self._scratch / name, copy)
            with opener(str(copy), max_dbs=2, readonly=True, lock=False) as env:
                tables = [env.open_db(table, create=False) for table in (PLAIN, SORTED)]
                with env.begin() as txn:
                    copies.append([list(txn.cursor(table)) for table in tables])
        assert copies[0] == copies[1]

    def teardown(self) -> None:
        for txn in chain(self._txns, *self._readers):
            txn.abort()
        for env in getattr(self, "_envs", []):
            env.close()
        shutil.rmtree(self._scratch)


TestTheModelAnswersAsLmdbDoes = Both.TestCase
TestTheModelAnswersAsLmdbDoes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def opened(platter: Platter, **options: Any) -> Any:
    return MemoryLmdb(platter).open(str(platter.root / "index"), max_dbs=1, **options)


def put_numbers(env: Any, numbers: range) -> None:
    """One transaction for each number. Each of them writes two rows."""
    table = env.open_db(PLAIN)
    for number in numbers:
        with env.begin(write=True) as txn:
            txn.put(b"a", b"%d" % number, db=table)
            txn.put(b"b%d" % number, b"%d" % number, db=table)


def number_in(env: Any) -> int:
    """The last number that was committed; fails if a transaction was committed in part."""
    if not env.stat()["entries"]:
        return 0
    table = env.open_db(PLAIN)
    with env.begin() as txn:
        number = int(txn.get(b"a", db=table) or 0)
        assert txn.stat(table)["entries"] == (number + 1 if number else 0)
    return number


@pytest.mark.parametrize("fault", [Fault.DIE_BEFORE, Fault.DIE_DURING, Fault.DIE_AFTER])
def test_a_crash_at_any_commit_leaves_all_of_it_or_nothing(tmp_path: Path, fault: Fault) -> None:
    for call in range(1, 8):
        for seed in range(6):
            root = tmp_path / f"{call} {seed}"
            (root / "index").mkdir(parents=True)
            platter = Platter(root)
            disk = SimulatedDisk(platter, at_call(call, fault))
            with pytest.raises(Died):
                put_numbers(opened(platter), range(1, 6))
            disk.cut_power(SeededSurvival(Random(seed)))
            SimulatedDisk(platter)
            # Call 1 creates the file, call 2 the table.
            assert number_in(opened(platter)) == max(call - 2 - (fault is not Fault.DIE_AFTER), 0)


def test_commits_that_are_not_synced_survive_a_kill_and_may_be_lost_from_the_end_in_a_power_cut(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    platter = Platter(tmp_path)
    disk = SimulatedDisk(platter)
    env = opened(platter, sync=False)
    put_numbers(env, range(1, 4))
    env.sync(True)
    put_numbers(env, range(4, 7))
    found = set()
    for seed in range(40):
        copy = tmp_path.with_name(f"copy {seed}")
        copy.mkdir()
        platter.state().after_power_cut(SeededSurvival(Random(seed))).write(copy)
        found.add(number_in(opened(Platter(copy))))
    assert found == {3, 4, 5, 6}
    disk.kill()
    SimulatedDisk(platter)
    assert number_in(opened(platter)) == 6


def test_a_new_environment_is_durable_with_its_first_synced_commit(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    platter = Platter(tmp_path)
    disk = SimulatedDisk(platter)
    put_numbers(opened(platter), range(1, 2))
    disk.cut_power(Survival())
    SimulatedDisk(platter)
    assert number_in(opened(platter)) == 1


@pytest.mark.parametrize(("fault", "error"), [(Fault.ENOSPC, lmdb.DiskError), (Fault.EIO, lmdb.Error)])
def test_a_failed_commit_changes_nothing_and_ends_its_transaction(
    tmp_path: Path, fault: Fault, error: type[lmdb.Error]
) -> None:
    (tmp_path / "index").mkdir()
    platter = Platter(tmp_path)
    SimulatedDisk(platter, at_call(4, fault))
    env = opened(platter)
    with pytest.raises(error):
        put_numbers(env, range(1, 4))
    assert number_in(env) == 1
    put_numbers(env, range(2, 3))
    assert number_in(env) == 2


def put_much(env: Any, table: Any) -> None:
    with env.begin(write=True) as txn:
        for number in range(64):
            txn.put(b"%d" % number, bytes(1000), db=table)


def test_a_full_map_is_the_error_that_lmdb_raises(tmp_path: Path) -> None:
    for opener in (lmdb.open, MemoryLmdb().open):
        with opener(str(tmp_path / opener.__name__), map_size=1 << 15, max_dbs=1) as env:
            table = env.open_db(PLAIN)
            with pytest.raises(lmdb.MapFullError):
                put_much(env, table)
            with env.begin() as txn:
                assert txn.stat(table)["entries"] == 0
        shutil.rmtree(tmp_path / opener.__name__)


def test_a_file_that_is_not_an_environment_is_the_error_that_lmdb_raises(tmp_path: Path) -> None:
    for damage, error in ((b"x" * 8192, lmdb.InvalidError), (None, lmdb.Error)):
        openers: tuple[Callable[..., Any], ...] = (lmdb.open, MemoryLmdb().open)
        for number, opener in enumerate(openers):
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            (folder / "data.mdb").unlink(missing_ok=True)
            if damage:
                (folder / "data.mdb").write_bytes(damage)
            with pytest.raises(error):
                opener(str(folder), readonly=True, lock=False, create=False)


KILLED = """
import os, signal, sys, lmdb
env = lmdb.open(sys.argv[1], max_dbs=1)
table = env.open_db(b"plain")
for number in range(1, 6):
    with env.begin(write=True) as txn:
        txn.put(b"a", b"%d" % number, db=table)
        txn.put(b"b%d" % number, b"%d" % number, db=table)
txn = env.begin(write=True)
txn.put(b"a", b"6", db=table)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_last_commit_in_lmdb_as_in_the_model(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with lmdb.open(str(tmp_path), max_dbs=1) as env:
        assert number_in(env) == 5


def rows_of(root: Path) -> tuple[dict[str, bytes], dict[str, list[tuple[bytes, bytes]]]]:
    hub = Hub(root)
    try:
        return node_files(root), index_rows(hub)
    finally:
        hub.close()


def test_a_hub_has_the_same_rows_on_the_model_as_on_lmdb(tmp_path: Path) -> None:
    history = small_history(tmp_path / "template")
    root, half = history.fresh(tmp_path / "hub"), len(history.groups) // 2
    with lmdb_env.opened_by(MemoryLmdb().open):
        for groups in (history.groups[:half], history.groups[half:]):
            hub = Hub(root)
            for group in groups:
                receipts(hub.submit(group))
                hub.catch_up()
            hub.close()
        written = rows_of(root)
        shutil.rmtree(root / "index")
        rebuilt = rows_of(root)
    shutil.rmtree(root / "index")
    assert written == rebuilt == rows_of(root)  # the last one is in LMDB


def test_a_flipped_bit_of_the_model_is_a_wrong_row_or_an_unreadable_file(tmp_path: Path) -> None:
    env = MemoryLmdb().open(str(tmp_path), max_dbs=1)
    put_numbers(env, range(1, 10))
    env.close()
    intact, found = (tmp_path / "data.mdb").read_bytes(), set()
    for bit in range(8 * intact.rindex(b"b9") + 8):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "data.mdb").write_bytes(data)
        try:
            env = MemoryLmdb().open(str(tmp_path), max_dbs=1)
            with env.begin(env.open_db(PLAIN, create=False)) as txn:
                found.add("same" if list(txn.cursor())[:1] == [(b"a", b"9")] else "wrong")
        except lmdb.Error as error:
            found.add(type(error).__name__)
    assert {"wrong", "CorruptedError", "InvalidError", "NotFoundError"} <= found
