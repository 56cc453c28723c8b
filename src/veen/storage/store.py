"""The writer's view of a data directory: commit groups, look things up, let the log catch up behind.

Three places hold entries, newest first: `pending` (durable in the journal, not yet in the log), `catching` (being
written to the log now), and the log itself with its index. A look-up asks them in that order; an entry moves from one
to the next only after the next has it, so it is always found.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from veen.core import Limits, Malformed, Unavailable
from veen.storage import faults, journal, rebuild
from veen.storage.binding import Binding
from veen.storage.chunks import CheckpointSigner, ChunkWriter, check_open_chunks
from veen.storage.directory import read_papers
from veen.storage.durable import PRIVATE_FILE, Disk
from veen.storage.folders import Folders
from veen.storage.frame import Entry
from veen.storage.journal import Journal
from veen.storage.logwriter import LogWriter
from veen.storage.record import Batch, Record


class Tail:
    """The entries of a batch by label, for look-ups while the log catches up."""

    __slots__ = ("batch", "group", "labels", "size_bytes")

    def __init__(self) -> None:
        self.batch = Batch()
        self.group = 0
        self.size_bytes = 0
        self.labels: dict[bytes, list[Record]] = {}

    def add(self, batch: Batch, group: int) -> None:
        self.batch.extend(batch)
        self.group = group
        for record in batch.records:
            records = self.labels.get(record.label)
            if records is None:
                self.labels[record.label] = [record]  # never empty: other threads look
            else:
                records.append(record)
            self.size_bytes += len(record.frame)

    def record(self, label: bytes, stream_seq: int) -> Record | None:
        records = self.labels.get(label)
        if not records:
            return None
        at = stream_seq - records[0].stream_seq
        return records[at] if 0 <= at < len(records) else None


class Store:
    """One data directory, locked for this process. `commit` and `catch_up` may each run on a thread of their own."""

    def __init__(
        self, disk: Disk, folders: Folders, limits: Limits, sign: CheckpointSigner, *, probe: bool = False
    ) -> None:
        """Takes the lock, and makes the index again where there is none that can be used.

        With `probe` another process looks at the index first, so that a damaged one cannot end this one at once.
        Raises `Unavailable` where another process holds the lock, `Malformed` where entries are missing.
        """
        self.folders = folders
        self._disk = disk
        self._lock = locked(folders.lock)
        self._watch = faults.Watch(folders)
        try:
            if probe:
                faults.probe(disk, folders)
            self.index = rebuild.open_index(disk, folders)
        except BaseException:
            self._release()
            raise
        try:
            binding = Binding(disk, folders, read_papers(folders))
            with self.index.read() as rows:
                self.applied = rows.number("applied")
                check_open_chunks(folders, rows.labels())
        except BaseException:
            self.index.close()
            self._release()
            raise
        files = ChunkWriter(disk, folders, sign, binding, limits.chunk_zstd_level)
        self._writer = LogWriter(files, self.index, limits)
        self._journal: Journal | None = None
        self.pending = Tail()
        self.catching: Tail | None = None

    def replay(self) -> Iterator[tuple[int, list[Entry]]]:
        """The groups the log has not caught up with. Must be exhausted, and each handed back by `restore`."""
        last = self.applied
        for group, entries in journal.recover(self._disk, self.folders.journal, self.applied):
            if group != last + 1:
                raise Malformed("journal", f"group {group} follows group {last}: what was between them is lost")
            last = group
            yield group, entries
        self._journal = Journal(self._disk, self.folders.journal, last + 1)

    def restore(self, batch: Batch, group: int) -> None:
        """A replayed group: durable already."""
        self.pending.add(batch, group)

    def commit(self, batch: Batch) -> int:
        """Make a batch durable: after this its receipts may leave."""
        assert self._journal is not None, "replay first"
        frames = b"".join([record.frame for record in batch.records])
        return self._journal.append(frames, len(batch.records))

    def committed(self, batch: Batch, group: int) -> None:
        """Show a durable batch to look-ups. On the owner's thread."""
        self.pending.add(batch, group)

    def begin_catching_up(self) -> Tail | None:
        """Set the pending entries aside for the log; None where there are none or the last are still being written."""
        if self.catching is not None or not self.pending.batch.records:
            return None
        self.catching, self.pending = self.pending, Tail()
        return self.catching

    def catch_up(self, tail: Tail) -> None:
        """Write the tail to log and index. On the catch-up thread. May be repeated after an error."""
        try:
            self._writer.apply(tail.batch, tail.group)
        except OSError as error:
            raise Unavailable(f"the log cannot be written: {error.strerror}") from error
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

    def tails(self) -> tuple[Tail, ...]:
        """What the log may lack, newest first. Taken before the log is asked, nothing is missed between them."""
        pending, catching = self.pending, self.catching
        # Between the two looks the first may have become the second.
        return (pending, catching) if catching and catching is not pending else (pending,)

    def close(self) -> None:
        """Let go of everything. The journal stays where the log lacks anything of it."""
        if self._journal:
            self._journal.clear(self.applied)
        self.index.close()
        self._release()

    def _release(self) -> None:
        self._watch.close()
        os.close(self._lock)


def locked(path: Path) -> int:
    """The lock of a data directory, held until the descriptor is closed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise Unavailable(f"the data directory cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Unavailable("another hub is running on this data directory") from None
    return fd


@contextmanager
def undisturbed(path: Path) -> Iterator[None]:
    """While no hub runs on the directory. Works where nothing can be written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise Unavailable(f"the data directory cannot be read: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable("a hub is running on this data directory: stop it, or use a snapshot of it") from None
        yield
    finally:
        os.close(fd)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the directory's lock for a while."""
    fd = locked(path)
    try:
        yield
    finally:
        os.close(fd)
