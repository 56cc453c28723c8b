"""Prune the closed chunks of a label: delete payloads, later also receipts, and keep what proves the rest. D19, D26.

The order of writes, and what a crash after each leaves:

    1. `Prune` on the control stream, by the caller   nothing is deleted; the next run logs it again
    2. pruned chunks, synced                          files beside chunks that are still there; they are ignored
    3. manifest, folder synced                        the chunks count as pruned, but are still there; see 4
    4. chunks removed, receipts cut off               `finish` does the rest, at the next run

A chunk is read completely before it is replaced, and must match its summary and its checkpoint: a damaged chunk is
never pruned, so that pruning cannot hide damage.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from plumbing.durable import Disk
from veen.core import Malformed, Mmr, Receipt
from veen.core.retention import Level, RetentionPolicy, Segment, sign_manifest
from veen.core.signing import DigestSigner
from veen.storage import frame, log_check, pruned_chunk, safe_open
from veen.storage.artifacts import ChunkSummary
from veen.storage.chunk_reader import read_blocks
from veen.storage.directory_reader import read_headers
from veen.storage.frame import LogEntry
from veen.storage.index import Index
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import PrunedChunk, verified_manifest

_ENTRIES_PER_PAUSE = 64


@dataclass(frozen=True, slots=True)
class PlannedPrune:
    """Consecutive chunks of a label that are due for one level."""

    label: bytes
    start_seq: int
    end_seq: int
    level: Level
    chunks: tuple[tuple[int, int], ...]
    bytes_before: int
    bytes_after: int

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1


@dataclass(frozen=True, slots=True)
class Pruner:
    """Prunes the labels of one directory. One at a time; the caller's process has the lock."""

    disk: Disk
    folders: Folders
    index: Index
    hub_metadata: Callable[[], HubMetadata]
    pause: Callable[[], None] = lambda: None  # called between small steps

    def plan(self, label: bytes, policy: RetentionPolicy, now: int) -> list[PlannedPrune]:
        """The chunks of a label that a policy prunes at this time. Reads one entry of each due chunk."""
        due: list[tuple[int, int, Level]] = []
        known = self._known(label)
        for start, end in self._chunks(label):
            segment = known.get(start)
            end_ts = segment.end_ts if segment else self._end_ts(label, end)
            level = _due(policy, now - end_ts)
            if level is Level.WHOLE:
                break  # later chunks are younger
            if level > (segment.level if segment else Level.WHOLE):
                due.append((start, end, level))
        return list(self._joined(label, due))

    def plan_range(self, label: bytes, first: int, last: int) -> list[PlannedPrune]:
        """The closed chunks with entries of a range, whatever their age, for an erasure."""
        known = self._known(label)
        due = [
            (start, end, Level.PAYLOADS)
            for start, end in self._chunks(label)
            if start <= last and end >= first and not (start in known and known[start].level)
        ]
        return list(self._joined(label, due))

    def prune(self, planned: PlannedPrune, logged: Receipt, key: DigestSigner, epoch: int, hub_ts: int) -> int:
        """Prune chunks. `logged` is the receipt of the `Prune` on the control stream. Returns the bytes freed."""
        label = planned.label
        self.finish(label)
        known = self._known(label)
        for start, end in planned.chunks:
            row = self._written(label, start, end, planned.level, known.get(start))
            known[start] = replace(row, pruned_at=logged.hub_ts, event_seq=logged.stream_seq)
        segments = [known.get(start) or self._whole(label, start, end) for start, end in self._chunks(label)]
        made = sign_manifest(key, self.hub_metadata().identity.hub_id, label, epoch, hub_ts, segments)
        made.verify(self.hub_metadata().identity)
        self.disk.sync_folder(self.folders.log)
        self.disk.write_file(self.folders.manifest(label), made.encode())
        self.disk.sync_folder(self.folders.log)
        return self.finish(label)

    def finish(self, label: bytes) -> int:
        """Delete what the manifest of a label says is pruned, if a crash left it. Returns the bytes freed."""
        manifest = verified_manifest(self.folders, self.hub_metadata().identity, label)
        pruned = [segment for segment in manifest.segments if segment.level] if manifest else []
        freed = [finish_segment(self.disk, self.folders, label, segment) for segment in pruned]
        if any(one is not None for one in freed):
            self.disk.sync_folder(self.folders.log)
        return max(0, sum(one or 0 for one in freed))

    def _written(self, label: bytes, start: int, end: int, level: Level, segment: Segment | None) -> Segment:
        """Write the file that replaces a chunk, unless it exists. Returns the row of the manifest."""
        path = self.folders.pruned_chunk(label, start, end)
        if segment is None or segment.level == Level.WHOLE:
            row = segment or self._whole(label, start, end)
            data = pruned_chunk.of_entries(self._checked(label, row), label, start, end)
            self.disk.write_file(path, data)
        else:
            row = segment
        with PrunedChunk(path) as written:
            data = pruned_chunk.without_receipts(written) if level > written.level else b""
            digest = sha256(data).digest() if data else written.digest()
        return replace(row, level=level, artifact_hash=digest, pruned_at=0, event_seq=1)

    def _checked(self, label: bytes, row: Segment) -> Iterator[LogEntry]:
        """The entries of a chunk. Raises if they do not match its summary and checkpoint."""
        tree, anchored = log_check.tree_at(self.folders, self.hub_metadata(), label, row.start_seq - 1)
        hashes = Mmr()
        for count, entry in enumerate(_entries(self.folders.closed_chunk(label, row.start_seq, row.end_seq))):
            hashes.append(entry.entry_hash)
            tree.append(Receipt.decode(entry.receipt).leaf_hash)
            yield entry
            if count % _ENTRIES_PER_PAUSE == 0:
                self.pause()
        root = tree.root()
        if not anchored or root != row.mmr_root_end or hashes.root() != row.entry_hashes_root:
            raise Malformed("chunk", f"entries {row.start_seq} to {row.end_seq} do not match their summary")
        signed = safe_open.read(self.folders.checkpoint(label, row.end_seq))
        log_check.check_checkpoint(signed, self.hub_metadata(), label, row.end_seq, root)

    def _whole(self, label: bytes, start: int, end: int) -> Segment:
        """The row of a chunk that is not pruned."""
        found = ChunkSummary.decode(safe_open.read(self.folders.summary(label, start, end)))
        if (found.label, found.start_seq, found.end_seq) != (label, start, end):
            raise Malformed("chunk summary", "it is of another chunk")
        hashes = (found.mmr_root_end, found.entry_hashes_root)
        return Segment(start, end, *hashes, found.total_bytes, self._end_ts(label, end), Level.WHOLE)

    def _known(self, label: bytes) -> dict[int, Segment]:
        """The pruned chunks by their first entry."""
        manifest = verified_manifest(self.folders, self.hub_metadata().identity, label)
        # Whole chunks are read again: after a restore, others may be at the places of those that the manifest lists.
        pruned = [segment for segment in manifest.segments if segment.level] if manifest else []
        return {segment.start_seq: segment for segment in pruned}

    def _chunks(self, label: bytes) -> list[tuple[int, int]]:
        with self.index.read() as rows:
            return rows.closed_chunks(label)

    def _end_ts(self, label: bytes, end: int) -> int:
        _, receipt = read_headers(self.folders, self.index, label, end)
        if receipt is None:
            raise Malformed("log", f"entry {end} of {label.hex()[:16]}… is missing")
        return receipt.hub_ts

    def _joined(self, label: bytes, due: Sequence[tuple[int, int, Level]]) -> Iterator[PlannedPrune]:
        for level in (Level.RECEIPTS, Level.PAYLOADS):
            chunks = tuple((start, end) for start, end, one in due if one is level)
            if chunks:
                before = sum(self._size(label, start, end) for start, end in chunks)
                after = sum(pruned_chunk.size_of(end - start + 1, level) for start, end in chunks)
                yield PlannedPrune(label, chunks[0][0], chunks[-1][1], level, chunks, before, after)

    def _size(self, label: bytes, start: int, end: int) -> int:
        chunk, left = self.folders.closed_chunk(label, start, end), self.folders.pruned_chunk(label, start, end)
        with suppress(FileNotFoundError):
            return chunk.stat().st_size
        return left.stat().st_size


def finish_segment(disk: Disk, folders: Folders, label: bytes, segment: Segment) -> int | None:
    """Delete what a row of the manifest says is pruned, once the file that replaces it is there.

    Returns the bytes that it freed; None if nothing was left to do.
    """
    left = folders.pruned_chunk(label, segment.start_seq, segment.end_seq)
    chunk = folders.closed_chunk(label, segment.start_seq, segment.end_seq)
    before, is_done = left.stat().st_size, True
    with PrunedChunk(left) as found:
        if found.level < segment.level:
            cut = pruned_chunk.without_receipts(found)
            if sha256(cut).digest() != segment.artifact_hash:
                raise Malformed("pruned chunk", f"{left.name} does not match the manifest; nothing was deleted")
            disk.write_file(left, cut)
            is_done = False
        elif chunk.exists() and found.digest() != segment.artifact_hash:
            raise Malformed("pruned chunk", f"{left.name} does not match the manifest; nothing was deleted")
    if chunk.exists():
        before, is_done = 0, False
    while chunk.exists():  # compressed and plain, after another crash
        before += chunk.stat().st_size
        disk.unlink(chunk)
        chunk = folders.closed_chunk(label, segment.start_seq, segment.end_seq)
    return None if is_done else before - left.stat().st_size


def _due(policy: RetentionPolicy, age: int) -> Level:
    if policy.receipt_sec is not None and age >= policy.receipt_sec:
        return Level.RECEIPTS
    return Level.PAYLOADS if policy.payload_sec is not None and age >= policy.payload_sec else Level.WHOLE


def _entries(path: Path) -> Iterator[LogEntry]:
    for data, at in read_blocks(path):
        pos = at
        while pos < len(data):
            entry, pos = frame.read(data, pos)
            yield entry
