"""Check the log of a running hub in small steps: what was written long ago must still be what the disk returns.

The unit is a chunk with the files that describe it. It is checked from the peak snapshot before it, so a check can
start anywhere. The index names a closed chunk only when all of its files are on disk, and says how many bytes of an
open chunk are valid. None of these bytes ever change, so a check needs no lock. The checks are those of `veen fsck`,
except that signatures of entries are not verified: entry hashes and roots find every changed byte, at a tenth of the
cost.

Files are read, not mapped: see `FileSlices`.
"""

import errno
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from veen.core import Checkpoint, Malformed, Unavailable, Unverified, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import checkpoint_files, log_check, safe_open
from veen.storage.artifacts import ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.chunk_reader import FileSlices, PackedChunk, is_packed, stream_blocks
from veen.storage.entry_check import EntryVerifier
from veen.storage.fsck_report import Finding, Severity
from veen.storage.index import Index, LabelHead
from veen.storage.log_check import ScannedChunk
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders

# A disk reads a small file as one block.
_BLOCK_BYTES = 4096
# Errors that mean that the content of a file is lost. Others, such as too many open files, say nothing about it.
_LOST = frozenset({errno.ENOENT, errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EBADMSG})
# How often to look for an open chunk that is not found: it may be on its way to its other name.
_LOOKS = 3

KINDS = ("chunk", "summary", "peaks", "checkpoint", "checkpoint_index", "nodes")


def kind_of(artifact: str) -> str:
    """Which of `KINDS` a path within the data directory is."""
    name = artifact.rpartition("/")[2]
    if name.endswith(".mmr"):
        return "nodes"
    if name.endswith(".summary"):
        return "summary"
    return "checkpoint_index" if name.startswith("checkpoint-index-") else name.partition("-")[0]


@dataclass(frozen=True, slots=True, order=True)
class ScrubPlace:
    """The chunk of a label that starts with this entry."""

    label: bytes
    start_seq: int


@dataclass(frozen=True, slots=True)
class ScrubbedChunk:
    """The result of the check of one chunk."""

    place: ScrubPlace
    entries: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """One step of a check. The last step of a chunk has its result."""

    read_bytes: int
    result: ScrubbedChunk | None = None


@dataclass(frozen=True, slots=True)
class LogScrub:
    """Checks of one data directory. The caller's process has its lock."""

    folders: Folders
    index: Index
    hub_metadata: Callable[[], HubMetadata]  # the current one: a key rotation replaces it

    def walk(self, after: ScrubPlace | None) -> Iterator[ScrubStep]:
        """Check all chunks after a place, or all. Raises `Malformed` if the index is damaged."""
        while (place := self._next(after)) is not None:
            yield from self.check(place)
            after = place

    def check(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        """Check one chunk and the files beside it. A place without a chunk has no findings."""
        with self.index.read() as rows:
            head, end = rows.head(place.label), rows.chunk_end(place.label, place.start_seq)
        check = _ChunkScrub(self.folders, self.hub_metadata(), place)
        if head and end is not None:
            yield from map(ScrubStep, check.closed(end))
        elif head and place.start_seq == head.chunk_start:
            yield from map(ScrubStep, check.open(head))
        yield ScrubStep(0, ScrubbedChunk(place, check.chunk.hashes.size, tuple(check.findings)))

    def exists(self, place: ScrubPlace) -> bool:
        """Whether a chunk starts at a place."""
        with self.index.read() as rows:
            head = rows.head(place.label)
            return head is not None and (
                place.start_seq == head.chunk_start or rows.chunk_end(place.label, place.start_seq) is not None
            )

    def _next(self, after: ScrubPlace | None) -> ScrubPlace | None:
        with self.index.read() as rows:
            head = rows.head(after.label) if after else None
            if after and head and after.start_seq < head.chunk_start:
                end = rows.chunk_end(after.label, after.start_seq)
                if end is None:
                    raise Malformed("index", f"no chunk of {after.label.hex()} starts at {after.start_seq}")
                return ScrubPlace(after.label, end + 1)
            label = next((label for label, _ in rows.labels(after.label if after else b"")), None)
        return ScrubPlace(label, 1) if label else None


@dataclass(slots=True)
class _ChunkScrub:
    """The check of one chunk. `closed` and `open` yield the number of bytes read by each step."""

    folders: Folders
    hub_metadata: HubMetadata
    place: ScrubPlace
    findings: list[Finding] = field(default_factory=list)
    chunk: ScannedChunk = field(init=False)
    anchored: bool = True  # the tree before the chunk is known
    sound: bool = True  # every entry read so far is valid

    def __post_init__(self) -> None:
        self.chunk = ScannedChunk(self.place.start_seq)

    def closed(self, end: int) -> Iterator[int]:
        label, start = self.place.label, self.place.start_seq
        path = self.folders.closed_chunk(label, start, end)
        verifier = self._verifier()
        with _Recorder(self, path) as recorder:
            yield from self._entries(path, 0, verifier)
            if self.chunk.hashes.size != end - start + 1:
                raise Malformed("chunk", f"its last entry is {start + self.chunk.hashes.size - 1}, not {end}")
        self.sound = recorder.sound
        root = verifier.tree.root() if self.sound and self.anchored else None
        signed = yield from self._checkpoint(end, root)
        yield from self._summary(end, root or signed)
        yield from self._peaks(end, tuple(verifier.tree.peaks) if root else None, signed)

    def open(self, head: LabelHead) -> Iterator[int]:
        """Check the valid bytes of the open chunk, and the index of the closed ones."""
        label, start = self.place.label, self.place.start_seq
        path = self.folders.open_chunk(label, start)
        if head.chunk_bytes and self._is_open(path):
            with _Recorder(self, path):
                yield from self._entries(path, head.chunk_bytes, self._verifier())
                if self.chunk.hashes.size != head.chunk_entries:
                    what = f"{self.chunk.hashes.size} entries, but the index lists {head.chunk_entries}"
                    raise Malformed("chunk", what)
        if start > 1:
            yield from self._checkpoint_index()

    def _is_open(self, path: Path) -> bool:
        """False if the chunk was closed since its head was read; it is checked as a closed one later."""
        label, start = self.place.label, self.place.start_seq
        for _ in range(_LOOKS):  # after a restart a closed chunk may be reopened, which is a rename, too
            if path.exists():
                return True
            if self.folders.closed_chunk_from(label, start):
                return False
        return True  # missing: opening it reports that

    def _verifier(self) -> EntryVerifier:
        label, before = self.place.label, self.place.start_seq - 1
        tree, self.anchored = log_check.tree_at(self.folders, self.hub_metadata, label, before)
        return EntryVerifier(self.hub_metadata, label, tree, 0, None, in_step=self.anchored, signatures=False)

    def _entries(self, path: Path, size: int, verifier: EntryVerifier) -> Iterator[int]:
        with FileSlices(path, size) as data:
            if is_packed(path):
                packed = PackedChunk(data)
                yield from packed.digest_steps()
                blocks: Iterator[bytes] = (block for block, _ in packed.blocks())
            else:
                blocks = stream_blocks(data)
            for block in blocks:
                pos, before, nodes = 0, verifier.tree.size, bytearray()
                while pos < len(block):
                    seq = self.place.start_seq + self.chunk.hashes.size
                    try:
                        entry, pos = self.chunk.read(block, pos)
                        taken, faults = verifier.judge(entry, b"")
                    except Malformed as error:
                        raise Malformed("entry", f"{seq}: {error.reason}") from None
                    if taken is None or faults:
                        raise Malformed("entry", f"{seq}: {faults[0]}")
                    for node in taken[0].new_nodes:
                        nodes += node
                yield len(block)
                if self.anchored:
                    yield self._check_nodes(mmr.node_count(before), nodes)

    def _check_nodes(self, first: int, expected: bytearray) -> int:
        """Compare the tree nodes that entries added with the node file. Reports the first difference of a chunk."""
        path = self.folders.node_file(self.place.label)
        artifact = str(path.relative_to(self.folders.root))
        if any(finding.artifact == artifact for finding in self.findings):
            return 0
        with _Recorder(self, path, Severity.REPAIRABLE), FileSlices(path) as stored:
            if stored[first * HASH_BYTES : first * HASH_BYTES + len(expected)] != expected:
                raise Unverified("nodes", f"they do not match the log, from node {first} on")
        return len(expected)

    def _checkpoint(self, end: int, root: bytes | None) -> Generator[int, None, bytes | None]:
        """Check the checkpoint, over `root` if that is known. Returns its root; None if it is damaged."""
        path = self.folders.checkpoint(self.place.label, end)
        signed: bytes | None = None
        with _Recorder(self, path):
            data = safe_open.read(path)
            yield _cost(data)
            found = Checkpoint.decode(data)
            log_check.check_checkpoint(data, self.hub_metadata, self.place.label, end, root or found.mmr_root)
            signed = found.mmr_root
        return signed

    def _summary(self, end: int, root: bytes | None) -> Iterator[int]:
        label, start = self.place.label, self.place.start_seq
        path = self.folders.summary(label, start, end)
        with _Recorder(self, path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield _cost(data)
            found = ChunkSummary.decode(data)
            same_root = root in (None, found.mmr_root_end)
            whole = not self.sound or root is None or data == self.chunk.summary(label, root).encode()
            if (found.label, found.start_seq, found.end_seq) != (label, start, end) or not same_root or not whole:
                raise Unverified("chunk summary", "it does not match the chunk")

    def _peaks(self, end: int, expected: tuple[bytes, ...] | None, root: bytes | None) -> Iterator[int]:
        path = self.folders.peaks(self.place.label, end)
        with _Recorder(self, path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield _cost(data)
            found = PeakSnapshot.decode(data)
            same = expected in (None, found.peaks) and root in (None, mmr.root_of(found.peaks))
            if (found.label, found.upto_seq) != (self.place.label, end) or not same:
                raise Unverified("peak snapshot", "it does not match the tree")

    def _checkpoint_index(self) -> Iterator[int]:
        """The checkpoint index must list the checkpoint of every closed chunk."""
        label = self.place.label
        path = self.folders.checkpoint_index(label)
        with _Recorder(self, path, Severity.REPAIRABLE):
            yield _cost(safe_open.read(path))
            rows = checkpoint_files.rows_before(self.folders, label, self.place.start_seq)
            if rows is None:
                raise Malformed("checkpoint index", "it is damaged, or lacks the row of a closed chunk")
            for encoded in rows:
                row = IndexedCheckpoint.decode(encoded)
                signed = self._signed_root(row.upto_seq)
                if signed not in (None, row.mmr_root):
                    raise Unverified("checkpoint index", f"row {row.upto_seq} does not match its checkpoint")
                yield _BLOCK_BYTES

    def _signed_root(self, end: int) -> bytes | None:
        """The root in a checkpoint; None if the file is damaged, which the check of its chunk reports."""
        label = self.place.label
        try:
            data = safe_open.read(self.folders.checkpoint(label, end))
            root = Checkpoint.decode(data).mmr_root
            log_check.check_checkpoint(data, self.hub_metadata, label, end, root)
        except (OSError, VeenError):
            return None
        return root


class _Recorder:
    """Turns a fault of a file into a finding. Errors that say nothing about its content pass."""

    def __init__(self, check: _ChunkScrub, path: Path, severity: Severity = Severity.DAMAGED) -> None:
        self._check = check
        self._path = path
        self._severity = severity
        self.sound = True

    def __enter__(self) -> "_Recorder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> bool:
        if isinstance(error, OSError):
            if error.errno not in _LOST:
                return False
            if not self._check.folders.log.is_dir():
                raise Unavailable("the data directory cannot be reached") from error
            what = "missing" if error.errno == errno.ENOENT else f"cannot be read: {error.strerror}"
        elif isinstance(error, VeenError) and not isinstance(error, Unavailable):
            what = str(error)
        else:
            return False
        artifact = str(self._path.relative_to(self._check.folders.root))
        self._check.findings.append(Finding(self._severity, artifact, what, self._check.place.label))
        self.sound = False
        return True


def _cost(data: bytes) -> int:
    return max(len(data), _BLOCK_BYTES)
