"""Backups of a pruned log, and `--prune`: what the hub has erased is erased from the older backups, too."""

import os
import shutil
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.storage.hubs import NOW, Client, Hub, QuickDisk, label_of, receipts
from tests.storage.test_backup import faults
from tests.storage.test_pruning import DAY, ENTRIES, EVERYTHING, PAYLOADS, copied, filled, later, prune
from veen.core import Malformed, Receipt, Unavailable, Unverified
from veen.core.retention import Prune, RetentionPolicy
from veen.storage import backup, fsck, pruned_chunk, recovery
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders
from veen.storage.pruning import Pruner
from veen.storage.retention_check import check_manifests

__all__ = ["filled"]


def payloads(root: Path) -> list[bytes]:
    """A part of each payload of the stream."""
    hub = Hub(root)
    found = [hub.lookup.entry(label_of(hub.rules, "doors"), seq) for seq in range(1, ENTRIES + 1)]
    hub.close()
    return [one.open()[0].ciphertext[:32] for one in found if one]


def holding(folder: Path, secrets: list[bytes]) -> list[str]:
    """The files that have one of the payloads."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if any(one in data for data in (path.read_bytes(),) for one in secrets)]


def pruned_later(root: Path, policy: RetentionPolicy) -> None:
    hub = later(root)
    assert prune(hub, policy) > 0
    hub.catch_up()
    hub.close()


def erased(root: Path, first: int, last: int) -> None:
    """Erase a range, as `veen retention erase` does."""
    hub = later(root)
    label = label_of(hub.rules, "doors")
    pruner = Pruner(QuickDisk(), hub.folders, hub.store.index, lambda: hub.hub_metadata)
    for planned in pruner.plan_range(label, first, last):
        (logged,) = receipts(hub.submit([Prune(label, planned.start_seq, planned.end_seq, planned.level, "asked to")]))
        key = hub._signer.at(hub.sequencer.hub_ts)
        pruner.prune(planned, Receipt.decode(logged), key, 0, hub.sequencer.hub_ts)
    hub.catch_up()
    hub.close()


@pytest.mark.parametrize("policy", [PAYLOADS, EVERYTHING])
def test_a_backup_of_a_pruned_log_verifies_and_can_be_restored(
    policy: RetentionPolicy, filled: Path, place: Path
) -> None:
    root = copied(filled, place / "hub")
    secrets = payloads(root)
    pruned_later(root, policy)
    made, counts = backup.backup(QuickDisk(), root, place / "to", NOW, keys=True)
    assert counts.read_chunks == 4
    assert faults(made.path) == []
    assert holding(made.path, secrets[:28]) == []
    _, again = backup.backup(QuickDisk(), root, place / "to", NOW, keys=True)
    assert (again.read_chunks, again.linked_chunks) == (0, 4)
    recovery.restore(QuickDisk(), backup.newest(place / "to"), place / "restored", NOW + 20 * DAY)
    assert fsck.check(place / "restored", isolated=False).verdict is FsckVerdict.CLEAN
    assert [one.faults for one in check_manifests(place / "restored")] == [()]


def test_an_erasure_reaches_the_older_backups(filled: Path, place: Path) -> None:
    root, to = copied(filled, place / "hub"), place / "to"
    secrets = payloads(root)
    for _ in range(3):
        backup.backup(QuickDisk(), root, to, NOW, keep=9)
    erased(root, 1, 14)
    kept, counts = backup.backup(QuickDisk(), root, to, NOW, keep=9)
    assert (counts.pruned, counts.removed) == ([], [])
    assert holding(to / "000001", secrets[:14]), "without --prune older backups are not changed"
    _, counts = backup.backup(QuickDisk(), root, to, NOW, keep=9, prune=True)
    assert (counts.pruned, counts.removed) == (["000001", "000002", "000003"], [])
    assert holding(to, secrets[:14]) == []
    assert holding(to / "000001", secrets[14:21]), "only what was erased is gone"
    for one in backup.statements(to):
        assert faults(one.path) == []
        assert [found.faults for found in check_manifests(one.path)] == [()]
    pruned_later(root, EVERYTHING)
    receipt = receipts_of(kept.path)
    _, counts = backup.backup(QuickDisk(), root, to, NOW, keep=9, prune=True)
    assert counts.pruned == ["000001", "000002", "000003", "000004", "000005"]
    assert holding(to, [*secrets[:28], *receipt]) == []
    assert all(faults(one.path) == [] for one in backup.statements(to))
    _, counts = backup.backup(QuickDisk(), root, to, NOW, keep=9, prune=True)
    assert (counts.pruned, counts.removed) == ([], [])


def receipts_of(root: Path) -> list[bytes]:
    """The signatures of the receipts that pruned chunks still have."""
    found = []
    for path in Folders(root).log.glob("*.pruned"):
        with pruned_chunk.PrunedChunk(path) as left:
            found += [one.hub_sig for one in left.entries() if one.hub_sig]
    assert found
    return found


def test_an_older_backup_whose_open_chunk_has_erased_entries_is_removed(filled: Path, place: Path) -> None:
    root, to = copied(filled, place / "hub"), place / "to"
    secrets = payloads(root)
    backup.backup(QuickDisk(), root, to, NOW, keep=9)  # entries 29 and 30 are in the open chunk
    hub = later(root)
    client, label = Client("eve", hub.rules), label_of(hub.rules, "doors")
    for _ in range(10):
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.close()
    erased(root, 29, 29)
    _, counts = backup.backup(QuickDisk(), root, to, NOW, keep=9, prune=True)
    assert (counts.pruned, counts.removed) == ([], ["000001"])
    assert not (to / "000001").exists()
    assert holding(to, secrets[28:]) == []


def test_a_hub_that_was_restored_from_a_pruned_older_backup_goes_on(filled: Path, place: Path) -> None:
    root, to = copied(filled, place / "hub"), place / "to"
    backup.backup(QuickDisk(), root, to, NOW, keys=True, keep=9)
    hub = later(root)
    client, label = Client("eve", hub.rules), label_of(hub.rules, "doors")
    for _ in range(20):
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.close()
    erased(root, 1, 7)  # its manifest lists chunks that the older backup lacks
    backup.backup(QuickDisk(), root, to, NOW, keys=True, keep=9, prune=True)
    recovery.restore(QuickDisk(), to / "000001", place / "restored", NOW + 20 * DAY)
    hub = Hub(place / "restored")
    hub.clock.now = NOW + 30 * DAY
    other = Client("zoe", hub.rules)
    for _ in range(20):
        receipts(hub.submit([other.message(label, body=100)]))
    hub.catch_up()
    assert prune(hub, PAYLOADS) > 0
    hub.catch_up()
    hub.close()
    report = fsck.check(place / "restored", isolated=False)
    assert report.verdict is FsckVerdict.CLEAN, report.first
    assert [one.faults for one in check_manifests(place / "restored")] == [()]


def test_a_pruned_chunk_without_a_manifest_ends_the_backup(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    pruned_later(root, PAYLOADS)
    next((root / "log").glob("manifest-*")).unlink()
    with pytest.raises(Unverified, match="no manifest"):
        backup.backup(QuickDisk(), root, place / "to", NOW)
    root = copied(filled, place / "hub")
    pruned_later(root, PAYLOADS)
    min((root / "log").glob("*.pruned")).unlink()
    with pytest.raises(Malformed, match="no chunk that starts at entry 1"):
        backup.backup(QuickDisk(), root, place / "to", NOW)


class EndingDisk(QuickDisk):
    """Ends at the n-th change and later ones, like a killed process."""

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

    def unlink(self, path: Path) -> None:
        self.spend()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        if self.left >= 0:
            super().remove_tree(path)


def test_an_interrupted_erasure_leaves_directories_that_verify_and_the_next_run_completes_it(
    filled: Path, place: Path
) -> None:
    root, to = copied(filled, place / "hub"), place / "to"
    secrets = payloads(root)
    for _ in range(2):
        backup.backup(Disk(), root, place / "first", NOW, keep=9)
    erased(root, 1, 21)
    for left in range(0, 1000, 7):
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(place / "first", to, copy_function=os.link)
        try:
            backup.backup(EndingDisk(left), root, to, NOW, keep=9, prune=True)
        except Unavailable:
            found = [fault for one in backup.statements(to) for fault in faults(one.path)]
            left_over = ("interrupted prune", "incomplete draft")
            assert all(fault.endswith(left_over) or left_over[0] in fault for fault in found), (left, found)
        else:
            break
        backup.backup(QuickDisk(), root, to, NOW, keep=9, prune=True)
        assert holding(to, secrets[:21]) == [], left
        assert all(faults(one.path) == [] for one in backup.statements(to)), left
    else:
        raise AssertionError("1000 writes were not enough")
