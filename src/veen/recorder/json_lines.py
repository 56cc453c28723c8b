"""JSON lines of a file as a feed: followed, through rotation, and resumed where it was left.

A place is the offset of a line's first byte; a source is one file, known by its inode and its first line. So a file
that was renamed is read to its end under its new name, and one that was cut and begun anew is another source.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from veen.core import Malformed, canonical_json, cbor
from veen.core.hashing import h
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import durable, normalize
from veen.recorder.feed import FeedItem
from veen.recorder.normalize import Defaults

MAX_LINE_BYTES = MAX_BODY_BYTES
_SHOWN = 1_000  # of a line that cannot be recorded
_LOOK_S = 0.1
_BLOCK_BYTES = 1 << 20
LINGER_S = 5.0  # at the end of a file that was renamed: its writer may not know yet
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_UNFINISHED = h(b"")  # stands for the first line of a file that has no whole one
_OWN = ("subject_id", "event_type", "event_time", "origin", "payload")
_TIMES = ("event_time", "time", "timestamp", "ts", "@timestamp")
_MS = 1_000_000


def event_of(line: bytes, defaults: Defaults, now_ms: int) -> RecordEvent:
    """What a line says. A field of a recorder's event that it has is that; all else is payload.

    Raises `Malformed` where it is no JSON object.
    """
    found = canonical_json.parse(line, "line", exact=True)
    if not isinstance(found, dict):
        raise Malformed("line", "not a JSON object")
    times = (normalize.milliseconds(found[name]) for name in _TIMES if name in found)
    payload = found["payload"] if "payload" in found and set(found) <= set(_OWN) else found
    return RecordEvent(
        normalize.name(_text(found.get("subject_id")), defaults.subject),
        normalize.name(_text(found.get("event_type")), defaults.event_type),
        next((one for one in times if one is not None), now_ms),
        normalize.name(_text(found.get("origin")), defaults.origin),
        normalize.payload_of(payload),
    )


def _text(value: object) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)


def item_of(source: str, position: int, line: bytes, defaults: Defaults) -> FeedItem:
    """A line in its place, or why nothing can be made of it."""
    try:
        if len(line) > MAX_LINE_BYTES:
            raise Malformed("line", f"longer than {MAX_LINE_BYTES} bytes")
        return FeedItem(source, position, event_of(line, defaults, time.time_ns() // _MS))
    except Malformed as error:
        return FeedItem(source, position, None, str(error), normalize.beginning(line, _SHOWN))


Read: TypeAlias = Callable[[str, int, bytes, Defaults], FeedItem]


@dataclass(frozen=True, slots=True)
class _Place:
    """Which file, and the offset of the first line that is not settled."""

    inode: int
    first_line: bytes  # H of it
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
        raise Malformed(str(path), "not a place in a file")


class _Open:
    """A file that is being read, whatever its name is by now."""

    def __init__(self, file: BinaryIO, first_line: bytes, offset: int, max_line_bytes: int) -> None:
        self.file = file
        self._max_line_bytes = max_line_bytes
        self._counted = 0, 0  # up to this byte there are so many lines
        self.inode = os.fstat(file.fileno()).st_ino
        self.first_line = first_line
        self.offset = offset

    def is_cut(self) -> bool:
        """Whether it was begun anew in place: it is shorter, or begins with something else."""
        if os.fstat(self.file.fileno()).st_size < self.offset:
            return True
        return self.first_line != _UNFINISHED and _first_line(self.file) != self.first_line

    def lines(self, *, last: bool) -> Iterator[tuple[int, bytes, int]]:
        """`(offset, line, offset after it)` of what is there. Half a line is one only where nothing more will come."""
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
        """How much more there is of a line that is too long to keep, and whether its end is there."""
        size = 0
        while more := self.file.readline(self._max_line_bytes):
            size += len(more)
            if more.endswith(b"\n"):
                return size, True
        return size, False

    def number(self, offset: int) -> int:
        """Which line begins there, as editors count. Counted only for lines that someone must look at."""
        at, lines = self._counted
        while at < offset and (block := os.pread(self.file.fileno(), min(_BLOCK_BYTES, offset - at), at)):
            at, lines = at + len(block), lines + block.count(b"\n")
        self._counted = at, lines
        return lines + 1


class JsonLines:
    """One file, or with `follow` all that come to have its name. `told` hears of what was lost."""

    def __init__(
        self,
        path: Path,
        state: Path,
        defaults: Defaults,
        *,
        follow: bool = True,
        linger_s: float = LINGER_S,
        told: Callable[[str], None] = lambda text: None,
        read: Read = item_of,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        """`state` is a file of this feed's own, in a folder that is there. `read` makes an item of a line."""
        self._read = read
        self._max_line_bytes = max_line_bytes
        self._path = path
        self._state = state
        self._defaults = defaults
        self._follow = follow
        self._linger_s = linger_s
        self._told = told
        self._left_ns: int | None = None  # when the file that was left was last written to
        self._left_at: float | None = None  # when the file was first seen to have lost its name
        self._open: _Open | None = None
        self._known = _Place.read(state)
        self._given: deque[_Place] = deque()
        self._ended = False

    def close(self) -> None:
        if self._open is not None:
            self._open.file.close()
            self._open = None

    def end(self) -> None:
        """What is there now is all there will be."""
        self._ended = True

    async def take(self, most: int) -> Sequence[FeedItem]:
        while True:
            last = self._ended or not self._follow
            found = await asyncio.to_thread(self._next, most, last)
            if found or last:
                return found
            await asyncio.sleep(_LOOK_S)

    def _next(self, most: int, last: bool) -> list[FeedItem]:
        """Every file that there is to read has been read where this gives nothing."""
        while self._open is not None or self._begin(last):
            is_left = self._is_left(last)  # before reading: what its writer wrote until then is there
            if not self._opened.is_cut():
                found = self._lines(most, last=last or is_left)
                if found or not is_left:
                    return found
            self._left_ns = os.fstat(self._opened.file.fileno()).st_mtime_ns if is_left else None
            self.close()
            self._known = None
        return []

    @property
    def _opened(self) -> _Open:
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
                self._given.append(_Place(opened.inode, opened.first_line, after))
            if len(found) == most:
                break
        return found

    def settle(self, items: Sequence[FeedItem]) -> None:
        place = None
        for _ in items:
            place = self._given.popleft()
        if place is not None:
            durable.replace_file(self._state, place.encode())

    def _is_left(self, last: bool) -> bool:
        """Whether another file has the name by now, and for so long that nothing more is written to this one."""
        try:
            moved = self._path.stat().st_ino != self._opened.inode
        except FileNotFoundError:
            moved = False  # between two files: there will be another
        if not moved:
            self._left_at = None
            return False
        now = time.monotonic()
        self._left_at = now if self._left_at is None else self._left_at
        return last or now >= self._left_at + self._linger_s

    def _begin(self, last: bool) -> bool:
        """Open what is to be read next: what was left, under whatever name it has, then what has the name."""
        self._left_at = None
        if self._known is not None:
            path = self._named(self._known)
            if path is not None and self._opens(path, self._known.offset, self._known.first_line):
                return True
            self._told(f"{self._path} was replaced, and what was in it after byte {self._known.offset} is gone")
            self._known = None
        return any(self._opens(path, 0, _UNFINISHED if last else None) for path in self._following())

    def _following(self) -> list[Path]:
        """What comes after the file that was left: files that were renamed since, oldest first, then the one named."""
        found = []
        for path in self._path.parent.glob(f"{self._path.name}.*") if self._left_ns is not None else ():
            with suppress(FileNotFoundError):
                written_ns = path.stat().st_mtime_ns
                if written_ns > (self._left_ns or 0) and path.suffix not in _PACKED:
                    found.append((written_ns, path))
        return [*(path for _, path in sorted(found)), self._path]

    def _opens(self, path: Path, offset: int, otherwise: bytes | None) -> bool:
        """`otherwise` stands for the first line, where there is no whole one."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        first_line = (otherwise if offset else None) or _first_line(file) or otherwise
        if first_line is None or not os.fstat(file.fileno()).st_size:
            file.close()
            return False
        self._open = _Open(file, first_line, offset, self._max_line_bytes)
        if not self._given:  # else what was given of the file before is still to be settled
            # Before anything is given: a file that is renamed before any of it is settled must be found again.
            durable.replace_file(self._state, _Place(self._open.inode, first_line, offset).encode())
        return True

    def _named(self, place: _Place) -> Path | None:
        """The file of a place: most often the one of that name, else one beside it that was given another."""
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
    """The hash of a file's first line, or of its beginning where that is long; None while it has none."""
    file.seek(0)
    line = file.readline(_SHOWN)
    return h(line) if line.endswith(b"\n") or len(line) == _SHOWN else None
