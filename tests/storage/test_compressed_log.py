"""A log with compressed chunks has the same entries, places and proofs, and loses nothing in a crash."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, ForgetfulDisk, HastyDisk, Last, RefusingDisk
from tests.storage.hubs import (
    PACKED,
    SMALL,
    History,
    Hub,
    QuickDisk,
    index_rows,
    log_files,
    node_files,
    place_of,
    receipts,
)
from tests.storage.test_storage_crash import Given, check_after, run
from veen.core import Limits, Malformed, Unavailable, wire_json
from veen.storage import chunk_reader, fsck, journal, log_writer
from veen.storage.chunk_reader import PackedChunk, read_blocks
from veen.storage.directory_reader import LogReader
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import ChunkName, Folders


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames, so that a chunk of a few kilobytes has several."""
    monkeypatch.setattr(chunk_reader, "FRAME_BYTES", 1500)


def filled(root: Path, history: History, catch_up_after: int = 3) -> Given:
    """Commit everything with occasional catch-ups, then stop."""
    hub, given = Hub(history.fresh(root)), {}
    for number, group in enumerate(history.groups):
        for receipt in receipts(hub.submit(group)):
            given[place_of(receipt)] = receipt
        if number % catch_up_after == 0:
            hub.catch_up()
    hub.catch_up()
    hub.close()
    return given


def plain_files(root: Path) -> dict[str, bytes]:
    """The files of the log with plain chunks, under their plain names."""
    found = {}
    for path in sorted((root / "log").iterdir()):
        if ChunkName.parse(path.name):
            found[path.name.removesuffix(".zst")] = b"".join(data[:] for data, _ in read_blocks(path))
        else:
            found[path.name] = path.read_bytes()
    return found


def set_level(root: Path, level: int | None) -> None:
    (root / "limits.json").write_bytes(wire_json.encode(replace(SMALL, chunk_zstd_level=level)))


def test_closed_chunks_are_compressed_and_nothing_else_is(place: Path, packed_history: History) -> None:
    filled(place / "hub", packed_history)
    names = [name for name in map(ChunkName.parse, log_files(place / "hub")) if name]
    assert {name.packed for name in names if name.end_seq is not None} == {True}
    assert {name.packed for name in names if name.end_seq is None} == {False}
    for path in (place / "hub" / "log").iterdir():
        assert (path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd") == (path.suffix == ".zst")


def test_the_log_is_the_same_whether_its_chunks_are_compressed_or_not(place: Path, history: History) -> None:
    """All files are identical except for the form of closed chunks; index and nodes are identical."""
    hub = Hub(history.fresh(place / "plain"))
    receipts(hub.submit(history.groups[0]))  # control events are sealed with a fresh key each time
    hub.close()
    set_level(shutil.copytree(place / "plain", place / "packed"), 3)
    for root, catch_up_after in ((place / "plain", 3), (place / "packed", 7)):
        hub = Hub(root)
        for number, group in enumerate(history.groups[1:]):
            receipts(hub.submit(group))
            if number % catch_up_after == 0:
                hub.catch_up()
        hub.catch_up()
        hub.close()
    assert list((place / "packed" / "log").glob("*.zst"))
    assert plain_files(place / "packed") == plain_files(place / "plain") == log_files(place / "plain")
    assert (place / "packed" / "checkpoint-binding.cbor").read_bytes() == (
        place / "plain" / "checkpoint-binding.cbor"
    ).read_bytes()
    one, other = Hub(place / "packed"), Hub(place / "plain")
    assert index_rows(one) == index_rows(other)
    assert node_files(place / "packed") == node_files(place / "plain")
    one.close()
    other.close()


def test_every_entry_is_read_back_through_the_index_and_without_it(place: Path, packed_history: History) -> None:
    given = filled(place / "hub", packed_history)
    for _ in range(2):
        with LogReader(place / "hub") as reader:
            for (label, seq), receipt in given.items():
                entry = reader.entry(label, seq)
                assert entry is not None
                assert entry.receipt == receipt
            for label in {label for label, _ in given}:
                last = max(seq for other, seq in given if other == label)
                found = [entry.receipt for entry in reader.entries(label, 1, last)]
                assert found == [given[label, seq] for seq in range(1, last + 1)]
        shutil.rmtree(place / "hub" / "index")
        Hub(place / "hub").close()


def test_a_sound_compressed_log_is_clean_and_its_progress_goes_up_to_the_whole(
    place: Path, packed_history: History
) -> None:
    filled(place / "hub", packed_history)
    told: list[tuple[int, int]] = []
    report = fsck.check(place / "hub", lambda done, total: told.append((done, total)), isolated=False)
    assert report.findings == []
    assert report.entries == sum(map(len, packed_history.groups))
    assert told[-1][0] == told[-1][1]


def test_a_damaged_frame_damages_its_chunk_and_no_other(place: Path, packed_history: History) -> None:
    filled(place / "hub", packed_history)
    path = sorted((place / "hub" / "log").glob("*.zst"))[0]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    report = fsck.check(place / "hub", isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert {finding.artifact for finding in report.findings} == {f"log/{path.name}"}
    with pytest.raises(Malformed):
        fsck.repair(place / "hub", isolated=False)


def test_an_entry_is_read_without_unpacking_the_whole_chunk(
    place: Path, packed_history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage in all other frames is not noticed when one entry is read."""
    monkeypatch.setattr(log_writer, "PLACE_ENTRIES", 1)  # similar to the ratio of places to frames in larger chunks
    given = filled(place / "hub", packed_history)
    path = max((place / "hub" / "log").glob("*.zst"), key=lambda path: path.stat().st_size)
    name = ChunkName.parse(path.name)
    assert name is not None
    assert name.end_seq is not None
    found = PackedChunk(path.read_bytes())
    assert len(found._packed_ends) > 2
    data = bytearray(path.read_bytes())
    data[: found._packed_ends[-2]] = bytes(found._packed_ends[-2])
    path.write_bytes(data)
    with LogReader(place / "hub") as reader:
        last = reader.entry(name.label, name.end_seq)
        assert last is not None
        assert last.receipt == given[name.label, name.end_seq]
        with pytest.raises(Malformed):
            reader.entry(name.label, name.start_seq)


# Crashes.


End = Last | type[ForgetfulDisk]  # how much of the last call was done, or a power cut
ENDS: list[End] = [Last.LOST, Last.HALF, Last.DONE, ForgetfulDisk, HastyDisk]


def disk_for(root: Path, n: int, end: End) -> DyingDisk | ForgetfulDisk:
    return DyingDisk(n, end) if isinstance(end, Last) else end(root, n)


@pytest.mark.parametrize("end", ENDS)
def test_a_crash_while_chunks_are_compressed_loses_nothing(
    place: Path, packed_history: History, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 4000)
    check_crashes(place / "hub", History(packed_history.template, packed_history.groups[:14]), end, step=5)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_crash_at_any_call_while_chunks_are_compressed_loses_nothing(
    place: Path, packed_history: History, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 4000)
    check_crashes(place / "hub", packed_history, end, step=1)


def check_crashes(root: Path, history: History, end: End, step: int) -> None:
    """Die at every `step`th call in turn, half of the times without the index, and recover completely."""
    leftovers, n = 0, 1
    while True:
        history.fresh(root)
        given: Given = {}
        disk = disk_for(root, n, end)
        try:
            run(root, disk, history, given, range(len(history.groups)), 4)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            report = fsck.check(root, isolated=False)
            assert report.verdict is FsckVerdict.CLEAN, (n, end, report.findings)
            leftovers += any(finding.artifact.endswith("open.log") for finding in report.findings)
            if n % 2:
                shutil.rmtree(root / "index", ignore_errors=True)
            check_after(root, history, given, f"call {n}, {end}")
            n += step
            continue
        break
    assert n > 40
    # Some of these crashes came between compressing a chunk and removing the plain file.
    assert leftovers or step > 1


def test_a_chunk_that_was_compressed_before_its_index_row_is_reopened(place: Path, packed_history: History) -> None:
    """The commit of the index fails; what the log wrote before is written again with the same bytes."""
    root = packed_history.fresh(place / "hub")
    hub = Hub(root)
    for group in packed_history.groups[:4]:
        hub.submit(group)
    hub.catch_up()
    for group in packed_history.groups[4:]:
        hub.submit(group)
    before = shutil.copytree(root / "index", place / "index")
    hub.catch_up()
    expected = log_files(root)
    hub.abandon()
    shutil.rmtree(root / "index")
    shutil.copytree(before, root / "index")
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN
    again = Hub(root)
    again.catch_up()
    again.close()
    assert log_files(root) == expected
    assert fsck.check(root, isolated=False).findings == []


def test_no_room_for_the_compressed_form_leaves_the_chunk_as_it_was(place: Path, packed_history: History) -> None:
    class NoRoom(RefusingDisk):
        """Has no space for compressed files."""

        def replace(self, source: Path, target: Path) -> None:
            if target.suffix == ".zst":
                self._check("zst")
            super().replace(source, target)

    disk, root = NoRoom(), packed_history.fresh(place / "hub")
    hub = Hub(root, disk)
    for group in packed_history.groups:
        hub.submit(group)
    tail = hub.store.begin_catching_up()
    assert tail
    disk.fail("zst")
    for _ in range(2):
        with pytest.raises(Unavailable, match="No space left"):
            hub.store.catch_up(tail)
        assert not list((root / "log").glob("*.zst"))
        assert hub.lookup.size(tail.records[0].label)
    disk.heal()
    hub.store.catch_up(tail)
    hub.store.end_catching_up()
    hub.close()
    assert fsck.check(root, isolated=False).findings == []


# Changed limits.


@pytest.mark.parametrize(("before", "after"), [(None, 3), (3, None)])
def test_a_changed_registry_is_named_and_the_log_is_put_into_its_form(
    place: Path, history: History, before: int | None, after: int | None
) -> None:
    template = shutil.copytree(history.template, place / "template")
    set_level(template, before)
    root = place / "hub"
    given = filled(root, History(template, history.groups))
    entries = plain_files(root)
    set_level(root, after)
    hub = Hub(root)  # the hub runs meanwhile
    for (label, seq), receipt in given.items():
        found = hub.lookup.entry(label, seq)
        assert found is not None
        assert found.receipt == receipt
    hub.close()
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.REPAIRABLE
    assert all("the limits require" in finding.what for finding in report.findings)
    index = (root / "index" / "data.mdb").stat().st_ino
    assert fsck.repair(root, isolated=False).findings == []
    assert (root / "index" / "data.mdb").stat().st_ino == index  # independent of the form
    assert plain_files(root) == entries
    assert bool(list((root / "log").glob("*.zst"))) == (after is not None)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("after", [3, None])
def test_a_crash_while_the_form_is_changed_loses_nothing(
    place: Path, history: History, after: int | None, end: End
) -> None:
    template = shutil.copytree(history.template, place / "template")
    set_level(template, None if after else 3)
    filled(place / "before", History(template, history.groups))
    set_level(place / "before", after)
    entries, root = plain_files(place / "before"), place / "hub"
    for n in range(1, 400, 3):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(place / "before", root)
        disk = disk_for(root, n, end)
        try:
            fsck.repack(disk, Folders(root))
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            report = fsck.check(root, isolated=False)
            assert report.verdict is not FsckVerdict.DAMAGED, (n, report.findings)
            assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
            fsck.repack(QuickDisk(), Folders(root))
            for draft in (root / "log").glob("*.draft"):
                draft.unlink()
            assert plain_files(root) == entries
            continue
        break
    assert n > 10


def test_a_compressed_chunk_beside_a_damaged_plain_one_wins(place: Path, packed_history: History) -> None:
    root = place / "hub"
    filled(root, packed_history)
    entries = plain_files(root)
    for path in (root / "log").glob("*.zst"):
        path.with_suffix("").write_bytes(b"damaged")
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.REPAIRABLE
    set_level(root, None)
    assert fsck.repair(root, isolated=False).findings == []
    assert plain_files(root) == entries


def test_the_level_is_part_of_the_registry() -> None:
    assert PACKED != SMALL
    assert wire_json.decode_canonical(Limits, wire_json.encode(PACKED)).chunk_zstd_level == 3
