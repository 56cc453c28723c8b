"""A data directory as a source of entries, read from its files alone: no index is needed, and none is believed."""

import os
import tempfile
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from veen.core import Malformed, Unavailable, Unverified
from veen.pipeline.sources.chunk import Chunk
from veen.pipeline.sources.files import FarFiles, LocalFiles, Missing, open_files
from veen.storage import frame
from veen.storage.artifacts import PeakSnapshot
from veen.storage.chunk_blocks import is_packed
from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import ChunkName, Folders

LOG = "log"
_PLAIN = Folders(Path())  # names without a place
_METADATA_FILES = (_PLAIN.identity, _PLAIN.identity_sig, _PLAIN.key_map, _PLAIN.limits, _PLAIN.profile)


class DirectoryChunks:
    """One data directory, also while a hub writes to it."""

    def __init__(self, url: str) -> None:
        # An executor works in another folder than the one in which the path was given.
        self.url = url if "://" in url else os.path.abspath(url)
        self.files: LocalFiles | FarFiles = open_files(self.url)
        self._walked: dict[str, tuple[int, int]] = {}  # how far an open chunk's headers were followed: offset, entries

    def hub_metadata(self) -> HubMetadata:
        if isinstance(self.files, LocalFiles):
            return read_metadata(Folders(self.files.root))
        with tempfile.TemporaryDirectory(prefix="veen-papers-") as here:
            for path in _METADATA_FILES:
                (Path(here) / path.name).write_bytes(self.files.read(path.name))
            origin = self._optional(_PLAIN.origin.name)
            if origin is not None:
                (Path(here) / _PLAIN.origin.name).write_bytes(origin)
            return read_metadata(Folders(Path(here)))

    def names(self) -> dict[str, int]:
        """Every file of the log folder and its size."""
        return self.files.listed(LOG)

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """From the names alone, but for open chunks, whose headers say how many entries they hold."""
        return self.measured(labels)[1]

    def measured(self, labels: frozenset[bytes] | None = None) -> tuple[dict[str, int], list[Chunk]]:
        """The names of the log folder, and its chunks. It is listed again where a hub closes a chunk meanwhile."""
        while True:
            names = self.names()
            try:
                return names, self.chunks_of(names, labels)
            except Unavailable:
                if self.names().keys() == names.keys():
                    raise

    def chunks_of(self, names: dict[str, int], labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """Where two chunks have one start, the closed one is whole; a compressed one is, too.

        Of closed ones that contradict each other, the one counts that other artifacts speak of.
        """
        found: dict[tuple[bytes, int], tuple[ChunkName, int]] = {}
        for file_name, size in names.items():
            name = ChunkName.parse(file_name)
            if name is None or (labels is not None and name.label not in labels):
                continue
            key = (name.label, name.start_seq)
            known = found.get(key)
            if known is None or _prefers(name, known[0], names):
                found[key] = name, size
        made = (self._chunk(name, size) for _, (name, size) in sorted(found.items()))
        return list(_apart([chunk for chunk in made if chunk.entries > 0], names))

    def _chunk(self, name: ChunkName, size: int) -> Chunk:
        if name.end_seq is not None:
            return Chunk(name.label, name.start_seq, name.end_seq, name.file_name(), size)
        counted, entries = self._follow(name.file_name(), size)
        return Chunk(name.label, name.start_seq, name.start_seq + entries - 1, name.file_name(), counted, closed=False)

    def _follow(self, name: str, size: int) -> tuple[int, int]:
        """How many bytes of an open chunk are whole entries, and how many those are: on from where it was left."""
        pos, entries = self._walked.get(name, (0, 0))
        if size > pos:
            for data, _ in self.files.blocks(f"{LOG}/{name}", size):
                while len(data) - pos >= frame.HEADER_BYTES and pos + (length := frame.length_at(data, pos)) <= size:
                    pos, entries = pos + length, entries + 1
        self._walked[name] = pos, entries
        return pos, entries

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """An open chunk may have been closed, and compressed, since it was planned."""
        try:
            yield from self.files.blocks(f"{LOG}/{chunk.name}", 0 if chunk.closed else chunk.size)
        except Unavailable:
            since = None if chunk.closed else self._closed_since(chunk)
            if since is None:
                raise
            yield from self.files.blocks(f"{LOG}/{since}", 0)

    def check_packing(self, chunk: Chunk) -> None:
        """Raise where a compressed chunk is not, byte for byte, what was written."""
        if is_packed(Path(chunk.name)):
            self.files.packed(f"{LOG}/{chunk.name}").check_digest()

    def _closed_since(self, chunk: Chunk) -> str | None:
        for file_name in self.names():
            name = ChunkName.parse(file_name)
            if name and (name.label, name.start_seq) == (chunk.label, chunk.start_seq) and name.end_seq is not None:
                return file_name
        return None

    def first_frame(self, chunk: Chunk) -> Data:
        return self.files.beginning(f"{LOG}/{chunk.name}")

    def peaks(self, label: bytes, size: int) -> tuple[bytes, ...]:
        snapshot = PeakSnapshot.decode(self.artifact(_PLAIN.peaks(label, size).name))
        if (snapshot.label, snapshot.upto_seq) != (label, size):
            raise Unverified("peak snapshot", "it is for another place than its name")
        return snapshot.peaks

    def artifact(self, name: str) -> bytes:
        """A small file of the log folder."""
        try:
            return self.files.read(f"{LOG}/{name}")
        except Missing:
            raise Malformed("log", f"{name} is missing") from None

    def _optional(self, path: str) -> bytes | None:
        try:
            return self.files.read(path)
        except Missing:
            return None


def _prefers(name: ChunkName, known: ChunkName, names: Container[str]) -> bool:
    """Whether a chunk counts, and not another with the same start."""
    if known.end_seq is None or name.end_seq is None:
        return known.end_seq is None
    if name.end_seq == known.end_seq:
        return name.packed
    return _spoken_of(name.label, name.start_seq, name.end_seq, names) > _spoken_of(
        known.label, known.start_seq, known.end_seq, names
    )


def _spoken_of(label: bytes, start: int, end: int, names: Container[str]) -> int:
    """How many artifacts there are for a chunk with these ends."""
    beside = (_PLAIN.summary(label, start, end), _PLAIN.peaks(label, end), _PLAIN.checkpoint(label, end))
    return sum(path.name in names for path in beside)


def _apart(chunks: Sequence[Chunk], names: Container[str]) -> Iterator[Chunk]:
    """Without closed chunks that lie over another and that no summary is of: copies under another name."""
    before: Chunk | None = None
    for chunk, after in pairwise([*chunks, None]):
        assert chunk is not None
        over = any(one is not None and _overlap(chunk, one) for one in (before, after))
        summary = _PLAIN.summary(chunk.label, chunk.start_seq, chunk.end_seq).name
        if not (over and chunk.closed and summary not in names):
            yield chunk
            before = chunk


def _overlap(a: Chunk, b: Chunk) -> bool:
    return a.label == b.label and a.start_seq <= b.end_seq and b.start_seq <= a.end_seq
