"""Rebuild the index and the node files from the log. The log is not changed.

They are built up to the start of the journal, which is then replayed as after any crash. That is sufficient, because a
group leaves the journal only when log and index have it. It is simple, because everything that an interrupted write
left in the log behind that point is written again with the same bytes.

A damaged LMDB file can crash the process that maps it. Such a fault is recorded in a file of the data directory, and
the next start rebuilds the index.
"""

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import lmdb

from plumbing import lmdb_env
from plumbing.durable import PLAIN_FILE, PRIVATE_FOLDER, Disk, remove_all
from veen.core import (
    Bucket,
    CapToken,
    Limits,
    Malformed,
    Mmr,
    Msg,
    Rate,
    Receipt,
    Refused,
    Unavailable,
    VeenError,
    admin,
    control_stream,
    naming,
)
from veen.core.cap_token import token_of
from veen.core.control_stream import EpochEnd
from veen.core.retention import RetentionRules
from veen.storage import chunk_reader, journal, journal_mark, safe_open
from veen.storage.chunk_reader import ChunkFile
from veen.storage.frame import AcceptedEntry, CommitGroup, LogEntry
from veen.storage.index import FORMAT, MARKED, Index, IndexRows, LabelHead
from veen.storage.journal import JournalIncomplete
from veen.storage.journal_mark import Mark
from veen.storage.label_map import LabelMap
from veen.storage.log_writer import LogWriter, append_at
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import INDEX_DRAFT, Folders
from veen.storage.pruned_chunk import PrunedEntry

Progress = Callable[[int, int], None]  # bytes done, bytes in total

BATCH_ENTRIES = 4096
BATCH_BYTES = 1 << 24
_FATAL = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def open_index(disk: Disk, folders: Folders) -> Index:
    """Open the index, or rebuild it if it is missing or unusable. The caller holds the lock."""
    index = usable_index(folders)
    if index is None:
        return rebuild_index(disk, folders)
    try:
        with index.read() as rows:
            is_marked = rows.number(MARKED)
        if not is_marked:
            with index.write() as rows:
                rows.put_number(MARKED, 1)
                rows.commit()
    except lmdb.Error as error:
        index.close()
        raise Unavailable(f"the index cannot be written: {error}") from error
    return index


def adopt_journal(disk: Disk, folders: Folders) -> Mark:
    """Write the mark of a data directory from a version without marks. The caller holds the lock.

    Without a mark it is unknown whether such a directory lost its journal before. The index shows that the directory
    is one of those: it says up to which group the log is written, and has no row `marked`.
    """
    index = usable_index(folders)
    if index is None:
        what = "journal.mark is missing, and there is no usable index that shows where the journal ended"
        raise JournalIncomplete(what, "groups that the log lacks")
    try:
        with index.read() as rows:
            is_marked, applied = rows.number(MARKED), rows.number("applied")
    finally:
        index.close()
    if is_marked:
        raise JournalIncomplete("journal.mark is missing", f"groups after {applied}")
    mark = journal.unmarked(folders.journal, applied + 1)
    journal_mark.create(disk, folders.journal, mark)
    disk.sync_folder(folders.root)
    return mark


def rebuild_index(disk: Disk, folders: Folders, progress: Progress | None = None) -> Index:
    """Rebuild index and node files. If the log is damaged this raises, and the old files are kept.

    Order: build in a draft folder, sync; remove the old index; rename the draft. Without an index the next start
    rebuilds again, so a crash at any point is harmless.
    """
    try:
        return _rebuilt(disk, folders, progress)
    except (OSError, lmdb.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Unavailable(f"the index cannot be rebuilt: {why}") from error


def _rebuilt(disk: Disk, folders: Folders, progress: Progress | None) -> Index:
    hub_metadata = read_metadata(folders)
    draft = Folders(folders.root, INDEX_DRAFT)
    remove_all(draft.index)
    disk.make_folder(draft.nodes, PRIVATE_FOLDER)
    index = Index(draft.index, durable=False)
    try:
        _fill(disk, draft, index, hub_metadata, progress)
        index.sync()
    finally:
        index.close()
    disk.sync_filesystem(draft.index)
    remove_all(folders.index)
    disk.replace(draft.index, folders.index)
    disk.sync_folder(folders.root)
    clear_fault(disk, folders)
    return Index(folders.index)


def journal_start(folders: Folders, after: int | None = None) -> tuple[int, dict[bytes, int]]:
    """The last group that need not be replayed, and the first stream_seq of every label in the groups after it.

    Without `after`, replay starts with the first group of the journal.
    """
    applied = after if after is not None else journal.first_group(folders.journal) - 1
    first: dict[bytes, int] = {}
    for found in journal.read(folders.journal, applied):
        if not isinstance(found, journal.Torn):
            for entry in found[1]:
                first.setdefault(entry.label, entry.stream_seq)
    return applied, first


def logged_ends(
    hub_metadata: HubMetadata, files: dict[bytes, list[ChunkFile]], journal_from: Mapping[bytes, int]
) -> dict[bytes, int]:
    """The labels whose epoch ended by an event in the log, with their last entry. Skips what is damaged."""
    found: dict[bytes, int] = {}
    if hub_metadata.profile.epoch_sec:
        for label in chunk_reader.control_labels(hub_metadata, files):
            upto = journal_from[label] - 1 if label in journal_from else None
            with suppress(VeenError):
                for entry, _ in chunk_reader.read_log(files[label], upto):
                    if isinstance(entry, LogEntry):  # control streams are never pruned
                        found |= _ends_in(hub_metadata, entry)
    return found


def journal_ends(folders: Folders, hub_metadata: HubMetadata, after: int) -> dict[bytes, int]:
    """The same for the events in the groups of the journal after `after`. A crash may have closed these chunks."""
    found: dict[bytes, int] = {}
    if hub_metadata.profile.epoch_sec:
        with suppress(VeenError):
            for group in journal.read(folders.journal, after):
                for entry in () if isinstance(group, journal.Torn) else group[1]:
                    found |= _ends_in(hub_metadata, entry)
    return found


def _ends_in(hub_metadata: HubMetadata, entry: LogEntry) -> dict[bytes, int]:
    """The labels that an entry ends, if it is such an event of the control stream."""
    identity, profile = hub_metadata.identity, hub_metadata.profile
    message, receipt = entry.open()
    control = naming.control_stream(identity.hub_id)
    if naming.label(identity.routing_key, control, profile.epoch(receipt.hub_ts)) != entry.label:
        return {}
    event = control_stream.event_of(identity.hub_id, message, Limits())
    return {one.label: one.size for one in event.labels} if isinstance(event, EpochEnd) else {}


def check_log_end(folders: Folders, files: dict[bytes, list[ChunkFile]], applied: int) -> None:
    """Raise `JournalIncomplete` if the log has later entries of a label than the groups after `applied`.

    The log is written from the journal, so such a journal is an older copy. Replay would cut these entries off.
    """
    last: dict[bytes, int] = {}
    for found in journal.read(folders.journal, applied):
        if not isinstance(found, journal.Torn):
            last |= {entry.label: entry.stream_seq for entry in found[1]}
    for label in last.keys() & files.keys():
        size = 0
        with suppress(Malformed):  # its last entry is incomplete, as after a crash
            size = chunk_reader.size_of(files[label])
        if size > last[label]:
            what = f"the log has entry {size} of {label.hex()}, but the journal ends with its entry {last[label]}"
            raise JournalIncomplete(f"{what}: it was replaced by an older copy", "later entries")


def accepted_entry(entry: LogEntry | PrunedEntry, framed: bytes, tree: Mmr) -> tuple[AcceptedEntry, Msg, Receipt]:
    """Convert a log entry for the index. It must be the next of its tree. Signatures are not verified here."""
    if isinstance(entry, PrunedEntry):
        message = entry.message
        made = tree.append(message.leaf_hash())
        receipt = entry.receipt(entry.root or tree.root())
    else:
        message, receipt = entry.open()
        made = tree.append(receipt.leaf_hash)
    if tree.size != entry.stream_seq or tree.root() != receipt.mmr_root:
        raise Malformed("log", f"entry {entry.stream_seq} of {entry.label.hex()[:16]}… does not match its tree")
    record = AcceptedEntry.of(message, entry.stream_seq, framed, entry.entry_hash, made, receipt.hub_ts)
    return record, message, receipt


def progress_counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """A function that adds up increments and passes the sum to `progress`."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return count


class Registrar:
    """Derives the registry rows from entries, as the sequencer does: capabilities, streams, buckets, admin events."""

    def __init__(self, hub_metadata: HubMetadata, ends: Mapping[bytes, int] | None = None) -> None:
        """`ends` are the labels whose epoch ended by an event in the log, with their last entry."""
        self._ends = ends or {}
        self._hub_id = hub_metadata.identity.hub_id
        self._realm_id = hub_metadata.identity.realm_id
        self._routing = hub_metadata.identity.routing_key
        self._control_stream = naming.control_stream(self._hub_id)
        self._profile = hub_metadata.profile
        self._limits = hub_metadata.limits
        self._lineage = hub_metadata.lineage
        self._streams: set[bytes] = {self._control_stream}
        self._labels = LabelMap(self._routing, hub_metadata.profile, hub_metadata.limits.max_epoch_skew_sec)
        self._labels.add(self._control_stream)
        self._registry = hub_metadata.limit_registry
        self._retention = RetentionRules()
        self._tokens: dict[bytes, CapToken] = {}
        self._rates: dict[tuple[bytes, Limits], Rate | None] = {}
        self._label = b""
        self._admin_stream: bytes | None = None  # of the current label
        self._buckets: dict[bytes, Bucket] = {}  # of the current label

    def note(self, message: Msg, receipt: Receipt, batch: CommitGroup) -> None:
        """Record what one entry changes. Labels come one after the other, those of the control stream first."""
        if message.label != self._label:
            self._label = message.label
            self._buckets.clear()
            self._admin_stream = self._admin_stream_of(message.label, receipt.hub_ts)
        if self._ends.get(message.label) == receipt.stream_seq:
            batch.ends[message.label] = receipt.stream_seq
        if self._profile.epoch_sec and receipt.stream_seq == self._lineage.upto(message.label) + 1:
            self._note_epoch(message.label, receipt.hub_ts, batch)
        rate = self._rate(message.auth_ref, receipt.hub_ts) if message.auth_ref else None
        if rate and message.auth_ref:
            before = self._buckets.get(message.auth_ref) or Bucket.full(rate, receipt.hub_ts)
            after = before.take(rate, receipt.hub_ts) or before
            self._buckets[message.auth_ref] = batch.buckets[message.auth_ref, message.label] = after
        epoch = self._profile.epoch(receipt.hub_ts)
        if naming.label(self._routing, self._control_stream, epoch) == message.label:
            # A logged event is valid even if it exceeds the current limits.
            self._note_event(control_stream.event_of(self._hub_id, message, Limits()), receipt, batch)
        if self._realm_id and self._admin_stream:
            event = admin.event_of(self._realm_id, self._admin_stream, message, Limits())
            if event:
                batch.admin_events[receipt.label, receipt.stream_seq] = event

    def _rate(self, auth_ref: bytes, hub_ts: int) -> Rate | None:
        """The rate of a capability at that time; None if it is above the limits and grants nothing."""
        token, limits = self._tokens.get(auth_ref), self._registry.at(hub_ts)
        if token is None:
            return None
        if (auth_ref, limits) not in self._rates:
            self._rates[auth_ref, limits] = None
            with suppress(Refused):
                self._rates[auth_ref, limits] = token.rate_under(limits)
        return self._rates[auth_ref, limits]

    def _admin_stream_of(self, label: bytes, hub_ts: int) -> bytes | None:
        """The admin stream that a label belonged to when its first entry was written."""
        epochs = self._profile.epochs_around(hub_ts, self._limits.max_epoch_skew_sec)
        for stream in admin.binding_streams(self._realm_id):
            if any(naming.label(self._routing, stream, epoch) == label for epoch in epochs):
                return stream
        return None

    def _note_epoch(self, label: bytes, hub_ts: int, batch: CommitGroup) -> None:
        """Record stream and epoch of a label, at the first entry that this hub wrote to it."""
        found = self._labels.find(label, hub_ts)
        self._labels.forget()
        if found:
            batch.epochs[label] = found

    def _note_event(self, event: control_stream.Event, receipt: Receipt, batch: CommitGroup) -> None:
        effects = control_stream.effects(event, receipt.hub_ts)
        if effects.capability is not None:
            auth_ref, logged = effects.capability.auth_ref(), effects.capability.encode()
            batch.caps[auth_ref] = (receipt.label, receipt.stream_seq, receipt.hub_ts, logged)
            self._tokens[auth_ref] = token_of(effects.capability)
        if effects.revocation is not None:
            batch.admin_events[receipt.label, receipt.stream_seq] = effects.revocation
        if effects.limits is not None:
            self._registry = batch.limits = self._registry.lowered(effects.limits, receipt.hub_ts)
        if effects.retention is not None:
            self._retention = batch.retention = self._retention.after(effects.retention)
        for stream in effects.streams:
            if stream not in self._streams:
                self._streams.add(stream)
                self._labels.add(stream)
                batch.streams[stream] = (receipt.label, receipt.stream_seq)


class IndexFiller:
    """Adds entries that are already in the log to an index, in batches."""

    def __init__(self, writer: LogWriter, registrar: Registrar, applied: int) -> None:
        self._writer = writer
        self._registrar = registrar
        self._applied = applied
        self._batch = CommitGroup()

    def add(self, record: AcceptedEntry, message: Msg, receipt: Receipt) -> None:
        self._batch.add(record)
        self._registrar.note(message, receipt, self._batch)
        if is_full(self._batch):
            self.flush()

    def flush(self) -> None:
        self._writer.apply(self._batch, self._applied)
        self._batch = CommitGroup()


def is_full(batch: CommitGroup) -> bool:
    """Whether to write a batch, because more would take too much memory."""
    return len(batch.records) >= BATCH_ENTRIES or batch.size_bytes >= BATCH_BYTES


class _ExistingLogFiles:
    """Stands in for log files during a rebuild: chunks already exist, node files are written."""

    def __init__(self, disk: Disk, folders: Folders, files: dict[bytes, list[ChunkFile]]) -> None:
        self._disk = disk
        self._folders = folders
        self._files = files

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        """Nothing to do: the entries exist."""

    def close(self, label: bytes, head: LabelHead) -> None:
        if not any((c.start_seq, c.end_seq) == (head.chunk_start, head.size) for c in self._files[label]):
            raise Malformed("log", f"{label.hex()[:16]}… has no chunk with entries {head.chunk_start} to {head.size}")

    def add_nodes(self, label: bytes, at: int, nodes: bytes, *, sync: bool) -> None:
        append_at(self._disk, self._folders.node_file(label), at, nodes, sync=False)

    def settle(self, *, everything: bool) -> None:
        """Nothing to do: everything is synced at the end."""


def usable_index(folders: Folders) -> Index | None:
    """The index; None if it is missing, has a recorded fault, is damaged, or does not match the journal."""
    if fault_recorded(folders):
        return None
    if not safe_open.is_file(folders.index / "data.mdb") or not folders.nodes.is_dir():
        return None
    try:
        index = Index(folders.index)
    except Malformed:
        return None
    try:
        with index.read() as rows:
            if (
                rows.number("format") == FORMAT
                and rows.sum_matches(index.most_rows())
                and _matches_journal(rows, folders)
            ):
                return index
    except (lmdb.Error, Malformed):
        pass  # damaged: rebuild it
    index.close()
    return None


def _matches_journal(rows: IndexRows, folders: Folders) -> bool:
    """Whether the journal continues where the index ends, and the heads cover every group that replay will skip."""
    applied = rows.number("applied")
    if journal.first_group(folders.journal) > applied + 1:
        return False
    last: dict[bytes, int] = {}
    # Groups that the log already has may be damaged; replay checks the others.
    with suppress(Malformed):
        for found in journal.read(folders.journal, 0):
            if isinstance(found, journal.Torn) or found[0] > applied:
                break
            last |= {entry.label: entry.stream_seq for entry in found[1]}
    heads = ((rows.head(label), stream_seq) for label, stream_seq in last.items())
    return all(head is not None and head.size >= stream_seq for head, stream_seq in heads)


def _fill(disk: Disk, folders: Folders, index: Index, hub_metadata: HubMetadata, progress: Progress | None) -> None:
    applied, journal_from = journal_start(folders)
    files = chunk_reader.chunk_files(folders)
    check_log_end(folders, files, applied)
    total = sum(chunk.path.lstat().st_size for chunks in files.values() for chunk in chunks)
    done = 0
    writer = LogWriter(_ExistingLogFiles(disk, folders, files), index, hub_metadata.limits)
    filler = IndexFiller(writer, Registrar(hub_metadata, logged_ends(hub_metadata, files, journal_from)), applied)
    for label in chunk_reader.control_first(hub_metadata, files):
        tree = Mmr()
        upto = journal_from[label] - 1 if label in journal_from else None
        for entry, framed in chunk_reader.read_log(files[label], upto):
            if entry.label != label:
                raise Malformed("log", f"the log of {label.hex()[:16]}… contains an entry of another label")
            filler.add(*accepted_entry(entry, framed, tree))
            done += len(framed)
        if progress:
            progress(done, total)
    filler.flush()
    with index.write() as rows:
        rows.put_number("format", FORMAT)
        if folders.journal_mark.exists():
            rows.put_number(MARKED, 1)
        rows.commit()


def probe(disk: Disk, folders: Folders) -> None:
    """Read parts of the index in another process; record a fault if that crashes. The caller holds the lock."""
    if not lmdb_env.is_mapped() or not safe_open.is_file(folders.index / "data.mdb"):
        return
    command = [sys.executable, "-m", "plumbing.lmdb_env", str(folders.index)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if -done.returncode in _FATAL:
        record_fault(disk, folders, f"reading the index ended a process: {signal.Signals(-done.returncode).name}\n")
    elif done.returncode == lmdb_env.UNREADABLE:
        record_fault(disk, folders, f"the index cannot be read: {done.stdout.decode(errors='replace')}\n")


def record_fault(disk: Disk, folders: Folders, what: str) -> None:
    """Record a fault, so that the next start rebuilds the index. The caller holds the lock."""
    try:
        fd = disk.open_append(folders.fault)
        try:
            disk.write(fd, what.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise Unavailable(f"the index is damaged, and the fault cannot be recorded: {error.strerror}") from error


def fault_recorded(folders: Folders) -> bool:
    """Whether a fault was recorded since the index was built."""
    try:
        return folders.fault.lstat().st_size > 0
    except FileNotFoundError:
        return False


def clear_fault(disk: Disk, folders: Folders) -> None:
    """Forget recorded faults after a rebuild. Truncates the file: a running process may have it open."""
    if fault_recorded(folders):
        fd = disk.open_append(folders.fault)
        try:
            disk.truncate(fd, 0)
        finally:
            os.close(fd)


class FatalSignalRecorder:
    """Records fatal signals through faulthandler until closed, unless the process already uses faulthandler."""

    def __init__(self, folders: Folders) -> None:
        self._path = folders.fault
        self._fd = -1
        if faulthandler.is_enabled():
            return
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | safe_open.SAFE_FLAGS, PLAIN_FILE)
        except OSError:
            return  # an unwritable disk is reported elsewhere
        faulthandler.enable(self._fd, all_threads=False)

    def close(self) -> None:
        if self._fd < 0:
            return
        faulthandler.disable()
        empty = os.fstat(self._fd).st_size == 0
        os.close(self._fd)
        self._fd = -1
        if empty:
            self._path.unlink(missing_ok=True)
