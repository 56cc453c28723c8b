"""The journal: acknowledged groups come back, others may be lost, and damage is never mistaken for a lost group."""

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.disk import Call, Died, EverythingSurvives, Fault, Platter, SeededSurvival, SimulatedDisk, Survival
from tests.storage.disks import RefusingDisk
from tests.storage.hubs import QuickDisk
from veen.core import Malformed, Unavailable
from veen.storage import frame, journal, journal_mark
from veen.storage.journal import Journal, JournalBroken, JournalIncomplete, Torn
from veen.storage.journal_mark import Mark

LABEL = bytes(32)


def entry(number: int, size: int = 20) -> bytes:
    return frame.write(LABEL, number, number.to_bytes(4, "big") * (size // 4), b"receipt")[0]


def fill(folder: Path, groups: int, first: int = 1) -> Journal:
    written = Journal(QuickDisk(), folder, first)
    for number in range(first, first + groups):
        assert written.append(entry(number) + entry(number + 1000), 2) == number
    return written


def groups(folder: Path, after: int = 0) -> list[int]:
    found = []
    for group, entries in journal.recover(QuickDisk(), folder, after):
        assert [e.stream_seq for e in entries] == [group, group + 1000]
        found.append(group)
    return found


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.wal")
    return path


def crash_before_sync(folder: Path, group: int) -> None:
    """Set the mark back to the time when a group was being written."""
    mark = journal_mark.read(folder)
    assert mark is not None
    journal_mark.create(QuickDisk(), folder, replace(mark, highest=group - 1))


def without_filling(folder: Path) -> bytes:
    """The header and the groups of the only segment."""
    data = the_file(folder).read_bytes()
    pos = 16
    while data[pos : pos + 4] == b"VJG1":
        pos += 28 + int.from_bytes(data[pos + 16 : pos + 20], "big")
    return data[:pos]


@given(st.lists(st.lists(st.integers(1, 9999), max_size=5), max_size=8), st.integers(0, 9))
@settings(max_examples=40)
def test_groups_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, given: list[list[int]], after: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    written = Journal(QuickDisk(), folder, 1)
    for numbers in given:
        written.append(b"".join(map(entry, numbers)), len(numbers))
    written.close()
    after = min(after, len(given))
    found = list(journal.recover(QuickDisk(), folder, after))
    assert [(g, [e.stream_seq for e in entries]) for g, entries in found] == list(enumerate(given, 1))[after:]


def test_a_tail_torn_at_any_sector_costs_only_the_last_group(tmp_path: Path) -> None:
    written = fill(tmp_path, 2)
    path, start = the_file(tmp_path), written.total_bytes
    before, mark = path.read_bytes(), journal_mark.read(tmp_path)
    assert mark is not None
    written.append(entry(3, 3000) + entry(1003), 2)
    end = written.total_bytes
    written.close()
    after = path.read_bytes()
    for cut in (start, *range(start + 512 - start % 512, end, 512)):
        path.write_bytes(after[:cut] + before[cut:])
        journal_mark.create(QuickDisk(), tmp_path, mark)  # as it was before the group
        torn = [found for found in journal.read(tmp_path, 0) if isinstance(found, Torn)]
        assert all(found.cut_short for found in torn)
        assert groups(tmp_path) == [1, 2]
        assert path.read_bytes() == before
        again = fill(tmp_path, 1, first=3)
        again.close()
        assert groups(tmp_path) == [1, 2, 3]
        (tmp_path / f"{3:020d}.wal").unlink()


def test_a_first_group_torn_at_any_sector_leaves_an_empty_journal(tmp_path: Path) -> None:
    written = Journal(QuickDisk(), tmp_path, 1)
    written.probe()
    before = the_file(tmp_path).read_bytes()
    written.append(entry(1, 3000) + entry(1001), 2)
    written.close()
    path, whole = the_file(tmp_path), without_filling(tmp_path)
    for cut in (16, *range(512, len(whole), 512)):
        path.write_bytes(whole[:cut] + before[cut:])
        crash_before_sync(tmp_path, 1)
        assert groups(tmp_path) == []
        fill(tmp_path, 1).close()
        assert groups(tmp_path) == [1]


def test_a_segment_whose_creation_was_interrupted_holds_nothing_and_is_written_again(tmp_path: Path) -> None:
    """The mark does not name it, so no group was written to it."""
    fill(tmp_path, 1).close()
    path = tmp_path / f"{2:020d}.wal"
    whole = the_file(tmp_path).read_bytes()
    for left in (b"", whole[:7], whole[:16], whole[:16] + bytes(100), bytes(600), whole[:16] + whole[-99:]):
        path.write_bytes(left)
        assert groups(tmp_path) == [1]
        assert journal.segments(tmp_path)[-1][1] == path
        copy = tmp_path / f"copy {len(left)}"
        copy.mkdir()
        assert journal.copy_groups(QuickDisk(), tmp_path, copy, 0, None)[0] == 1
        assert groups(copy) == [1]
    fill(tmp_path, 2, first=2).close()
    assert groups(tmp_path) == [1, 2, 3]


def test_a_segment_cut_at_any_byte_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A torn write keeps the length, so a shorter file lost groups that may have been acknowledged."""
    fill(tmp_path, 3).close()
    path, end = the_file(tmp_path), len(without_filling(tmp_path))
    whole = path.read_bytes()
    for size in (*range(end + 1), end + 512, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(JournalIncomplete, match=r"it was cut.*may have been acknowledged"):
            groups(tmp_path)
        assert path.read_bytes() == whole[:size]
    path.write_bytes(whole[: end - 1])
    with pytest.raises(JournalIncomplete, match=rf"group 3 \(labels {LABEL.hex()}\) and later ones"):
        groups(tmp_path)
    path.write_bytes(whole)
    assert groups(tmp_path) == [1, 2, 3]


def test_a_segment_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 500)
    fill(tmp_path, 9).close()
    for first, path in journal.segments(tmp_path):
        path.rename(tmp_path / "aside")
        with pytest.raises(Malformed, match=r"is missing.*may have been acknowledged|does not continue"):
            groups(tmp_path)
        (tmp_path / "aside").rename(tmp_path / f"{first:020d}.wal")
    assert groups(tmp_path) == list(range(1, 10))
    for _, path in journal.segments(tmp_path):
        path.unlink()
    with pytest.raises(JournalIncomplete, match=r"groups 1 to \d+, and later ones, may have been acknowledged"):
        groups(tmp_path)


def test_groups_that_were_acknowledged_and_are_overwritten_with_filler_are_refused(tmp_path: Path) -> None:
    """As if the segment came from an older copy, which has the same length."""
    written = fill(tmp_path, 2)
    older = the_file(tmp_path).read_bytes()
    for number in (3, 4):
        written.append(entry(number) + entry(number + 1000), 2)
    written.close()
    newer = the_file(tmp_path).read_bytes()
    the_file(tmp_path).write_bytes(older)
    with pytest.raises(JournalIncomplete, match=r"groups 3 to 4, and later ones, may have been acknowledged"):
        groups(tmp_path)
    assert the_file(tmp_path).read_bytes() == older
    torn = bytearray(newer)
    torn[len(without_filling(tmp_path)) + 40 :] = older[len(without_filling(tmp_path)) + 40 :]
    the_file(tmp_path).write_bytes(torn)
    with pytest.raises(JournalIncomplete, match="names group 4"):
        groups(tmp_path)
    assert the_file(tmp_path).read_bytes() == torn
    with pytest.raises(JournalIncomplete, match="replaced by an older copy"):
        groups(tmp_path, after=4)


def test_a_mark_that_is_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1).close()
    old = journal_mark.path_of(tmp_path).read_bytes()
    fill(tmp_path, 1, first=2).close()
    journal_mark.path_of(tmp_path).write_bytes(old)
    with pytest.raises(JournalIncomplete, match=r"journal\.mark is older"):
        groups(tmp_path)


def test_a_torn_block_of_the_mark_leaves_the_state_before_it(tmp_path: Path) -> None:
    written = fill(tmp_path, 1)
    marks = [journal_mark.read(tmp_path)]
    path = journal_mark.path_of(tmp_path)
    written.append(entry(2, 100_000) + entry(1002), 2)
    marks.append(journal_mark.read(tmp_path))
    written.close()
    assert None not in marks
    assert marks[0] != marks[1]
    whole = path.read_bytes()
    lengths = [mark.length for mark in marks if mark]
    for block in (0, 1, 2):
        torn = bytearray(whole)
        torn[512 * block + 20] ^= 1
        path.write_bytes(torn)
        found = journal_mark.read(tmp_path)
        assert found is not None
        assert found.length in lengths
    torn[20] ^= 1
    torn[512 + 20] ^= 1
    path.write_bytes(torn)
    with pytest.raises(Malformed, match="it is damaged"):
        groups(tmp_path)


def test_a_wrong_last_group_that_was_written_whole_is_malformed_and_left_alone(tmp_path: Path) -> None:
    """It may have been acknowledged."""
    fill(tmp_path, 3).close()
    path = the_file(tmp_path)
    whole = path.read_bytes()
    end = len(without_filling(tmp_path))
    for at in range(end - (end - 16) // 3, end):
        for bit in (0, 7):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            *_, torn = journal.read(tmp_path, 0)
            assert isinstance(torn, Torn)
            assert not torn.cut_short
            with pytest.raises(Malformed, match="may have been acknowledged"):
                groups(tmp_path)
            assert path.read_bytes() == broken


def test_damage_before_the_last_group_is_malformed_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, 3).close()
    path, end = the_file(tmp_path), len(without_filling(tmp_path))
    whole = path.read_bytes()
    last = end - (end - 16) // 3
    for at in range(last):
        for bit in (0, 7):
            broken = bytearray(whole)
            broken[at] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(Malformed):
                groups(tmp_path)
            assert path.read_bytes() == broken


def test_damage_at_the_end_of_a_segment_that_is_not_the_last_is_malformed(tmp_path: Path) -> None:
    fill(tmp_path, 2).close()
    first, whole = the_file(tmp_path), without_filling(tmp_path)
    fill(tmp_path, 2, first=3).close()
    first.write_bytes(whole[:-1])
    with pytest.raises(Malformed, match="before its last group"):
        groups(tmp_path)


def test_a_missing_segment_is_malformed_unless_the_log_has_it(tmp_path: Path) -> None:
    for first in (1, 3, 5):
        fill(tmp_path, 2, first).close()
    (tmp_path / f"{3:020d}.wal").unlink()
    with pytest.raises(Malformed, match="does not continue"):
        groups(tmp_path)
    with pytest.raises(Malformed, match="does not continue"):
        groups(tmp_path, after=3)
    assert groups(tmp_path, after=4) == [5, 6]


def test_a_client_cannot_plant_a_group(tmp_path: Path) -> None:
    """A message may contain what looks like a later group; behind a torn group it must not be accepted as one."""
    head = journal._HEADER.pack(b"VJG1", 99, 0, 0, 0, 0)[:-4]
    planted = (head + crc32(head).to_bytes(4, "big")) * 3
    written = Journal(QuickDisk(), tmp_path, 1)
    written.append(frame.write(LABEL, 1, planted, b"receipt")[0], 1)
    written.close()
    end = len(without_filling(tmp_path))
    torn = bytearray(the_file(tmp_path).read_bytes())
    torn[end - 8 : end] = bytes(8)
    the_file(tmp_path).write_bytes(torn)
    crash_before_sync(tmp_path, 1)
    assert list(journal.recover(QuickDisk(), tmp_path, 0)) == []


def test_segments_roll_by_size_and_go_when_the_log_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 500)
    written = fill(tmp_path, 20)
    firsts = [first for first, _ in journal.segments(tmp_path)]
    assert len(firsts) > 3
    assert groups(tmp_path) == list(range(1, 21))
    assert 0 < written.total_bytes <= sum(path.stat().st_size for path in tmp_path.iterdir())
    written.trim(firsts[2] - 2)
    assert [first for first, _ in journal.segments(tmp_path)] == firsts[1:]
    written.trim(firsts[2] - 1)
    assert [first for first, _ in journal.segments(tmp_path)] == firsts[2:]
    written.trim(20)
    assert [first for first, _ in journal.segments(tmp_path)] == firsts[-1:]
    assert written.total_bytes == len(without_filling(tmp_path))
    assert groups(tmp_path, after=20) == []
    written.clear(19)
    assert list(tmp_path.iterdir())
    written.clear(20)
    assert not list(tmp_path.iterdir())
    assert written.total_bytes == 0


@pytest.mark.parametrize("kind", ["open_update", "write_at", "sync", "sync_folder", "truncate"])
def test_no_room_for_a_new_segment_changes_nothing(tmp_path: Path, kind: str) -> None:
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    disk.fail(kind)
    with pytest.raises(Unavailable, match="No space left"):
        written.append(entry(1), 1)
    disk.heal()
    assert written.append(entry(1) + entry(1001), 2) == 1
    written.close()
    assert groups(tmp_path) == [1]


@pytest.mark.parametrize("survival", [Survival, EverythingSurvives, lambda: SeededSurvival(random.Random(1))])
@pytest.mark.parametrize(
    ("name", "fault", "seed"),
    [("write_at", Fault.EIO, 0), *(("sync", Fault.FAILED_SYNC, seed) for seed in range(8))],
)
def test_a_hub_starts_after_a_failed_change_of_the_mark_and_a_power_cut(
    tmp_path: Path, survival: Callable[[], Survival], name: str, fault: Fault, seed: int
) -> None:
    """The failed change may be on disk, and name a segment with the length of the first attempt."""
    attempts = 0
    acknowledged: list[int] = []
    while not acknowledged:  # the power is cut at each call of the second attempt, and then behind the last one
        attempts += 1
        folder = tmp_path / f"{attempts}" / "journal"
        folder.mkdir(parents=True)
        journal_mark.create(QuickDisk(), folder, Mark(first=1))
        disk = SimulatedDisk(Platter(folder.parent), rng=random.Random(seed))
        written = Journal(disk, folder, 1)
        disk.plan = lambda call: fault if (call.artifact, call.name) == ("journal mark", name) else None
        with pytest.raises(Unavailable):
            written.append(entry(1, 9000) + entry(1001), 2)
        disk.plan = death_at(disk.calls + attempts)
        with suppress(Died):
            acknowledged.append(written.append(entry(1) + entry(1001), 2))
        disk.cut_power(survival())
        found = groups(folder)
        assert found[: len(acknowledged)] == acknowledged, f"after {attempts} calls"
        fill(folder, 2, first=len(found) + 1).close()
        assert groups(folder) == [*found, len(found) + 1, len(found) + 2]
    assert attempts > 3


def death_at(number: int) -> Callable[[Call], Fault | None]:
    return lambda call: Fault.DIE_DURING if call.number == number else None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_without_room_changes_nothing_and_the_next_one_works(tmp_path: Path, number: int) -> None:
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1) + entry(1001), 2)
    for _ in range(3):
        disk.fail("write_at", number)
        with pytest.raises(Unavailable, match="the journal cannot be written"):
            written.append(entry(2, 4000), 1)
        disk.heal()
    assert written.append(entry(2) + entry(1002), 2) == 2
    written.close()
    # The remains of the larger group are overwritten with filler.
    assert not any(isinstance(found, Torn) for found in journal.read(tmp_path, 0))
    assert groups(tmp_path) == [1, 2]


@pytest.mark.parametrize("size", [20, 4000, 200_000])
def test_a_probe_says_whether_the_refused_group_fits_and_adds_nothing(tmp_path: Path, size: int) -> None:
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1) + entry(1001), 2)
    disk.fail("write_at")
    with pytest.raises(Unavailable):
        written.append(entry(2, size), 1)
    with pytest.raises(Unavailable, match="No space left"):
        written.probe()
    disk.heal()
    for _ in range(2):
        written.probe()
        # As after a crash: everything written, except groups that were not acknowledged.
        assert not any(isinstance(found, Torn) for found in journal.read(tmp_path, 0))
        assert groups(tmp_path) == [1]
    # The space is preallocated: writing needs no more.
    length = (tmp_path / f"{1:020d}.wal").stat().st_size
    assert written.append(entry(2, size) + entry(1002), 2) == 2
    assert (tmp_path / f"{1:020d}.wal").stat().st_size == length
    written.close()
    assert groups(tmp_path) == [1, 2]


def test_a_probe_that_left_half_of_its_filling_is_cleaned_up(tmp_path: Path) -> None:
    disk = NarrowDisk()
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1) + entry(1001), 2)
    disk.room = 10
    with pytest.raises(Unavailable):
        written.probe()
    assert groups(tmp_path) == [1]
    disk.room = None
    assert written.append(entry(2) + entry(1002), 2) == 2
    written.close()
    assert groups(tmp_path) == [1, 2]


class NarrowDisk(QuickDisk):
    """Has space for a given number of bytes. A write that does not fit is done partly."""

    room: int | None = None

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        room = len(data) if self.room is None else min(len(data), self.room)
        super().write_at(fd, data[:room], at)
        if self.room is not None:
            self.room -= room
        if room < len(data):
            raise OSError(errno.ENOSPC, "full")


def test_a_group_that_was_refused_does_not_come_back(tmp_path: Path) -> None:
    """Whatever fitted, even if the process ended before the remains were overwritten."""
    small, large = entry(2, 1000) + entry(1002), entry(2, 70_000) + entry(1002)
    for group, rooms in ((small, range(0, len(small) + 28, 50)), (large, range(0, 2 * len(large), 9_999))):
        for room in rooms:
            folder = tmp_path / f"{len(group)}-{room}"
            folder.mkdir()
            disk = NarrowDisk()
            written = Journal(disk, folder, 1)
            written.append(entry(1) + entry(1001), 2)
            disk.room = room
            with pytest.raises(Unavailable):
                written.append(group, 2)
            written.close()
            assert groups(folder) == [1]


def test_a_segment_that_ends_with_a_failed_write_is_cleaned_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 200)
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    disk.fail("write_at")
    with pytest.raises(Unavailable):
        written.append(entry(1, 4000), 1)
    disk.heal()
    for number in (1, 2, 3):
        written.append(entry(number) + entry(number + 1000), 2)
        disk.fail("write_at")
        with pytest.raises(Unavailable):
            written.append(entry(9, 4000), 1)
        disk.heal()
    written.append(entry(4) + entry(1004), 2)
    written.close()
    assert len(journal.segments(tmp_path)) > 1
    assert groups(tmp_path) == [1, 2, 3, 4]


def test_groups_overwrite_the_filling_and_the_file_grows_now_and_then(tmp_path: Path) -> None:
    written = fill(tmp_path, 1)
    sizes = []
    for number in range(2, 1500):
        written.append(entry(number, 400) + entry(number + 1000), 2)
        sizes.append(the_file(tmp_path).stat().st_size)
    written.close()
    assert len(set(sizes)) < 10
    assert groups(tmp_path) == list(range(1, 1500))


@pytest.mark.parametrize("sectors", [[1], [2], [1, 2], [1, 2, 3]])
def test_a_group_of_which_some_sectors_are_zeros_is_cut_short(tmp_path: Path, sectors: list[int]) -> None:
    """As if the file had grown, but its content was not written."""
    written = fill(tmp_path, 3)
    start = written.total_bytes
    written.append(entry(4, 1200) + entry(1004), 2)
    written.close()
    torn = bytearray(the_file(tmp_path).read_bytes())
    for sector in sectors:
        first = (start // 512 + sector) * 512
        torn[first : first + 512] = bytes(512)
    the_file(tmp_path).write_bytes(torn)
    assert [found.cut_short for found in journal.read(tmp_path, 0) if isinstance(found, Torn)] == [True]
    crash_before_sync(tmp_path, 4)
    assert groups(tmp_path) == [1, 2, 3]


class SpoilingDisk(QuickDisk):
    """Writes all but the last bytes and fails, once. Records what each write replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.spoils = False
        self.before = b""

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        if not os.path.samestat(os.fstat(fd), self._path.stat()):
            super().write_at(fd, data, at)  # the mark
            return
        self.before = self._path.read_bytes()
        if self.spoils:
            self.spoils = False
            super().write_at(fd, data[:-10], at)
            raise OSError(errno.EIO, "spoilt")
        super().write_at(fd, data, at)


@pytest.mark.parametrize("size", [1200, 4000])
def test_what_a_failed_write_left_never_mixes_with_the_next_group(tmp_path: Path, size: int) -> None:
    """Whichever sectors of it reach the disk before a power cut: the group is complete or torn, never damage."""
    path = tmp_path / f"{1:020d}.wal"
    disk = SpoilingDisk(path)
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1) + entry(1001), 2)
    start = written.total_bytes
    disk.spoils = True
    with pytest.raises(Unavailable):
        written.append(entry(2, 3000), 1)
    written.append(entry(2, size) + entry(1002), 2)
    end = written.total_bytes
    written.close()
    after, before = path.read_bytes(), disk.before.ljust(path.stat().st_size, b"\0")
    sectors = range(start // 512, (end - 1) // 512 + 1)
    for kept in (*({one} for one in sectors), *({*sectors} - {one} for one in sectors), set[int]()):
        mixed = bytearray(before)
        for sector in kept:
            mixed[sector * 512 : sector * 512 + 512] = after[sector * 512 : sector * 512 + 512]
        path.write_bytes(mixed)
        crash_before_sync(tmp_path, 2)
        assert groups(tmp_path) == [1]


@pytest.mark.parametrize("before_the_edge", range(29))
def test_a_group_that_begins_near_the_end_of_a_sector_is_torn_whichever_sectors_survive(
    tmp_path: Path, before_the_edge: int
) -> None:
    """Its header is in two sectors then. A power cut may keep any selection of the sectors."""
    written = Journal(QuickDisk(), tmp_path, 1)
    others = 16 + 28 + len(frame.write(LABEL, 1, b"", b"receipt")[0]) + len(entry(1001))
    first = frame.write(LABEL, 1, bytes((-others - before_the_edge) % 512), b"receipt")[0]
    written.append(first + entry(1001), 2)
    start, before = written.total_bytes, the_file(tmp_path).read_bytes()
    assert start % 512 == -before_the_edge % 512
    written.append(entry(2, 700) + entry(1002), 2)
    end, after = written.total_bytes, the_file(tmp_path).read_bytes()
    written.close()
    edges = [start, *range((start // 512 + 1) * 512, end, 512), end]
    parts = list(pairwise(edges))
    for kept in product((False, True), repeat=len(parts)):
        if all(kept):
            continue
        mixed = bytearray(before)
        for survives, (at, to) in zip(kept, parts, strict=True):
            if survives:
                mixed[at:to] = after[at:to]
        the_file(tmp_path).write_bytes(mixed)
        crash_before_sync(tmp_path, 2)
        assert groups(tmp_path) == [1], kept


@pytest.mark.parametrize("sectors", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]])
def test_a_group_of_which_some_sectors_were_not_written_is_cut_short(tmp_path: Path, sectors: list[int]) -> None:
    written = fill(tmp_path, 3)
    start = written.total_bytes
    before = the_file(tmp_path).read_bytes()
    written.append(entry(4, 1200) + entry(1004), 2)
    end = written.total_bytes
    written.close()
    torn = bytearray(the_file(tmp_path).read_bytes())
    for sector in sectors:
        first = (start // 512 + sector) * 512
        torn[max(first, start) : first + 512] = before[max(first, start) : first + 512]
    assert start // 512 + 2 <= end // 512, "the group is to reach into a third sector"
    the_file(tmp_path).write_bytes(torn)
    found = [found for found in journal.read(tmp_path, 0) if isinstance(found, Torn)]
    assert all(one.cut_short for one in found)
    assert len(found) == (len(sectors) < 3 or end // 512 > start // 512 + 2)
    crash_before_sync(tmp_path, 4)
    assert groups(tmp_path) == [1, 2, 3]


def test_a_flipped_bit_in_the_filling_costs_nothing(tmp_path: Path) -> None:
    written = fill(tmp_path, 3)
    sound = the_file(tmp_path).read_bytes()
    end = written.total_bytes
    written.close()
    for at in (end, end + 1, end + 27, end + 28, end + 513, len(sound) - 1):
        broken = bytearray(sound)
        broken[at] ^= 1
        the_file(tmp_path).write_bytes(broken)
        assert [found.cut_short for found in journal.read(tmp_path, 0) if isinstance(found, Torn)] == [True]
        assert groups(tmp_path) == [1, 2, 3]


def test_a_failing_sync_breaks_the_journal(tmp_path: Path) -> None:
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1), 1)
    disk.fail("sync", errno.EIO)
    with pytest.raises(JournalBroken, match="cannot be synced"):
        written.append(entry(2), 1)


class DecliningDisk(RefusingDisk):
    """Fails one write, and then every sync."""

    def write_at(self, fd: int, data: bytes, at: int) -> None:
        try:
            super().write_at(fd, data, at)
        except OSError:
            self.heal()
            self.fail("sync", errno.EIO)
            raise


def test_a_failing_sync_while_a_partial_write_is_removed_breaks_the_journal(tmp_path: Path) -> None:
    """The kernel may have dropped the pages, and would not report that again at the next sync."""
    disk = DecliningDisk()
    written = Journal(disk, tmp_path, 1)
    written.append(entry(1), 1)
    disk.fail("write_at", errno.EIO)
    with pytest.raises(JournalBroken, match="cannot be synced"):
        written.append(entry(2), 1)


def test_segments_that_cannot_be_removed_stay_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 100)
    disk = RefusingDisk()
    written = Journal(disk, tmp_path, 1)
    for number in range(1, 5):
        written.append(entry(number), 1)
    before = sorted(tmp_path.iterdir())
    disk.fail("unlink", errno.EROFS)
    written.trim(4)
    assert sorted(tmp_path.iterdir()) == before
    disk.heal()
    written.trim(4)
    assert sorted(tmp_path.iterdir()) == before[-1:]


class TrimmingDisk(QuickDisk):
    """Trims a journal when a new segment is synced, as the catch-up thread may do."""

    journal: Journal | None = None

    def sync_folder(self, folder: Path) -> None:
        if self.journal:
            self.journal.trim(2)
        super().sync_folder(folder)


def test_a_trim_during_the_creation_of_a_segment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that names a removed segment again would keep the hub from starting."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 100)
    disk = TrimmingDisk()
    written = Journal(disk, tmp_path, 1)
    for number in (1, 2):
        written.append(entry(number) + entry(number + 1000), 2)
    disk.journal = written
    written.append(entry(3) + entry(1003), 2)
    written.close()
    assert [first for first, _ in journal.segments(tmp_path)] == [2, 3]
    assert groups(tmp_path, after=2) == [3]


def test_a_torn_tail_on_a_disk_that_takes_no_writes_is_unavailable(tmp_path: Path) -> None:
    fill(tmp_path, 2).close()
    end = len(without_filling(tmp_path))
    torn = bytearray(the_file(tmp_path).read_bytes())
    torn[end - 8 : end] = bytes(8)
    the_file(tmp_path).write_bytes(torn)
    crash_before_sync(tmp_path, 2)
    disk = RefusingDisk()
    disk.fail("open_update", errno.EROFS)
    with pytest.raises(Unavailable, match="Read-only"):
        list(journal.recover(disk, tmp_path, 0))


def test_any_noise_is_torn_or_malformed_and_never_a_group(tmp_path: Path) -> None:
    rng = random.Random(1)
    for size in (0, 1, 15, 16, 17, 43, 44, 300):
        (tmp_path / f"{1:020d}.wal").write_bytes(rng.randbytes(size))
        try:
            assert groups(tmp_path) == []
        except Malformed:
            assert size > 16
