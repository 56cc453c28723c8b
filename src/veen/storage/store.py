"""The writer's view of a data directory: commit groups, look things up, let the log catch up behind.

Three places hold entries, newest first: `pending` (durable in the journal, not yet in the log), `catching` (being
written to the log now), and the log itself with its index. A look-up asks them in that order; an entry moves from one
to the next only after the next has it, so it is always found.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import lmdb

from veen.core import Limits, Malformed, Unavailable
from veen.storage import index_faults, journal, rebuild, safe_open
from veen.storage.accepted_entry import AcceptedEntry, CommitGroup
from veen.storage.checkpoint_keys import BindingFile
from veen.storage.chunks import AT_START, CheckpointSigner, ChunkWriter, OpenChunks
from veen.storage.durable import Disk
from veen.storage.frame import LogEntry
from veen.storage.index import DAMAGE
from veen.storage.journal import Journal
from veen.storage.lock import locked
from veen.storage.log_writer import LogWriter
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders


class JournalTail:
    """The entries of a batch by label, for look-ups while the log catches up."""

    __slots__ = ("batch", "group", "labels", "size_bytes")

    def __init__(self) -> None:
        self.batch = CommitGroup()
        self.group = 0
        self.size_bytes = 0
        self.labels: dict[bytes, list[AcceptedEntry]] = {}

    def add(self, batch: CommitGroup, group: int) -> None:
        self.batch.extend(batch)
        self.group = group
        for record in batch.records:
            records = self.labels.get(record.label)
            if records is None:
                self.labels[record.label] = [record]  # never empty: other threads look
            else:
                records.append(record)
            self.size_bytes += len(record.frame)

    def record(self, label: bytes, stream_seq: int) -> AcceptedEntry | None:
        records = self.labels.get(label)
        if not records:
            return None
        at = stream_seq - records[0].stream_seq
        return records[at] if 0 <= at < len(records) else None


class Store:
    """One data directory, locked for this process. `commit` and `catch_up` may each run on a thread of their own."""

    def __init__(
        self,
        disk: Disk,
        folders: Folders,
        limits: Limits,
        sign: CheckpointSigner,
        *,
        probe: bool = False,
        closed: Callable[[int], None] | None = None,
    ) -> None:
        """Takes the lock, and makes the index again where there is none that can be used.

        `closed` hears of each chunk that is closed, how many entries it has.

        With `probe` another process looks at the index first, so that a damaged one cannot end this one at once.
        Raises `Unavailable` where another process holds the lock, `Malformed` where entries are missing, or a place
        in the directory leads out of it.
        """
        self.folders = folders
        self._disk = disk
        safe_open.check_folders(folders)
        self._lock = locked(folders.lock)
        self._watch = index_faults.IndexWatch(folders)
        try:
            if probe:
                index_faults.probe(disk, folders)
            self.index = rebuild.open_index(disk, folders)
        except BaseException:
            self._release()
            raise
        self.index.on_damage = self._distrust
        try:
            binding = BindingFile(disk, folders, read_metadata(folders))
            with self.index.read() as rows:
                self.applied = rows.number("applied")
            self.open_chunks = OpenChunks(folders, self.index)
            self.open_chunks.check(AT_START)
        except BaseException:
            self.index.close()
            self._release()
            raise
        files = ChunkWriter(disk, folders, sign, binding, limits.chunk_zstd_level, closed)
        self._writer = LogWriter(files, self.index, limits)
        self._journal: Journal | None = None
        self.pending = JournalTail()
        self.catching: JournalTail | None = None

    def replay(self) -> Iterator[tuple[int, list[LogEntry]]]:
        """The groups the log has not caught up with. Must be exhausted, and each handed back by `restore`."""
        last = self.applied
        for group, entries in journal.recover(self._disk, self.folders.journal, self.applied):
            if group != last + 1:
                raise Malformed("journal", f"group {group} follows group {last}: what was between them is lost")
            last = group
            yield group, entries
        self._journal = Journal(self._disk, self.folders.journal, last + 1)

    def restore(self, batch: CommitGroup, group: int) -> None:
        """A replayed group: durable already."""
        self.pending.add(batch, group)

    def commit(self, batch: CommitGroup) -> int:
        """Make a batch durable: after this its receipts may leave."""
        assert self._journal is not None, "replay first"
        if self._journal.needs_segment:
            self._lock.check()
        frames = b"".join([record.frame for record in batch.records])
        return self._journal.append(frames, len(batch.records))

    def probe(self) -> None:
        """Raise as `commit` does where the journal could not be written now. Adds nothing to it."""
        assert self._journal is not None, "replay first"
        self._lock.check()
        self._journal.probe()

    def committed(self, batch: CommitGroup, group: int) -> None:
        """Show a durable batch to look-ups. On the owner's thread."""
        self.pending.add(batch, group)

    def begin_catching_up(self) -> JournalTail | None:
        """Set the pending entries aside for the log; None where there are none or the last are still being written."""
        if self.catching is not None or not self.pending.batch.records:
            return None
        self.catching, self.pending = self.pending, JournalTail()
        return self.catching

    def catch_up(self, tail: JournalTail) -> None:
        """Write the tail to log and index. On the catch-up thread. May be repeated after an error.

        Raises `Malformed` where the directory is not the one that was locked.
        """
        self._lock.check()
        with self.index.read() as rows:
            is_there = rows.number("applied") >= tail.group
        try:
            if is_there:  # all but the last step was done the last time
                self.index.lengthen()
            else:
                self._writer.apply(tail.batch, tail.group)
        except OSError as error:
            raise Unavailable(f"the log cannot be written: {error.strerror}") from error
        except DAMAGE as error:
            raise Malformed("index", str(error)) from error
        except lmdb.Error as error:
            raise Unavailable(f"the index cannot be written: {error}") from error

    def end_catching_up(self) -> None:
        """The log has the tail: let it go, and trim the journal."""
        assert self.catching is not None
        assert self._journal is not None
        self.applied = self.catching.group
        self.catching = None
        self._journal.trim(self.applied)

    @property
    def journal_bytes(self) -> int:
        return self._journal.total_bytes if self._journal else 0

    def tails(self) -> tuple[JournalTail, ...]:
        """What the log may lack, newest first. Taken before the log is asked, nothing is missed between them."""
        pending, catching = self.pending, self.catching
        # Between the two looks the first may have become the second.
        return (pending, catching) if catching and catching is not pending else (pending,)

    def close(self) -> None:
        """Let go of everything. The journal stays where the log lacks anything of it, or is not where it was."""
        if self._journal:
            try:
                self._lock.check()
                self._journal.clear(self.applied)
            except (Malformed, Unavailable):
                self._journal.close()
        self.index.close()
        self._release()

    def _distrust(self, why: Exception) -> None:
        """The index is damaged: the next start makes it again. Whoever met it says so; a full disk changes neither."""
        if not index_faults.is_noted(self.folders):
            with suppress(Unavailable):
                index_faults.note(self._disk, self.folders, f"{why}\n")

    def _release(self) -> None:
        self._watch.close()
        self._lock.close()
