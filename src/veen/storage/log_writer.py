"""Catch-up: write chunk files, tree nodes and index rows for entries that are already durable in the journal.

Order: files first, synced, then one index transaction that names them and their journal group. A crash before the
transaction leaves bytes behind the heads, which the next write cuts off; the journal still has the entries.

The order of writes when a chunk closes, and what a crash after each leaves (spec §4.8.2, §4.8.3):

    1. entries to the open file, synced         nothing new is visible
    2. summary, peak snapshot, checkpoint       they describe a chunk that is still named open
    3. checkpoint index                         the same
    4. open file renamed, folder synced         the chunk is closed
    5. checkpoint binding (`settle`)            binds the checkpoint to the hub and its key
    6. index row (the transaction)              the label's head starts a new chunk

If the limit registry says that chunks are compressed, step 4 is three steps:

    4a. compressed file, synced, folder synced  both forms of the chunk exist, both are complete
    4b. open file removed                       the chunk is closed
    4c. folder synced                           the removal is durable

Steps that a crash prevented are repeated from the journal with the same bytes, because only the limits and the
logged end of the label's epoch decide where a chunk ends.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from plumbing.durable import Disk
from veen.core import Checkpoint, Limits, Malformed, Mmr, Receipt, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import checkpoint_files, chunk_reader, safe_open
from veen.storage.artifacts import ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.checkpoint_files import BindingFile
from veen.storage.chunk_reader import is_packed, mapped, read_blocks
from veen.storage.frame import AcceptedEntry, CommitGroup
from veen.storage.index import PAIR, PLACE, SECONDS_PER_DAY, Index, LabelHead, WriteRows
from veen.storage.paths import ChunkName, Folders

# Number of labels whose open chunks are checked at a start, and per later step.
LABELS_CHECKED_AT_START = 1024
LABELS_PER_CHECK = 128

# Signs the checkpoint at the end of a chunk: (label, upto_seq, mmr_root, hub_ts of the last entry).
CheckpointSigner = Callable[[bytes, int, bytes, int], Checkpoint]


def must_roll_before(head: LabelHead, frame_bytes: int, limits: Limits) -> bool:
    """Whether the open chunk has no room for an entry of that size."""
    return head.chunk_bytes > 0 and head.chunk_bytes + frame_bytes > limits.max_chunk_bytes


def must_roll_after(head: LabelHead, limits: Limits) -> bool:
    return head.chunk_entries >= limits.max_checkpoint_interval


class LogFiles(Protocol):
    """The files that an index describes: those of a hub, or a substitute while an index is rebuilt."""

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        """Append to an open chunk. The first `at` bytes of the file are valid."""

    def close(self, label: bytes, head: LabelHead) -> None:
        """Close the open chunk, which is synced and ends at the head."""

    def add_nodes(self, label: bytes, at: int, nodes: bytes, *, sync: bool) -> None:
        """Append tree nodes of the label. The first `at` bytes of the file are valid."""

    def settle(self, *, everything: bool) -> None:
        """Make new file names durable, and with `everything` also writes that were not synced."""


@dataclass(eq=False)
class ChunkWriter:
    """The chunk and node files of one data directory. One writer.

    `closed` is called with the label, the end and the number of entries of each closed chunk.
    """

    _disk: Disk
    _folders: Folders
    _sign: CheckpointSigner
    _binding: BindingFile
    _zstd_level: int | None
    _closed: Callable[[bytes, int, int], None] | None = None
    _new_names: bool = False

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        path = self._folders.open_chunk(label, start_seq)
        if at and not path.exists():
            self._reopen(label, start_seq, path)
        append_at(self._disk, path, at, frames, sync=sync)
        self._new_names |= not at

    def add_nodes(self, label: bytes, at: int, nodes: bytes, *, sync: bool) -> None:
        append_at(self._disk, self._folders.node_file(label), at, nodes, sync=sync)
        self._new_names |= not at

    def settle(self, *, everything: bool) -> None:
        if everything:
            self._disk.sync_filesystem(self._folders.log)
        elif self._new_names:
            self._disk.sync_folder(self._folders.log)
            self._disk.sync_folder(self._folders.nodes)
        self._new_names = False
        self._binding.save()

    def close(self, label: bytes, head: LabelHead) -> None:
        start, end = head.chunk_start, head.size
        root = self._checked_root(label, head)
        hashes = Mmr(head.chunk_entries, head.hash_peaks)
        summary = ChunkSummary(label, start, end, root, head.chunk_entries, head.chunk_bytes, hashes.root())
        self._disk.write_file(self._folders.summary(label, start, end), summary.encode())
        self._disk.write_file(self._folders.peaks(label, end), PeakSnapshot(label, end, tuple(head.peaks)).encode())
        signed = self._sign(label, end, root, head.hub_ts)
        stored = self._write_checkpoint(self._folders.checkpoint(label, end), signed)
        self._add_to_index(label, IndexedCheckpoint(end, root, start, end, end))
        self._binding.add(stored)
        closed = ChunkName(label, start, end, packed=self._zstd_level is not None)
        self._settle_chunk(self._folders.open_chunk(label, start), self._folders.log / closed.file_name())
        if self._closed:
            self._closed(label, end, head.chunk_entries)

    def _checked_root(self, label: bytes, head: LabelHead) -> bytes:
        """The root at the head, to be signed. The receipt of the last entry must contain the same root."""
        path = self._folders.open_chunk(label, head.chunk_start)
        if not path.exists():  # closed before a crash; the index does not know yet
            path = self._folders.closed_chunk_from(label, head.chunk_start) or path
        entry = chunk_reader.last_entry(path, head.place_offset, head.chunk_bytes)
        root, receipt = mmr.root_of(head.peaks), Receipt.decode(entry.receipt)
        if (receipt.label, receipt.stream_seq, receipt.mmr_root) != (label, head.size, root):
            what = f"the head of {label.hex()} does not match the root in receipt {head.size}"
            raise Malformed("index", f"{what}; run `veen fsck DIR --repair` to rebuild the index")
        return root

    def _settle_chunk(self, opened: Path, closed: Path) -> None:
        """Move a chunk to its final form and name. After a crash this may already be done."""
        if opened.exists() or not closed.exists():
            if self._zstd_level is None:
                self._disk.replace(opened, closed)
            else:
                self._disk.write_file(closed, chunk_reader.pack(mapped(opened), self._zstd_level))
                self._disk.sync_folder(self._folders.log)
                self._disk.unlink(opened)
        self._disk.sync_folder(self._folders.log)

    def _write_checkpoint(self, path: Path, made: Checkpoint) -> Checkpoint:
        """Keep an existing checkpoint: rewriting it after a crash would lose its witness signatures.

        Returns the stored one. An earlier key may have signed it, if the key was changed since.
        """
        kept = _read_checkpoint(path)
        if kept and kept.signing_digest() == made.signing_digest() and self._binding.can_bind(kept):
            return kept
        self._disk.write_file(path, made.encode())
        return made

    def _add_to_index(self, label: bytes, added: IndexedCheckpoint) -> None:
        """Append a row to the checkpoint index; missing earlier rows are derived."""
        self._disk.write_file(
            self._folders.checkpoint_index(label), checkpoint_files.index_with_row(self._folders, label, added)
        )

    def _reopen(self, label: bytes, start_seq: int, path: Path) -> None:
        """Reopen a chunk that was closed before a crash, before the index knew it."""
        closed = self._folders.closed_chunk_from(label, start_seq)
        if closed is None:
            raise Malformed("log", f"{path.name} is missing but listed in the index")
        if is_packed(closed):
            self._disk.write_file(path, (bytes(data) for data, _ in read_blocks(closed)))
        else:
            self._disk.replace(closed, path)


def _read_checkpoint(path: Path) -> Checkpoint | None:
    """The stored checkpoint; None if the file is missing or damaged."""
    try:
        return Checkpoint.decode(safe_open.read(path))
    except (FileNotFoundError, Malformed):
        return None


def check_open_chunks(folders: Folders, heads: Iterable[tuple[bytes, LabelHead]]) -> None:
    """Raise `Malformed` if an open chunk is missing or shorter than its label's head."""
    for label, head in heads:
        if head.chunk_bytes and folders.open_chunk_size(label, head.chunk_start) < head.chunk_bytes:
            if folders.closed_chunk_from(label, head.chunk_start):
                continue  # closed before a crash; the index does not know yet
            name = folders.open_chunk(label, head.chunk_start).name
            what = f"{name} does not hold the {head.chunk_entries} entries that the index lists"
            raise Malformed(
                "log", f"{what}; run `veen fsck` to list the damage, and restore the entries from another copy"
            )


class OpenChunks:
    """Checks in steps that the open chunks are as long as the index says. There is one chunk per label."""

    def __init__(self, folders: Folders, index: Index) -> None:
        self._folders = folders
        self._index = index
        self._after: bytes | None = b""  # the last label checked; None when all are

    def check(self, count: int = LABELS_PER_CHECK) -> bool:
        """Check the next `count` labels. Returns whether more may follow."""
        if self._after is None:
            return False
        with self._index.read() as rows:
            some = list(islice(rows.labels(self._after), count))
        check_open_chunks(self._folders, some)
        self._after = some[-1][0] if len(some) == count else None
        return self._after is not None


def append_at(disk: Disk, path: Path, at: int, data: bytes, *, sync: bool) -> None:
    """Append to a file whose first `at` bytes are valid. Cut off extra bytes (from a crash); fewer bytes are damage."""
    fd = disk.open_append(path)
    try:
        size = os.fstat(fd).st_size
        if size < at:
            raise Malformed("log", f"{path.name} has {size} bytes, but the index lists {at}")
        if size > at:
            disk.truncate(fd, at)
        disk.write(fd, data)
        if sync:
            disk.sync(fd)
    finally:
        os.close(fd)


# The distance of an entry to the indexed one before it is bounded, so finding it is a bounded read.
PLACE_ENTRIES = 32
PLACE_BYTES = 1 << 16
# Above this many files one sync of the file system is cheaper than one per file.
MAX_LABELS_SYNCED_SINGLY = 4


class LogWriter:
    """The writer of one data directory's log and index."""

    def __init__(self, files: LogFiles, index: Index, limits: Limits) -> None:
        self._files = files
        self._index = index
        self._limits = limits

    def apply(self, batch: CommitGroup, group: int) -> None:
        """Write the entries of `batch`, the last of which are in the journal's `group`, to log and index."""
        by_label: dict[bytes, list[AcceptedEntry]] = {}
        for record in batch.records:
            by_label.setdefault(record.label, []).append(record)
        many = len(by_label) > MAX_LABELS_SYNCED_SINGLY
        with self._index.write() as rows:
            places: list[tuple[bytes, bytes]] = []
            for label in sorted(by_label.keys() | batch.ends):
                records = by_label.get(label, [])
                places += self._apply_label(rows, label, records, batch.ends.get(label), sync=not many)
            self._files.settle(everything=many)
            rows.put_places(places)
            _put_clients(rows, batch.records)
            _put_registry(rows, batch)
            rows.put_number("applied", group)
            if by_label:
                rows.put_newest(*max((records[-1].hub_ts, label) for label, records in by_label.items()))
            rows.commit()

    def _apply_label(
        self, rows: WriteRows, label: bytes, records: list[AcceptedEntry], end: int | None, *, sync: bool
    ) -> list[tuple[bytes, bytes]]:
        """Write the entries and nodes of one label, and close its chunk after entry `end`. Returns its rows for
        `places`."""
        head = rows.head(label) or LabelHead()
        nodes_before = mmr.node_count(head.size)
        appender = _ChunkAppender(self._files, label, head, self._limits, sync=sync)
        today = _day(head.hub_ts) if head.size else -1
        nodes: list[bytes] = []
        for record in records:
            if record.stream_seq != head.size + 1:
                raise ValueError(f"entry {record.stream_seq} does not follow {head.size}")
            if (day := _day(record.hub_ts)) != today:
                rows.put_day(label, day, record.stream_seq)
                today = day
            appender.add(record)
            nodes += record.new_nodes
        appender.flush()
        if end is not None:
            appender.end(end)
        for start, end in appender.closed:
            rows.put_chunk(label, start, end)
        if nodes:
            self._add_nodes(label, nodes_before, nodes, sync=sync)
        rows.put_head(label, head)
        return appender.places

    def _add_nodes(self, label: bytes, before: int, nodes: list[bytes], *, sync: bool) -> None:
        try:
            self._files.add_nodes(label, before * HASH_BYTES, b"".join(nodes), sync=sync)
        except Malformed as error:  # nodes are derived from the log: rebuilding the index restores them
            raise Malformed("index", error.reason) from None


class _ChunkAppender:
    """Appends entries to a label's chunks and updates its head."""

    def __init__(self, files: LogFiles, label: bytes, head: LabelHead, limits: Limits, *, sync: bool) -> None:
        self._files = files
        self._label = label
        self._head = head
        self._limits = limits
        self._sync = sync
        self._frames: list[bytes] = []
        self._written = head.chunk_bytes
        self._hashes = Mmr(head.chunk_entries, head.hash_peaks)
        self.places: list[tuple[bytes, bytes]] = []
        self.closed: list[tuple[int, int]] = []

    def add(self, record: AcceptedEntry) -> None:
        head, seq, size = self._head, record.stream_seq, len(record.frame)
        if must_roll_before(head, size, self._limits):
            self._close_chunk()
        start = head.chunk_bytes
        if needs_place(seq, start, head.place_seq, head.place_offset):
            head.place_seq, head.place_offset = seq, start
            self.places.append((self._label, PLACE.pack(seq, head.chunk_start, start)))
        head.peaks[: len(record.new_nodes) - 1] = [record.new_nodes[-1]]
        self._hashes.append(record.entry_hash)
        self._frames.append(record.frame)
        head.size, head.hub_ts, head.chunk_bytes = seq, record.hub_ts, start + size
        if must_roll_after(head, self._limits):
            self._close_chunk()

    def flush(self) -> None:
        self._write(sync=self._sync)

    def end(self, last_seq: int) -> None:
        """Close the chunk behind the last entry of the label, whose epoch is over."""
        if self._head.size != last_seq:
            raise ValueError(f"the label ends with entry {self._head.size}, not {last_seq}")
        if self._head.chunk_entries:
            self._close_chunk()

    def _write(self, *, sync: bool) -> None:
        self._head.hash_peaks = self._hashes.peaks
        if self._frames:
            frames = b"".join(self._frames)
            self._files.append(self._label, self._head.chunk_start, self._written, frames, sync=sync)
            self._written += len(frames)
            self._frames.clear()

    def _close_chunk(self) -> None:
        self._write(sync=True)
        self.closed.append((self._head.chunk_start, self._head.size))
        self._files.close(self._label, self._head)
        self._head.chunk_start, self._head.chunk_bytes, self._head.hash_peaks = self._head.size + 1, 0, []
        self._written = 0
        self._hashes = Mmr()


def needs_place(seq: int, offset: int, place_seq: int, place_offset: int) -> bool:
    """Whether an entry gets a row in `places`, if the row before it in the chunk is for `place_seq`."""
    return not offset or seq - place_seq >= PLACE_ENTRIES or offset - place_offset >= PLACE_BYTES


def _day(hub_ts: int) -> int:
    return hub_ts // SECONDS_PER_DAY


def _put_clients(rows: WriteRows, records: Iterable[AcceptedEntry]) -> None:
    found = []
    cursors = {}
    for record in records:
        key = record.client_id + record.label
        found.append((key, PAIR.pack(record.client_seq, record.stream_seq)))
        cursors[key] = PAIR.pack(record.client_seq, record.prev_ack)
    found.sort()
    rows.put_clients(found)
    rows.put_cursors(sorted(cursors.items()))


def _put_registry(rows: WriteRows, batch: CommitGroup) -> None:
    for auth_ref, (label, stream_seq, issued_at, token) in batch.caps.items():
        rows.put_cap(auth_ref, label, stream_seq, issued_at, token)
    for stream_id, (label, stream_seq) in batch.streams.items():
        rows.put_stream(stream_id, label, stream_seq)
    for label, (stream_id, epoch) in batch.epochs.items():
        if rows.stream_and_epoch(label) is None:
            rows.put_label(label, stream_id, epoch)
    for (label, stream_seq), event in batch.admin_events.items():
        rows.put_admin_event(label, stream_seq, event)
    if batch.limits:
        rows.put_limits(batch.limits)
    if batch.retention:
        rows.put_retention(batch.retention)
    rows.put_buckets(
        (auth_ref + label, PAIR.pack(b.tokens, b.hub_ts)) for (auth_ref, label), b in batch.buckets.items()
    )
