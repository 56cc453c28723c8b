"""An index that crashes its readers or contains wrong rows: the hub restarts with a rebuilt one."""

import faulthandler
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.disks import FailingFrom
from tests.storage.hubs import History, Hub, QuickDisk, index_rows, place_of, receipts
from veen.core import Malformed, Unavailable
from veen.storage import fsck, rebuild
from veen.storage.directory_reader import LogReader
from veen.storage.index import Index
from veen.storage.paths import Folders

PAGE = 4096


@pytest.fixture
def root(place: Path, history: History) -> Path:
    """A hub that has stopped cleanly."""
    hub = Hub(history.fresh(place / "hub"))
    for group in history.groups:
        receipts(hub.submit(group))
        hub.catch_up()
    hub.close()
    return place / "hub"


def rows(root: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    hub = Hub(root)
    found = index_rows(hub)
    hub.close()
    return found


def spoil(root: Path, seed: int) -> None:
    """Change some bytes of every page except the first two, which LMDB checks itself."""
    rng, path = random.Random(seed), root / "index" / "data.mdb"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // PAGE):
        at = page * PAGE + 16 + rng.randrange(40)
        data[at : at + 4] = rng.randbytes(4)
    path.write_bytes(data)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


OPEN = """
import sys
from pathlib import Path
from tests.storage.hubs import Hub, QuickDisk
from veen.storage.store import Store
from veen.storage.paths import Folders
from veen.storage.metadata import read_metadata
folders = Folders(Path(sys.argv[1]))
def no_signer(*place):
    raise AssertionError
store = Store(QuickDisk(), folders, read_metadata(folders).limits, no_signer, probe="probe" in sys.argv)
with store.index.read() as rows:
    sys.stdout.write(str(sum(head.size for _, head in rows.labels())))
"""
CLOSE = "store.close()\n"
CRASH = "sys.stdout.flush()\nimport faulthandler\nfaulthandler._sigsegv()\n"


def opened(root: Path, *options: str, then: str = CLOSE) -> "subprocess.CompletedProcess[str]":
    """A process that opens the directory like a hub, and prints how many entries the index lists."""
    command = [sys.executable, "-c", OPEN + then, str(root), *options]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seed", range(5))
def test_a_start_on_a_damaged_index_lives_and_knows_every_entry(root: Path, history: History, seed: int) -> None:
    expected = rows(root)
    spoil(root, seed)
    done = opened(root, "probe")
    assert (done.returncode, done.stdout) == (0, str(sum(map(len, history.groups)))), done.stderr
    assert rows(root) == expected
    assert fsck.check(root).findings == []


def test_a_sound_index_passes_the_probe_and_stays(root: Path) -> None:
    before = (root / "index" / "data.mdb").stat().st_ino
    rebuild.probe(QuickDisk(), Folders(root))
    assert not (root / "fault.txt").exists()
    assert opened(root, "probe").returncode == 0
    assert (root / "index" / "data.mdb").stat().st_ino == before


def test_a_damaged_index_on_a_full_disk_is_reported(root: Path) -> None:
    spoil(root, 1)
    with pytest.raises(Unavailable, match="the index is damaged, and the fault cannot be recorded: No space left"):
        rebuild.probe(FailingFrom(1), Folders(root))


def test_where_there_is_no_index_there_is_nothing_to_probe(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    rebuild.probe(QuickDisk(), Folders(root))
    assert not (root / "fault.txt").exists()


def test_a_process_that_a_fault_ended_leaves_a_note_and_the_next_makes_the_index_again(root: Path) -> None:
    expected, before = rows(root), (root / "index" / "data.mdb").stat().st_ino
    died = opened(root, then=CRASH)
    assert died.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in (root / "fault.txt").read_text()
    assert opened(root).returncode == 0
    assert (root / "index" / "data.mdb").stat().st_ino != before
    assert not (root / "fault.txt").exists()
    after = (root / "index" / "data.mdb").stat().st_ino
    assert opened(root).returncode == 0
    assert (root / "index" / "data.mdb").stat().st_ino == after  # recorded once
    assert rows(root) == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_terminated_process_records_no_fault(root: Path, number: signal.Signals) -> None:
    before = (root / "index" / "data.mdb").stat().st_ino
    ended = opened(root, then=f"import os\nos.kill(os.getpid(), {int(number)})\n")
    assert ended.returncode == -number
    assert not rebuild.fault_recorded(Folders(root))
    assert opened(root).returncode == 0
    assert (root / "index" / "data.mdb").stat().st_ino == before


def test_an_enabled_faulthandler_is_left_alone(root: Path) -> None:
    assert faulthandler.is_enabled()  # pytest uses it
    watch = rebuild.FatalSignalRecorder(Folders(root))
    watch.close()
    assert faulthandler.is_enabled()
    assert not (root / "fault.txt").exists()


# An index that can be read, but is wrong.


def _change(root: Path, table: str, change: str) -> None:
    index = Index(root / "index")
    with index._env.begin(write=True) as txn, txn.cursor(index._dbs[table]) as cursor:
        assert cursor.first()
        row_key, row = cursor.item()
        cursor.delete()
        if change == "alter":
            txn.put(row_key, row[:8] + bytes([row[8] ^ 1]) + row[9:], db=index._dbs[table])
        elif change == "move":
            txn.put(b"\xff" * 32, row, db=index._dbs[table])
    index.close()


@pytest.mark.parametrize("change", ["drop", "alter", "move"])
def test_a_hub_never_goes_on_from_a_head_that_was_not_written(root: Path, history: History, change: str) -> None:
    """It would give one place to two messages."""
    expected = rows(root)
    _change(root, "heads", change)
    hub = Hub(root)
    assert index_rows(hub) == expected
    for group in history.groups[1:]:
        for outcome in hub.submit(group):
            assert getattr(outcome, "detail_enum", None) == "DUPLICATE"
    hub.close()


def test_the_sum_is_the_same_in_any_batching(place: Path, history: History) -> None:
    sums = set()
    first = Hub(history.fresh(place / "first"))
    receipts(first.submit(history.groups[0]))
    first.close()
    for number in (1, 5):
        hub = Hub(History(place / "first", ()).fresh(place / str(number)))
        for at, group in enumerate(history.groups[1:]):
            receipts(hub.submit(group))
            if at % number == 0:
                hub.catch_up()
        hub.catch_up()
        with hub.store.index.read() as found:
            assert found.sum_matches()
            sums.add(found.number("sum"))
        hub.close()
    assert len(sums) == 1


def test_an_index_without_a_place_for_an_entry_says_so(root: Path, history: History) -> None:
    hub = Hub(root)
    label, _ = place_of(receipts(hub.submit(history.groups[0]))[0])
    hub.close()
    index = Index(root / "index")
    with index._env.begin(write=True) as txn:
        txn.delete(label, db=index._dbs["places"])
    index.close()
    with LogReader(root) as reader, pytest.raises(Malformed, match="no place for entry"):
        reader.entry(label, 1)


# The open chunk.


@pytest.mark.parametrize("what", ["missing", "short", "empty"])
def test_a_hub_does_not_start_where_its_open_chunk_is_gone(root: Path, what: str) -> None:
    path = sorted((root / "log").glob("chunk-*-open.log"))[0]
    data = path.read_bytes()
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if what == "short" else b"")
    with pytest.raises(Malformed, match=r"open\.log does not hold the \d+ entries that the index lists; run"):
        Hub(root)
    path.write_bytes(data)  # restored from another copy
    Hub(root).close()
    assert fsck.check(root, isolated=False).findings == []


def test_an_open_chunk_that_the_journal_still_has_is_written_again(place: Path, history: History) -> None:
    """The log never caught up, so no chunk is missing."""
    hub = Hub(history.fresh(place / "hub"))
    given = {place_of(one): one for group in history.groups for one in receipts(hub.submit(group))}
    tail = hub.store.begin_catching_up()
    assert tail
    hub.store.catch_up(tail)
    hub.abandon()
    for path in (place / "hub" / "log").glob("chunk-*-open.log"):
        path.unlink()
    for path in (place / "hub" / "index").glob("*.mdb"):
        path.unlink()
    again = Hub(place / "hub")
    for (label, seq), one in given.items():
        entry = again.lookup.entry(label, seq)
        assert entry is not None
        assert entry.receipt == one
    again.catch_up()
    again.close()
    assert fsck.check(place / "hub", isolated=False).findings == []
