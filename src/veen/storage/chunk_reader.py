"""Read the log from its files alone, without an index: find the chunks, and read their entries in order.

A chunk is read in blocks of whole entries, from a plain or a compressed file.
"""

import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Self

import zstandard
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError

from veen.core import Malformed, Unavailable, limits, naming
from veen.storage import frame, safe_open
from veen.storage.frame import Data, LogEntry
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders, pruned_range
from veen.storage.pruned_chunk import PrunedChunk, PrunedEntry

PACKED_SUFFIX = ".zst"
FRAME_BYTES = 1 << 16

_MAX_PLAIN_BYTES = FRAME_BYTES + limits.MAX_MSG_BYTES + limits.ENTRY_OVERHEAD_BYTES
_MAX_FRAMES = limits.MAX_CHUNK_BYTES // FRAME_BYTES + 1
# Little-endian, like zstd.
_SKIPPABLE = struct.Struct("<II")  # magic, size of what follows
_ROW = struct.Struct("<II")  # packed and plain size
_FOOTER = struct.Struct("<IBI")  # number of rows, descriptor, magic
_DIGEST_MAGIC, _TABLE_MAGIC, _SEEKABLE_MAGIC = 0x184D2A50, 0x184D2A5E, 0x8F92EAB1
_DIGEST_BYTES = _SKIPPABLE.size + sha256().digest_size


def pack(data: Data, level: int) -> Iterator[bytes]:
    """Compress a chunk's entries; yields the parts of the file. Each frame is decompressed and compared first."""
    compressor = ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    digest, rows = sha256(), bytearray()
    for plain in _cut(data):
        packed = compressor.compress(plain)
        if _unpacked(packed, len(plain)) != plain:
            raise Malformed("log", "a frame differs after decompression; the chunk was not compressed")
        digest.update(packed)
        rows += _ROW.pack(len(packed), len(plain))
        yield packed
    yield _SKIPPABLE.pack(_DIGEST_MAGIC, digest.digest_size) + digest.digest()
    rows += _ROW.pack(_DIGEST_BYTES, 0)
    footer = _FOOTER.pack(len(rows) // _ROW.size, 0, _SEEKABLE_MAGIC)
    yield _SKIPPABLE.pack(_TABLE_MAGIC, len(rows) + len(footer)) + rows + footer


class PackedChunk:
    """The frames of a compressed chunk file. Raises `Malformed` if the file is not one."""

    def __init__(self, data: "Data | FileSlices") -> None:
        self._data = data
        packed, plain = _table(data)
        self._packed_ends = list(accumulate(packed))
        self._plain_ends = list(accumulate(plain))

    @property
    def size(self) -> int:
        """The uncompressed size of all entries."""
        return self._plain_ends[-1]

    def blocks(self, offset: int = 0) -> Iterator[tuple[bytes, int]]:
        """The entries from an uncompressed offset on: each frame, and the position in it to start from."""
        for number in range(bisect_right(self._plain_ends, offset), len(self._plain_ends)):
            start = self._plain_ends[number - 1] if number else 0
            yield self._unpack(number, start), max(0, offset - start)

    def check_digest(self) -> None:
        """Raise unless the frames match the stored digest."""
        for _ in self.digest_steps():
            pass

    def digest_steps(self) -> Iterator[int]:
        """As `check_digest`, in steps. Yields the number of bytes that each step read."""
        digest = sha256()
        for start in range(0, self._packed_ends[-1], FRAME_BYTES):
            part = self._data[start : min(start + FRAME_BYTES, self._packed_ends[-1])]
            digest.update(part)
            yield len(part)
        at = self._packed_ends[-1]
        if self._data[at + _SKIPPABLE.size : at + _DIGEST_BYTES] != digest.digest():
            raise Malformed("chunk", "the frames do not match the digest")

    def _unpack(self, number: int, plain_start: int) -> bytes:
        start = self._packed_ends[number - 1] if number else 0
        packed = self._data[start : self._packed_ends[number]]
        return _unpacked(packed, self._plain_ends[number] - plain_start)


def _cut(data: Data) -> Iterator[bytes]:
    """Split the entries into frames. A frame ends with the entry that brings it to FRAME_BYTES."""
    start = pos = 0
    while pos < len(data):
        pos += frame.length_at(data, pos)
        if pos - start >= FRAME_BYTES or pos >= len(data):
            yield data[start:pos]
            start = pos


def _unpacked(packed: bytes, size: int) -> bytes:
    """Decompress a frame to exactly `size` bytes. The declared size is checked before memory is allocated."""
    try:
        if zstandard.get_frame_parameters(packed).content_size != size:
            raise Malformed("chunk", "the size of a frame differs from the seek table")
        plain: bytes = ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except ZstdError as error:
        raise Malformed("chunk", f"a frame cannot be decompressed: {error}") from None
    if len(plain) != size:
        raise Malformed("chunk", f"a frame holds {len(plain)} bytes, not {size}")
    return plain


def _table(data: "Data | FileSlices") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Compressed and plain size of each frame. Checks everything in the file except the content of the frames."""
    end = len(data) - _FOOTER.size
    if end < _DIGEST_BYTES:
        raise Malformed("chunk", "too short for a compressed chunk")
    count, descriptor, magic = _FOOTER.unpack(data[end:])
    start = end - count * _ROW.size
    if magic != _SEEKABLE_MAGIC or descriptor or not 2 <= count <= _MAX_FRAMES + 1 or start < _SKIPPABLE.size:
        raise Malformed("chunk", "the seek table at the end is missing or damaged")
    if _SKIPPABLE.unpack(data[start - _SKIPPABLE.size : start]) != (_TABLE_MAGIC, len(data) - start):
        raise Malformed("chunk", "the seek table starts at the wrong offset")
    rows = struct.unpack(f"<{2 * count}I", data[start:end])
    packed, plain = rows[:-2:2], rows[1:-2:2]
    at = start - _SKIPPABLE.size - _DIGEST_BYTES
    if rows[-2:] != (_DIGEST_BYTES, 0) or sum(packed) != at:
        raise Malformed("chunk", "the size of the frames differs from the seek table")
    if _SKIPPABLE.unpack(data[at : at + _SKIPPABLE.size]) != (_DIGEST_MAGIC, sha256().digest_size):
        raise Malformed("chunk", "the digest is missing")
    if min(plain) == 0 or max(plain) >= _MAX_PLAIN_BYTES or sum(plain) > limits.MAX_CHUNK_BYTES:
        raise Malformed("chunk", "the seek table declares a frame above the limit")
    return packed, plain


def read_blocks(path: Path, offset: int = 0, size: int = 0) -> Iterator[tuple[Data, int]]:
    """The entries from `offset` on: blocks, each with the position in it to start from.

    Offsets count uncompressed bytes. `size` limits how much of a plain file is read: bytes behind it may be in the
    middle of a write.
    """
    if is_packed(path):
        yield from PackedChunk(mapped(path)).blocks(offset)
    else:
        yield mapped(path, size), offset


class FileSlices:
    """The bytes of a file, or its first `size` bytes, read slice by slice.

    Not mapped: a bad sector raises `OSError` here, but ends a process that reads it through a mapping.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self._name = path.name
        self._fd = safe_open.open_file(path)
        found = os.fstat(self._fd).st_size
        self._size = size or found
        if not 0 < self._size <= found:
            os.close(self._fd)
            raise Malformed("log", f"{path.name} has {found} bytes, not {size or 'one or more'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        data = os.pread(self._fd, stop - start, start)
        if len(data) != max(0, stop - start):
            raise Malformed("log", f"{self._name} is shorter than {stop} bytes")
        return data


def stream_blocks(data: FileSlices) -> Iterator[bytes]:
    """The entries of a plain chunk in blocks of whole entries: about FRAME_BYTES, or one larger entry.

    The last block ends with an incomplete entry if the file does.
    """
    pos = 0
    while pos < len(data):
        block, end = data[pos : pos + FRAME_BYTES], 0
        while end + frame.HEADER_BYTES <= len(block) and end + frame.length_at(block, end) <= len(block):
            end += frame.length_at(block, end)
        if not end:
            end = frame.length_at(block, 0)
            if end >= _MAX_PLAIN_BYTES:
                raise Malformed("entry", f"its header declares {end} bytes, at byte {pos} of the chunk")
            block = data[pos : pos + end]
        yield block[:end]
        pos += end


def check_packing(path: Path) -> None:
    """Raise if a compressed chunk does not match its digest. Plain chunks are covered by their entry hashes."""
    if is_packed(path):
        PackedChunk(mapped(path)).check_digest()


def is_packed(path: Path) -> bool:
    return path.suffix == PACKED_SUFFIX


def mapped(path: Path, size: int = 0) -> Data:
    """Map a file, or its first `size` bytes."""
    try:
        with open(safe_open.open_file(path), "rb", buffering=0) as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise Malformed("log", f"{path.name} is shorter than expected: {error}") from None
    except OSError as error:
        raise Unavailable(f"{path.name} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A chunk file."""

    start_seq: int
    end_seq: int | None  # None while it is open
    path: Path
    pruned: bool = False


def chunk_files(folders: Folders, label: bytes | None = None) -> dict[bytes, list[ChunkFile]]:
    """The chunks of every label, or of one, in order. If two start at the same entry, a closed or compressed chunk is
    preferred: it is complete. A pruned chunk counts only if the chunk itself is gone."""
    if not folders.log.is_dir():
        raise Unavailable("the data directory has no log folder")
    found: dict[bytes, dict[int, ChunkFile]] = {}
    pruned: list[tuple[bytes, ChunkFile]] = []
    for path in folders.log.iterdir():
        name = ChunkName.parse(path.name)
        if name is None and (of := pruned_range(path.name)) is not None and label in (None, of[0]):
            pruned.append((of[0], ChunkFile(of[1], of[2], path, pruned=True)))
        if name is None or label not in (None, name.label):
            continue
        chunks = found.setdefault(name.label, {})
        known = chunks.get(name.start_seq)
        if known is None or known.end_seq is None or (name.packed and name.end_seq == known.end_seq):
            chunks[name.start_seq] = ChunkFile(name.start_seq, name.end_seq, path)
    for of_label, chunk in pruned:
        found.setdefault(of_label, {}).setdefault(chunk.start_seq, chunk)
    return {label: [chunks[start] for start in sorted(chunks)] for label, chunks in sorted(found.items())}


def read_log(chunks: Iterable[ChunkFile], upto: int | None) -> Iterator[tuple[LogEntry | PrunedEntry, bytes]]:
    """The entries of a label and their frames, up to `upto`. Raises `Malformed` if they are not consecutive.

    The frame of a pruned entry consists of zeros: only its length is known.
    """
    seq = 1
    for chunk in chunks:
        if upto is not None and chunk.start_seq > upto:
            break
        if chunk.start_seq != seq:
            raise Malformed("log", f"{chunk.path.name} found where a chunk from entry {seq} is expected")
        if chunk.pruned:
            with PrunedChunk(chunk.path) as left:
                for one in left.entries():
                    if upto is not None and seq > upto:
                        return
                    yield one, bytes(one.size)
                    seq += 1
            continue
        for data, pos in read_blocks(chunk.path):
            while pos < len(data):
                if upto is not None and seq > upto:
                    return
                entry, end = frame.read(data, pos)
                if entry.stream_seq != seq:
                    raise Malformed(
                        "log", f"{chunk.path.name} has entry {entry.stream_seq} at the place of entry {seq}"
                    )
                yield entry, data[pos:end]
                seq, pos = seq + 1, end
        if chunk.end_seq is not None and seq != chunk.end_seq + 1:
            raise Malformed("log", f"{chunk.path.name} ends with entry {seq - 1}")
    if upto is not None and seq <= upto:
        raise Malformed("log", f"it ends with entry {seq - 1}, but must reach entry {upto}")


def last_entry(path: Path, offset: int = 0, size: int = 0) -> LogEntry:
    """The last entry of a chunk. `offset` is the offset of any entry before it; `size` is as for `read_blocks`."""
    last: LogEntry | None = None
    for data, pos in read_blocks(path, offset, size):
        at: int | None = None
        while pos < len(data):
            at, pos = pos, pos + frame.length_at(data, pos)
        last = last if at is None else frame.read(data, at)[0]
    if last is None:
        raise Malformed("log", f"{path.name} has no entry")
    return last


def size_of(chunks: list[ChunkFile]) -> int:
    """The number of entries in a label's chunks, by the lengths in their headers."""
    last = chunks[-1]
    if last.end_seq is not None:
        return last.end_seq
    size = last.start_seq - 1
    for data, pos in read_blocks(last.path):
        while pos < len(data):
            if data[pos] != frame.ENTRY_VERSION:  # fail fast on a file of zeros
                raise Malformed("log", f"{last.path.name} has no entry at byte {pos}")
            pos += frame.length_at(data, pos)
            size += 1
    return size


def control_first(hub_metadata: HubMetadata, files: dict[bytes, list[ChunkFile]]) -> list[bytes]:
    """The labels of the control stream by age, then the others: control entries register what others depend on.

    With epochs the other labels are ordered by age, too, so that the labels of one epoch are adjacent.
    """
    control = control_labels(hub_metadata, files)
    known = set(control)
    others = [label for label in files if label not in known]
    if hub_metadata.profile.epoch_sec:
        others.sort(key=lambda label: _first_hub_ts(files[label]) or 0)
    return control + others


def control_labels(hub_metadata: HubMetadata, files: dict[bytes, list[ChunkFile]]) -> list[bytes]:
    """The labels of the control stream, oldest first."""
    routing, stream = hub_metadata.identity.routing_key, naming.control_stream(hub_metadata.identity.hub_id)
    if not hub_metadata.profile.epoch_sec:
        return [*({naming.label(routing, stream, 0)} & files.keys())]
    control = []
    for label, chunks in files.items():
        hub_ts = _first_hub_ts(chunks)
        if hub_ts is not None and naming.label(routing, stream, hub_metadata.profile.epoch(hub_ts)) == label:
            control.append((hub_ts, label))
    return [label for _, label in sorted(control)]


def _first_hub_ts(chunks: list[ChunkFile]) -> int | None:
    """The hub_ts of a label's first entry; None if it is unreadable, which other checks report."""
    try:
        if chunks[0].pruned:
            with PrunedChunk(chunks[0].path) as left:
                return left.entry(left.start_seq).hub_ts
        data, _ = next(read_blocks(chunks[0].path))
        entry, _ = frame.read(data)
        return entry.open()[1].hub_ts
    except Malformed:
        return None
