"""Write access to a data directory: commit groups, look up entries, and catch up the log.

Entries are in three places, newest first: `pending` (durable in the journal, not yet in the log), `catching` (being
written to the log now), and the log with its index. A look-up reads them in that order. An entry leaves one place only
after the next one has it, so it is always found.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter

import lmdb

from plumbing.durable import Disk
from veen.core import Limits, Malformed, MmrProof, Msg, Receipt, Unavailable, mmr, proof
from veen.storage import frame, journal, journal_mark, rebuild, safe_open
from veen.storage.checkpoint_files import BindingFile
from veen.storage.directory_reader import read_entries, read_headers
from veen.storage.frame import AcceptedEntry, CommitGroup, JournalTail, LogEntry
from veen.storage.index import DAMAGE, SECONDS_PER_DAY, NodeFile
from veen.storage.journal import Journal, JournalIncomplete
from veen.storage.journal_mark import Mark
from veen.storage.lock import lock_directory
from veen.storage.log_writer import LABELS_CHECKED_AT_START, CheckpointSigner, ChunkWriter, LogWriter, OpenChunks
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import Pruned


class Store:
    """A data directory, locked for this process. `commit` and `catch_up` may each run on their own thread."""

    def __init__(
        self,
        disk: Disk,
        folders: Folders,
        limits: Limits,
        sign: CheckpointSigner,
        *,
        probe: bool = False,
        closed: Callable[[bytes, int, int], None] | None = None,
    ) -> None:
        """Lock the directory, and rebuild the index if it is missing or unusable.

        `closed` is called with the label, the end and the number of entries of each closed chunk.

        With `probe` another process reads the index first, so that a damaged index does not crash this one. Raises
        `Unavailable` if another process holds the lock, `Malformed` if entries are missing or a folder is a link, and
        `JournalIncomplete` if groups of the journal may be missing.
        """
        self.folders = folders
        self._disk = disk
        safe_open.check_folders(folders)
        self._lock = lock_directory(folders.lock)
        self._fault_recorder = rebuild.FatalSignalRecorder(folders)
        try:
            if probe:
                rebuild.probe(disk, folders)
            mark = self._check_journal()
            self.index = rebuild.open_index(disk, folders)
        except BaseException:
            self._release()
            raise
        self.index.on_damage = self._record_index_fault
        try:
            self.binding = BindingFile(disk, folders, read_metadata(folders))
            with self.index.read() as rows:
                self.applied = rows.number("applied")
            if not mark.last and self.applied >= mark.first:
                what = f"the log has group {self.applied}, but journal.mark is older and ends with {mark.first - 1}"
                raise JournalIncomplete(what, f"groups after {self.applied}")
            self.open_chunks = OpenChunks(folders, self.index)
            self.open_chunks.check(LABELS_CHECKED_AT_START)
        except BaseException:
            self.index.close()
            self._release()
            raise
        files = ChunkWriter(disk, folders, sign, self.binding, limits.chunk_zstd_level, closed)
        self._writer = LogWriter(files, self.index, limits)
        self._journal: Journal | None = None
        self.pending = JournalTail()
        self.catching: JournalTail | None = None

    def replay(self) -> Iterator[tuple[int, list[LogEntry]]]:
        """The groups that the log lacks. Read all of them, and add each to `pending`."""
        last = self.applied
        for group, entries in journal.recover(self._disk, self.folders.journal, self.applied):
            if group != last + 1:
                raise Malformed("journal", f"group {group} follows group {last}: the groups between them are lost")
            last = group
            yield group, entries
        self._journal = Journal(self._disk, self.folders.journal, last + 1, self._lock.check)

    def commit(self, group: CommitGroup) -> int:
        """Make a group durable. Its receipts may be sent after this. The caller adds it to `pending`."""
        assert self._journal is not None, "replay first"
        return self._journal.append(b"".join(map(attrgetter("frame"), group.records)), len(group.records))

    def probe(self) -> None:
        """Raise as `commit` would if the journal cannot be written now. Adds nothing to it."""
        assert self._journal is not None, "replay first"
        self._journal.probe()

    def begin_catching_up(self) -> JournalTail | None:
        """Set the pending entries aside for catch-up; None if there are none or a catch-up is running."""
        if self.catching is not None or not self.pending.records:
            return None
        self.catching, self.pending = self.pending, JournalTail()
        return self.catching

    def catch_up(self, tail: JournalTail) -> None:
        """Write the tail to log and index, and trim the journal. Runs on the catch-up thread. May be repeated after an
        error.

        Raises `Malformed` if the directory was replaced since it was locked.
        """
        self._lock.check()
        with self.index.read() as rows:
            is_applied = rows.number("applied") >= tail.group
        try:
            if is_applied:  # the last attempt completed all but the last step
                self.index.extend_file()
            else:
                self._writer.apply(tail, tail.group)
        except OSError as error:
            raise Unavailable(f"the log cannot be written: {error.strerror}") from error
        except DAMAGE as error:
            raise Malformed("index", str(error)) from error
        except lmdb.Error as error:
            raise Unavailable(f"the index cannot be written: {error}") from error
        assert self._journal is not None
        self._journal.trim(tail.group)

    def end_catching_up(self) -> None:
        """Drop the tail, which the log has now."""
        assert self.catching is not None
        self.applied = self.catching.group
        self.catching = None

    @property
    def journal_bytes(self) -> int:
        return self._journal.total_bytes if self._journal else 0

    def tails(self) -> tuple[JournalTail, ...]:
        """Entries that the log may lack, newest first. Read them before the log, so that no entry is missed."""
        pending, catching = self.pending, self.catching
        # Between the two reads the first may have become the second.
        return (pending, catching) if catching and catching is not pending else (pending,)

    def close(self) -> None:
        """Close everything. The journal is kept if the log lacks entries or the directory was replaced."""
        if self._journal:
            try:
                self._lock.check()
                self._journal.clear(self.applied)
            except (Malformed, Unavailable):
                self._journal.close()
        self.index.close()
        self._release()

    def _check_journal(self) -> Mark:
        """Check that no segment is missing or cut, before anything is changed. Returns the mark."""
        folder = self.folders.journal
        try:
            mark = journal_mark.read(folder) or rebuild.adopt_journal(self._disk, self.folders)
        except OSError as error:
            raise Unavailable(f"journal.mark cannot be written: {error.strerror}") from error
        journal.check(folder, mark)
        try:
            journal_mark.make_durable(self._disk, folder)  # before segments are removed that it does not name
        except OSError as error:
            raise Unavailable(f"journal.mark cannot be written: {error.strerror}") from error
        with suppress(OSError):  # they only take space
            for path in journal.leftovers(folder, mark):
                self._disk.unlink(path)
        return mark

    def _record_index_fault(self, why: Exception) -> None:
        """Record that the index is damaged, so that the next start rebuilds it. The caller reports the error itself."""
        if not rebuild.fault_recorded(self.folders):
            with suppress(Unavailable):
                rebuild.record_fault(self._disk, self.folders, f"{why}\n")

    def _release(self) -> None:
        self._fault_recorder.close()
        self._lock.close()


class Lookup:
    """Reads of everything a running hub has: the log, and the entries that are only in the journal.

    Thread-safe: the tails are read first, so everything that is not in them is in the log by then.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def size(self, label: bytes) -> int:
        """The last stream_seq of a label; 0 if it has no entries."""
        for tail in self._store.tails():
            records = tail.labels.get(label)
            if records:
                return records[-1].stream_seq
        with self._store.index.read() as rows:
            head = rows.head(label)
        return head.size if head else 0

    def entries(self, label: bytes, from_seq: int, to_seq: int) -> Iterator[LogEntry]:
        """The entries of a range that exist, in order."""
        tails = [tail for tail in reversed(self._store.tails()) if label in tail.labels]
        first_pending = tails[0].labels[label][0].stream_seq if tails else to_seq + 1
        if from_seq < first_pending:
            yield from read_entries(
                self._store.folders, self._store.index, label, from_seq, min(to_seq, first_pending - 1)
            )
        for tail in tails:
            records = tail.labels[label]
            start = max(from_seq - records[0].stream_seq, 0)
            stop = max(to_seq - records[0].stream_seq + 1, 0)
            for record in records[start:stop]:
                yield _entry(record)

    def entry(self, label: bytes, stream_seq: int) -> LogEntry | None:
        return next(self.entries(label, stream_seq, stream_seq), None)

    def headers(self, label: bytes, stream_seq: int) -> tuple[Msg, Receipt] | tuple[None, None]:
        """Message and receipt of an entry, as far as they were not pruned; None if there is no such entry."""
        try:
            entry = self.entry(label, stream_seq)
            return entry.open() if entry else (None, None)
        except Pruned:
            return read_headers(self._store.folders, self._store.index, label, stream_seq)

    def first_since(self, label: bytes, hub_ts: int) -> int:
        """The first entry of a label at that time or later; one behind its last entry if there is none."""
        size, day = self.size(label), hub_ts // SECONDS_PER_DAY
        with self._store.index.read() as rows:
            head = rows.head(label)
            indexed = head.size if head else 0
            low = rows.first_on_or_after(label, day) or indexed + 1
            high = rows.first_on_or_after(label, day + 1) or size + 1
        while low < high:  # hub_ts never decreases within a label
            middle = (low + high) // 2
            _, receipt = self.headers(label, middle)
            if receipt is None:
                raise Malformed("index", f"entry {middle} of {label.hex()} is missing")
            low, high = (middle + 1, high) if receipt.hub_ts < hub_ts else (low, middle)
        return low

    def prove(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        """The proof that an entry is among the first `size`."""
        with _Nodes(self._store, label) as nodes:
            return proof.prove(nodes.read, stream_seq, size)

    def root(self, label: bytes, size: int) -> bytes:
        """The root of the label's tree at that size."""
        with _Nodes(self._store, label) as nodes:
            return mmr.root_of(mmr.peaks_at(nodes.read, size))


class _Nodes:
    """The tree nodes of a label, from the node file and the tails."""

    def __init__(self, store: Store, label: bytes) -> None:
        self._tails = [tail for tail in store.tails() if label in tail.labels]
        self._label = label
        try:
            self._file: NodeFile | None = NodeFile(store.folders.node_file(label))
        except FileNotFoundError:
            self._file = None

    def __enter__(self) -> "_Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.__exit__()

    def read(self, position: int) -> bytes:
        for tail in self._tails:
            found = _node_in(tail, self._label, position)
            if found:
                return found
        if self._file is None:
            raise Unavailable(f"the tree nodes of {self._label.hex()[:16]}… are missing")
        return self._file.read(position)


def _node_in(tail: JournalTail, label: bytes, position: int) -> bytes | None:
    """The node at a position, if an entry of the tail created it."""
    records = tail.labels[label]
    first = records[0].stream_seq - 1
    if position < mmr.node_count(first):
        return None
    low, high = 0, len(records) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if mmr.node_count(first + middle) <= position:
            low = middle
        else:
            high = middle - 1
    at = position - mmr.node_count(first + low)
    new_nodes = records[low].new_nodes
    return new_nodes[at] if at < len(new_nodes) else None


def _entry(record: AcceptedEntry) -> LogEntry:
    entry, _ = frame.read(record.frame)
    return entry
