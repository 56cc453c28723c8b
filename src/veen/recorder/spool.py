"""A spool: events on disk between the input that receives them and the shipper, so that neither waits for the other.

        <folder>/<time>-<random>.spool    a segment, written by one process: consecutive frames
        <folder>/digests                  digests of batches in removed segments, to recognize repeated batches

A frame is the length and the CRC-32 of its content: `[digest or null, [event, …]]`, one batch. A frame is complete or
ignored: a half-written frame of a killed process ends its segment. The position of an event is its number in the
segment, so positions need no other storage.
"""

import os
import secrets
import struct
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from plumbing.durable import AppendFile, is_abandoned
from veen.client import local_files
from veen.client.local_files import DISK, named
from veen.core import Malformed, Unavailable, cbor
from veen.core.hashing import HASH_BYTES
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder.feed import EventFeed, FeedItem

SUFFIX = ".spool"
DIGESTS = "digests"
MAX_SPOOL_BYTES = 256 * MAX_MSG_BYTES
SEGMENT_BYTES = 8 * MAX_MSG_BYTES
MAX_BATCH_BYTES = 16 * MAX_MSG_BYTES
MAX_DIGESTS = 1 << 16  # digests kept to recognize repeated batches
DROPPED = "recorder.dropped"
_HEAD = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    """One batch; `end` is the offset of the next frame."""

    end: int
    digest: bytes | None
    events: tuple[RecordEvent, ...]


class SpoolWriter:
    """Appends for one process, from any thread. The first event starts a segment; so does the first after a fork."""

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_SPOOL_BYTES, segment_bytes: int = SEGMENT_BYTES, sync: bool = False
    ) -> None:
        """With `sync`, appended events also survive a power cut, at the cost of one disk sync each time."""
        DISK.make_folder(folder, parents=True)
        self.folder = folder
        self.dropped = 0  # events dropped since the last successful append
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._lock = Lock()
        self._segment: AppendFile | None = None
        self._pid = os.getpid()
        self._used_bytes = 0
        self._known: OrderedDict[bytes, None] | None = None

    def append(self, events: Sequence[RecordEvent], digest: bytes | None = None, *, again: bool = False) -> bool:
        """Store a batch. Returns False if there is no room. A batch with a known digest counts as stored.

        Pass `again=True` if the caller will retry; otherwise a batch without room counts as dropped. If the disk fails,
        `Unavailable` is raised and none of the batch is stored.
        """
        if not events:
            return True
        with self._lock:
            if digest is not None and digest in self._known_digests():
                return True
            frame = frame_of(events, digest)
            if not self._has_room(len(frame)):
                self.dropped += 0 if again else len(events)
                return False
            try:
                if self.dropped:
                    self._append(frame_of([_dropped(self.dropped, events[0])], None))
                    self.dropped = 0
                self._append(frame)
            except Unavailable:
                self.dropped += 0 if again else len(events)
                raise
            if digest is not None:
                self._remember(digest)
            return True

    def close(self) -> None:
        with self._lock:
            self._end_segment()

    def _append(self, frame: bytes) -> None:
        if self._pid != os.getpid():  # after a fork the segment belongs to the parent
            self._segment, self._pid = None, os.getpid()
        if self._segment is not None and self._segment.size >= self._segment_bytes:
            self._end_segment()
        if self._segment is None:
            name = f"{time.time_ns():016x}-{secrets.token_hex(8)}{SUFFIX}"
            with named(self.folder / name):
                self._segment = AppendFile(self.folder / name)
        try:
            with named(self._segment.path):
                self._segment.append(frame, sync=self._sync)
        except BaseException:
            self._end_segment()  # readers stop at a partial frame, so nothing may follow it
            raise
        self._used_bytes += len(frame)

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _has_room(self, size: int) -> bool:
        """Recount the folder if it seems full: other processes write here too, and sent segments are removed."""
        if self._used_bytes + size > self._max_bytes or not self._used_bytes:
            self._used_bytes = sum(_size(path) for path in segments(self.folder))
        return self._used_bytes + size <= self._max_bytes

    def _known_digests(self) -> OrderedDict[bytes, None]:
        if self._known is None:
            found = [batch.digest for path in segments(self.folder) for batch in batches(path)]
            known = (*read_digests(self.folder), *(digest for digest in found if digest is not None))
            self._known = OrderedDict.fromkeys(known)
        return self._known

    def _remember(self, digest: bytes) -> None:
        known = self._known_digests()
        known[digest] = None
        while len(known) > MAX_DIGESTS:
            known.popitem(last=False)


def frame_of(events: Sequence[RecordEvent], digest: bytes | None) -> bytes:
    """Encode a batch. Raises `ValueError` if an event is invalid or the batch too large."""
    content = cbor.encode((digest, tuple(event.encode() for event in events)))
    if len(content) > MAX_BATCH_BYTES:
        raise ValueError(f"batch has {len(content)} bytes, the limit is {MAX_BATCH_BYTES}")
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _dropped(count: int, event: RecordEvent) -> RecordEvent:
    """An event that reports the loss of events, with the time of the next one."""
    return RecordEvent(event.origin, DROPPED, event.event_time, event.origin, f'{{"dropped":{count}}}')


def segments(folder: Path) -> list[Path]:
    """Every segment, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def batches(path: Path, offset: int = 0) -> Iterator[SpoolBatch]:
    """The complete frames of a segment from an offset. A partial or damaged frame ends the iteration."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, crc = _HEAD.unpack(head)
                content = file.read(length) if length <= MAX_BATCH_BYTES else b""
                # A power cut can leave zeros, which have the CRC of a frame without content.
                if not length or len(content) != length or zlib.crc32(content) != crc:
                    return
                digest, events = _decode(content)
                offset += _HEAD.size + length
                yield SpoolBatch(offset, digest, events)
    except FileNotFoundError:
        return


def _decode(content: bytes) -> tuple[bytes | None, tuple[RecordEvent, ...]]:
    match cbor.decode(content, "spool"):
        case (bytes() | None as digest, tuple() as listed):
            return digest, tuple(RecordEvent.decode(one) for one in listed if isinstance(one, bytes))
    raise Malformed("spool", "a frame does not contain a batch of events")


def read_digests(folder: Path) -> list[bytes]:
    """The digests of batches whose segments are removed, oldest first."""
    try:
        data = (folder / DIGESTS).read_bytes()
    except FileNotFoundError:
        return []
    return [data[at : at + HASH_BYTES] for at in range(0, len(data) - len(data) % HASH_BYTES, HASH_BYTES)]


def remove(path: Path) -> None:
    """Remove a sent segment. Its digests are stored first, so that repeated batches are still recognized."""
    digests = [batch.digest for batch in batches(path) if batch.digest is not None]
    if digests:
        kept = (*read_digests(path.parent), *digests)[-MAX_DIGESTS:]
        local_files.replace_file(path.parent / DIGESTS, b"".join(kept))
    path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


PLACES = "places"


@dataclass(frozen=True, slots=True)
class _Place:
    """The settled part of a segment: the frame at `offset` follows `before` events, and `within` of its own."""

    offset: int = 0
    before: int = 0
    within: int = 0


@dataclass(frozen=True, slots=True)
class _HandedOut:
    item: FeedItem
    segment: str
    after: _Place  # the place once this event is settled


class SpoolFeed(EventFeed):
    """All segments of a folder, including those still being written. With `follow`, waits for more."""

    def __init__(self, folder: Path, name: str, *, follow: bool = True) -> None:
        """`name` prefixes the source names; each segment is one source."""
        super().__init__(follow=follow)
        DISK.make_folder(folder, parents=True)
        self._folder = folder
        self._name = name
        self._settled = _read(folder / PLACES)
        self._handed_out: dict[str, _Place] = dict(self._settled)  # how far each segment has been handed out
        self._unsettled: deque[_HandedOut] = deque()
        # The frame of each digest. If a sync fails, the writer stores the batch again, and a power cut may restore the
        # first copy: only one of the two counts.
        self._frames: dict[bytes, tuple[str, int]] = dict.fromkeys(read_digests(folder), ("", 0))
        for path in segments(folder):
            for batch in batches(path):
                self._is_copy(path, batch)

    def _is_copy(self, path: Path, batch: SpoolBatch) -> bool:
        frame = path.name, batch.end
        return batch.digest is not None and self._frames.setdefault(batch.digest, frame) != frame

    def _next(self, most: int, last: bool) -> list[FeedItem]:
        found: list[_HandedOut] = []
        for path in segments(self._folder):
            place = self._handed_out.get(path.name, _Place())
            with named(path):
                abandoned = is_abandoned(path)  # before reading: an abandoned segment is complete
            for one in self._events(path, place, most - len(found)):
                found.append(one)
                self._handed_out[path.name] = one.after
            if len(found) == most:
                break
            if abandoned and self._settled.get(path.name, _Place()) == self._handed_out.get(path.name, _Place()):
                self._remove(path)
        self._unsettled.extend(found)
        return [one.item for one in found]

    def _events(self, path: Path, place: _Place, most: int) -> list[_HandedOut]:
        source, found = f"{self._name}/{path.name.removesuffix(SUFFIX)}", list[_HandedOut]()
        for batch in batches(path, place.offset):
            whole = _Place(batch.end, place.before + len(batch.events))
            for number in range(place.within + 1, 0 if self._is_copy(path, batch) else len(batch.events) + 1):
                if len(found) == most:
                    return found
                after = whole if number == len(batch.events) else replace(place, within=number)
                item = FeedItem(source, place.before + number, batch.events[number - 1])
                found.append(_HandedOut(item, path.name, after))
            place = whole
        return found

    def settle(self, items: Sequence[FeedItem]) -> None:
        for _ in items:
            taken = self._unsettled.popleft()
            self._settled[taken.segment] = taken.after
        self._write()

    def _remove(self, path: Path) -> None:
        remove(path)
        self._handed_out.pop(path.name, None)
        if self._settled.pop(path.name, None) is not None:
            self._write()

    def _write(self) -> None:
        rows = {name: (one.offset, one.before, one.within) for name, one in sorted(self._settled.items())}
        local_files.replace_file(self._folder / PLACES, cbor.encode(rows))


def _read(path: Path) -> dict[str, _Place]:
    try:
        rows = cbor.decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    if not isinstance(rows, Mapping):
        raise Malformed(str(path), "it does not contain places of segments")
    found: dict[str, _Place] = {}
    for name, row in rows.items():
        match name, row:
            case str(), (int() as offset, int() as before, int() as within):
                found[name] = _Place(offset, before, within)
            case _:
                raise Malformed(str(path), f"{name!r} has no valid place")
    return found
