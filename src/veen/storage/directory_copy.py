"""Copy a data directory while a hub writes to it: for backups, and for checks of a running hub.

The copy is a data directory without index, and without secret keys unless they are wanted. It has every entry that was
acknowledged before the copy began. Nothing here takes part in the hub's work: the copy needs no answer from the hub.

Why the copy is consistent: one read transaction of the index says how much of each label the log has, and up to which
group of the journal that is. Files of the log only grow up to that point, so their prefixes can be read later. Groups
after it are read from the journal up to the last durable one, which `journal.mark` names; if the hub has moved some of
them to the log meanwhile, the transaction is repeated. Metadata is read before that, and again if it changes.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from plumbing.background import CoreShare
from plumbing.durable import PRIVATE_FILE, PRIVATE_FOLDER, Disk
from veen.core import Malformed, Mmr, Unavailable, Unverified, mmr
from veen.storage import (
    checkpoint_files,
    journal,
    journal_mark,
    log_check,
    metadata,
    pruned_chunk,
    pruning,
    safe_open,
    secret_keys,
)
from veen.storage.artifacts import PeakSnapshot
from veen.storage.chunk_reader import (
    ChunkFile,
    FileSlices,
    PackedChunk,
    chunk_files,
    is_packed,
    read_blocks,
    stream_blocks,
)
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import LogEntry
from veen.storage.index import Index, LabelHead
from veen.storage.lock import is_held, shared
from veen.storage.log_check import ScannedChunk
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders, pruned_range
from veen.storage.pruned_chunk import PrunedChunk
from veen.storage.rebuild import Progress, progress_counter

_ATTEMPTS = 20  # a rotation or a catch-up between two reads repeats them
_BLOCK_BYTES = 1 << 20
# Synced in parts: one large sync would delay those of a hub on the same disk. Smaller files are left to the caller.
_SYNC_BYTES, _SMALL_BYTES = 1 << 20, 1 << 16
# The share of one core, while a hub runs on the source. Pauses follow each file and each block of a large one; only the
# journal is copied in one step, because the hub removes groups from it meanwhile.
MAX_SHARE_OF_TIME = 0.25
_ENTRIES_PER_PAUSE = 64
_ATTACHMENT = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class CopyCounts:
    """The counts of a copy: chunks read and linked, and older backups from which something was erased."""

    read_chunks: int = 0
    read_bytes: int = 0
    linked_chunks: int = 0
    pruned: list[str] = field(default_factory=list)  # older backups from which something was erased
    removed: list[str] = field(default_factory=list)  # those that the erasure removed as a whole


@dataclass(slots=True)
class DirectoryCopy:
    """A copy of one data directory. Files that `linked` has and that never change are linked instead of read."""

    disk: Disk
    source: Folders
    target: Folders
    linked: Folders | None
    keys: bool = False
    verify: bool = True  # every new chunk and every journal entry; the checks are those of the scrubber
    wait: Callable[[float], object] = time.sleep  # for some seconds
    counts: CopyCounts = field(default_factory=CopyCounts)
    _hub_metadata: HubMetadata = field(init=False)
    _count: Callable[[int], None] = field(init=False)
    _pause: Callable[[], None] = lambda: None  # called between small steps

    def run(self, progress: Progress | None = None) -> dict[bytes, tuple[int, bytes]]:
        """Copy everything. Returns size and root of each label. The caller syncs the copy as a whole."""
        safe_open.check_folders(self.source)
        if metadata.is_recovery_pending(self.source):
            raise Unavailable(metadata.UNFINISHED_RECOVERY)
        for folder in (self.target.log, self.target.journal, self.target.attachments, self.target.evidence):
            self.disk.make_folder(folder, PRIVATE_FOLDER)
        if is_held(self.source.lock):
            self._pause = CoreShare(MAX_SHARE_OF_TIME, self.wait).pause
            heads, entries = self._stable_state(is_running=True)
            self._pause()
        else:
            with shared(self.source.lock):  # no hub starts meanwhile
                heads, entries = self._stable_state(is_running=False)
        chunks = self._closed_chunks(heads)
        total = 0
        for one in (one for files in chunks.values() for one in files):
            with suppress(FileNotFoundError):  # pruned meanwhile
                total += one.path.lstat().st_size
        self._count = progress_counter(total + sum(head.chunk_bytes for head in heads.values()), progress)
        for label, head in heads.items():
            self._copy_label(label, head, chunks.get(label, []))
        last = {label: head.chunk_start - 1 for label, head in heads.items()}
        binding = checkpoint_files.binding_upto(self.source, self._hub_metadata, last)
        self.disk.write_file(self.target.binding, binding)
        self._copy_attachments()
        if self.keys:
            self._copy_keys()
        sizes = self._sizes(heads, entries)
        self._pause()
        return sizes

    def _stable_state(self, *, is_running: bool) -> tuple[dict[bytes, LabelHead], list[LogEntry]]:
        """The heads of the log and the entries after them, with metadata that did not change meanwhile."""
        for _ in range(_ATTEMPTS):
            with suppress(journal.GroupsMoved, FileNotFoundError):
                before = self._versions()
                if self.source.rotation in before:
                    continue
                self._copy_metadata()
                durable = self._durable_group() if is_running else None
                heads, applied = self._heads()
                upto = None if durable is None else max(durable, applied)
                for path in self.target.journal.iterdir():
                    self.disk.unlink(path)
                _, entries = journal.copy_groups(self.disk, self.source.journal, self.target.journal, applied, upto)
                if self._versions() == before:
                    self._hub_metadata = metadata.read_metadata(self.target)
                    return heads, entries
        raise Unavailable("the key or the metadata of the hub changed each time they were read; try again")

    def _durable_group(self) -> int:
        """The last group that is known to be durable. Acknowledged ones are."""
        found = [journal_mark.read(self.source.journal) for _ in range(2)]
        return max((mark.highest for mark in found if mark), default=0)

    def _heads(self) -> tuple[dict[bytes, LabelHead], int]:
        if not (self.source.index / "data.mdb").exists() and not any(self.source.log.iterdir()):
            return {}, journal.first_group(self.source.journal) - 1  # no hub has run here yet
        index = Index(self.source.index, readonly=True)
        try:
            with index.read() as rows:
                return dict(rows.labels()), rows.number("applied")
        finally:
            index.close()

    # Metadata

    def _small_files(self) -> list[Path]:
        here = self.source
        fixed = (here.identity, here.identity_sig, here.key_map, here.limits, here.limit_history, here.profile)
        found = [path for path in (*fixed, here.admission, here.format, here.origin, here.clock) if path.exists()]
        for folder in (here.handovers, here.recoveries, here.witnesses, here.requested, here.evidence, here.uploads):
            some = safe_open.list_folder(folder)
            found += [path for path in some if path.suffix != ".draft" and safe_open.is_file(path)]
        return found

    def _versions(self) -> dict[Path, tuple[int, int]]:
        """The files that a rotation replaces one by one."""
        here = self.source
        found = {}
        some = (here.identity, here.identity_sig, here.key_map, here.rotation, here.origin)
        for path in (*some, *safe_open.list_folder(here.handovers)):
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                found[path] = status.st_ino, status.st_mtime_ns
        return found

    def _copy_metadata(self) -> None:
        for path in self._small_files():
            target = self.target.root / path.relative_to(self.source.root)
            self.disk.make_folder(target.parent, PRIVATE_FOLDER)
            if path.suffix == ".logged":  # a mark without content
                self.disk.write_file(target, b"", PRIVATE_FILE)
            else:
                self._copy(path, target)

    def _copy_keys(self) -> None:
        self.disk.make_folder(self.target.keys, PRIVATE_FOLDER)
        for path in filter(safe_open.is_file, secret_keys.key_files(self.source.keys)):
            if not self._link(path, self.target.keys / path.name):
                self.disk.write_file(self.target.keys / path.name, path.read_bytes(), PRIVATE_FILE)

    # The log

    def _closed_chunks(self, heads: dict[bytes, LabelHead]) -> dict[bytes, list[ChunkFile]]:
        """The closed chunks of each label that the index names, in order, from the names alone."""
        return {
            label: [one for one in files if one.end_seq is not None and one.end_seq < heads[label].chunk_start]
            for label, files in chunk_files(self.source).items()
            if label in heads
        }

    def _copy_label(self, label: bytes, head: LabelHead, chunks: list[ChunkFile]) -> None:
        expected, pruned = 1, list[Path]()
        for chunk in chunks:
            if chunk.start_seq != expected or chunk.end_seq is None:
                break
            pruned += self._copy_closed(label, chunk, chunk.end_seq)
            expected = chunk.end_seq + 1
        if expected != head.chunk_start:
            raise Malformed("log", f"{label.hex()} has no chunk that starts at entry {expected}")
        self._copy_manifest(label, head, pruned)
        if head.chunk_start > 1:
            data = checkpoint_files.index_upto(self.source, label, head.chunk_start)
            self.disk.write_file(self.target.checkpoint_index(label), data)
        if head.chunk_bytes:
            path = self.target.open_chunk(label, head.chunk_start)
            self._write(path, self._open_bytes(label, head))
            self.counts.read_bytes += head.chunk_bytes
            if self.verify:
                self._verified(label, head.chunk_start, head.size, path, head)
            self._count(head.chunk_bytes)

    def _copy_closed(self, label: bytes, chunk: ChunkFile, end: int) -> list[Path]:
        """Copy or link a chunk and the artifacts beside it. Returns it if it is a pruned one that was copied."""
        here, there, start, path = self.source, self.target, chunk.start_seq, chunk.path
        # The checkpoint may get signatures of witnesses later, so it is always read.
        self._copy(here.checkpoint(label, end), there.checkpoint(label, end))
        for small in (here.summary(label, start, end), here.peaks(label, end)):
            self._take(small, there.log / small.name)
        try:
            is_linked = self._take(path, there.log / path.name)
        except FileNotFoundError:  # pruned since the folder was listed
            path = here.pruned_chunk(label, start, end)
            is_linked = self._take(path, there.log / path.name)
        target = there.log / path.name
        size = target.lstat().st_size
        if is_linked:
            self.counts.linked_chunks += 1
        else:
            self.counts.read_chunks += 1
            self.counts.read_bytes += size
            if self.verify:
                self._verified(label, start, end, target, None)
        self._count(size)
        return [target] if pruned_range(path.name) and not is_linked else []

    def _copy_manifest(self, label: bytes, head: LabelHead, pruned: list[Path]) -> None:
        """Copy the manifest after the chunks, so that it lists all pruned ones, and prune what was pruned since."""
        manifest = None
        with suppress(FileNotFoundError):
            self._copy(self.source.manifest(label), self.target.manifest(label))
            try:
                manifest = pruned_chunk.verified_manifest(self.target, self._hub_metadata.identity, label)
            except Unverified:
                if metadata.read_metadata(self.source).identity == self._hub_metadata.identity:
                    raise
                raise Unavailable("the key of the hub changed while it was copied; try again") from None
        for segment in manifest.segments if manifest else ():
            if not segment.level:
                continue
            start, end = segment.start_seq, segment.end_seq
            if end >= head.chunk_start:
                raise Unavailable("entries were pruned while they were copied; try again")
            left = self.target.pruned_chunk(label, start, end)
            if not left.exists():
                self._copy(self.source.pruned_chunk(label, start, end), left)
                pruned.append(left)
            pruning.finish_segment(self.disk, self.target, label, segment)
        for path in pruned if self.verify else ():
            with PrunedChunk(path) as found:
                pruned_chunk.check_pruned(found, manifest)

    def _verified(self, label: bytes, start: int, end: int, path: Path, head: LabelHead | None) -> None:
        """Read the copy back, and check entries, hashes and roots up to a signed root, or that of the head."""
        tree, anchored = log_check.tree_at(self.target, self._hub_metadata, label, start - 1)
        if not anchored:
            raise Unverified("peak snapshot", f"that before entry {start} of {label.hex()} does not verify")
        verifier = EntryVerifier(self._hub_metadata, label, tree, 0, None, signatures=False)
        chunk = ScannedChunk(start)
        if pruned_range(path.name):
            self._scan_pruned(verifier, chunk, path)
        else:
            self._scan(verifier, chunk, path)
        if chunk.hashes.size != end - start + 1:
            raise Malformed("log", f"{path.name} has {chunk.hashes.size} entries, not {end - start + 1}")
        if head is not None:
            if tree.peaks != head.peaks:
                raise Unverified("log", f"{path.name} does not match the index")
            return
        signed = safe_open.read(self.target.checkpoint(label, end))
        log_check.check_checkpoint(signed, self._hub_metadata, label, end, tree.root())
        summary, peaks = self.target.summary(label, start, end), self.target.peaks(label, end)
        if safe_open.read(summary) != chunk.summary(label, tree.root()).encode():
            raise Unverified(summary.name, "it does not match the chunk; veen fsck --repair rebuilds it")
        if safe_open.read(peaks) != PeakSnapshot(label, end, tuple(tree.peaks)).encode():
            raise Unverified(peaks.name, "it does not match the chunk; veen fsck --repair rebuilds it")

    def _scan(self, verifier: EntryVerifier, chunk: ScannedChunk, path: Path) -> None:
        with FileSlices(path) as data:
            packed = (block for block, _ in PackedChunk(data).blocks()) if is_packed(path) else None
            for block in packed or stream_blocks(data):
                pos = 0
                while pos < len(block):
                    entry, pos = chunk.read(block, pos)
                    _check(verifier, entry)
                self._pause()

    def _scan_pruned(self, verifier: EntryVerifier, chunk: ScannedChunk, path: Path) -> None:
        with PrunedChunk(path) as left:
            for count, entry in enumerate(left.entries()):
                if count % _ENTRIES_PER_PAUSE == 0:
                    self._pause()
                _, faults = verifier.judge_pruned(entry)
                if faults:
                    raise Unverified("entry", f"{entry.stream_seq} of {entry.label.hex()}: {faults[0]}")
                chunk.hashes.append(entry.entry_hash)
                chunk.size_bytes += entry.size

    def _open_bytes(self, label: bytes, head: LabelHead) -> Iterator[bytes]:
        """The valid bytes of an open chunk, which may have been closed since."""
        for _ in range(_ATTEMPTS):  # a chunk that is being closed changes its name
            with suppress(FileNotFoundError):
                path = self.source.open_chunk(label, head.chunk_start)
                if path.exists():
                    with FileSlices(path, head.chunk_bytes) as data:
                        for pos in range(0, head.chunk_bytes, _BLOCK_BYTES):
                            yield data[pos : pos + _BLOCK_BYTES]
                    return
            closed = self.source.closed_chunk_from(label, head.chunk_start)
            if closed is not None:
                left = head.chunk_bytes
                for block, _ in read_blocks(closed, 0, 0 if is_packed(closed) else head.chunk_bytes):
                    yield bytes(block[:left])
                    left -= min(left, len(block))
                    if not left:
                        return
        raise Malformed("log", f"{self.source.open_chunk(label, head.chunk_start).name} is missing")

    def _sizes(self, heads: dict[bytes, LabelHead], entries: list[LogEntry]) -> dict[bytes, tuple[int, bytes]]:
        """Size and root of each label. The entries of the journal continue the log."""
        trees = {label: Mmr(head.size, list(head.peaks)) for label, head in heads.items()}
        verifiers: dict[bytes, EntryVerifier] = {}
        for count, entry in enumerate(entries):
            if count % _ENTRIES_PER_PAUSE == 0:
                self._pause()
            label = entry.label
            tree = trees.setdefault(label, Mmr())
            if entry.stream_seq != tree.size + 1:
                raise Malformed("journal", f"entry {entry.stream_seq} of {label.hex()} follows entry {tree.size}")
            if label not in verifiers:
                verifiers[label] = EntryVerifier(self._hub_metadata, label, tree, 0, None, signatures=False)
            _check(verifiers[label], entry)
        return {label: (trees[label].size, mmr.root_of(trees[label].peaks)) for label in sorted(trees)}

    # Attachments and single files

    def _copy_attachments(self) -> None:
        """All attachments. Those of the copied entries were stored before these."""
        for folder in safe_open.list_folder(self.source.attachments):
            for path in safe_open.list_folder(folder) if len(folder.name) == 2 else ():
                if _ATTACHMENT.fullmatch(path.name):
                    target = self.target.attachment(bytes.fromhex(path.name))
                    self.disk.make_folder(target.parent, PRIVATE_FOLDER)
                    with suppress(FileNotFoundError):  # pruned meanwhile
                        if not self._take(path, target) and self.verify:
                            self._check_attachment(target)

    def _check_attachment(self, path: Path) -> None:
        found = sha256()
        with open(safe_open.open_file(path), "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                found.update(block)
                self._pause()
        if found.hexdigest() != path.name:
            raise Unverified(f"attachment {path.name}", "the bytes do not hash to its name")

    def _take(self, path: Path, target: Path) -> bool:
        """Link a file that never changes, or copy it. Returns whether it was linked."""
        if self._link(path, target):
            return True
        self._copy(path, target)
        return False

    def _link(self, path: Path, target: Path) -> bool:
        known = self.linked and self.linked.root / path.relative_to(self.source.root)
        if known and safe_open.is_file(known) and known.lstat().st_size == path.lstat().st_size:
            with suppress(OSError):  # a file system without hard links
                self.disk.link(known, target)
                self._pause()
                return True
        return False

    def _copy(self, path: Path, target: Path) -> None:
        with open(safe_open.open_file(path), "rb", buffering=0) as file:
            self._write(target, iter(lambda: file.read(_BLOCK_BYTES), b""))
        self._pause()

    def _write(self, target: Path, blocks: Iterator[bytes]) -> None:
        self.disk.unlink(target)
        fd, unsynced = self.disk.open_new(target), 0
        try:
            for block in blocks:
                self.disk.write(fd, block)
                unsynced += len(block)
                if unsynced >= _SYNC_BYTES:
                    self.disk.sync(fd)
                    unsynced = 0
                    self._pause()
            if unsynced >= _SMALL_BYTES:
                self.disk.sync(fd)
        finally:
            os.close(fd)


def _check(verifier: EntryVerifier, entry: LogEntry) -> None:
    taken, faults = verifier.judge(entry, b"")
    if taken is None or faults:
        raise Unverified("entry", f"{entry.stream_seq} of {entry.label.hex()}: {faults[0]}")
