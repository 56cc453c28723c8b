"""The write-ahead journal: the only file that is synced before a reply. Spec §3.4.1.

A group is what one sync covers: any number of entries of any labels. A segment is a header, then groups, then filler:

    segment   magic (4) | salt (8) | crc32 (u32be)
    group     magic (4) | group (u64be) | count (u32be) | length (u32be) | crc32 of the entries (u32be)
              | crc32 of the header, seeded with the salt (u32be) | entries
    filler    H(salt)[:16] repeated, aligned to the file

Filler is written ahead of the groups, which overwrite it: a sync takes half the time if the file does not grow.
Filler bytes and zero sectors mean "not written"; a file that grew may contain zero sectors after a power cut. The
remains of a failed write are cut off and synced at once, or before the next group, so that nothing else is ever at the
place of a group.

Groups are numbered without gaps over all segments, and only one group at a time is being written. After a crash only
the last group can be torn. It was not acknowledged, and is cut off. Every other fault is damage, also a last group that
was written completely and is corrupt: it may have been acknowledged, so it is never cut off silently. Clients choose
the bytes of entries. The salt, which never leaves the disk, prevents them from planting bytes that look like a group or
like filler, and so from making damage look like a torn group.

A segment is named for its first group. It is removed when all of its entries are in the log and the index.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from zlib import crc32

from plumbing.durable import Disk
from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.storage import frame, safe_open
from veen.storage.frame import LogEntry

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
    """The segments of one data directory. One writer."""

    def __init__(self, disk: Disk, folder: Path, next_group: int) -> None:
        """Continue after the last sound group, as found by `recover`."""
        self._disk = disk
        self._folder = folder
        self._next_group = next_group
        self._segments = segments(folder)
        self._bytes = {path: path.lstat().st_size for _, path in self._segments}
        self._fd = -1
        self._size = 0
        self._filled = 0  # filler behind the last group ends here
        self._has_partial_write = False  # a failed write may have left bytes behind the last group
        self._refused_bytes = 0  # size of the last group that did not fit
        self._salt = b""
        self._seed = 0

    @property
    def next_group(self) -> int:
        return self._next_group

    @property
    def needs_segment(self) -> bool:
        """Whether the next group starts a new file, and so depends on the path of the folder."""
        return self._fd < 0 or self._size >= SEGMENT_BYTES

    @property
    def total_bytes(self) -> int:
        """The size of all groups, without filler."""
        return sum(self._bytes.values())

    def append(self, entries: bytes, count: int) -> int:
        """Make one group durable and return its number. Raises `Unavailable` if it does not fit; nothing is changed."""
        if self._has_partial_write:
            self._remove_partial_write()
        if self.needs_segment:
            self._start_segment()
        group = self._next_group
        data = _header(group, count, entries, self._seed) + entries
        end = self._size + len(data)
        self._refused_bytes = len(data)
        with self._removing_partial_writes():
            if end > self._filled:
                # Preallocate first, so ENOSPC never leaves a complete group that replay would accept.
                filled = end + min(max(end, MIN_FILLER_BYTES), MAX_FILLER_BYTES, max(SEGMENT_BYTES - end, 0))
                self._disk.write_at(self._fd, _filler(self._salt, end, filled), end)
                self._filled = filled
            self._disk.write_at(self._fd, data, self._size)
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages it could not write: nothing about this file can be trusted now.
            raise JournalBroken(f"the journal cannot be synced: {error.strerror}") from error
        self._size = end
        self._bytes[self._segments[-1][1]] = end
        self._next_group += 1
        return group

    def probe(self) -> None:
        """Raise `Unavailable` unless a group as large as the last rejected one can be written now.

        Writes only filler, which a crash may leave in any state: recovery treats it as not written.
        """
        if self._has_partial_write:
            self._remove_partial_write()
        if self.needs_segment:
            self._start_segment()
        end = self._size + self._refused_bytes + MIN_FILLER_BYTES
        with self._removing_partial_writes():
            self._disk.write_at(self._fd, _filler(self._salt, self._size, end), self._size)
        self._filled = max(self._filled, end)

    @contextmanager
    def _removing_partial_writes(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._has_partial_write = True
            with suppress(Unavailable):  # retried before the next group
                self._remove_partial_write()
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error

    def trim(self, applied: int) -> None:
        """Remove segments without groups after `applied`. A crash may leave some of them, which is harmless."""
        while len(self._segments) > 1 and self._segments[1][0] <= applied + 1:
            if not self._remove_first():
                return

    def clear(self, applied: int) -> None:
        """Remove all segments if the log has every group. Called when a hub stops."""
        self.close()
        while self._segments and self._next_group == applied + 1:
            if not self._remove_first():
                return

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _remove_first(self) -> bool:
        _, path = self._segments[0]
        try:
            self._disk.unlink(path)
        except OSError:
            return False  # it only takes space; retried next time
        del self._segments[0], self._bytes[path]
        return True

    def _remove_partial_write(self) -> None:
        """Cut off the remains of a failed write, so that a crash in the next write cannot mix the two."""
        try:
            self._disk.truncate(self._fd, self._size)
            self._disk.sync(self._fd)
        except OSError as error:
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error
        self._has_partial_write, self._filled = False, self._size

    def _start_segment(self) -> None:
        """Create a file with its header, synced before any group is written to it."""
        path = self._folder / f"{self._next_group:020d}.wal"
        if path.exists() and _holds_groups(path):
            raise Malformed("journal", f"{path.name} contains groups that were not replayed")
        salt = os.urandom(_SALT_BYTES)
        head = _segment_header(salt)
        fd = -1
        try:
            fd = self._disk.open_update(path)
            self._disk.truncate(fd, 0)  # remains of an earlier attempt
            self._disk.write_at(fd, head, 0)
            self._disk.sync(fd)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            # The file has no group yet, and the next attempt rewrites it.
            if fd >= 0:
                os.close(fd)
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error
        self.close()
        self._fd, self._size, self._filled, self._salt, self._seed = fd, len(head), len(head), salt, crc32(salt)
        if not self._segments or self._segments[-1][1] != path:
            self._segments.append((self._next_group, path))
        self._bytes[path] = self._size


def recover(disk: Disk, folder: Path, after: int) -> Iterator[tuple[int, list[LogEntry]]]:
    """Every sound group after `after`, in order. Cuts off a torn last group; raises `Malformed` on other damage."""
    for found in read(folder, after):
        if not isinstance(found, Torn):
            yield found
            continue
        if not found.cut_short:
            where = f"group {found.group} at byte {found.at} of {found.path.name}"
            raise Malformed("journal", f"{where} is corrupt, and may have been acknowledged")
        try:
            _cut(disk, found)
        except OSError as error:
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error


def read(folder: Path, after: int) -> Iterator[tuple[int, list[LogEntry]] | Torn]:
    """Every sound group after `after`, in order, and the torn end if there is one. Raises `Malformed` on damage before
    the last group."""
    expected: int | None = None
    found = segments(folder)
    for position, (first, path) in enumerate(found):
        # Segments are removed oldest first, but a power cut may restore any of them.
        # So only the groups that the log lacks must be complete.
        if expected is not None and first != expected and not expected < first <= after + 1:
            raise Malformed("journal", f"{path.name} does not continue the segment before it")
        data = safe_open.read(path)
        group, pos = first, _SEGMENT.size
        salt = _salt_of(path, data)
        seed = crc32(salt)
        while pos < len(data):
            entries, end = _read_group(data, pos, group, seed)
            if entries is None:
                if data[pos:] != _filler(salt, pos, len(data)):
                    yield _torn(path, data, pos, group, salt, last=position == len(found) - 1)
                break
            if group > after:
                yield group, entries
            group, pos = group + 1, end
        expected = group


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Every segment with its first group, in order."""
    return sorted((int(path.stem), path) for path in folder.glob("*.wal") if path.stem.isdigit())


def _cut(disk: Disk, torn: Torn) -> None:
    fd = disk.open_append(torn.path)
    try:
        disk.truncate(fd, torn.at)
        disk.sync(fd)
    finally:
        os.close(fd)


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
        end = _written_end(data, pos, salt)
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
    """Where the filler at the end of the file begins, rounded to a sector."""
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


def _holds_groups(path: Path) -> bool:
    data = safe_open.read(path)
    return data[_SEGMENT.size :] != _filler(_salt_of(path, data), _SEGMENT.size, max(len(data), _SEGMENT.size))


def _salt_of(path: Path, data: bytes) -> bytes:
    """The segment's salt; empty if the header is torn. It is synced before any group, so there are none then."""
    if len(data) > _SEGMENT.size:
        magic, salt, check = _SEGMENT.unpack_from(data)
        if magic != _SEGMENT_MAGIC or check != crc32(salt):
            raise Malformed("journal", f"{path.name} has a damaged header")
        return bytes(salt)
    return b""
