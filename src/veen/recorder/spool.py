"""A spool: events on disk between whoever tells them and whoever sends them, so that neither waits for the other.

    <folder>/<time>-<chance>.spool    a segment, written by one process: frames, one after the other
    <folder>/digests                  of batches in segments that are gone: a batch told again is none

A frame is the length and the CRC-32 of what follows: `[digest or null, [event, …]]`, a batch that was told in one
piece. It is there whole or not at all: what a killed process left half written ends its segment. An event's place is
its number in the segment, so nobody needs to remember where it is but the segment itself.
"""

import os
import secrets
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from veen.core import Malformed, Unavailable, cbor
from veen.core.hashing import HASH_BYTES
from veen.core.limits import MAX_MSG_BYTES
from veen.overlays.record import RecordEvent
from veen.recorder import durable
from veen.recorder.durable import Appended

SUFFIX = ".spool"
DIGESTS = "digests"
MAX_SPOOL_BYTES = 256 * MAX_MSG_BYTES
SEGMENT_BYTES = 8 * MAX_MSG_BYTES
MAX_BATCH_BYTES = 16 * MAX_MSG_BYTES
REMEMBERED = 1 << 16  # batches that are known when they are told again
DROPPED = "recorder.dropped"
_HEAD = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Batch:
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


def batches(path: Path, offset: int = 0) -> Iterator[Batch]:
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
                yield Batch(offset, digest, events)
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
