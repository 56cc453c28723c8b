"""A data directory as a source of entries. It reads the log files only; the index is neither needed nor trusted."""

import os
import tempfile
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from veen.core import Malformed, Unavailable, Unverified
from veen.pipeline.sources.chunk import Chunk
from veen.pipeline.sources.files import LocalFiles, Missing, RemoteFiles, open_files
from veen.storage import frame
from veen.storage.artifacts import PeakSnapshot
from veen.storage.chunk_reader import is_packed
from veen.storage.frame import Data
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import ChunkName, Folders

LOG = "log"
_NAMES = Folders(Path())  # for file names only
_METADATA_FILES = (_NAMES.identity, _NAMES.identity_sig, _NAMES.key_map, _NAMES.limits, _NAMES.profile)


class DirectoryChunks:
    """One data directory. A hub may write to it meanwhile."""

    def __init__(self, url: str) -> None:
        # Executors run in other working directories than the caller.
        self.url = url if "://" in url else os.path.abspath(url)
        self.files: LocalFiles | RemoteFiles = open_files(self.url)
        self._measured: dict[str, tuple[int, int]] = {}  # end of the measured part of each open chunk: offset, entries

    def metadata(self) -> HubMetadata:
        if isinstance(self.files, LocalFiles):
            return read_metadata(Folders(self.files.root))
        with tempfile.TemporaryDirectory(prefix="veen-metadata-") as folder:
            for path in _METADATA_FILES:
                (Path(folder) / path.name).write_bytes(self.files.read(path.name))
            origin = self._optional(_NAMES.origin.name)
            if origin is not None:
                (Path(folder) / _NAMES.origin.name).write_bytes(origin)
            return read_metadata(Folders(Path(folder)))

    def names(self) -> dict[str, int]:
        """The name and size of every file in the log folder."""
        return self.files.listed(LOG)

    def chunks(self, labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """The chunks by file name. For open chunks, the entry headers are counted."""
        return self.measured(labels)[1]

    def measured(self, labels: frozenset[bytes] | None = None) -> tuple[dict[str, int], list[Chunk]]:
        """File names and chunks of the log folder. Lists the folder again if a hub closes a chunk meanwhile."""
        while True:
            names = self.names()
            try:
                return names, self.chunks_of(names, labels)
            except Unavailable:
                if self.names().keys() == names.keys():
                    raise

    def chunks_of(self, names: dict[str, int], labels: frozenset[bytes] | None = None) -> list[Chunk]:
        """The chunks among these files.

        Of two chunks with the same start, a closed one is preferred to an open one, a compressed to a plain one.
        If closed chunks contradict each other, the one that more artifacts refer to is used.
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
        return list(_without_copies([chunk for chunk in made if chunk.entries > 0], names))

    def _chunk(self, name: ChunkName, size: int) -> Chunk:
        if name.end_seq is not None:
            return Chunk(name.label, name.start_seq, name.end_seq, name.file_name(), size)
        counted, entries = self._measure(name.file_name(), size)
        return Chunk(name.label, name.start_seq, name.start_seq + entries - 1, name.file_name(), counted, closed=False)

    def _measure(self, name: str, size: int) -> tuple[int, int]:
        """Count the bytes and number of whole entries in an open chunk, continuing from the last call."""
        pos, entries = self._measured.get(name, (0, 0))
        if size > pos:
            for data, _ in self.files.blocks(f"{LOG}/{name}", size):
                while len(data) - pos >= frame.HEADER_BYTES and pos + (length := frame.length_at(data, pos)) <= size:
                    pos, entries = pos + length, entries + 1
        self._measured[name] = pos, entries
        return pos, entries

    def blocks(self, chunk: Chunk) -> Iterator[tuple[Data, int]]:
        """An open chunk may have been closed, and even compressed, since it was planned."""
        try:
            yield from self.files.blocks(f"{LOG}/{chunk.name}", 0 if chunk.closed else chunk.size)
        except Unavailable:
            closed_name = None if chunk.closed else self._closed_since(chunk)
            if closed_name is None:
                raise
            yield from self.files.blocks(f"{LOG}/{closed_name}", 0)

    def check_packing(self, chunk: Chunk) -> None:
        """Raise `Malformed` if a compressed chunk does not match its digest."""
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
        snapshot = PeakSnapshot.decode(self.artifact(_NAMES.peaks(label, size).name))
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
    """Whether to use a chunk instead of another one with the same start."""
    if known.end_seq is None or name.end_seq is None:
        return known.end_seq is None
    if name.end_seq == known.end_seq:
        return name.packed
    return _artifact_count(name.label, name.start_seq, name.end_seq, names) > _artifact_count(
        known.label, known.start_seq, known.end_seq, names
    )


def _artifact_count(label: bytes, start: int, end: int, names: Container[str]) -> int:
    """How many artifacts exist for a chunk with these ends."""
    beside = (_NAMES.summary(label, start, end), _NAMES.peaks(label, end), _NAMES.checkpoint(label, end))
    return sum(path.name in names for path in beside)


def _without_copies(chunks: Sequence[Chunk], names: Container[str]) -> Iterator[Chunk]:
    """Leave out closed chunks that overlap another and have no summary: copies under another name."""
    before: Chunk | None = None
    for chunk, after in pairwise([*chunks, None]):
        assert chunk is not None
        overlaps = any(one is not None and _overlap(chunk, one) for one in (before, after))
        summary = _NAMES.summary(chunk.label, chunk.start_seq, chunk.end_seq).name
        if not (overlaps and chunk.closed and summary not in names):
            yield chunk
            before = chunk


def _overlap(a: Chunk, b: Chunk) -> bool:
    return a.label == b.label and a.start_seq <= b.end_seq and b.start_seq <= a.end_seq
