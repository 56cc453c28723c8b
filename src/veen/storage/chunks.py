"""Chunk files: appending to the open one, closing it when it is full. Spec §4.8.2, §4.8.3.

The order of writes when a chunk closes, and what a crash after each leaves:

    1. entries to the open file, synced         nothing new is visible
    2. summary, peak snapshot, checkpoint       they speak of a chunk that is still named open
    3. checkpoint index                         the same
    4. open file renamed, folder synced         the chunk is closed
    5. checkpoint binding (`settle`)            it ties the checkpoint to the hub and its key
    6. index row (the caller's transaction)     the label's head starts a new chunk

Where the registry says that chunks are compressed, step 4 is three:

    4a. compressed file, synced, folder synced  the chunk is there twice, and both are whole
    4b. open file removed                       the chunk is closed
    4c. folder synced                           and stays so

Whatever was not reached is done again from the journal with the same bytes, because rolling follows the limits only.
"""

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Protocol

from veen.core import Checkpoint, Limits, Malformed, Mmr, Receipt, mmr
from veen.storage import checkpoint_index, chunk_blocks, log_walk, safe_open
from veen.storage.artifacts import ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.checkpoint_keys import BindingFile
from veen.storage.chunk_blocks import is_packed, mapped, read_blocks
from veen.storage.durable import Disk
from veen.storage.index import Index
from veen.storage.label_head import LabelHead
from veen.storage.paths import ChunkName, Folders

# So many labels are looked at in one go: a start does that once, whatever is left is for later.
AT_START = 1024
SLICE = 128

# What signs the checkpoint at a chunk's end: (label, upto_seq, mmr_root, hub_ts of the last entry).
CheckpointSigner = Callable[[bytes, int, bytes, int], Checkpoint]


def must_roll_before(head: LabelHead, frame_bytes: int, limits: Limits) -> bool:
    """Whether the open chunk has no room for one more entry of that size."""
    return head.chunk_bytes > 0 and head.chunk_bytes + frame_bytes > limits.max_chunk_bytes


def must_roll_after(head: LabelHead, limits: Limits) -> bool:
    return head.chunk_entries >= limits.max_checkpoint_interval


class LogFiles(Protocol):
    """The files behind an index: those of a hub, or what stands in for them while they are read again."""

    def append(self, label: bytes, start_seq: int, at: int, frames: bytes, *, sync: bool) -> None:
        """Add entries to an open chunk of which the first `at` bytes count."""

    def close(self, label: bytes, head: LabelHead) -> None:
        """Close the open chunk, which ends at the head and is synced."""

    def add_nodes(self, label: bytes, at: int, nodes: bytes, *, sync: bool) -> None:
        """Add to the label's tree nodes, of which the first `at` bytes count."""

    def settle(self, *, everything: bool) -> None:
        """Make the names of new files durable, and where `everything`, what was written without sync."""


class ChunkWriter:
    """The chunk and node files of one data directory. One writer."""

    def __init__(
        self,
        disk: Disk,
        folders: Folders,
        sign: CheckpointSigner,
        binding: BindingFile,
        zstd_level: int | None,
        closed: Callable[[int], None] | None = None,
    ) -> None:
        """`closed` hears of each chunk that is closed, how many entries it has."""
        self._disk = disk
        self._folders = folders
        self._sign = sign
        self._binding = binding
        self._zstd_level = zstd_level
        self._closed = closed
        self._new_names = False

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
        self._write_checkpoint(self._folders.checkpoint(label, end), signed)
        self._add_to_index(label, IndexedCheckpoint(end, root, start, end, end))
        self._binding.add(signed)
        closed = ChunkName(label, start, end, packed=self._zstd_level is not None)
        self._settle_chunk(self._folders.open_chunk(label, start), self._folders.log / closed.file_name())
        if self._closed:
            self._closed(head.chunk_entries)

    def _checked_root(self, label: bytes, head: LabelHead) -> bytes:
        """The root at the head, which is to be signed: the receipt of the last entry must have it."""
        path = self._folders.open_chunk(label, head.chunk_start)
        if not path.exists():  # closed before the index heard of it
            path = self._folders.closed_chunk_from(label, head.chunk_start) or path
        entry = log_walk.last_entry(path, head.place_offset, head.chunk_bytes)
        root, said = mmr.root_of(head.peaks), Receipt.decode(entry.receipt)
        if (said.label, said.stream_seq, said.mmr_root) != (label, head.size, root):
            what = f"its head of {label.hex()} is not at the root of receipt {head.size}"
            raise Malformed("index", f"{what}; veen fsck DIR --repair makes it again")
        return root

    def _settle_chunk(self, opened: Path, closed: Path) -> None:
        """Give a chunk the form and the name it keeps. After a crash it may have them already."""
        if opened.exists() or not closed.exists():
            if self._zstd_level is None:
                self._disk.replace(opened, closed)
            else:
                self._disk.write_parts(closed, chunk_blocks.pack(mapped(opened), self._zstd_level))
                self._disk.sync_folder(self._folders.log)
                self._disk.unlink(opened)
        self._disk.sync_folder(self._folders.log)

    def _write_checkpoint(self, path: Path, made: Checkpoint) -> None:
        """Unless it is there: closing a chunk again after a crash must not take its witnesses from it."""
        if path.exists() and _digest(path) == made.signing_digest():
            return
        self._disk.write_file(path, made.encode())

    def _add_to_index(self, label: bytes, added: IndexedCheckpoint) -> None:
        """After those before it, which are made again where the file does not have them all."""
        self._disk.write_file(
            self._folders.checkpoint_index(label), checkpoint_index.with_row(self._folders, label, added)
        )

    def _reopen(self, label: bytes, start_seq: int, path: Path) -> None:
        """A chunk that was closed before the index heard of it is opened again."""
        closed = self._folders.closed_chunk_from(label, start_seq)
        if closed is None:
            raise Malformed("log", f"{path.name} is missing, and the index knows it")
        if is_packed(closed):
            self._disk.write_parts(path, (bytes(data) for data, _ in read_blocks(closed)))
        else:
            self._disk.replace(closed, path)


def _digest(path: Path) -> bytes | None:
    """What the checkpoint in the file signs; None where it is not one."""
    try:
        return Checkpoint.decode(safe_open.read(path)).signing_digest()
    except Malformed:
        return None


def check_open_chunks(folders: Folders, heads: Iterable[tuple[bytes, LabelHead]]) -> None:
    """Raise `Malformed` where the index knows of entries in an open chunk that is not there, or is too short."""
    for label, head in heads:
        if head.chunk_bytes and folders.open_chunk_size(label, head.chunk_start) < head.chunk_bytes:
            if folders.closed_chunk_from(label, head.chunk_start):
                continue  # closed before the index heard of it
            name = folders.open_chunk(label, head.chunk_start).name
            what = f"{name} does not hold the {head.chunk_entries} entries the index knows of"
            raise Malformed("log", f"{what}; fsck says what is left, and only another copy has the rest")


class OpenChunks:
    """Whether the open chunks hold what the index knows of them, looked at bit by bit: there is one for every label."""

    def __init__(self, folders: Folders, index: Index) -> None:
        self._folders = folders
        self._index = index
        self._after: bytes | None = b""  # the last label that was looked at; None after all of them

    def check(self, most: int = SLICE) -> bool:
        """Look at some more, and raise where one does not. Whether there may be others."""
        if self._after is None:
            return False
        with self._index.read() as rows:
            some = list(islice(rows.labels(self._after), most))
        check_open_chunks(self._folders, some)
        self._after = some[-1][0] if len(some) == most else None
        return self._after is not None


def append_at(disk: Disk, path: Path, at: int, data: bytes, *, sync: bool) -> None:
    """Add to a file of which the first `at` bytes count. More is what a crash left; less is damage."""
    fd = disk.open_append(path)
    try:
        size = os.fstat(fd).st_size
        if size < at:
            raise Malformed("log", f"{path.name} has {size} bytes, and the index knows {at}")
        if size > at:
            disk.truncate(fd, at)
        disk.write(fd, data)
        if sync:
            disk.sync(fd)
    finally:
        os.close(fd)
