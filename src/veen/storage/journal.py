"""The write-ahead journal: the one file that is synced before a reply. Spec §3.4.1.

A group is what one sync covers: any number of entries of any labels. A segment is a header, then groups, then filling:

    segment   magic (4) | salt (8) | crc32 (u32be)
    group     magic (4) | group (u64be) | count (u32be) | length (u32be) | crc32 of the entries (u32be)
              | crc32 of the header, seeded with the salt (u32be) | entries
    filling   H(salt)[:16], over and over, in step with the file

A segment is filled ahead of its groups, which then overwrite the filling: a sync that need not record that the file
has grown takes half the time. What of a group is still filling was never written, and so were sectors of zeros, which
is what a file that grew may have after a power cut. What a write that failed may have left is cut off, and synced, at
once or before the next group: nothing else ever stands where a group goes.

Groups are numbered without gaps over all segments, and one group at a time is on its way to the disk. So after a
crash only the very last group can be torn, and it was not acknowledged: it is cut off. Any other fault is damage, also
in the last group where all of it was written: whether it was acknowledged is unknown, so it is never cut off silently.
Entries hold bytes that clients chose: the salt, which never leaves the disk, keeps them from planting what looks like a
group, or like filling, and so making damage and a torn group look alike.

A segment is named for its first group. Segments are removed when everything in them is in the log and its index.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from zlib import crc32

from veen.core import Malformed, Unavailable
from veen.core.hashing import h
from veen.storage import frame, safe_open
from veen.storage.durable import Disk
from veen.storage.frame import LogEntry

_SEGMENT_MAGIC = b"VJS1"
_SEGMENT = struct.Struct(">4s8sI")
_SALT_BYTES = 8
_PATTERN_BYTES = 16
_MAGIC = b"VJG1"
_HEADER = struct.Struct(">4sQIIII")
_CRC_BYTES = 4
SEGMENT_BYTES = 1 << 23
# How much is filled at a time: as much as the segment holds, within these bounds.
LEAST_FILLING, MOST_FILLING = 1 << 16, 1 << 20
_SECTOR_BYTES = 512
_TAIL_BYTES = 8  # of an entry: of its hub's signature


class JournalBroken(Exception):
    """A sync failed: what is on disk is unknown, so this process must end."""


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of the last segment from where it makes no sense: a group that a crash interrupted."""

    path: Path
    group: int
    at: int
    cut_short: bool  # not all of it was written, as after a crash; otherwise its bytes are wrong


class Journal:
    """The segments of one data directory. One writer."""

    def __init__(self, disk: Disk, folder: Path, next_group: int) -> None:
        """Continue after the last sound group, which `recover` has found."""
        self._disk = disk
        self._folder = folder
        self._next_group = next_group
        self._segments = segments(folder)
        self._bytes = {path: path.lstat().st_size for _, path in self._segments}
        self._fd = -1
        self._size = 0
        self._filled = 0  # up to here there is filling behind the last group
        self._is_soiled = False  # a write that failed may have left something behind the last group
        self._refused_bytes = 0  # of the group that last had no room
        self._salt = b""
        self._seed = 0

    @property
    def next_group(self) -> int:
        return self._next_group

    @property
    def needs_segment(self) -> bool:
        """Whether the next group begins a file, and so is the first to ask where the folder is."""
        return self._fd < 0 or self._size >= SEGMENT_BYTES

    @property
    def total_bytes(self) -> int:
        """What the groups take, without the filling."""
        return sum(self._bytes.values())

    def append(self, entries: bytes, count: int) -> int:
        """Make one group durable and return its number. `Unavailable` where there is no room, with nothing changed."""
        self._clean()
        if self.needs_segment:
            self._start_segment()
        group = self._next_group
        data = _header(group, count, entries, self._seed) + entries
        end = self._size + len(data)
        self._refused_bytes = len(data)
        with self._cleaned_after_errors():
            if end > self._filled:
                # First, so that what has no room is never a whole group: it was refused, and must not come back.
                filled = end + min(max(end, LEAST_FILLING), MOST_FILLING, max(SEGMENT_BYTES - end, 0))
                self._disk.write_at(self._fd, _filling(self._salt, end, filled), end)
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
        """Raise `Unavailable` unless a group as large as the one last refused could be written now.

        Writes only filling, which a crash may leave in any state: recovery takes it for what was never written.
        """
        self._clean()
        if self.needs_segment:
            self._start_segment()
        end = self._size + self._refused_bytes + LEAST_FILLING
        with self._cleaned_after_errors():
            self._disk.write_at(self._fd, _filling(self._salt, self._size, end), self._size)
        self._filled = max(self._filled, end)

    @contextmanager
    def _cleaned_after_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._is_soiled = True
            with suppress(Unavailable):  # or else before the next group
                self._clean()
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error

    def trim(self, applied: int) -> None:
        """Remove the segments that hold no group after `applied`. A crash in between leaves some, which is harmless."""
        while len(self._segments) > 1 and self._segments[1][0] <= applied + 1:
            if not self._remove_first():
                return

    def clear(self, applied: int) -> None:
        """Remove every segment, if all they hold is in the log: when a hub ends, its log is all there is."""
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
            return False  # it only takes room; the next time may do better
        del self._segments[0], self._bytes[path]
        return True

    def _clean(self) -> None:
        """Cut off what a write that failed may have left, so that a crash in the next one cannot mix the two."""
        if self._is_soiled:
            try:
                self._disk.truncate(self._fd, self._size)
                self._disk.sync(self._fd)
            except OSError as error:
                raise Unavailable(f"the journal cannot be written: {error.strerror}") from error
            self._is_soiled, self._filled = False, self._size

    def _start_segment(self) -> None:
        """A new file with its header, synced before any group relies on it."""
        path = self._folder / f"{self._next_group:020d}.wal"
        if path.exists() and _holds_groups(path):
            raise Malformed("journal", f"{path.name} holds groups that were not read")
        salt = os.urandom(_SALT_BYTES)
        head = _segment_header(salt)
        fd = -1
        try:
            fd = self._disk.open_update(path)
            self._disk.truncate(fd, 0)  # what an earlier attempt left
            self._disk.write_at(fd, head, 0)
            self._disk.sync(fd)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            # No group is in it yet, and the next attempt writes all of it anew.
            if fd >= 0:
                os.close(fd)
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error
        self.close()
        self._fd, self._size, self._filled, self._salt, self._seed = fd, len(head), len(head), salt, crc32(salt)
        if not self._segments or self._segments[-1][1] != path:
            self._segments.append((self._next_group, path))
        self._bytes[path] = self._size


def recover(disk: Disk, folder: Path, after: int) -> Iterator[tuple[int, list[LogEntry]]]:
    """Every sound group after `after`, in order; a torn last group is cut off, other damage is `Malformed`."""
    for found in read(folder, after):
        if not isinstance(found, Torn):
            yield found
            continue
        if not found.cut_short:
            what = "which may have been acknowledged, is not what was written"
            raise Malformed("journal", f"group {found.group} at byte {found.at} of {found.path.name}, {what}")
        try:
            _cut(disk, found)
        except OSError as error:
            raise Unavailable(f"the journal cannot be written: {error.strerror}") from error


def read(folder: Path, after: int) -> Iterator[tuple[int, list[LogEntry]] | Torn]:
    """Every sound group after `after`, in order, and a torn end if there is one. Raises `Malformed` where it is not
    sound before its last group."""
    expected: int | None = None
    found = segments(folder)
    for position, (first, path) in enumerate(found):
        # Segments go oldest first, but a power cut may bring any of them back: only what the log lacks must be whole.
        if expected is not None and first != expected and not expected < first <= after + 1:
            raise Malformed("journal", f"{path.name} does not continue the segment before it")
        data = safe_open.read(path)
        group, pos = first, _SEGMENT.size
        salt = _salt_of(path, data)
        seed = crc32(salt)
        while pos < len(data):
            entries, end = _read_group(data, pos, group, seed)
            if entries is None:
                if data[pos:] != _filling(salt, pos, len(data)):
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
    """The torn end of the last segment, unless a group stands behind it."""
    seed = crc32(salt)
    if not last or any(_numbers_at(data, at, seed, group) for at in _magics(data, pos + 1)):
        raise Malformed("journal", f"{path.name} is damaged at byte {pos}, before its last group")
    numbers = _numbers_at(data, pos, seed, group - 1)
    if numbers:
        end = pos + _HEADER.size + numbers[2]
        short = len(data) < end or _is_blank(data, max(pos, end - _TAIL_BYTES), end, salt)
    else:
        end = _written_end(data, pos, salt)
        short = len(data) < pos + _HEADER.size or _no_header(data, pos, salt)
    short = short or _unwritten(data, pos, end, salt)
    return Torn(path, group, pos, cut_short=short)


def _unwritten(data: bytes, pos: int, end: int, salt: bytes) -> bool:
    """Whether what is between was never written in any sector, as after a power cut."""
    starts = [pos, *range(pos - pos % _SECTOR_BYTES + _SECTOR_BYTES, end, _SECTOR_BYTES)]
    return any(_is_blank(data, a, b, salt) for a, b in zip(starts, [*starts[1:], end], strict=True))


def _is_blank(data: bytes, start: int, end: int, salt: bytes) -> bool:
    return data[start:end] in (bytes(end - start), _filling(salt, start, end))


def _no_header(data: bytes, pos: int, salt: bytes) -> bool:
    """Whether filling stands where a header would, with some bits wrong: of other bytes one in 256 is as in filling."""
    end = min(pos + _HEADER.size, len(data))
    same: int = sum(map(eq, data[pos:end], _filling(salt, pos, end)))
    return 2 * same > end - pos


def _written_end(data: bytes, pos: int, salt: bytes) -> int:
    """Where the filling at the end of the file begins, to the sector."""
    end = len(data)
    while end > pos:
        start = max(pos, (end - 1) // _SECTOR_BYTES * _SECTOR_BYTES)
        if data[start:end] != _filling(salt, start, end):
            return end
        end = start
    return end


def _read_group(data: bytes, pos: int, group: int, seed: int) -> tuple[list[LogEntry] | None, int]:
    """The group at `pos` and where the next begins; None where it is not whole."""
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
    """The crc32s are enough to tell a torn group: each entry carries a hash of its own."""
    header = _HEADER.pack(_MAGIC, group, count, len(entries), crc32(entries), 0)[:-_CRC_BYTES]
    return header + crc32(header, seed).to_bytes(_CRC_BYTES, "big")


def _segment_header(salt: bytes) -> bytes:
    return _SEGMENT.pack(_SEGMENT_MAGIC, salt, crc32(salt))


def _filling(salt: bytes, start: int, end: int) -> bytes:
    """What stands from `start` to `end` where no group does."""
    pattern = h(salt)[:_PATTERN_BYTES]
    first = start % _PATTERN_BYTES
    return (pattern * ((end - start) // _PATTERN_BYTES + 2))[first : first + end - start]


def _holds_groups(path: Path) -> bool:
    data = safe_open.read(path)
    return data[_SEGMENT.size :] != _filling(_salt_of(path, data), _SEGMENT.size, max(len(data), _SEGMENT.size))


def _salt_of(path: Path, data: bytes) -> bytes:
    """The segment's salt. It was synced before any group, so behind a torn header there is none."""
    if len(data) > _SEGMENT.size:
        magic, salt, check = _SEGMENT.unpack_from(data)
        if magic != _SEGMENT_MAGIC or check != crc32(salt):
            raise Malformed("journal", f"{path.name} is damaged in its header")
        return bytes(salt)
    return b""
