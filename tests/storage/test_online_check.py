"""`veen fsck --online`: a directory is verified while a hub writes to it, and is not changed."""

from pathlib import Path

import pytest

from tests.storage.test_pruning import PAYLOADS, copied, filled, later, prune
from veen.core import Unavailable
from veen.storage import fsck, metadata
from veen.storage.fsck import FsckVerdict, check_online
from veen.storage.lock import exclusive
from veen.storage.metadata import NewerFormat
from veen.storage.paths import Folders

__all__ = ["filled"]
ENTRIES = 30


def files(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock.mdb"
    }


def test_a_running_hub_is_verified_and_its_directory_is_not_changed(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    with exclusive(Folders(root).lock):  # as a hub has it
        with pytest.raises(Unavailable, match="hub is running"):
            fsck.check(root, isolated=False)
        before = files(root)
        report = check_online(root, place, isolated=False)
        assert (report.verdict, report.findings, report.entries) == (FsckVerdict.CLEAN, [], ENTRIES)
        assert files(root) == before
        assert [path.name for path in place.iterdir()] == ["hub"]
    assert check_online(root, place, isolated=False).verdict is FsckVerdict.CLEAN


def test_a_pruned_log_is_verified_while_its_hub_runs(filled: Path, place: Path) -> None:
    hub = later(copied(filled, place / "hub"))
    assert prune(hub, PAYLOADS) > 0
    hub.abandon()
    with exclusive(Folders(place / "hub").lock):
        report = check_online(place / "hub", place, isolated=False)
    assert (report.verdict, report.findings) == (FsckVerdict.CLEAN, [])


@pytest.mark.parametrize("name", ["chunk-*7.log", "chunk-*-open.log", "checkpoint-*7.cbor", "*.summary"])
def test_damage_is_found_while_the_hub_runs(name: str, filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    path = min((root / "log").glob(name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with exclusive(Folders(root).lock):
        report = check_online(root, place, isolated=False)
    assert report.verdict in (FsckVerdict.DAMAGED, FsckVerdict.REPAIRABLE)


def test_a_chunk_that_is_gone_is_damage(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    min((root / "log").glob("chunk-*7.log")).unlink()
    with exclusive(Folders(root).lock):
        report = check_online(root, place, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert "no chunk that starts at entry 1" in str(report.first)


def test_a_later_format_is_refused(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    (root / "format.json").write_bytes(b'{"format":%d}' % (metadata.FORMAT + 1))
    with pytest.raises(NewerFormat):
        check_online(root, place)
