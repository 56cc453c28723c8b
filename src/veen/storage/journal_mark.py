"""The journal mark: which segments must exist, and how long the last of them is.

The mark proves at a start that no segment was removed or cut. It is outside of the folder `journal/`, so that removing
the folder's content does not remove it. Layout, in blocks of 512 bytes:

    block 0, 1   magic (4) | serial | first | last | length | highest (u64be each) | crc32 (u32be)
    block 2      the same; only `highest` counts

The state is the valid one of blocks 0 and 1 with the higher serial. A change overwrites the other one and is synced, so
a crash leaves the old state or the new one. Block 2 is written after each group and not synced: it survives the end of
the process, and a power cut keeps the number that the last change of the state recorded, or a later one.

Order of writes, and what a crash after each leaves:

    new segment      segment with filler, synced; mark          a segment that the mark does not name has no groups
    longer segment   filler, synced; mark                       a file that is longer than its mark
    trim, clean stop mark; segments removed                     segments before `first`, which the log has

The mark cannot show that a whole directory was replaced by an older copy of itself. Witnesses and clients show that.
"""

import os
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from zlib import crc32

from plumbing.durable import Disk
from veen.core import Malformed
from veen.storage import safe_open

_MAGIC = b"VJM1"
_FIELDS = struct.Struct(">4sQQQQQ")
_CRC = struct.Struct(">I")
_BLOCK_BYTES = 512
_STATES = (0, 1)
_NOTE = 2


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a journal."""

    first: int  # groups before this one are in the log; the first segment starts with it
    last: int = 0  # first group of the last segment; 0 if no segment is needed, as after a clean stop
    length: int = 0  # bytes of the last segment, at least
    highest: int = 0  # a group that is durable and may have been acknowledged; there may be later ones


def path_of(folder: Path) -> Path:
    """The mark of the journal in a folder."""
    return folder.with_name(f"{folder.name}.mark")


def read(folder: Path) -> Mark | None:
    """The mark of a journal folder; None if there is none. Raises `Malformed` if it is damaged."""
    found = _read(folder)
    return found[1] if found else None


def create(disk: Disk, folder: Path, mark: Mark) -> None:
    """Write a new mark, or replace one. The caller syncs the folder that contains it."""
    disk.write_file(path_of(folder), _block(0, mark) + _block(1, mark) + bytes(_BLOCK_BYTES))


def make_durable(disk: Disk, folder: Path) -> None:
    """Write and sync the state of the mark again: a hub that was killed may have left it readable, but not durable."""
    found = _read(folder)
    if found:
        file = MarkFile(disk, folder, found[1])
        try:
            file.change()
        finally:
            file.close()


class MarkFile:
    """The mark of one journal, for its writer. Thread-safe."""

    def __init__(self, disk: Disk, folder: Path, otherwise: Mark) -> None:
        """`otherwise` is the state if there is no mark yet. The first change writes it."""
        self._disk = disk
        self._path = path_of(folder)
        self._lock = Lock()
        self._fd = -1
        self._serial, self._mark = _read(folder) or (0, otherwise)

    @property
    def mark(self) -> Mark:
        return self._mark

    def change(self, **fields: int) -> None:
        """Change the state durably. After an `OSError` the old state holds, or the new one."""
        with self._lock:
            changed = replace(self._mark, **fields)
            serial = self._serial + 1
            is_new = not self._path.exists()
            self._write(_STATES[serial % len(_STATES)], _block(serial, changed))
            self._disk.sync(self._fd)
            if is_new:
                self._disk.sync_folder(self._path.parent)
            self._serial, self._mark = serial, changed

    def note_highest(self, group: int) -> None:
        """Record that a group is durable. May be lost in a power cut: `highest` is a lower bound."""
        with self._lock:
            self._mark = replace(self._mark, highest=group)
            with suppress(OSError):
                self._write(_NOTE, _block(self._serial, self._mark))

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, block: int, data: bytes) -> None:
        if self._fd < 0:
            self._fd = self._disk.open_update(self._path)
        self._disk.write_at(self._fd, data, block * _BLOCK_BYTES)


def _read(folder: Path) -> tuple[int, Mark] | None:
    """The serial and the state; None if there is no mark."""
    path = path_of(folder)
    try:
        data = safe_open.read(path)
    except FileNotFoundError:
        return None
    states = [state for block in _STATES if (state := _state_in(data, block))]
    if not states:
        raise Malformed(path.name, "it is damaged, so it cannot show which segments of the journal must exist")
    serial, mark = max(states, key=lambda state: state[0])
    note = _state_in(data, _NOTE)
    return serial, replace(mark, highest=max(mark.highest, note[1].highest)) if note else mark


def _block(serial: int, mark: Mark) -> bytes:
    data = _FIELDS.pack(_MAGIC, serial, mark.first, mark.last, mark.length, mark.highest)
    return (data + _CRC.pack(crc32(data))).ljust(_BLOCK_BYTES, b"\0")


def _state_in(data: bytes, block: int) -> tuple[int, Mark] | None:
    part = data[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES]
    if len(part) < _FIELDS.size + _CRC.size:
        return None
    magic, serial, *numbers = _FIELDS.unpack_from(part)
    (check,) = _CRC.unpack_from(part, _FIELDS.size)
    if magic != _MAGIC or check != crc32(part[: _FIELDS.size]):
        return None
    return serial, Mark(*numbers)
