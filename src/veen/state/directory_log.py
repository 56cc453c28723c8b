"""The log of a data directory, read from its chunk files and its journal only. The index is not used.

A hub writes to its journal first, so an entry that is incomplete in an open chunk is still in the journal. An entry
that is in neither is damage and raises `Malformed`.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TypeVar

from veen.core import Malformed, Unavailable
from veen.storage import frame, journal
from veen.storage.chunk_reader import read_blocks
from veen.storage.directory_reader import ChunkRef, LogReader
from veen.storage.frame import LogEntry
from veen.storage.paths import Folders

T = TypeVar("T")

_READ_ATTEMPTS = 3  # a running hub moves entries from the journal to chunks between two reads


class DirectoryLog:
    """The frames of one data directory in order, not verified."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._journal: dict[bytes, dict[int, LogEntry]] | None = None

    def labels(self) -> set[bytes]:
        """All labels with at least one entry."""
        return {ref.label for ref in self._chunks()} | self._journalled().keys()

    def first(self, label: bytes) -> LogEntry | None:
        return next(self.entries(label, 1), None)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq), None)

    def entries(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        """The entries of a label from `from_seq` to the end of chunks and journal. Raises `Malformed` if damaged."""
        seq = from_seq
        for attempt in range(_READ_ATTEMPTS):
            damage = None
            try:
                for entry in self._from_chunks(label, seq):
                    yield entry
                    seq += 1
            except Malformed as error:
                damage = error
            for entry in self._from_journal(label, seq):
                yield entry
                seq, damage = seq + 1, None
            if damage is None and not self._journal_reaches(label, seq):
                return
            if attempt == _READ_ATTEMPTS - 1:
                raise damage or Malformed("log", f"entry {seq} is missing, but the journal has later entries")
            self._journal = None

    def _from_chunks(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        seq = from_seq
        refs = _distinct(self._chunks(label))
        for ref, next_ref in zip_longest(refs, refs[1:]):
            if next_ref is not None and next_ref.start_seq <= seq:
                continue
            if ref.start_seq > seq:
                raise Malformed(
                    "log", f"expected entry {seq}, found {ref.path.name}, which starts with entry {ref.start_seq}"
                )
            for entry in _entries(ref, seq):
                if (entry.label, entry.stream_seq) != (label, seq):
                    found = f"entry {entry.stream_seq}{'' if entry.label == label else ' of another label'}"
                    raise Malformed("log", f"expected entry {seq} in {ref.path.name}, found {found}")
                yield entry
                seq += 1
            if ref.end_seq is not None and ref.end_seq >= seq:
                raise Malformed("log", f"{ref.path.name} ends with entry {seq - 1}, expected {ref.end_seq}")

    def _chunks(self, label: bytes | None = None) -> list[ChunkRef]:
        return _with_retries(lambda: self._reader.chunks(label))

    def _journalled(self) -> dict[bytes, dict[int, LogEntry]]:
        if self._journal is None:
            self._journal = _with_retries(self._read_journal)
        return self._journal

    def _read_journal(self) -> dict[bytes, dict[int, LogEntry]]:
        found: dict[bytes, dict[int, LogEntry]] = {}
        folder = self._reader.folders.journal
        segments = journal.segments(folder) if folder.is_dir() else []
        for group in journal.read(folder, segments[0][0] - 1) if segments else ():
            if isinstance(group, journal.Torn):
                if not group.cut_short:
                    raise Malformed("journal", f"the last group, {group.group}, is complete but corrupt")
                continue  # incomplete, so its messages were never acknowledged
            for entry in group[1]:
                found.setdefault(entry.label, {})[entry.stream_seq] = entry
        return found

    def _from_journal(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        known, seq = self._journalled().get(label, {}), from_seq
        while seq in known:
            yield known[seq]
            seq += 1

    def _journal_reaches(self, label: bytes, seq: int) -> bool:
        return max(self._journalled().get(label, {0: None})) >= seq


def _entries(ref: ChunkRef, from_seq: int) -> Iterator[LogEntry]:
    """The entries of a chunk from `from_seq` on. Earlier frames are skipped by their length fields.

    Of an open chunk only the bytes present when it was listed are read, even if it was closed since.
    """
    path, left = ref.path, ref.size if ref.end_seq is None else None
    if not path.exists():
        path = Folders(path.parents[1]).closed_chunk_from(ref.label, ref.start_seq) or path
    seq = ref.start_seq
    for data, pos in read_blocks(path):
        while pos < len(data) and left != 0:
            start = pos
            if seq < from_seq:
                pos += frame.length_at(data, pos)
            else:
                entry, pos = frame.read(data, pos)
                yield entry
            left = None if left is None else max(0, left - (pos - start))
            seq += 1


def _distinct(refs: list[ChunkRef]) -> list[ChunkRef]:
    """One file per start. If a chunk exists twice, prefer the closed file, which is complete."""
    chosen: dict[int, ChunkRef] = {}
    for ref in refs:
        if ref.end_seq is None and not ref.size:
            continue  # created but still empty
        known = chosen.get(ref.start_seq)
        if known is None or known.end_seq is None or (ref.end_seq is not None and ref.path.suffix == ".zst"):
            chosen[ref.start_seq] = ref
    return [chosen[start] for start in sorted(chosen)]


def _with_retries(read: Callable[[], T]) -> T:
    """Retry a read, because a running hub may move files while they are read."""
    for left in reversed(range(_READ_ATTEMPTS)):
        try:
            return read()
        except OSError as error:
            if not left:
                raise Unavailable(f"{error.filename or 'the log'} cannot be read: {error.strerror}") from None
        except Malformed:
            if not left:
                raise
    raise AssertionError("unreachable")
