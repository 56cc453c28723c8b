"""The write-ahead journal: the only file that is synced before a reply. Spec §3.4.1.

A group is what one sync covers: any number of entries of any labels. A segment is a header, then groups, then filler:

    segment   magic (4) | salt (8) | crc32 (u32be)
    group     magic (4) | group (u64be) | count (u32be) | length (u32be) | crc32 of the entries (u32be)
              | crc32 of the header, seeded with the salt (u32be) | entries
    filler    H(salt)[:16] repeated, aligned to the file

Filler is written and synced ahead of the groups, which overwrite it: a sync takes half the time if the file does not
grow. The journal mark (`journal_mark`) records how long the last segment is before a group uses the new space. Segments
never shrink: the remains of a failed write are overwritten with filler and synced, at once or before the next group. So
a segment that is shorter than its mark was cut, and a torn write leaves the length intact. Filler bytes and zero
sectors mean "not written".

Groups are numbered without gaps over all segments, and only one group at a time is being written. After a crash only
the last group can be torn. It is overwritten with filler, unless the mark shows that it was acknowledged. Every other
fault is damage, also a last group that was written completely and is corrupt: it may have been acknowledged, so it is
never removed silently. Clients choose the bytes of entries. The salt, which never leaves the disk, prevents them from
planting bytes that look like a group or like filler, and so from making damage look like a torn group.

A segment is named for its first group. It is removed when all of its entries are in the log and the index, and the mark
no longer names it.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from zlib import crc32

from plumbing.durable import Disk
from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.storage import frame, journal_mark, safe_open
from veen.storage.frame import LogEntry
from veen.storage.journal_mark import Mark, MarkFile

_SEGMENT_MAGIC = b"VJS1"
_SEGMENT = struct.Struct(">4s8sI")
_SALT_BYTES = 8
_PATTERN_BYTES = 16
_MAGIC = b"VJG1"
_HEADER = struct.Struct(">4sQIIII")
_CRC_BYTES = 4
SEGMENT_BYTES = 1 << 23
# Filler is written in steps as large as the segment so far, within these bounds.
MIN_FILLER_BYTES, MAX_FILLER_BYTES = 1 << 16, 1 << 20
_SECTOR_BYTES = 512
DISK_LOSS = "it may have been acknowledged if the disk lost data"
_TAIL_BYTES = 8  # the end of an entry: part of the hub's signature


class JournalBroken(Exception):
    """A sync failed: the content of the disk is unknown, so this process must exit."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The unreadable end of the last segment: a group that a crash interrupted, or a corrupt one."""

    path: Path
    group: int
    at: int
    cut_short: bool  # parts were never written, as after a crash; otherwise it is corrupt


class Journal:
    """The segments of one data directory. One writer; `trim` may run on another thread."""

    def __init__(
        self, disk: Disk, folder: Path, next_group: int, check_folder: Callable[[], None] = lambda: None
    ) -> None:
        """Continue after the last sound group, as found by `recover`.

        `check_folder` is called before a file is created or extended. It raises if the path leads to another folder.
        """
        self._disk = disk
        self._folder = folder
        self._check_folder = check_folder
        self._next_group = next_group
        self._segments = segments(folder)
        self._bytes = {path: path.lstat().st_size for _, path in self._segments}
        self._mark = MarkFile(disk, folder, unmarked(folder, next_group))
        if self._mark.mark.highest < next_group - 1:  # a power cut lost the note, and a backup reads it
            self._mark.note_highest(next_group - 1)
        self._fd = -1
        self._size = 0
        self._filled = 0  # the file ends here; behind the last group it contains filler
        self._partial_bytes = 0  # size of a failed write behind the last group
        self._refused_bytes = 0  # size of the last group that did not fit
        self._salt = b""
        self._seed = 0
        self._created = 0  # first group of the last segment that was created; the mark may lack it

    @property
    def next_group(self) -> int:
        return self._next_group

    @property
    def total_bytes(self) -> int:
        """The size of all groups, without filler."""
        return sum(self._bytes.values())

    def append(self, entries: bytes, count: int) -> int:
        """Make one group durable and return its number. Raises `Unavailable` if it does not fit; nothing is changed."""
        self._refused_bytes = _HEADER.size + len(entries)
        self._make_room(self._refused_bytes)
        group = self._next_group
        data = _header(group, count, entries, self._seed) + entries
        self._write(data)
        self._sync()
        self._size += len(data)
        self._bytes[self._segments[-1][1]] = self._size
        self._next_group += 1
        self._mark.note_highest(group)
        return group

    def probe(self) -> None:
        """Raise `Unavailable` unless a group as large as the last rejected one can be written now.

        Writes only filler, which a crash may leave in any state: recovery treats it as not written.
        """
        self._make_room(self._refused_bytes)
        self._write(_filler(self._salt, self._size, self._size + self._refused_bytes))

    def trim(self, applied: int) -> None:
        """Remove segments without groups after `applied`. A crash may leave some of them, which is harmless."""
        # Not a segment that the mark does not name: a crash interrupted its creation.
        last = min(applied + 1, self._mark.mark.last)
        needed = [first for first, _ in self._segments[1:] if first <= last]
        if needed:
            with suppress(OSError):  # they only take space; retried next time
                self._mark.change(first=needed[-1])
                self._remove_before(needed[-1])

    def clear(self, applied: int) -> None:
        """Remove all segments if the log has every group. Called when a hub stops."""
        self.close()
        if self._next_group == applied + 1 and self._segments:
            with suppress(OSError):
                self._mark.change(first=self._next_group, last=0, length=0, highest=applied)
                self._remove_before(self._next_group + 1)
        self._mark.close()

    def close(self) -> None:
        self._mark.close()
        self._close_segment()

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _remove_before(self, first: int) -> None:
        while self._segments and self._segments[0][0] < first:
            _, path = self._segments[0]
            self._disk.unlink(path)
            del self._segments[0], self._bytes[path]

    def _sync(self) -> None:
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages it could not write: nothing about this file can be trusted now.
            raise JournalBroken(f"the journal cannot be synced: {error.strerror}") from error

    def _write(self, data: bytes) -> None:
        """Write behind the last group. If that fails, remove what was written."""
        try:
            self._disk.write_at(self._fd, data, self._size)
        except OSError as error:
            self._partial_bytes = len(data)
            with suppress(Unavailable):  # retried before the next group
                self._remove_partial_write()
            raise _unwritable(error) from error

    def _remove_partial_write(self) -> None:
        """Overwrite the remains of a failed write, so that a crash in the next write cannot mix the two."""
        try:
            self._write_filler(self._size, self._size + self._partial_bytes)
        except OSError as error:
            raise _unwritable(error) from error
        self._sync()
        self._partial_bytes = 0

    def _make_room(self, size: int) -> None:
        """Preallocate the space of the next group, so ENOSPC never leaves a complete group that replay would accept."""
        is_full = self._fd < 0 or self._size >= SEGMENT_BYTES
        if is_full or self._size + size > self._filled:
            self._check_folder()
        if self._partial_bytes:
            self._remove_partial_write()
        try:
            if is_full:
                self._start_segment(size)
            if self._size + size > self._filled:
                filled = _filled_end(self._size + size)
                self._write_filler(self._filled, filled)
                self._sync()
                self._mark.change(length=filled)
                self._filled = filled
        except OSError as error:
            raise _unwritable(error) from error

    def _start_segment(self, size: int) -> None:
        """Open the segment of the next group: create it, or continue with one that a hub left without any group.

        A change of the mark that failed may be on disk, and name the segment. So a created segment is never created
        again, as another one could be shorter: only the change is repeated.
        """
        path = self._folder / _name(self._next_group)
        named = self._next_group
        if named in (self._mark.mark.last, self._created):
            data = safe_open.read(path)
            salt, filled = _salt_of(path, data), len(data)
            fd = self._disk.open_update(path)
        else:
            if path.exists() and holds_group(path):
                raise Malformed("journal", f"{path.name} contains groups that were not replayed")
            salt, filled = os.urandom(_SALT_BYTES), _filled_end(_SEGMENT.size + size)
            fd = self._create(path, _segment_header(salt) + _filler(salt, _SEGMENT.size, filled))
            self._created = named
        last = self._mark.mark.last
        if last != named:
            first = {} if last else {"first": named}  # otherwise `trim` may be changing it
            try:
                self._mark.change(**first, last=named, length=filled)
            except OSError:
                os.close(fd)
                raise
        self._close_segment()
        self._fd, self._size, self._filled, self._salt, self._seed = fd, _SEGMENT.size, filled, salt, crc32(salt)
        if not self._segments or self._segments[-1][1] != path:
            self._segments.append((self._next_group, path))
        self._bytes[path] = self._size

    def _create(self, path: Path, data: bytes) -> int:
        """A new file, synced. After an `OSError` no mark can name it, and the next attempt rewrites it."""
        fd = self._disk.open_update(path)
        try:
            self._disk.truncate(fd, 0)  # remains of an earlier attempt
            self._disk.write_at(fd, data, 0)
            self._disk.sync(fd)
            self._disk.sync_folder(self._folder)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _write_filler(self, start: int, end: int) -> None:
        self._disk.write_at(self._fd, _filler(self._salt, start, end), start)


def unmarked(folder: Path, next_group: int) -> Mark:
    """The mark of a journal that has none yet: all segments are needed, at the length they have."""
    found = [(first, path.lstat().st_size) for first, path in segments(folder)]
    found = [(first, size) for first, size in found if size > _SEGMENT.size]  # shorter: its creation was interrupted
    return Mark(found[0][0], *found[-1]) if found else Mark(first=next_group)


class JournalIncomplete(Malformed):
    """Groups of the journal are missing that may have been acknowledged. A hub must not start without them."""

    def __init__(self, what: str, lost: str) -> None:
        super().__init__("journal", f"{what}; {lost} may have been acknowledged, and cannot be read")


def check(folder: Path, mark: Mark) -> None:
    """Raise `JournalIncomplete` unless the segments that the mark names exist with their full length."""
    found = dict(_files(folder))
    if mark.last:
        for first in (mark.first, mark.last):
            if first not in found:
                lost = f"groups {first} to {max(mark.highest, mark.last)}, and later ones,"
                raise JournalIncomplete(f"the segment {_name(first)} is missing", lost)
        path, size = found[mark.last], found[mark.last].lstat().st_size
        if size < mark.length:
            what = f"{path.name} has {size} bytes, but had at least {mark.length}: it was cut"
            raise JournalIncomplete(what, _lost_in(path, mark))
    for first, path in found.items():
        if first > mark.last and first >= mark.first and holds_group(path):
            what = f"{path.name} has groups, but journal.mark is older and does not name it: it was replaced"
            raise JournalIncomplete(what, f"groups after those of {path.name}")


def check_end(mark: Mark, applied: int, ended: int) -> None:
    """Raise `JournalIncomplete` if the journal, which ends with group `ended`, lacks groups that it must have.

    The log has the groups up to `applied`.
    """
    last = max(applied, ended)
    if mark.highest > last:
        what = f"log and journal end with group {last}, but journal.mark names group {mark.highest}"
        raise JournalIncomplete(what, f"groups {last + 1} to {mark.highest}, and later ones,")
    if mark.last and ended < applied:  # the last segment is kept until a clean stop
        what = f"the log has group {applied}, but the journal ends with group {ended}: it was replaced by an older copy"
        raise JournalIncomplete(what, f"groups after {applied}")


def _lost_in(path: Path, mark: Mark) -> str:
    """The groups that a cut segment may have lost, with the labels of the first one if they can be read."""
    data = safe_open.read(path)
    group, pos, seed = mark.last, _SEGMENT.size, 0
    with suppress(Malformed):
        seed = crc32(_salt_of(path, data))
        last, pos = _sound_end(data, group, seed)
        group = last + 1
    labels: dict[str, None] = {}
    with suppress(Malformed):
        at = pos + _HEADER.size if _numbers_at(data, pos, seed, group - 1) else len(data)
        while at < len(data):
            entry, at = frame.read(data, at)
            labels[entry.label.hex()] = None
    known = f" (labels {', '.join(labels)})" if labels else ""
    return f"group {group}{known} and later ones"


def salvage(disk: Disk, folder: Path, after: int, aside: Path, *, keep: bool) -> list[Path]:
    """Keep the sound groups that continue group `after`, or none, and write a mark for them.

    Returns the files that were moved aside, because their groups do not continue it. A segment with sound groups before
    the damage is copied there. A crash leaves a journal that can be salvaged again.
    """
    last, kept, moved = after, list[tuple[int, Path]](), list[Path]()
    files = _files(folder)
    while keep and files and files[0][0] <= last + 1:
        first, path = files.pop(0)
        data = safe_open.read(path)
        try:
            salt = _salt_of(path, data)
        except Malformed:
            files.insert(0, (first, path))
            break
        end, pos = _sound_end(data, first, crc32(salt))
        if end <= last:  # the log has these groups
            moved.append(_copy_aside(disk, path, aside))
            disk.unlink(path)
            continue
        kept.append((first, path))
        last = max(last, end)
        if data[pos:] != _filler(salt, pos, max(len(data), pos)):
            moved.append(_copy_aside(disk, path, aside))
            _refill(disk, Torn(path, end + 1, pos, cut_short=False))
            break
    for _, path in files:
        moved.append(_copy_aside(disk, path, aside))
        disk.unlink(path)
    named = [(first, path.lstat().st_size) for first, path in kept if path.lstat().st_size > _SEGMENT.size]
    mark = Mark(named[0][0], *named[-1], highest=last) if named else Mark(first=last + 1, highest=last)
    journal_mark.create(disk, folder, mark)
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    return moved


def _sound_end(data: bytes, group: int, seed: int) -> tuple[int, int]:
    """The last sound group of a segment that starts with `group`, and where it ends."""
    pos = _SEGMENT.size
    while pos < len(data):
        entries, end = _read_group(data, pos, group, seed)
        if entries is None:
            break
        group, pos = group + 1, end
    return group - 1, pos


def _copy_aside(disk: Disk, path: Path, aside: Path) -> Path:
    disk.make_folder(aside)
    target = aside / path.name
    disk.write_file(target, safe_open.read(path))
    disk.sync_folder(aside)
    return target


class GroupsMoved(Exception):
    """Groups left the journal while it was copied: the log has them now."""


def copy_groups(disk: Disk, source: Path, target: Path, after: int, upto: int | None) -> tuple[int, list[LogEntry]]:
    """Write the groups after `after` to an empty journal, with its mark. Returns the last group, and the entries.

    A hub may write to the source meanwhile: then `upto` is a group that is durable. None takes every sound group.
    Raises `GroupsMoved` if the hub has removed some of them since. The caller syncs the copy as a whole.
    """
    bodies, entries, group = list[tuple[int, bytes]](), list[LogEntry](), after
    try:
        for first, path in segments(source) if upto is None or upto > after else ():
            data = safe_open.read(path)
            if _is_unnamed(source, first) and not holds_group(path):
                break  # its creation was interrupted, or is not complete yet
            seed, number, pos = crc32(_salt_of(path, data)), first, _SEGMENT.size
            while upto is None or number <= upto:
                found, end = _read_group(data, pos, number, seed)
                if found is None:
                    break
                if number > after:
                    if number != group + 1:
                        raise GroupsMoved
                    bodies.append((len(found), data[pos + _HEADER.size : end]))
                    entries += found
                    group = number
                number, pos = number + 1, end
    except FileNotFoundError:
        raise GroupsMoved from None
    if upto is not None and group < upto:
        raise GroupsMoved
    mark = Mark(first=after + 1, highest=group)
    if bodies:
        salt = os.urandom(_SALT_BYTES)
        seed, parts = crc32(salt), [_segment_header(salt)]
        for number, (count, body) in enumerate(bodies, after + 1):
            parts += (_header(number, count, body, seed), body)
        size = sum(map(len, parts))
        length = _filled_end(size)
        disk.write_file(target / _name(after + 1), (*parts, _filler(salt, size, length)))
        mark = Mark(first=after + 1, last=after + 1, length=length, highest=group)
    journal_mark.create(disk, target, mark)
    return group, entries


def leftovers(folder: Path, mark: Mark) -> list[Path]:
    """Segments whose groups the log has, that a crash kept from being removed."""
    return [path for first, path in _files(folder) if first < mark.first]


def recover(disk: Disk, folder: Path, after: int) -> Iterator[tuple[int, list[LogEntry]]]:
    """Every sound group after `after`, in order. Overwrites a torn last group with filler.

    When the iteration ends, the last group is durable: a hub that was killed, or that ended because a sync failed, may
    have left it readable only until the next power cut. Raises `Malformed` if groups are damaged or missing.
    """
    try:
        yield from read_complete(folder, after, journal_mark.read(folder), lambda torn: _refill(disk, torn))
        _make_end_durable(disk, folder)
    except OSError as error:
        raise _unwritable(error) from error


def read_complete(
    folder: Path, after: int, mark: Mark | None, torn: Callable[[Torn], None] = lambda _: None
) -> Iterator[tuple[int, list[LogEntry]]]:
    """Every sound group after `after`, in order. Raises `Malformed` if groups are damaged, or missing by the mark.

    `torn` is called with a last group that was not written completely.
    """
    if mark:
        check(folder, mark)
    ended = mark.first - 1 if mark else 0  # the last segment may have no groups yet
    for found in read(folder, after, every_group=True):
        if not isinstance(found, Torn):
            ended = found[0]
            if ended > after:
                yield found
            continue
        if not found.cut_short:
            where = f"group {found.group} at byte {found.at} of {found.path.name}"
            raise Malformed("journal", f"{where} is corrupt, and may have been acknowledged")
        if mark:
            check_end(mark, after, ended)
        torn(found)
    if mark:
        check_end(mark, after, ended)


def _make_end_durable(disk: Disk, folder: Path) -> None:
    """Write the last group and the filler behind it again, and sync them. All groups before it were synced.

    A sync alone is not sufficient: after a failed one, the kernel may regard lost pages as written.
    """
    for first, path in reversed(segments(folder)):
        if _is_unnamed(folder, first) and not holds_group(path):
            continue  # a crash interrupted its creation
        data = safe_open.read(path)
        seed, group, start, end = crc32(_salt_of(path, data)), first, _SEGMENT.size, _SEGMENT.size
        while end < len(data):
            entries, next_end = _read_group(data, end, group, seed)
            if entries is None:
                break
            group, start, end = group + 1, end, next_end
        fd = disk.open_update(path)
        try:
            disk.write_at(fd, data[start:], start)
            disk.sync(fd)
        finally:
            os.close(fd)
        return


def read(folder: Path, after: int, *, every_group: bool = False) -> Iterator[tuple[int, list[LogEntry]] | Torn]:
    """Every sound group after `after`, in order, and the torn end if there is one. Raises `Malformed` on damage before
    the last group. With `every_group`, also the groups up to `after` that are still there."""
    expected: int | None = None
    found = segments(folder)
    for position, (first, path) in enumerate(found):
        # Segments are removed oldest first, but a power cut may restore any of them.
        # So only the groups that the log lacks must be complete.
        if expected is not None and first != expected and not expected < first <= after + 1:
            raise Malformed("journal", f"{path.name} does not continue the segment before it")
        data = safe_open.read(path)
        group, pos = first, _SEGMENT.size
        if position == len(found) - 1 and _is_unnamed(folder, first) and not holds_group(path):
            return  # a crash interrupted its creation
        salt = _salt_of(path, data)
        seed = crc32(salt)
        while pos < len(data):
            entries, end = _read_group(data, pos, group, seed)
            if entries is None:
                if data[pos:] != _filler(salt, pos, len(data)):
                    yield _torn(path, data, pos, group, salt, last=position == len(found) - 1)
                break
            if group > after or every_group:
                yield group, entries
            group, pos = group + 1, end
        expected = group


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Every segment that is needed, with its first group, in order."""
    mark = journal_mark.read(folder)
    return [(first, path) for first, path in _files(folder) if mark is None or first >= mark.first]


def first_group(folder: Path) -> int:
    """The first group that the log may lack."""
    mark = journal_mark.read(folder)
    found = _files(folder)
    return mark.first if mark else found[0][0] if found else 1


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem), path) for path in folder.glob("*.wal") if path.stem.isdigit())


def _name(first: int) -> str:
    return f"{first:020d}.wal"


def _is_unnamed(folder: Path, first: int) -> bool:
    """Whether the mark does not name the segment, so that no group was written to it."""
    mark = journal_mark.read(folder)
    return mark is not None and first > mark.last


def _refill(disk: Disk, torn: Torn) -> None:
    """Overwrite a torn group. The file keeps its length: a shorter one was cut by something else."""
    data = safe_open.read(torn.path)
    fd = disk.open_update(torn.path)
    try:
        disk.write_at(fd, _filler(_salt_of(torn.path, data), torn.at, len(data)), torn.at)
        disk.sync(fd)
    finally:
        os.close(fd)


def _filled_end(end: int) -> int:
    """The end of the filler behind a group that ends at `end`."""
    return end + min(max(end, MIN_FILLER_BYTES), MAX_FILLER_BYTES, max(SEGMENT_BYTES - end, 0))


def _unwritable(error: OSError) -> Unavailable:
    return Unavailable(f"the journal cannot be written: {error.strerror}")


def _torn(path: Path, data: bytes, pos: int, group: int, salt: bytes, *, last: bool) -> Torn:
    """Classify the unreadable end of the last segment. Raises if a complete group header follows it."""
    seed = crc32(salt)
    if not last or any(_numbers_at(data, at, seed, group) for at in _magics(data, pos + 1)):
        raise Malformed("journal", f"{path.name} is damaged at byte {pos}, before its last group")
    numbers = _numbers_at(data, pos, seed, group - 1)
    if numbers:
        end = pos + _HEADER.size + numbers[2]
        short = len(data) < end or _is_blank(data, max(pos, end - _TAIL_BYTES), end, salt)
    else:
        # At least the whole header: one that crosses into a sector that was never written is cut short, too.
        end = max(_written_end(data, pos, salt), min(pos + _HEADER.size, len(data)))
        short = len(data) < pos + _HEADER.size or _is_damaged_filler(data, pos, salt)
    short = short or _has_blank_sector(data, pos, end, salt)
    return Torn(path, group, pos, cut_short=short)


def _has_blank_sector(data: bytes, pos: int, end: int, salt: bytes) -> bool:
    """Whether any sector between was never written, as after a power cut."""
    starts = [pos, *range(pos - pos % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES)]
    return any(_is_blank(data, a, b, salt) for a, b in zip(starts, [*starts[1:], end], strict=True))


def _is_blank(data: bytes, start: int, end: int, salt: bytes) -> bool:
    return data[start:end] in (bytes(end - start), _filler(salt, start, end))


def _is_damaged_filler(data: bytes, pos: int, salt: bytes) -> bool:
    """Whether the place of the header holds damaged filler. In other data one byte in 256 equals the filler."""
    end = min(pos + _HEADER.size, len(data))
    same: int = sum(map(eq, data[pos:end], _filler(salt, pos, end)))
    return 2 * same > end - pos


def _written_end(data: bytes, pos: int, salt: bytes) -> int:
    """The place where the filler at the end of the file begins, rounded to a sector."""
    end = len(data)
    while end > pos:
        start = max(pos, (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES)
        if data[start:end] != _filler(salt, start, end):
            return end
        end = start
    return end


def _read_group(data: bytes, pos: int, group: int, seed: int) -> tuple[list[LogEntry] | None, int]:
    """The group at `pos` and the offset of the next; None if it is incomplete or corrupt."""
    numbers = _numbers_at(data, pos, seed, group - 1)
    if numbers is None or numbers[0] != group:
        return None, pos
    _, count, length, check = numbers
    start = pos + _HEADER.size
    body = data[start : start + length]
    if len(body) != length or crc32(body) != check:
        return None, pos
    entries = list(frame.read_all(body))
    if len(entries) != count:
        raise Malformed("journal", f"group {group} has {len(entries)} entries, not {count}")
    return entries, start + length


def _numbers_at(data: bytes, pos: int, seed: int, after: int) -> tuple[int, int, int, int] | None:
    """`(group, count, length, crc32)` of the header at `pos`, if there is one of a group above `after`."""
    if len(data) - pos < _HEADER.size:
        return None
    magic, group, count, length, check, header_check = _HEADER.unpack_from(data, pos)
    if magic != _MAGIC or crc32(data[pos : pos + _HEADER.size - _CRC_BYTES], seed) != header_check or group <= after:
        return None
    return group, count, length, check


def _magics(data: bytes, pos: int) -> Iterator[int]:
    while (pos := data.find(_MAGIC, pos)) >= 0:
        yield pos
        pos += 1


def _header(group: int, count: int, entries: bytes, seed: int) -> bytes:
    """A crc32 is enough to detect a torn group: each entry has its own hash."""
    header = _HEADER.pack(_MAGIC, group, count, len(entries), crc32(entries), 0)[:-_CRC_BYTES]
    return header + crc32(header, seed).to_bytes(_CRC_BYTES, "big")


def _segment_header(salt: bytes) -> bytes:
    return _SEGMENT.pack(_SEGMENT_MAGIC, salt, crc32(salt))


def _filler(salt: bytes, start: int, end: int) -> bytes:
    """The filler bytes from offset `start` to `end`."""
    pattern = h(salt)[:_PATTERN_BYTES]
    first = start % _PATTERN_BYTES
    return (pattern * ((end - start) // _PATTERN_BYTES + 2))[first : first + end - start]


def holds_group(path: Path) -> bool:
    """Whether a segment starts with a sound group."""
    data = safe_open.read(path)
    try:
        salt = _salt_of(path, data)
    except Malformed:
        return False
    return _read_group(data, _SEGMENT.size, int(path.stem), crc32(salt))[0] is not None


def _salt_of(path: Path, data: bytes) -> bytes:
    """The segment's salt; empty if the header is torn. It is synced before any group, so there are none then."""
    if len(data) > _SEGMENT.size:
        magic, salt, check = _SEGMENT.unpack_from(data)
        if magic != _SEGMENT_MAGIC or check != crc32(salt):
            raise Malformed("journal", f"{path.name} has a damaged header")
        return bytes(salt)
    return b""
