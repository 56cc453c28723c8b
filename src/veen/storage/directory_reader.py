"""Read-only access to a data directory, also while a hub writes to it. All other packages read through it.

Readers see the entries that are in the log, not those that are only in the journal. Entries are located through the
index if there is one, otherwise through the names of the chunk files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Checkpoint, Malformed, MmrProof, Msg, Receipt, Unavailable, proof
from veen.core import mmr as trees
from veen.storage import frame, safe_open
from veen.storage.artifacts import ChunkSummary
from veen.storage.chunk_reader import mapped, read_blocks
from veen.storage.frame import LogEntry
from veen.storage.index import Index, IndexRows, LabelHead, NodeFile
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import ChunkName, Folders
from veen.storage.pruned_chunk import Pruned, PrunedChunk


@dataclass(frozen=True, slots=True, order=True)
class ChunkRef:
    """A chunk and the size of its file: enough for another process to read it."""

    label: bytes
    start_seq: int
    end_seq: int | None
    path: Path
    size: int


class LogReader:
    """One data directory, for reading."""

    def __init__(self, root: Path) -> None:
        self.folders = Folders(root)
        self.hub_metadata: HubMetadata = read_metadata(self.folders)
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

    def labels(self) -> Iterator[tuple[bytes, LabelHead]]:
        """Every label and its head."""
        with self.index().read() as rows:
            yield from rows.labels()

    def head(self, label: bytes) -> LabelHead | None:
        with self.index().read() as rows:
            return rows.head(label)

    def chunks(self, label: bytes | None = None) -> list[ChunkRef]:
        """Every chunk file, in order, from the directory listing alone."""
        found = []
        for path in self.folders.log.iterdir():
            name = ChunkName.parse(path.name)
            if name and label in (None, name.label):
                found.append(ChunkRef(name.label, name.start_seq, name.end_seq, path, path.lstat().st_size))
        return sorted(found, key=lambda ref: (ref.label, ref.start_seq))

    def entries(self, label: bytes, from_seq: int, to_seq: int) -> Iterator[LogEntry]:
        """The entries of a range that are in the log. Positioning is O(log n)."""
        yield from read_entries(self.folders, self.index(), label, from_seq, to_seq)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq, stream_seq), None)

    def prove(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        """The proof that an entry is among the first `size`."""
        with self._nodes(label) as nodes:
            return proof.prove(nodes.read, stream_seq, size)

    def peaks(self, label: bytes, size: int) -> list[bytes]:
        with self._nodes(label) as nodes:
            return trees.peaks_at(nodes.read, size)

    def _nodes(self, label: bytes) -> NodeFile:
        try:
            return NodeFile(self.folders.node_file(label))
        except FileNotFoundError:
            raise Unavailable(f"the tree nodes of {label.hex()[:16]}… are missing") from None

    def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        path = self.folders.checkpoint(label, upto_seq)
        return Checkpoint.decode(safe_open.read(path)) if path.exists() else None

    def summary(self, ref: ChunkRef) -> ChunkSummary | None:
        if ref.end_seq is None:
            return None
        path = self.folders.summary(ref.label, ref.start_seq, ref.end_seq)
        return ChunkSummary.decode(safe_open.read(path)) if path.exists() else None


def chunk_entries(ref: ChunkRef) -> Iterator[LogEntry]:
    """Every entry of a chunk, compressed or not. For an open chunk: the entries it had when it was listed, even if it
    was closed since. Raises `Malformed` if the last entry is incomplete because it is being written."""
    path, left = ref.path, None if ref.end_seq is not None else ref.size
    if not path.exists():
        path = Folders(path.parents[1]).closed_chunk_from(ref.label, ref.start_seq) or path
    for data, pos in read_blocks(path):
        while pos < len(data) and left != 0:
            entry, pos = frame.read(data, pos)
            left = None if left is None else max(0, left - entry.size)
            yield entry


def read_entries(folders: Folders, index: Index, label: bytes, from_seq: int, to_seq: int) -> Iterator[LogEntry]:
    """The entries of a range, read from the nearest indexed place on, across chunks."""
    with index.read() as rows:
        head = rows.head(label)
        if head is None or not 1 <= from_seq <= head.size:
            return
        place = rows.place(label, from_seq)
        if place is None:
            raise Malformed("index", f"no place for entry {from_seq} of {label.hex()[:16]}…")
        seq, start, offset = place
        last = min(to_seq, head.size)
        while seq <= last:
            for data, pos in _blocks(folders, rows, label, start, offset, head):
                while pos < len(data) and seq <= last:
                    if seq < from_seq:
                        pos += frame.length_at(data, pos)
                    else:
                        entry, pos = frame.read(data, pos)
                        if entry.label != label or entry.stream_seq != seq:
                            raise Malformed("log", f"found entry {entry.stream_seq} at the place of entry {seq}")
                        yield entry
                    seq += 1
                if seq > last:
                    return
            start, offset = seq, 0


def read_headers(
    folders: Folders, index: Index, label: bytes, stream_seq: int
) -> tuple[Msg, Receipt] | tuple[None, None]:
    """Message and receipt of an entry; None if it is not in the log.

    The message of a pruned entry has neither ciphertext nor signature. Its receipt has the root that follows from the
    tree nodes. If receipts were pruned too, the receipt's signature is zeros.
    """
    try:
        entry = next(read_entries(folders, index, label, stream_seq, stream_seq), None)
        return entry.open() if entry else (None, None)
    except Pruned as pruned:
        with PrunedChunk(folders.pruned_chunk(label, pruned.start_seq, pruned.end_seq)) as chunk:
            left = chunk.entry(stream_seq)
        try:
            with NodeFile(folders.node_file(label)) as nodes:
                return left.message, left.receipt(trees.root_of(trees.peaks_at(nodes.read, stream_seq)))
        except FileNotFoundError as missing:
            raise Malformed("nodes", f"the tree nodes of {label.hex()[:16]}… are missing") from missing


def _blocks(
    folders: Folders, rows: IndexRows, label: bytes, start: int, offset: int, head: LabelHead
) -> Iterator[tuple[frame.Data, int]]:
    """The valid entries of the chunk that starts at `start`. Raises `Malformed` if it is missing and was not pruned."""
    if start != head.chunk_start:
        end = rows.chunk_end(label, start)
        if end is None:
            raise Malformed("index", f"no chunk starts at {start}")
        return _closed_blocks(folders, label, start, end, offset)
    try:
        return iter([(mapped(folders.open_chunk(label, start), head.chunk_bytes), offset)])
    except Unavailable as error:  # closed since; the index row is not written yet
        closed = folders.closed_chunk_from(label, start)
        if closed is None:
            _check_missing(folders, error, f"the open chunk of {label.hex()} from entry {start}")
            raise
        return read_blocks(closed, offset, head.chunk_bytes)


def _closed_blocks(
    folders: Folders, label: bytes, start: int, end: int, offset: int
) -> Iterator[tuple[frame.Data, int]]:
    path = folders.closed_chunk(label, start, end)
    try:
        yield from read_blocks(path, offset)
    except Unavailable as error:
        if folders.pruned_chunk(label, start, end).exists():
            raise Pruned(label, start, end) from None
        _check_missing(folders, error, path.name)
        raise


def _check_missing(folders: Folders, error: Unavailable, name: str) -> None:
    """Raise `Malformed` if the error is that a file of the log is missing. A folder that is away may come back."""
    missing = error.__context__
    if isinstance(missing, FileNotFoundError) and folders.log.is_dir():
        raise Malformed("log", f"{name} is missing, and not pruned") from missing
