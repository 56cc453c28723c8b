"""The log of a data directory, from its chunk files and its journal alone: the index is never looked at.

A hub writes to its journal first, so whatever of an open chunk is not whole yet is in the journal. What is in neither
is damage, and is said to be.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TypeVar

from veen.core import Malformed, Unavailable
from veen.storage import frame, journal
from veen.storage.chunk_blocks import read_blocks
from veen.storage.directory_reader import ChunkRef, LogReader
from veen.storage.frame import LogEntry
from veen.storage.paths import Folders

T = TypeVar("T")

_LOOKS = 3  # at a directory that a hub writes to: entries move from the journal to the log meanwhile


class DirectoryLog:
    """Frames of one data directory, in order, unverified."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._journal: dict[bytes, dict[int, LogEntry]] | None = None

    def labels(self) -> set[bytes]:
        """Every label that has an entry."""
        return {ref.label for ref in self._chunks()} | self._journalled().keys()

    def first(self, label: bytes) -> LogEntry | None:
        return next(self.entries(label, 1), None)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq), None)

    def entries(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        """The entries of a label from one on, as far as log and journal go. Raises `Malformed` over damage."""
        seq = from_seq
        for look in range(_LOOKS):
            damage = None
            try:
                for entry in self._logged(label, seq):
                    yield entry
                    seq += 1
            except Malformed as error:
                damage = error
            for entry in self._from_journal(label, seq):
                yield entry
                seq, damage = seq + 1, None
            if damage is None and not self._is_ahead(label, seq):
                return
            if look == _LOOKS - 1:
                raise damage or Malformed("log", f"entry {seq} is missing, and the journal goes on after it")
            self._journal = None

    def _logged(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        seq = from_seq
        refs = _distinct(self._chunks(label))
        for ref, follows in zip_longest(refs, refs[1:]):
            if follows is not None and follows.start_seq <= seq:
                continue
            if ref.start_seq > seq:
                raise Malformed("log", f"{ref.path.name} stands where entry {seq} belongs")
            for entry in _entries(ref, seq):
                if (entry.label, entry.stream_seq) != (label, seq):
                    stray = f"entry {entry.stream_seq}{'' if entry.label == label else ' of another label'}"
                    raise Malformed("log", f"{stray} stands where {seq} belongs, in {ref.path.name}")
                yield entry
                seq += 1
            if ref.end_seq is not None and ref.end_seq >= seq:
                raise Malformed("log", f"{ref.path.name} ends with entry {seq - 1}")

    def _chunks(self, label: bytes | None = None) -> list[ChunkRef]:
        return _patiently(lambda: self._reader.chunks(label))

    def _journalled(self) -> dict[bytes, dict[int, LogEntry]]:
        if self._journal is None:
            self._journal = _patiently(self._read_journal)
        return self._journal

    def _read_journal(self) -> dict[bytes, dict[int, LogEntry]]:
        found: dict[bytes, dict[int, LogEntry]] = {}
        folder = self._reader.folders.journal
        segments = journal.segments(folder) if folder.is_dir() else []
        for group in journal.read(folder, segments[0][0] - 1) if segments else ():
            if isinstance(group, journal.Torn):
                if not group.cut_short:
                    raise Malformed("journal", f"the bytes of group {group.group}, its last, are not those written")
                continue  # never finished, and never acknowledged
            for entry in group[1]:
                found.setdefault(entry.label, {})[entry.stream_seq] = entry
        return found

    def _from_journal(self, label: bytes, from_seq: int) -> Iterator[LogEntry]:
        known, seq = self._journalled().get(label, {}), from_seq
        while seq in known:
            yield known[seq]
            seq += 1

    def _is_ahead(self, label: bytes, seq: int) -> bool:
        return max(self._journalled().get(label, {0: None})) >= seq


def _entries(ref: ChunkRef, from_seq: int) -> Iterator[LogEntry]:
    """The entries of a chunk from one on; those before it are passed by, by the lengths in their headers.

    Of an open chunk only what was there when it was listed, also where it was closed since.
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
    """One file for each start: a chunk that is there twice is closed, and whole, in one of them."""
    chosen: dict[int, ChunkRef] = {}
    for ref in refs:
        if ref.end_seq is None and not ref.size:
            continue  # begun, and nothing written yet
        known = chosen.get(ref.start_seq)
        if known is None or known.end_seq is None or (ref.end_seq is not None and ref.path.suffix == ".zst"):
            chosen[ref.start_seq] = ref
    return [chosen[start] for start in sorted(chosen)]


def _patiently(look: Callable[[], T]) -> T:
    """A look at files that a hub may be moving: what is gone in one moment is elsewhere in the next."""
    for left in reversed(range(_LOOKS)):
        try:
            return look()
        except OSError as error:
            if not left:
                raise Unavailable(f"{error.filename or 'the log'} cannot be read: {error.strerror}") from None
        except Malformed:
            if not left:
                raise
    raise AssertionError("there is a last look")
