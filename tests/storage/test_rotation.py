"""Key rotation: after a crash at any disk call the identity is completely the old or the new one."""

from pathlib import Path

import pytest

from tests.storage.disks import Died, DyingDisk, ForgetfulDisk, Last
from tests.storage.hubs import NOW, History, QuickDisk
from veen.core import Malformed, Unavailable, VeenError
from veen.storage import fsck, metadata
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
            metadata.rotate_key(disk, folders, NOW + 100, 5)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.cut_power()
            report = fsck.check(root, isolated=False)
            assert report.verdict is fsck.FsckVerdict.CLEAN, (n, last, report.findings)
            metadata.finish_rotation(QuickDisk(), folders)
            record = metadata.read_metadata(folders).identity
            assert record == old or record.hub_keys[0].hub_pk == old.hub_keys[0].hub_pk
            metadata.read_signing_key(folders, record.newest.key_id)
            sizes.add(len(record.hub_keys))
            continue
        break
    assert sizes == {1, 2}
    assert len(metadata.read_metadata(Folders(place / "hub")).identity.hub_keys) == 2


def test_a_damaged_rotation_is_refused_and_named(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    folders = Folders(root)
    with pytest.raises(Died):
        metadata.rotate_key(DyingDisk(9, Last.DONE), folders, NOW + 100, 0)
    data = folders.rotation.read_bytes()
    folders.rotation.write_bytes(data[:-9] + b"000000000")
    with pytest.raises(VeenError):
        metadata.finish_rotation(QuickDisk(), folders)
    assert fsck.check(root, isolated=False).verdict is fsck.FsckVerdict.DAMAGED


def test_a_key_that_would_start_before_the_last_is_refused(place: Path, history: History) -> None:
    folders = Folders(history.fresh(place / "hub"))
    with pytest.raises(Unavailable, match="cannot be rotated"):
        metadata.rotate_key(QuickDisk(), folders, NOW, 0)


def test_an_older_rotation_does_not_come_back(place: Path, history: History) -> None:
    folders = Folders(history.fresh(place / "hub"))
    with pytest.raises(Died):
        metadata.rotate_key(DyingDisk(9, Last.DONE), folders, NOW + 100, 0)
    older = folders.rotation.read_bytes()
    metadata.finish_rotation(QuickDisk(), folders)
    metadata.rotate_key(QuickDisk(), folders, NOW + 200, 0)
    folders.rotation.write_bytes(older)
    with pytest.raises((Malformed, VeenError)):
        metadata.finish_rotation(QuickDisk(), folders)
    assert len(metadata.read_metadata(folders).identity.hub_keys) == 3
