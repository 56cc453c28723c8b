"""Copies of data directories: complete, verified, incremental, and never half done."""

import json
import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.storage.hubs import NOW, History, Hub, QuickDisk, receipts
from veen.core import Malformed, Receipt, Unavailable, Unverified
from veen.storage import backup, directory_copy, fsck, journal_mark, recovery
from veen.storage.fsck import FsckVerdict, Severity
from veen.storage.lock import exclusive
from veen.storage.paths import Folders

MOSTLY = 0.8  # the rest is work before and after the copy
KEYLESS = {FsckVerdict.KEYLESS, FsckVerdict.REPAIRABLE}


def written(history: History, root: Path, groups: slice, *, catch_up_every: int = 3) -> dict[bytes, int]:
    """Run a hub for some groups and end it like a killed process. Returns the last entry of each label."""
    hub, last = Hub(root), dict[bytes, int]()
    try:
        for number, group in enumerate(history.groups[groups], 1):
            for one in map(Receipt.decode, receipts(hub.submit(group))):
                last[one.label] = one.stream_seq
            if number % catch_up_every == 0:
                hub.catch_up()
    finally:
        hub.abandon()
    return last


def faults(root: Path) -> list[str]:
    """What fsck finds, other than the missing index and keys."""
    report = fsck.check(root, isolated=False)
    known = [one for one in report.findings if one.artifact.startswith("index") or one.severity is Severity.KEYLESS]
    return [str(one) for one in report.findings if one not in known]


@pytest.mark.parametrize("kind", ["history", "packed_history"])
def test_a_backup_has_every_acknowledged_entry_and_verifies(
    kind: str, place: Path, request: pytest.FixtureRequest
) -> None:
    history: History = request.getfixturevalue(kind)
    source, sizes = history.fresh(place / "hub"), dict[bytes, int]()
    for number in range(0, len(history.groups), 4):
        sizes |= written(history, source, slice(number, number + 4))
        made, _ = backup.backup(QuickDisk(), source, place / "to", NOW)
        assert {label: size for label, (size, _) in made.sizes.items()} == sizes
        assert not Folders(made.path).keys.exists()
        assert faults(made.path) == []


def test_a_backup_after_a_power_cut_that_lost_the_mark_of_the_last_group_has_that_group(
    history: History, place: Path
) -> None:
    source = history.fresh(place / "hub")
    sizes = written(history, source, slice(0, 2), catch_up_every=9)
    mark = journal_mark.read(source / "journal")
    assert mark is not None
    journal_mark.create(QuickDisk(), source / "journal", replace(mark, highest=mark.highest - 1))
    Hub(source).abandon()  # it has not moved the groups to the log yet
    with exclusive(Folders(source).lock):  # as if it ran
        made, _ = backup.backup(QuickDisk(), source, place / "to", NOW)
    assert {label: size for label, (size, _) in made.sizes.items()} == sizes


@pytest.mark.parametrize("is_running", [True, False])
def test_a_backup_uses_a_share_of_a_core_while_a_hub_runs(history: History, place: Path, is_running: bool) -> None:
    waits: list[float] = []
    source = history.fresh(place / "hub")
    written(history, source, slice(0, 11))
    attachment = bytes(32 << 20)
    path = Folders(source).attachment(sha256(attachment).digest())
    path.parent.mkdir(parents=True)
    path.write_bytes(attachment)
    with exclusive(Folders(source).lock) if is_running else nullcontext():  # as if it ran
        began = time.thread_time()
        backup.backup(QuickDisk(), source, place / "to", NOW, wait=waits.append)
        used = time.thread_time() - began
    expected = used * (1 / directory_copy.MAX_SHARE_OF_TIME - 1)
    copied = [path for path in (place / "to" / "000001").rglob("*") if path.is_file()]
    if is_running:
        assert (
            len(waits) >= len(copied) + 2 * 32
        )  # after each file, and each MiB of the attachment: written, and hashed
        assert MOSTLY * expected <= sum(waits) <= expected
        assert max(waits) <= expected / 4  # no long work without a pause
    else:
        assert not waits


def test_a_restored_backup_has_the_entries_of_its_statement(history: History, place: Path) -> None:
    source = history.fresh(place / "hub")
    written(history, source, slice(0, 11))
    made, _ = backup.backup(QuickDisk(), source, place / "to", NOW, keys=True)
    stated = {row["label"]: row["size"] for row in json.loads((place / "to" / "000001.json").read_bytes())["labels"]}
    done = recovery.restore(QuickDisk(), backup.newest(place / "to"), place / "restored", NOW + 1)
    assert {row.label.hex(): row.size for row in done.log.labels} == stated
    assert fsck.check(place / "restored", isolated=False).verdict is FsckVerdict.CLEAN
    assert made.path == backup.newest(place / "to")


def test_an_incremental_backup_reads_no_closed_chunk_again(history: History, place: Path) -> None:
    source = history.fresh(place / "hub")
    written(history, source, slice(None))
    _, first = backup.backup(QuickDisk(), source, place / "to", NOW)
    assert first.read_chunks > 3
    closed = [path for path in (source / "log").glob("chunk-*.log") if not path.name.endswith("-open.log")]
    for path in closed:  # a read would now copy zeros, which do not verify
        path.write_bytes(bytes(path.stat().st_size))
    made, second = backup.backup(QuickDisk(), source, place / "to", NOW)
    assert (second.read_chunks, second.linked_chunks) == (0, first.read_chunks)
    assert faults(made.path) == []


@pytest.mark.parametrize("name", ["chunk-*0.log", "chunk-*-open.log", "*.summary", "peaks-*", "checkpoint-[0-9a-f]*"])
def test_damage_in_the_source_ends_the_backup_and_keeps_the_earlier_one(
    name: str, history: History, place: Path
) -> None:
    source = history.fresh(place / "hub")
    written(history, source, slice(0, 3))
    earlier, _ = backup.backup(QuickDisk(), source, place / "to", NOW)
    written(history, source, slice(3, None))
    path = max((path for path in (source / "log").glob(name) if path.stat().st_size), default=None)
    if path is None:
        path = max(one for one in (source / "log").glob("chunk-*.log") if not one.name.endswith("-open.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises((Malformed, Unverified)):
        backup.backup(QuickDisk(), source, place / "to", NOW)
    assert backup.newest(place / "to") == earlier.path
    assert faults(earlier.path) == []
    assert [one.name for one in (place / "to").iterdir() if one.name.endswith(".part")] == []


class EndingDisk(QuickDisk):
    """Fails at the n-th write and later ones."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")

    def write(self, fd: int, data: bytes) -> None:
        self.spend()
        super().write(fd, data)

    def replace(self, source: Path, target: Path) -> None:
        self.spend()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.spend()
        super().link(source, target)

    def remove_tree(self, path: Path) -> None:
        if self.left >= 0:  # a killed process removes nothing
            super().remove_tree(path)


def test_an_interrupted_backup_leaves_the_earlier_one_or_the_new_one(history: History, place: Path) -> None:
    source = history.fresh(place / "hub")
    before = written(history, source, slice(0, 8))
    backup.backup(QuickDisk(), source, place / "first", NOW)
    after = before | written(history, source, slice(8, None))
    for left in range(0, 400, 7):
        shutil.rmtree(place / "to", ignore_errors=True)
        shutil.copytree(place / "first", place / "to", copy_function=os.link)
        try:
            backup.backup(EndingDisk(left), source, place / "to", NOW)
        except Unavailable:
            done = False
        else:
            done = True
        (newest,) = backup.statements(place / "to")[-1:]
        sizes = {label: size for label, (size, _) in newest.sizes.items()}
        assert sizes == (after if newest.path.name == "000002" else before), left
        if left % 5 == 0:
            assert faults(newest.path) == [], left
        if done:
            break
    else:
        raise AssertionError("400 writes were not enough")
    backup.backup(QuickDisk(), source, place / "to", NOW)
    assert {one.name for one in (place / "to").iterdir()} == {"lock", "000003", "000003.json"}


def test_old_backups_are_removed_beyond_the_number_to_keep(history: History, place: Path) -> None:
    source = history.fresh(place / "hub")
    written(history, source, slice(0, 4))
    for _ in range(4):
        backup.backup(Disk(), source, place / "to", NOW, keep=2)
    assert [one.path.name for one in backup.statements(place / "to")] == ["000003", "000004"]


def test_a_folder_with_backups_of_another_hub_is_refused(
    history: History, packed_history: History, place: Path
) -> None:
    for one, name in ((history, "a"), (packed_history, "b")):
        written(one, one.fresh(place / name), slice(0, 3))
    backup.backup(QuickDisk(), place / "a", place / "to", NOW)
    with pytest.raises(Unavailable, match="has backups of hub"):
        backup.backup(QuickDisk(), place / "b", place / "to", NOW)
