"""JSON lines of a pipe, and of a file as a feed that follows the file through rotation and resumes where it stopped.

The position of a line is the offset of its first byte. A source is one file, identified by inode and first line. A
renamed file is therefore read to its end under its new name, and a truncated and rewritten one is another source.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from veen.client import local_files
from veen.core import Malformed, canonical_json, cbor
from veen.core.hashing import h
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import normalize
from veen.recorder.feed import EventFeed, FeedItem
from veen.recorder.normalize import Defaults
from veen.recorder.spool import SpoolWriter

MAX_LINE_BYTES = MAX_BODY_BYTES
_MAX_RAW_BYTES = 1_000  # bytes to keep of an invalid line
_FULL_PAUSE_S = 0.2
_BLOCK_BYTES = 1 << 20
LINGER_S = 5.0  # wait at the end of a renamed file: its writer may still have it open
_COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_UNFINISHED = h(b"")  # identifies a file without a complete first line
_EVENT_FIELDS = ("subject_id", "event_type", "event_time", "origin", "payload")
_TIMES = ("event_time", "time", "timestamp", "ts", "@timestamp")
_MS = 1_000_000


def event_of(line: bytes, defaults: Defaults, now_ms: int) -> RecordEvent:
    """The event of a line. Known fields of an event are used as such; everything else becomes payload.

    Raises `Malformed` if the line is too long or not a JSON object.
    """
    if len(line) > MAX_LINE_BYTES:
        raise Malformed("line", f"it is longer than {MAX_LINE_BYTES} bytes")
    found = canonical_json.parse(line, "line", exact=True)
    if not isinstance(found, dict):
        raise Malformed("line", "it is not a JSON object")
    times = (normalize.milliseconds(found[name]) for name in _TIMES if name in found)
    payload = found["payload"] if "payload" in found and set(found) <= set(_EVENT_FIELDS) else found
    return defaults.event(
        payload,
        next((one for one in times if one is not None), now_ms),
        subject=_text(found.get("subject_id")),
        event_type=_text(found.get("event_type")),
        origin=_text(found.get("origin")),
    )


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)


def item_of(source: str, position: int, line: bytes, defaults: Defaults) -> FeedItem:
    """The event of a line, or the reason why there is none."""
    try:
        return FeedItem(source, position, event_of(line, defaults, time.time_ns() // _MS))
    except Malformed as error:
        return FeedItem(source, position, None, str(error), normalize.beginning(line, _MAX_RAW_BYTES))


Read: TypeAlias = Callable[[str, int, bytes, Defaults], FeedItem]


@dataclass(frozen=True, slots=True)
class _Place:
    """A file, and the offset of its first unsettled line."""

    inode: int
    first_line: bytes  # its hash
    offset: int

    def encode(self) -> bytes:
        return cbor.encode((self.inode, self.first_line, self.offset))

    @classmethod
    def read(cls, path: Path) -> "_Place | None":
        try:
            row = cbor.decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        match row:
            case (int() as inode, bytes() as first_line, int() as offset):
                return cls(inode, first_line, offset)
        raise Malformed(str(path), "it is not a place in a file")


class _OpenFile:
    """A file being read, whatever its current name."""

    def __init__(self, file: BinaryIO, first_line: bytes, offset: int, max_line_bytes: int) -> None:
        self.file = file
        self._max_line_bytes = max_line_bytes
        self._counted = 0, 0  # offset, and number of lines before it
        self.inode = os.fstat(file.fileno()).st_ino
        self.first_line = first_line
        self.offset = offset

    def is_cut(self) -> bool:
        """Whether the file was truncated or rewritten in place."""
        if os.fstat(self.file.fileno()).st_size < self.offset:
            return True
        return self.first_line != _UNFINISHED and _first_line(self.file) != self.first_line

    def lines(self, *, last: bool) -> Iterator[tuple[int, bytes, int]]:
        """`(offset, line, next offset)` of each line. An incomplete last line counts only if `last` is set."""
        self.file.seek(self.offset)
        at = self.offset
        while line := self.file.readline(self._max_line_bytes + 2):
            start = at
            at += len(line)
            if not line.endswith(b"\n"):
                rest, ended = self._rest()
                at += rest
                if not ended and not last:
                    return
            yield start, line.rstrip(b"\r\n"), at

    def _rest(self) -> tuple[int, bool]:
        """The length of the rest of an overlong line, and whether its end is there."""
        size = 0
        while more := self.file.readline(self._max_line_bytes):
            size += len(more)
            if more.endswith(b"\n"):
                return size, True
        return size, False

    def number(self, offset: int) -> int:
        """The line number at an offset, as editors count. Computed only for lines that need attention."""
        at, lines = self._counted
        while at < offset and (block := os.pread(self.file.fileno(), min(_BLOCK_BYTES, offset - at), at)):
            at, lines = at + len(block), lines + block.count(b"\n")
        self._counted = at, lines
        return lines + 1


class JsonLines(EventFeed):
    """One file, or with `follow` every file that gets its name. `notify` receives reports of lost data."""

    def __init__(
        self,
        path: Path,
        state: Path,
        defaults: Defaults,
        *,
        follow: bool = True,
        linger_s: float = LINGER_S,
        notify: Callable[[str], None] = lambda text: None,
        read: Read = item_of,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        """`state` is this feed's own file, in an existing folder. `read` converts a line to an item."""
        super().__init__(follow=follow)
        self._read = read
        self._max_line_bytes = max_line_bytes
        self._path = path
        self._state = state
        self._defaults = defaults
        self._linger_s = linger_s
        self._notify = notify
        self._finished_mtime_ns: int | None = None  # mtime of the last finished file
        self._renamed_at: float | None = None  # when the file was first seen to be renamed
        self._open: _OpenFile | None = None
        self._known = _Place.read(state)
        self._unsettled: deque[_Place] = deque()

    def close(self) -> None:
        if self._open is not None:
            self._open.file.close()
            self._open = None

    def _next(self, most: int, last: bool) -> list[FeedItem]:
        """The next lines. Empty if every file has been read."""
        while self._open is not None or self._open_next(last):
            finished = self._is_finished(last)  # before reading, so that all lines written until then are read
            if not self._opened.is_cut():
                found = self._lines(most, last=last or finished)
                if found or not finished:
                    return found
            self._finished_mtime_ns = os.fstat(self._opened.file.fileno()).st_mtime_ns if finished else None
            self.close()
            self._known = None
        return []

    @property
    def _opened(self) -> _OpenFile:
        assert self._open is not None
        return self._open

    def _lines(self, most: int, *, last: bool) -> list[FeedItem]:
        opened, found = self._opened, list[FeedItem]()
        source = f"jsonl:{self._path}#{opened.inode:x}-{opened.first_line.hex()[:16]}"
        for start, line, after in opened.lines(last=last):
            opened.offset = after
            if line.strip():
                item = self._read(source, start, line, self._defaults)
                if item.event is None and item.source == source:
                    flaw = f"line {opened.number(start)}: {item.flaw.removeprefix('line: ')}"
                    item = replace(item, flaw=flaw)
                found.append(item)
                self._unsettled.append(_Place(opened.inode, opened.first_line, after))
            if len(found) == most:
                break
        return found

    def settle(self, items: Sequence[FeedItem]) -> None:
        place = None
        for _ in items:
            place = self._unsettled.popleft()
        if place is not None:
            local_files.replace_file(self._state, place.encode())

    def _is_finished(self, last: bool) -> bool:
        """Whether another file has had the name for long enough that no more is written to this one."""
        try:
            moved = self._path.stat().st_ino != self._opened.inode
        except FileNotFoundError:
            moved = False  # between two files of a rotation
        if not moved:
            self._renamed_at = None
            return False
        now = time.monotonic()
        self._renamed_at = now if self._renamed_at is None else self._renamed_at
        return last or now >= self._renamed_at + self._linger_s

    def _open_next(self, last: bool) -> bool:
        """Open the next file: first the unfinished one under its current name, then the file with the name."""
        self._renamed_at = None
        if self._known is not None:
            path = self._file_of(self._known)
            if path is not None and self._try_open(path, self._known.offset, self._known.first_line):
                return True
            self._notify(f"{self._path} was replaced; its content after byte {self._known.offset} is gone")
            self._known = None
        return any(self._try_open(path, 0, _UNFINISHED if last else None) for path in self._following())

    def _following(self) -> list[Path]:
        """The files after the finished one: files renamed since, oldest first, then the one with the name."""
        found = []
        for path in self._path.parent.glob(f"{self._path.name}.*") if self._finished_mtime_ns is not None else ():
            with suppress(FileNotFoundError):
                written_ns = path.stat().st_mtime_ns
                if written_ns > (self._finished_mtime_ns or 0) and path.suffix not in _COMPRESSED_SUFFIXES:
                    found.append((written_ns, path))
        return [*(path for _, path in sorted(found)), self._path]

    def _try_open(self, path: Path, offset: int, otherwise: bytes | None) -> bool:
        """Open a file. `otherwise` identifies it if it has no complete first line."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        first_line = (otherwise if offset else None) or _first_line(file) or otherwise
        if first_line is None or not os.fstat(file.fileno()).st_size:
            file.close()
            return False
        self._open = _OpenFile(file, first_line, offset, self._max_line_bytes)
        if not self._unsettled:  # otherwise items of the previous file are still unsettled
            # Store the place before returning items: a file renamed before any item is settled must be found again.
            local_files.replace_file(self._state, _Place(self._open.inode, first_line, offset).encode())
        return True

    def _file_of(self, place: _Place) -> Path | None:
        """The file of a place: usually the one with the name, else a renamed one next to it."""
        beside = sorted(self._path.parent.glob(f"{self._path.name}*"))
        for path in (self._path, *beside):
            try:
                if path.stat().st_ino != place.inode:
                    continue
                with path.open("rb") as file:
                    if place.first_line in (_UNFINISHED, _first_line(file)):
                        return path
            except OSError:
                continue
        return None


def _first_line(file: BinaryIO) -> bytes | None:
    """The hash of the first line, or of its beginning if it is long; None while there is no complete line."""
    file.seek(0)
    line = file.readline(_MAX_RAW_BYTES)
    return h(line) if line.endswith(b"\n") or len(line) == _MAX_RAW_BYTES else None


def spool_lines(lines: BinaryIO, writer: SpoolWriter, defaults: Defaults) -> int:
    """Spool the lines of a pipe, and return their number. While the spool is full, the writer of the pipe is blocked.

    Each line is on disk before the next is read, since a pipe cannot be read again. A line that is not a JSON object is
    recorded as raw text, with the reason.
    """
    count, skipping = 0, False
    while line := lines.readline(MAX_LINE_BYTES + 2):
        complete = line.endswith(b"\n")
        if not skipping and line.strip():
            event = _line_event(line.rstrip(b"\r\n"), defaults)
            while not writer.append([event], again=True):
                time.sleep(_FULL_PAUSE_S)
            count += 1
        skipping = not complete  # skip the rest of an overlong line
    return count


def _line_event(line: bytes, defaults: Defaults) -> RecordEvent:
    now_ms = time.time_ns() // _MS
    try:
        return event_of(line, defaults, now_ms)
    except Malformed as error:
        return defaults.malformed(str(error), normalize.beginning(line, _MAX_RAW_BYTES), now_ms)
