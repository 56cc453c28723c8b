"""A spool: events on disk between whoever tells them and whoever sends them, so that neither waits for the other.

    <folder>/<time>-<chance>.spool    a segment, written by one process: frames, one after the other
    <folder>/digests                  of batches in segments that are gone: a batch told again is none

A frame is the length and the CRC-32 of what follows: `[digest or null, [event, …]]`, a batch that was told in one
piece. It is there whole or not at all: what a killed process left half written ends its segment. An event's place is
its number in the segment, so nobody needs to remember where it is but the segment itself.
"""

import asyncio
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

from veen.core import Malformed, Unavailable, cbor
from veen.core.hashing import HASH_BYTES
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import durable
from veen.recorder.durable import Appended
from veen.recorder.feed import FeedItem

SUFFIX = ".spool"
DIGESTS = "digests"
MAX_SPOOL_BYTES = 256 * MAX_MSG_BYTES
SEGMENT_BYTES = 8 * MAX_MSG_BYTES
MAX_BATCH_BYTES = 16 * MAX_MSG_BYTES
REMEMBERED = 1 << 16  # batches that are known when they are told again
DROPPED = "recorder.dropped"
_HEAD = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class SpoolBatch:
    """What was told in one piece; `end` is where the next frame begins."""

    end: int
    digest: bytes | None
    events: tuple[RecordEvent, ...]


class SpoolWriter:
    """Appends for one process, from any thread. A segment begins with the first event, and anew after a fork."""

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_SPOOL_BYTES, segment_bytes: int = SEGMENT_BYTES, sync: bool = False
    ) -> None:
        """With `sync` what is appended outlives a power cut as well, which takes the disk a moment each time."""
        durable.make_folder(folder)
        self.folder = folder
        self.dropped = 0  # events that were not kept since the last that was
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._lock = Lock()
        self._segment: Appended | None = None
        self._pid = os.getpid()
        self._used = 0
        self._known: OrderedDict[bytes, None] | None = None

    def append(self, events: Sequence[RecordEvent], digest: bytes | None = None, *, again: bool = False) -> bool:
        """Keep a batch; False where there is no room for it. One that is known by its digest is kept already.

        Who comes `again` with what finds no room has not lost it; else it counts as dropped. So it does where the disk
        fails, which raises `Unavailable`: nothing of the batch is kept then.
        """
        if not events:
            return True
        with self._lock:
            if digest is not None and digest in self._remembered():
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
        if self._pid != os.getpid():  # a fork: the segment is our parent's
            self._segment, self._pid = None, os.getpid()
        if self._segment is not None and self._segment.size >= self._segment_bytes:
            self._end_segment()
        if self._segment is None:
            name = f"{time.time_ns():016x}-{secrets.token_hex(8)}{SUFFIX}"
            self._segment = Appended(self.folder / name)
        try:
            self._segment.append(frame, sync=self._sync)
        except BaseException:
            self._end_segment()  # whoever reads it stops at half a frame: nothing may stand behind one
            raise
        self._used += len(frame)

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _has_room(self, size: int) -> bool:
        """Others write here too, and what was sent is removed: the folder is looked at where it would seem full."""
        if self._used + size > self._max_bytes or not self._used:
            self._used = sum(_size(path) for path in segments(self.folder))
        return self._used + size <= self._max_bytes

    def _remembered(self) -> OrderedDict[bytes, None]:
        if self._known is None:
            found = [batch.digest for path in segments(self.folder) for batch in batches(path)]
            known = (*read_digests(self.folder), *(digest for digest in found if digest is not None))
            self._known = OrderedDict.fromkeys(known)
        return self._known

    def _remember(self, digest: bytes) -> None:
        known = self._remembered()
        known[digest] = None
        while len(known) > REMEMBERED:
            known.popitem(last=False)


def frame_of(events: Sequence[RecordEvent], digest: bytes | None) -> bytes:
    """A batch as it stands in a segment. Raises `ValueError` where an event breaks its layout, or all are too much."""
    content = cbor.encode((digest, tuple(event.encode() for event in events)))
    if len(content) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {len(content)} bytes, above {MAX_BATCH_BYTES}")
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _dropped(count: int, event: RecordEvent) -> RecordEvent:
    """That events were lost is itself an event, at the time of the next."""
    return RecordEvent(event.origin, DROPPED, event.event_time, event.origin, f'{{"dropped":{count}}}')


def segments(folder: Path) -> list[Path]:
    """Every segment, in the order they were begun."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def batches(path: Path, offset: int = 0) -> Iterator[SpoolBatch]:
    """The whole frames of a segment from an offset on; what is half written, or damaged, ends it."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, crc = _HEAD.unpack(head)
                content = file.read(length) if length <= MAX_BATCH_BYTES else b""
                if len(content) != length or zlib.crc32(content) != crc:
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
    raise Malformed("spool", "a frame holds something other than a batch of events")


def read_digests(folder: Path) -> list[bytes]:
    """Those of batches whose segments are gone, oldest first."""
    try:
        data = (folder / DIGESTS).read_bytes()
    except FileNotFoundError:
        return []
    return [data[at : at + HASH_BYTES] for at in range(0, len(data) - len(data) % HASH_BYTES, HASH_BYTES)]


def remove(path: Path) -> None:
    """Forget a segment that was sent. The digests of its batches are kept first."""
    gone = [batch.digest for batch in batches(path) if batch.digest is not None]
    if gone:
        kept = (*read_digests(path.parent), *gone)[-REMEMBERED:]
        durable.replace_file(path.parent / DIGESTS, b"".join(kept))
    path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


PLACES = "places"
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a segment is settled: the frame at `offset` follows on `before` events, and `within` of its own are."""

    offset: int = 0
    before: int = 0
    within: int = 0


@dataclass(frozen=True, slots=True)
class _Taken:
    item: FeedItem
    segment: str
    after: _Place  # where the segment stands once this event is settled


class SpoolFeed:
    """All segments of a folder, also those that are still written. With `follow` it waits for more."""

    def __init__(self, folder: Path, name: str, *, follow: bool = True) -> None:
        """`name` is what the sources are called: one for each segment."""
        durable.make_folder(folder)
        self._folder = folder
        self._name = name
        self._follow = follow
        self._settled = _read(folder / PLACES)
        self._ahead: dict[str, _Place] = dict(self._settled)  # how far each segment has been given
        self._given: deque[_Taken] = deque()
        self._ended = False

    def close(self) -> None:
        """Nothing is held open."""

    def end(self) -> None:
        """What is there now is all there will be."""
        self._ended = True

    async def take(self, most: int) -> Sequence[FeedItem]:
        while True:
            last = self._ended or not self._follow
            found = await asyncio.to_thread(self._next, most)
            if found:
                self._given.extend(found)
                return [one.item for one in found]
            if last:
                return ()
            await asyncio.sleep(_LOOK_S)

    def _next(self, most: int) -> list[_Taken]:
        found: list[_Taken] = []
        for path in segments(self._folder):
            place = self._ahead.get(path.name, _Place())
            abandoned = durable.is_abandoned(path)  # before the look: what is there then is all there is
            for one in self._events(path, place, most - len(found)):
                found.append(one)
                self._ahead[path.name] = one.after
            if len(found) == most:
                break
            if abandoned and self._settled.get(path.name, _Place()) == self._ahead.get(path.name, _Place()):
                self._remove(path)
        return found

    def _events(self, path: Path, place: _Place, most: int) -> list[_Taken]:
        source, found = f"{self._name}/{path.name.removesuffix(SUFFIX)}", list[_Taken]()
        for batch in batches(path, place.offset):
            whole = _Place(batch.end, place.before + len(batch.events))
            for number in range(place.within + 1, len(batch.events) + 1):
                if len(found) == most:
                    return found
                after = whole if number == len(batch.events) else replace(place, within=number)
                item = FeedItem(source, place.before + number, batch.events[number - 1])
                found.append(_Taken(item, path.name, after))
            place = whole
        return found

    def settle(self, items: Sequence[FeedItem]) -> None:
        for _ in items:
            taken = self._given.popleft()
            self._settled[taken.segment] = taken.after
        self._write()

    def _remove(self, path: Path) -> None:
        remove(path)
        self._ahead.pop(path.name, None)
        if self._settled.pop(path.name, None) is not None:
            self._write()

    def _write(self) -> None:
        rows = {name: (one.offset, one.before, one.within) for name, one in sorted(self._settled.items())}
        durable.replace_file(self._folder / PLACES, cbor.encode(rows))


def _read(path: Path) -> dict[str, _Place]:
    try:
        rows = cbor.decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return {}
    if not isinstance(rows, Mapping):
        raise Malformed(str(path), "not the places of segments")
    found: dict[str, _Place] = {}
    for name, row in rows.items():
        match name, row:
            case str(), (int() as offset, int() as before, int() as within):
                found[name] = _Place(offset, before, within)
            case _:
                raise Malformed(str(path), f"{name!r} is no segment's place")
    return found
