"""Catch-up: write chunk files, tree nodes and index rows for entries that are already durable in the journal.

Order: files first, synced, then one index transaction that names them and their journal group. A crash before the
transaction leaves bytes behind the heads, which the next write cuts off; the journal still has the entries.
"""

from collections.abc import Iterable

from veen.core import Limits, Malformed, Mmr, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import chunks
from veen.storage.chunks import LogFiles
from veen.storage.commit_group import AcceptedEntry, CommitGroup
from veen.storage.index import PAIR, PLACE, Index, WriteRows
from veen.storage.label_head import SECONDS_PER_DAY, LabelHead

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
            for label in sorted(by_label):
                places += self._apply_label(rows, label, by_label[label], sync=not many)
            self._files.settle(everything=many)
            rows.put_places(places)
            _put_clients(rows, batch.records)
            _put_registry(rows, batch)
            rows.put_number("applied", group)
            if by_label:
                rows.put_newest(*max((records[-1].hub_ts, label) for label, records in by_label.items()))
            rows.commit()

    def _apply_label(
        self, rows: WriteRows, label: bytes, records: list[AcceptedEntry], *, sync: bool
    ) -> list[tuple[bytes, bytes]]:
        """Write the entries and nodes of one label. Returns its rows for `places`."""
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
        for start, end in appender.closed:
            rows.put_chunk(label, start, end)
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
        if chunks.must_roll_before(head, size, self._limits):
            self._close_chunk()
        start = head.chunk_bytes
        if not start or seq - head.place_seq >= PLACE_ENTRIES or start - head.place_offset >= PLACE_BYTES:
            head.place_seq, head.place_offset = seq, start
            self.places.append((self._label, PLACE.pack(seq, head.chunk_start, start)))
        head.peaks[: len(record.new_nodes) - 1] = [record.new_nodes[-1]]
        self._hashes.append(record.entry_hash)
        self._frames.append(record.frame)
        head.size, head.hub_ts, head.chunk_bytes = seq, record.hub_ts, start + size
        if chunks.must_roll_after(head, self._limits):
            self._close_chunk()

    def flush(self) -> None:
        self._write(sync=self._sync)

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
    rows.put_buckets(
        (auth_ref + label, PAIR.pack(b.tokens, b.hub_ts)) for (auth_ref, label), b in batch.buckets.items()
    )
