"""The disk: atomic files, private modes, and complete writes."""

import os
import stat
from pathlib import Path

import pytest

from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_whole_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"", b"three" * 10_000):
        Disk().write_file(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    Disk().write_file(tmp_path / "seed", b"secret", PRIVATE_FILE)
    Disk().make_folder(tmp_path / "a" / "keys", PRIVATE_FOLDER)
    assert mode(tmp_path / "seed") == 0o600
    assert mode(tmp_path / "a" / "keys") == 0o700


def test_a_draft_that_a_crash_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "file.draft").write_bytes(b"what was left, longer than what comes")
    Disk().write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_writes_go_on_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    fd = Disk().open_append(tmp_path / "file")
    Disk().write(fd, b"0123456789")
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_appending_goes_to_the_end_also_after_a_cut(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.open_append(tmp_path / "file")
    disk.write(fd, b"012345")
    disk.truncate(fd, 2)
    disk.write(fd, b"ab")
    disk.sync(fd)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"01ab"


def test_folders_and_file_systems_are_synced(tmp_path: Path) -> None:
    Disk().sync_folder(tmp_path)
    Disk().sync_filesystem(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        Disk().sync_filesystem(tmp_path / "none")


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    Disk().unlink(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
