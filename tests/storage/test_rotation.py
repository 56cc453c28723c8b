"""Key rotation: after a crash at any disk call the identity is completely the old or the new one."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, ForgetfulDisk, Last
from tests.storage.hubs import NOW, History, Hub, QuickDisk, receipts
from veen.core import Limits, Malformed, Mmr, Profile, Unavailable, Unverified, VeenError
from veen.storage import fsck, metadata, rotation
from veen.storage.paths import Folders


@pytest.mark.parametrize("last", [Last.LOST, Last.HALF, Last.DONE, None])
def test_a_rotation_survives_a_crash_at_any_call(place: Path, history: History, last: Last | None) -> None:
    old = metadata.read_metadata(Folders(history.template)).identity
    sizes = set()
    for n in range(1, 100):
        root = history.fresh(place / "hub")
        folders = Folders(root)
        disk = ForgetfulDisk(root, n) if last is None else DyingDisk(n, last)
        try:
            rotation.rotate_key(disk, folders, NOW + 100, 5)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            report = fsck.check(root, isolated=False)
            assert report.verdict is fsck.FsckVerdict.CLEAN, (n, last, report.findings)
            rotation.finish_rotation(QuickDisk(), folders)
            record = metadata.read_metadata(folders).identity
            assert record == old or record.hub_keys[0].hub_pk == old.hub_keys[0].hub_pk
            metadata.read_signing_key(folders, record.newest.key_id)
            sizes.add(len(record.hub_keys))
            continue
        break
    assert sizes == {1, 2}
    assert len(metadata.read_metadata(Folders(place / "hub")).identity.hub_keys) == 2


def _interrupt(folders: Folders) -> None:
    """Leave a rotation that has happened and is not completed."""
    for n in range(1, 100):
        with suppress(Died):
            rotation.rotate_key(DyingDisk(n, Last.DONE), folders, NOW + 100, 0)
        if folders.rotation.exists():
            return
    pytest.fail("no call leaves an unfinished rotation")


def test_a_damaged_rotation_is_refused_and_named(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    folders = Folders(root)
    _interrupt(folders)
    data = folders.rotation.read_bytes()
    folders.rotation.write_bytes(data[:-9] + b"000000000")
    with pytest.raises(VeenError):
        rotation.finish_rotation(QuickDisk(), folders)
    assert fsck.check(root, isolated=False).verdict is fsck.FsckVerdict.DAMAGED


def test_a_key_that_would_start_before_the_last_is_refused(place: Path, history: History) -> None:
    folders = Folders(history.fresh(place / "hub"))
    with pytest.raises(Unavailable, match="cannot be rotated"):
        rotation.rotate_key(QuickDisk(), folders, NOW, 0)


def test_an_older_rotation_does_not_come_back(place: Path, history: History) -> None:
    folders = Folders(history.fresh(place / "hub"))
    _interrupt(folders)
    older = folders.rotation.read_bytes()
    rotation.finish_rotation(QuickDisk(), folders)
    rotation.rotate_key(QuickDisk(), folders, NOW + 200, 0)
    folders.rotation.write_bytes(older)
    with pytest.raises((Malformed, VeenError)):
        rotation.finish_rotation(QuickDisk(), folders)
    assert len(metadata.read_metadata(folders).identity.hub_keys) == 3


# The hand-over


def _used(history: History, place: Path, groups: int = 6) -> Path:
    root = history.fresh(place)
    hub = Hub(root)
    for group in history.groups[:groups]:
        receipts(hub.submit(group))
    hub.close()
    return root


def test_a_rotation_hands_over_every_label_with_a_proof(place: Path, history: History) -> None:
    root = _used(history, place / "hub")
    folders = Folders(root)
    entries = rotation.last_entries(folders)
    assert len(entries) > 1
    record = rotation.rotate_key(QuickDisk(), folders, NOW + 100, 0)
    for last in entries:
        listed = rotation.list_handovers(folders, record, last.label)
        (shown,) = listed.handovers
        made, found = shown.handover, shown.proved
        assert found is not None
        made.verify(record)
        found.verify(made.labels, made.rows_root)
        assert (found.row.label, found.row.size, found.row.mmr_root) == (last.label, last.size, last.mmr_root)
        assert (made.labels, made.hub_ts) == (len(entries), NOW + 100)
        with pytest.raises(Unverified):
            replace(found, row=replace(found.row, size=found.row.size + 1)).verify(made.labels, made.rows_root)
        with pytest.raises(Unverified):
            replace(found, place=found.place % made.labels + 1).verify(made.labels, made.rows_root)
    assert [one.proved for one in rotation.list_handovers(folders, record, bytes(32)).handovers] == [None]
    assert fsck.check(root, isolated=False).verdict is fsck.FsckVerdict.CLEAN


def test_a_hand_over_includes_entries_that_are_only_in_the_journal(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    for group in history.groups[:6]:
        receipts(hub.submit(group))
    want = {label: hub.store.pending.labels[label][-1].stream_seq for label in hub.store.pending.labels}
    assert want
    copied = place / "copy"
    shutil.copytree(root, copied)
    hub.close()
    found = {last.label: last.size for last in rotation.last_entries(Folders(copied))}
    assert want.items() <= found.items()


def test_a_hub_without_entries_hands_over_nothing(place: Path) -> None:
    metadata.create(QuickDisk(), place / "hub", Profile(), Limits(), NOW)
    folders = Folders(place / "hub")
    record = rotation.rotate_key(QuickDisk(), folders, NOW + 1, 0)
    (made,) = rotation.read_handovers(folders, record)
    assert (made.labels, made.rows_root) == (0, Mmr().root())
    assert rotation.handed_over(folders, made, bytes(32)) is None


@pytest.mark.parametrize("suffix", [".cbor", ".rows", ".mmr"])
def test_a_damaged_hand_over_is_named_and_not_served(place: Path, history: History, suffix: str) -> None:
    root = _used(history, place / "hub")
    folders = Folders(root)
    record = rotation.rotate_key(QuickDisk(), folders, NOW + 100, 0)
    (path,) = folders.handovers.glob(f"*{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = fsck.check(root, isolated=False)
    assert report.verdict is fsck.FsckVerdict.DAMAGED
    assert any("handovers/" in finding.artifact for finding in report.findings)
    if suffix == ".cbor":
        assert rotation.read_handovers(folders, record) == []


def test_the_hand_over_of_a_rotation_that_did_not_happen_is_a_leftover(place: Path, history: History) -> None:
    root = _used(history, place / "hub")
    folders = Folders(root)
    for n in range(1, 100):
        with suppress(Died):
            rotation.rotate_key(DyingDisk(n, Last.DONE), folders, NOW + 100, 0)
        if any(folders.handovers.glob("*.cbor")):
            break
    assert not folders.rotation.exists()
    assert fsck.check(root, isolated=False).verdict is fsck.FsckVerdict.CLEAN
    assert rotation.read_handovers(folders, metadata.read_metadata(folders).identity) == []
    record = rotation.rotate_key(QuickDisk(), folders, NOW + 200, 0)
    assert [made.hub_ts for made in rotation.read_handovers(folders, record)] == [NOW + 200]


def test_destroyed_keys_are_gone_and_the_newest_stays(place: Path, history: History) -> None:
    folders = Folders(_used(history, place / "hub"))
    for at in (100, 200):
        record = rotation.rotate_key(QuickDisk(), folders, NOW + at, 0)
    seeds = [folders.keys / f"{metadata.key_name(key.key_id)}.seed" for key in record.signing_keys]
    assert rotation.destroy_retired(QuickDisk(), folders, record) == [key.key_id for key in record.signing_keys[:-1]]
    assert [path.exists() for path in seeds] == [False, False, True]
    assert rotation.destroy_retired(QuickDisk(), folders, record) == []
    assert fsck.check(folders.root, isolated=False).verdict is fsck.FsckVerdict.CLEAN
