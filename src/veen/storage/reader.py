"""A read-only view of a data directory, also while a hub writes to it: what every other package uses.

It shows what the log has caught up with. Entries are read through the index where there is one; without an index the
chunk files themselves say where things are.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Checkpoint, Malformed, MmrProof, Unavailable, proof
from veen.core import mmr as trees
from veen.storage import frame
from veen.storage.artifacts import ChunkSummary, PeakSnapshot
from veen.storage.directory import Papers, read_papers
from veen.storage.folders import ChunkName, Folders
from veen.storage.frame import Entry
from veen.storage.head import Head
from veen.storage.index import Index, Rows
from veen.storage.nodes import NodeFile


@dataclass(frozen=True, slots=True, order=True)
class ChunkRef:
    """A chunk to read, and how much of it counts: enough for another process to do the work."""

    label: bytes
    start_seq: int
    end_seq: int | None
    path: Path
    size: int


class LogReader:
    """One data directory, for reading."""

    def __init__(self, root: Path) -> None:
        self.folders = Folders(root)
        self.papers: Papers = read_papers(self.folders)
        self._index: Index | None = None

    def close(self) -> None:
        if self._index:
            self._index.close()

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def index(self) -> Index:
        if self._index is None:
            self._index = Index(self.folders.index, readonly=True)
        return self._index

    def labels(self) -> Iterator[tuple[bytes, Head]]:
        """Every label and where it stands."""
        with self.index().read() as rows:
            yield from rows.labels()

    def head(self, label: bytes) -> Head | None:
        with self.index().read() as rows:
            return rows.head(label)

    def chunks(self, label: bytes | None = None) -> list[ChunkRef]:
        """Every chunk file, in order, from the folder alone."""
        found = []
        for path in self.folders.log.iterdir():
            name = ChunkName.parse(path.name)
            if name and label in (None, name.label):
                found.append(ChunkRef(name.label, name.start_seq, name.end_seq, path, path.stat().st_size))
        return sorted(found, key=lambda ref: (ref.label, ref.start_seq))

    def entries(self, label: bytes, from_seq: int, to_seq: int) -> Iterator[Entry]:
        """The entries of a range, as far as the log has them. Positioning is O(log n)."""
        yield from read_entries(self.folders, self.index(), label, from_seq, to_seq)

    def entry(self, label: bytes, stream_seq: int) -> Entry | None:
        return next(self.entries(label, stream_seq, stream_seq), None)

    def prove(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        """The proof that an entry is in the first `size`."""
        with self._nodes(label) as nodes:
            return proof.prove(nodes.read, stream_seq, size)

    def peaks(self, label: bytes, size: int) -> list[bytes]:
        with self._nodes(label) as nodes:
            return trees.peaks_at(nodes.read, size)

    def _nodes(self, label: bytes) -> NodeFile:
        try:
            return NodeFile(self.folders.node_file(label))
        except FileNotFoundError:
            raise Unavailable(f"the tree of {label.hex()[:16]}… is not here") from None

    def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        """A regular checkpoint."""
        path = self.folders.checkpoint(label, upto_seq)
        return Checkpoint.decode(path.read_bytes()) if path.exists() else None

    def summary(self, ref: ChunkRef) -> ChunkSummary | None:
        if ref.end_seq is None:
            return None
        path = self.folders.summary(ref.label, ref.start_seq, ref.end_seq)
        return ChunkSummary.decode(path.read_bytes()) if path.exists() else None

    def snapshot_before(self, ref: ChunkRef) -> PeakSnapshot | None:
        """The peaks a chunk starts from; None for a label's first."""
        if ref.start_seq == 1:
            return None
        path = self.folders.peaks(ref.label, ref.start_seq - 1)
        if not path.exists():
            raise Malformed("log", f"{path.name} is missing")
        return PeakSnapshot.decode(path.read_bytes())


def read_entries(folders: Folders, index: Index, label: bytes, from_seq: int, to_seq: int) -> Iterator[Entry]:
    """The entries of a range, from the indexed place before it on, through as many chunks as it takes."""
    with index.read() as rows:
        head = rows.head(label)
        place = rows.place(label, from_seq) if head and 1 <= from_seq <= head.size else None
        if head is None or place is None:
            return
        seq, start, offset = place
        last = min(to_seq, head.size)
        while seq <= last:
            data = _chunk_data(folders, rows, label, start, head)
            while offset < len(data) and seq <= last:
                if seq < from_seq:
                    offset += frame.length_at(data, offset)
                else:
                    entry, offset = frame.read(data, offset)
                    if entry.label != label or entry.stream_seq != seq:
                        raise Malformed("log", f"entry {entry.stream_seq} stands where {seq} belongs")
                    yield entry
                seq += 1
            start, offset = seq, 0


def _chunk_data(folders: Folders, rows: Rows, label: bytes, start: int, head: Head) -> frame.Data:
    """The bytes of a chunk that count."""
    if start == head.chunk_start:
        try:
            return mapped(folders.open_chunk(label, start), head.chunk_bytes)
        except Unavailable:  # closed since, and the index row is on its way
            return mapped(_closed(folders, label, start), head.chunk_bytes)
    end = rows.chunk_end(label, start)
    if end is None:
        raise Malformed("index", f"no chunk starts at {start}")
    return mapped(folders.log / ChunkName(label, start, end).file_name())


def _closed(folders: Folders, label: bytes, start: int) -> Path:
    prefix = ChunkName(label, start, None).file_name().removesuffix("open.log")
    for path in folders.log.glob(f"{prefix}*.log"):
        return path
    raise Unavailable(f"the chunk of {label.hex()[:16]}… that starts at {start} is not here")


def mapped(path: Path, size: int = 0) -> frame.Data:
    """A chunk's bytes, or its first `size`, without reading them all."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise Malformed("log", f"{path.name} is shorter than it must be: {error}") from None
    except OSError as error:
        raise Unavailable(f"{path.name} cannot be read: {error.strerror}") from None
