"""Closing a chunk with a damaged checkpoint index loses no row and does not stop the hub."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.hubs import SMALL, Client, History, Hub, label_of, log_files, receipts
from veen.core import Checkpoint, Malformed, Receipt
from veen.storage import checkpoint_files, fsck, rebuild
from veen.storage.artifacts import CheckpointIndex, IndexedCheckpoint
from veen.storage.paths import Folders

INTERVAL = SMALL.max_checkpoint_interval


HARMS: dict[str, Callable[[CheckpointIndex], bytes | None]] = {
    "missing": lambda index: None,
    "empty": lambda index: b"",
    "short": lambda index: index.encode()[:-7],
    "longer": lambda index: index.encode() + b"\x00",
    "of another format": lambda index: b"\x80",
    "of another label": lambda index: replace(index, label=bytes(32)).encode(),
    "without its first row": lambda index: replace(index, checkpoints=index.checkpoints[1:]).encode(),
    "without its last row": lambda index: replace(index, checkpoints=index.checkpoints[:-1]).encode(),
    "without a row between": lambda index: replace(
        index, checkpoints=(index.checkpoints[0], *index.checkpoints[2:])
    ).encode(),
    "with a wrong chunk_start": lambda index: replace(
        index, checkpoints=(*index.checkpoints[:-1], replace(index.checkpoints[-1], chunk_start=3))
    ).encode(),
    "with a wrong peaks_ref": lambda index: replace(
        index, checkpoints=(*index.checkpoints[:-1], replace(index.checkpoints[-1], peaks_ref=3))
    ).encode(),
}


class Log:
    """One label that grows by whole chunks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = Folders(root)
        self.hub = Hub(root)
        self.client = Client("ann", self.hub.rules)
        self.label = label_of(self.hub.rules, "doors")
        self.receipts: list[Receipt] = []

    def grow(self, entries: int) -> None:
        sent = self.hub.submit([self.client.message(self.label) for _ in range(entries)])
        self.receipts += map(Receipt.decode, receipts(sent))
        self.hub.catch_up()

    @property
    def path(self) -> Path:
        return self.folders.checkpoint_index(self.label)

    def index(self) -> CheckpointIndex:
        return CheckpointIndex.decode(self.path.read_bytes())

    def expected(self) -> tuple[IndexedCheckpoint, ...]:
        ends = range(INTERVAL, len(self.receipts) + 1, INTERVAL)
        return tuple(
            IndexedCheckpoint(end, self.receipts[end - 1].mmr_root, end - INTERVAL + 1, end, end) for end in ends
        )

    def check(self) -> None:
        assert self.index().checkpoints == self.expected()
        self.hub.close()
        assert fsck.check(self.root, isolated=False).findings == []


@pytest.fixture(params=["plain", "compressed"])
def log(request: pytest.FixtureRequest, place: Path, history: History, packed_history: History) -> Log:
    """Four closed chunks, and an open one."""
    source = history if request.param == "plain" else packed_history
    found = Log(source.fresh(place / "hub"))
    found.grow(4 * INTERVAL + 2)
    assert found.index().checkpoints == found.expected()
    return found


@pytest.mark.parametrize("name", HARMS)
def test_a_chunk_is_closed_over_an_index_that_is_harmed(log: Log, name: str) -> None:
    harmed = HARMS[name](log.index())
    log.path.unlink()
    if harmed is not None:
        log.path.write_bytes(harmed)
    log.grow(2 * INTERVAL)
    assert len(log.index().checkpoints) == 6
    log.check()


@pytest.mark.parametrize("name", ["missing", "empty", "of another label"])
def test_the_first_chunk_of_all_is_closed_over_whatever_lies_there(place: Path, history: History, name: str) -> None:
    log = Log(history.fresh(place / "hub"))
    log.grow(2)
    harmed = HARMS[name](CheckpointIndex(log.label, (IndexedCheckpoint(7, bytes(32), 1, 7, 7),)))
    if harmed is not None:
        log.path.write_bytes(harmed)
    log.grow(INTERVAL)
    log.check()


def test_a_root_that_one_file_has_wrong_is_taken_from_the_log(log: Log) -> None:
    """Of four chunks the first lacks its checkpoint, the second its summary; the third has the checkpoint of another
    chunk, and the fourth one with another root."""
    folders, label, kept = log.folders, log.label, log_files(log.root)
    signed = Checkpoint.decode(folders.checkpoint(label, 4 * INTERVAL).read_bytes())
    folders.checkpoint(label, INTERVAL).unlink()
    folders.summary(label, INTERVAL + 1, 2 * INTERVAL).unlink()
    shutil.copy(folders.checkpoint(label, INTERVAL * 2), folders.checkpoint(label, INTERVAL * 3))
    folders.checkpoint(label, INTERVAL * 4).write_bytes(replace(signed, mmr_root=bytes(32)).encode())
    log.path.unlink()
    log.grow(INTERVAL)
    for name, data in kept.items():
        if not name.endswith("-open.log") and name != log.path.name:
            (folders.log / name).write_bytes(data)
    log.check()


def test_rows_are_those_before_a_chunk_also_where_it_was_closed_before(log: Log) -> None:
    for chunks in range(len(log.expected())):
        start = chunks * INTERVAL + 1
        rows = log.expected()[: chunks + 1]
        assert checkpoint_files.derived_rows(log.folders, log.label, start) == rows[:chunks]
        made = checkpoint_files.index_with_row(log.folders, log.label, rows[chunks])
        assert made == CheckpointIndex(log.label, rows).encode()
    log.hub.close()


def test_a_root_that_is_not_its_receipts_is_never_signed(place: Path, history: History) -> None:
    log = Log(history.fresh(place / "hub"))
    log.grow(INTERVAL + 3)
    with log.hub.store.index.write() as rows:
        head = rows.head(log.label)
        assert head
        head.peaks[-1] = bytes([head.peaks[-1][0] ^ 1]) + head.peaks[-1][1:]
        rows.put_head(log.label, head)
        rows.commit()
    with pytest.raises(
        Malformed, match=f"{log.label.hex()} does not match the root in receipt {2 * INTERVAL}; run `veen fsck"
    ):
        log.grow(INTERVAL)
    assert not log.folders.checkpoint(log.label, 2 * INTERVAL).exists()
    assert len(log.index().checkpoints) == 1
    assert rebuild.fault_recorded(log.folders)
    log.hub.abandon()
    log.hub = Hub(log.root)  # the next start rebuilds the index
    log.hub.catch_up()
    log.check()
