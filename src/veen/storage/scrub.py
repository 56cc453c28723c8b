"""Check all that a running hub stores, in small steps: what was written long ago must still be what the disk returns.

The unit in the log is a chunk with the files and index rows that describe it. It is checked from the peak snapshot
before it, so a check can start anywhere. The index names a closed chunk only when all of its files are on disk, and
says how many bytes of an open chunk are valid. None of these bytes ever change, so a check needs no lock. The checks
are those of `veen fsck`, except that signatures of entries are not verified: entry hashes and roots find every changed
byte, at a tenth of the cost. Files are read, not mapped: see `FileSlices`.

The checks of metadata are also those of `veen fsck`. A hub replaces metadata files one by one when it changes its key
or its limits. A check during which one of them was replaced is repeated.
"""

import errno
import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from itertools import islice
from pathlib import Path

from veen.core import Checkpoint, Malformed, Unavailable, Unverified, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import (
    attachment_store,
    checkpoint_files,
    log_check,
    metadata_check,
    pruned_chunk,
    safe_open,
    secret_keys,
)
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding, ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.chunk_reader import FRAME_BYTES, FileSlices, PackedChunk, is_packed, stream_blocks
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import AcceptedEntry
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.index import DAMAGE, SECONDS_PER_DAY, Index, IndexRows, LabelHead
from veen.storage.log_check import ScannedChunk
from veen.storage.log_writer import needs_place
from veen.storage.metadata import HubMetadata, key_files
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import PrunedChunk

# A disk reads a small file as one block.
BLOCK_BYTES = 4096
# Errors that mean that the content of a file is lost. Others, such as too many open files, say nothing about it.
_LOST = frozenset({errno.ENOENT, errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EBADMSG})
# How often to look for an open chunk that is not found: it may be on its way to its other name. Also how often a check
# of the metadata is repeated because a file was replaced meanwhile; the next pass checks it again.
_LOOKS = 3
_PRUNED_PART = 256  # entries of a pruned chunk that are checked in one step

_FOLDER_KINDS = {
    "attachments": "attachment",
    "evidence": "evidence",
    "handovers": "handover",
    "keys": "key",
    "recoveries": "recovery",
    "uploads": "upload",
    "witnesses": "witness",
}
_LOG_KINDS = ("chunk", "summary", "peaks", "checkpoint", "checkpoint_index", "nodes", "index")
KINDS = (*_LOG_KINDS, "binding", "metadata", *_FOLDER_KINDS.values())


def kind_of(artifact: str) -> str:
    """Which of `KINDS` a path within the data directory is."""
    folder, _, name = artifact.rpartition("/")
    if folder.partition("/")[0] in _FOLDER_KINDS:
        return _FOLDER_KINDS[folder.partition("/")[0]]
    if name.endswith(".mmr"):
        return "nodes"
    if name.endswith(".mdb"):
        return "index"
    if name.endswith(".summary"):
        return "summary"
    if name.startswith("checkpoint-binding."):
        return "binding"
    if name.startswith("checkpoint-index-"):
        return "checkpoint_index"
    found = name.partition("-")[0]
    return found if found in _LOG_KINDS else "metadata"


class ScrubPart(IntEnum):
    """The parts of a data directory, in the order of a pass."""

    METADATA = 0
    LOG = 1
    BINDING = 2
    ATTACHMENTS = 3
    UPLOADS = 4


@dataclass(frozen=True, slots=True, order=True)
class ScrubPlace:
    """The unit of one check: a chunk (label, first entry), an attachment or its upload (its hash), or a whole part."""

    part: ScrubPart
    name: bytes = b""
    start_seq: int = 0


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The result of the check of one place."""

    place: ScrubPlace
    entries: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """One step of a check. The last step of a place has its result."""

    read_bytes: int
    result: Scrubbed | None = None


@dataclass(frozen=True, slots=True)
class LogScrub:
    """Checks of one data directory. The caller's process has its lock."""

    folders: Folders
    index: Index
    hub_metadata: Callable[[], HubMetadata]  # the current one: a key rotation replaces it

    def walk(self, after: ScrubPlace | None) -> Iterator[ScrubStep]:
        """Check all chunks after a place, or all."""
        while (place := self._next(after)) is not None:
            yield from self.check(place)
            after = place

    def check(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        """Check one chunk and the files beside it. A place without a chunk has no findings."""
        check = _ChunkScrub(self.folders, self.hub_metadata(), self.index, place)
        head, end = None, None
        with check.index_recorder(), self.index.read() as rows:
            head, end = rows.head(place.name), rows.chunk_end(place.name, place.start_seq)
        if head and end is not None:
            yield from map(ScrubStep, check.closed(end))
        elif head and place.start_seq == head.chunk_start:
            yield from map(ScrubStep, check.open(head))
        yield ScrubStep(0, Scrubbed(place, check.chunk.hashes.size, tuple(check.findings)))

    def exists(self, place: ScrubPlace) -> bool:
        """Whether a chunk starts at a place."""
        with self.index.read() as rows:
            head = rows.head(place.name)
            return head is not None and (
                place.start_seq == head.chunk_start or rows.chunk_end(place.name, place.start_seq) is not None
            )

    def _next(self, after: ScrubPlace | None) -> ScrubPlace | None:
        """The chunk after a place. The rest of a label with damaged rows is skipped: `check` reports them."""
        with self.index.read() as rows:
            end = rows.chunk_end(after.name, after.start_seq) if after else None
            if after and end is not None:
                return ScrubPlace(ScrubPart.LOG, after.name, end + 1)
            label = rows.next_label(after.name if after else b"")
        return ScrubPlace(ScrubPart.LOG, label, 1) if label else None


@dataclass(slots=True)
class _ChunkScrub:
    """The check of one chunk. `closed` and `open` yield the number of bytes read by each step."""

    folders: Folders
    hub_metadata: HubMetadata
    index: Index
    place: ScrubPlace
    findings: list[Finding] = field(default_factory=list)
    chunk: ScannedChunk = field(init=False)
    anchored: bool = True  # the tree before the chunk is known
    sound: bool = True  # every entry read so far is valid
    place_seq: int = 0  # the last entry that must have a row in `places`
    place_offset: int = 0
    day: int | None = None  # of the last entry

    def __post_init__(self) -> None:
        self.chunk = ScannedChunk(self.place.start_seq)

    def closed(self, end: int) -> Iterator[int]:
        label, start = self.place.name, self.place.start_seq
        path = self.folders.closed_chunk(label, start, end)
        left = self.folders.pruned_chunk(label, start, end)
        is_pruned = not path.exists() and left.exists()
        verifier = self._verifier()
        with self._recorder(left if is_pruned else path) as recorder:
            yield from self._pruned_entries(left, verifier) if is_pruned else self._entries(path, 0, verifier)
            if self.chunk.hashes.size != end - start + 1:
                raise Malformed("chunk", f"its last entry is {start + self.chunk.hashes.size - 1}, not {end}")
        self.sound = recorder.sound
        root = verifier.tree.root() if self.sound and self.anchored else None
        signed = yield from self._checkpoint(end, root)
        yield from self._summary(end, root or signed)
        yield from self._peaks(end, tuple(verifier.tree.peaks) if root else None, signed)

    def open(self, head: LabelHead) -> Iterator[int]:
        """Check the valid bytes of the open chunk, and the index of the closed ones."""
        label, start = self.place.name, self.place.start_seq
        path = self.folders.open_chunk(label, start)
        if head.chunk_bytes and self._is_open(path):
            with self._recorder(path):
                verifier = self._verifier()
                try:
                    yield from self._entries(path, head.chunk_bytes, verifier)
                except FileNotFoundError:
                    if not self.folders.closed_chunk_from(label, start):
                        raise
                    return  # closed between the look and the opening
                if self.chunk.hashes.size != head.chunk_entries:
                    what = f"{self.chunk.hashes.size} entries, but the index lists {head.chunk_entries}"
                    raise Malformed("chunk", what)
                self._check_head(head, verifier)
        if start > 1:
            yield from self._checkpoint_index()

    def _is_open(self, path: Path) -> bool:
        """False if the chunk was closed since its head was read; it is checked as a closed one later."""
        label, start = self.place.name, self.place.start_seq
        for _ in range(_LOOKS):  # after a restart a closed chunk may be reopened, which is a rename, too
            if path.exists():
                return True
            if self.folders.closed_chunk_from(label, start):
                return False
        return True  # missing: opening it reports that

    def _verifier(self) -> EntryVerifier:
        label, before = self.place.name, self.place.start_seq - 1
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
                taken_here: list[tuple[AcceptedEntry, int]] = []
                while pos < len(block):
                    seq, offset = self.place.start_seq + self.chunk.hashes.size, self.chunk.size_bytes
                    try:
                        entry, pos = self.chunk.read(block, pos)
                        taken, faults = verifier.judge(entry, b"")
                    except Malformed as error:
                        raise Malformed("entry", f"{seq}: {error.reason}") from None
                    if taken is None or faults:
                        raise Malformed("entry", f"{seq}: {faults[0]}")
                    for node in taken[0].new_nodes:
                        nodes += node
                    taken_here.append((taken[0], offset))
                yield len(block)
                self._check_rows(taken_here)
                if self.anchored:
                    yield self._check_nodes(mmr.node_count(before), nodes)

    def _pruned_entries(self, path: Path, verifier: EntryVerifier) -> Iterator[int]:
        """Check what is left of a pruned chunk against the manifest, the index and the nodes."""
        identity = self.hub_metadata.identity
        with PrunedChunk(path) as left:
            pruned_chunk.check_pruned(left, pruned_chunk.verified_manifest(self.folders, identity, self.place.name))
            yield path.stat().st_size
            entries = left.entries()
            while part := list(islice(entries, _PRUNED_PART)):
                before, nodes, taken_here = verifier.tree.size, bytearray(), list[tuple[AcceptedEntry, int]]()
                for entry in part:
                    (record, _, _), faults = verifier.judge_pruned(entry)
                    if faults:
                        raise Malformed("entry", f"{entry.stream_seq}: {faults[0]}")
                    taken_here.append((record, self.chunk.size_bytes))
                    self.chunk.hashes.append(entry.entry_hash)
                    self.chunk.size_bytes += entry.size
                    nodes += b"".join(record.new_nodes)
                yield 0
                self._check_rows(taken_here)
                if self.anchored:
                    yield self._check_nodes(mmr.node_count(before), nodes)

    def _check_rows(self, entries: list[tuple[AcceptedEntry, int]]) -> None:
        """Compare the index rows of entries with the entries and their offsets. Reports the first wrong row."""
        with self.index_recorder() as recorder:
            with self.index.read() as rows:
                wrong = self._wrong_row(rows, entries) if recorder.wanted else None
            if wrong:
                raise Malformed("index", f"{wrong} does not match the chunk")

    def _wrong_row(self, rows: IndexRows, entries: list[tuple[AcceptedEntry, int]]) -> str | None:
        for entry, offset in entries:
            seq, day = entry.stream_seq, entry.hub_ts // SECONDS_PER_DAY
            if needs_place(seq, offset, self.place_seq, self.place_offset):
                self.place_seq, self.place_offset = seq, offset
            if rows.place(entry.label, seq) != (self.place_seq, self.place.start_seq, self.place_offset):
                return f"the row in places for entry {seq}"
            if rows.stream_seq_of(entry.label, entry.client_id, entry.client_seq) != seq:
                return f"the row in by_client for entry {seq}"
            first = rows.first_on_or_after(entry.label, day)
            begins = seq == 1 or self.day not in (None, day)
            if first is None or first > seq or (begins and first != seq):
                return f"the row in days for entry {seq}"
            self.day = day
        return None

    def _check_head(self, head: LabelHead, verifier: EntryVerifier) -> None:
        """Compare the label's head with the entries of the open chunk, all of which have been read."""
        with self.index_recorder() as recorder:
            same_tree = head.peaks == verifier.tree.peaks or not self.anchored
            same_place = (head.place_seq, head.place_offset) == (self.place_seq, self.place_offset)
            same = same_tree and same_place and head.hash_peaks == self.chunk.hashes.peaks
            if recorder.wanted and not (same and head.hub_ts == verifier.hub_ts):
                raise Malformed("index", "the head of the label does not match the chunk")

    def index_recorder(self) -> "Recorder":
        return self._recorder(self.folders.index / "data.mdb", Severity.REPAIRABLE)

    def _recorder(self, path: Path, severity: Severity = Severity.DAMAGED) -> "Recorder":
        return Recorder(self.folders, self.findings, path, severity, self.place.name)

    def _check_nodes(self, first: int, expected: bytearray) -> int:
        """Compare the tree nodes that entries added with the node file. Reports the first difference of a chunk."""
        path = self.folders.node_file(self.place.name)
        recorder = self._recorder(path, Severity.REPAIRABLE)
        if not recorder.wanted:
            return 0
        with recorder, FileSlices(path) as stored:
            if stored[first * HASH_BYTES : first * HASH_BYTES + len(expected)] != expected:
                raise Unverified("nodes", f"they do not match the log, from node {first} on")
        return len(expected)

    def _checkpoint(self, end: int, root: bytes | None) -> Generator[int, None, bytes | None]:
        """Check the checkpoint, over `root` if that is known. Returns its root; None if it is damaged."""
        path = self.folders.checkpoint(self.place.name, end)
        signed: bytes | None = None
        with self._recorder(path):
            data = safe_open.read(path)
            yield cost(data)
            found = Checkpoint.decode(data)
            log_check.check_checkpoint(data, self.hub_metadata, self.place.name, end, root or found.mmr_root)
            signed = found.mmr_root
        if signed is not None and self.folders.witnesses.exists():
            yield from self._witnesses(path)
        return signed

    def _witnesses(self, path: Path) -> Iterator[int]:
        """Check the witness signatures. A key is stored after its signature, so an older copy of the file lacks it."""
        found: list[Finding] = []
        for _ in range(_LOOKS):
            with self._recorder(path):
                data = safe_open.read(path)
                yield cost(data)
                every = checkpoint_files.check_witnesses(self.folders, Checkpoint.decode(data))
                found = [one for one in every if one.severity is Severity.DAMAGED]
            if not found:
                return
        self.findings += found

    def _summary(self, end: int, root: bytes | None) -> Iterator[int]:
        label, start = self.place.name, self.place.start_seq
        path = self.folders.summary(label, start, end)
        with self._recorder(path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield cost(data)
            found = ChunkSummary.decode(data)
            same_root = root in (None, found.mmr_root_end)
            whole = not self.sound or root is None or data == self.chunk.summary(label, root).encode()
            if (found.label, found.start_seq, found.end_seq) != (label, start, end) or not same_root or not whole:
                raise Unverified("chunk summary", "it does not match the chunk")

    def _peaks(self, end: int, expected: tuple[bytes, ...] | None, root: bytes | None) -> Iterator[int]:
        path = self.folders.peaks(self.place.name, end)
        with self._recorder(path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield cost(data)
            found = PeakSnapshot.decode(data)
            same = expected in (None, found.peaks) and root in (None, mmr.root_of(found.peaks))
            if (found.label, found.upto_seq) != (self.place.name, end) or not same:
                raise Unverified("peak snapshot", "it does not match the tree")

    def _checkpoint_index(self) -> Iterator[int]:
        """The checkpoint index must list the checkpoint of every closed chunk."""
        label = self.place.name
        path = self.folders.checkpoint_index(label)
        with self._recorder(path, Severity.REPAIRABLE):
            yield cost(safe_open.read(path))
            rows = checkpoint_files.rows_before(self.folders, label, self.place.start_seq)
            if rows is None:
                raise Malformed("checkpoint index", "it is damaged, or lacks the row of a closed chunk")
            for encoded in rows:
                row = IndexedCheckpoint.decode(encoded)
                signed = self._signed_root(row.upto_seq)
                if signed not in (None, row.mmr_root):
                    raise Unverified("checkpoint index", f"row {row.upto_seq} does not match its checkpoint")
                yield BLOCK_BYTES

    def _signed_root(self, end: int) -> bytes | None:
        """The root in a checkpoint; None if the file is damaged, which the check of its chunk reports."""
        label = self.place.name
        try:
            data = safe_open.read(self.folders.checkpoint(label, end))
            root = Checkpoint.decode(data).mmr_root
            log_check.check_checkpoint(data, self.hub_metadata, label, end, root)
        except (OSError, VeenError):
            return None
        return root


class Recorder:
    """Turns a fault of a file into a finding. Errors that say nothing about its content pass."""

    def __init__(
        self,
        folders: Folders,
        findings: list[Finding],
        path: Path,
        severity: Severity = Severity.DAMAGED,
        label: bytes | None = None,
    ) -> None:
        self._folders = folders
        self._findings = findings
        self._artifact = str(path.relative_to(folders.root))
        self._severity = severity
        self._label = label
        self.sound = True

    @property
    def wanted(self) -> bool:
        """Whether the file has no finding yet: one per place is enough."""
        return all(finding.artifact != self._artifact for finding in self._findings)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> bool:
        if isinstance(error, OSError):
            if error.errno not in _LOST:
                return False
            check_reachable(self._folders)
            what = "missing" if error.errno == errno.ENOENT else f"cannot be read: {error.strerror}"
        elif isinstance(error, DAMAGE) or (isinstance(error, VeenError) and not isinstance(error, Unavailable)):
            what = str(error)
        else:
            return False
        self._findings.append(Finding(self._severity, self._artifact, what, self._label))
        self.sound = False
        return True


def check_reachable(folders: Folders) -> None:
    """Raise `Unavailable` if the whole directory is gone, which is not damage of a file."""
    if not folders.log.is_dir():
        raise Unavailable("the data directory cannot be reached")


def cost(data: bytes) -> int:
    """The bytes that a disk reads for a file."""
    return max(len(data), BLOCK_BYTES)


_COID = re.compile(r"[0-9a-f]{64}")
_DAMAGE = (Severity.DAMAGED, Severity.KEYLESS, Severity.REPAIRABLE)


@dataclass(frozen=True, slots=True)
class DirectoryScrub:
    """Checks of one data directory. The caller's process has its lock."""

    folders: Folders
    index: Index
    hub_metadata: Callable[[], HubMetadata]  # the current one: a key rotation replaces it
    check_key: Callable[[Path, bytes | None], None]  # raises if a secret key is damaged, without reading it here

    @property
    def log(self) -> LogScrub:
        return LogScrub(self.folders, self.index, self.hub_metadata)

    def walk(self, after: ScrubPlace | None) -> Iterator[ScrubStep]:
        """Check everything after a place, or everything."""
        metadata, binding = ScrubPlace(ScrubPart.METADATA), ScrubPlace(ScrubPart.BINDING)
        if after is None:
            yield from self.check(metadata)
        if after is None or after < binding:
            yield from self.log.walk(after if after and after.part is ScrubPart.LOG else None)
            yield from self.check(binding)
        if after is None or after.part is not ScrubPart.UPLOADS:
            for place in self._attachments(after):
                yield from self.check(place)
        for coid in attachment_store.uploaded(self.folders):
            place = ScrubPlace(ScrubPart.UPLOADS, coid)
            if after is None or place > after:
                yield from self.check(place)

    def check(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        """Check one place. A place that no longer exists has no findings."""
        if place.part is ScrubPart.LOG:
            yield from self.log.check(place)
        elif place.part is ScrubPart.METADATA:
            yield from self._metadata(place)
        elif place.part is ScrubPart.UPLOADS:
            report = FsckReport()
            metadata_check.check_upload(self.folders, self.hub_metadata().identity, place.name, report)
            yield ScrubStep(BLOCK_BYTES)
            yield ScrubStep(0, Scrubbed(place, 0, tuple(report.findings)))
        else:
            findings: list[Finding] = []
            check = self._binding(findings) if place.part is ScrubPart.BINDING else self._attachment(place, findings)
            yield from map(ScrubStep, check)
            yield ScrubStep(0, Scrubbed(place, 0, tuple(findings)))

    def exists(self, place: ScrubPlace) -> bool:
        """Whether a check can continue at a place."""
        return place.part is not ScrubPart.LOG or self.log.exists(place)

    def _metadata(self, place: ScrubPlace) -> Iterator[ScrubStep]:
        for _ in range(_LOOKS):
            before = self._versions()
            for path in before:
                if path.parent == self.folders.keys:
                    continue  # the check leaves them to `check_key`
                with suppress(FileNotFoundError, Malformed):  # the check reports both
                    yield ScrubStep(cost(safe_open.read(path)))
            check_reachable(self.folders)
            report = FsckReport()
            found = metadata_check.check_metadata(self.folders, report, reads_keys=False)
            metadata_check.check_recoveries(self.folders, found, report)
            metadata_check.check_evidence(self.folders, found, report)
            if found:
                self._compare_settings(found, report)
                self._check_keys(found, report)
            if self._versions() == before:
                findings = [one for one in report.findings if one.severity in _DAMAGE]
                yield ScrubStep(0, Scrubbed(place, 0, tuple(findings)))
                return

    def _versions(self) -> dict[Path, tuple[int, int]]:
        """The metadata files with inode and time of the last write."""
        here = self.folders
        some = [here.identity, here.identity_sig, here.key_map, here.rotation, here.origin]
        some += [
            here.limits,
            here.limit_history,
            here.profile,
            here.admission,
            here.format,
            *secret_keys.key_files(here.keys),
        ]
        for folder in (here.handovers, here.recoveries, here.evidence):
            some += [path for path in safe_open.list_folder(folder) if path.suffix in (".cbor", ".rows", ".mmr")]
        found = {}
        for path in some:
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                found[path] = status.st_ino, status.st_mtime_ns
        return found

    def _check_keys(self, found: HubMetadata, report: FsckReport) -> None:
        """Check the secret keys of now. Retired ones must not come back into the memory of a process."""
        for path, public_key in key_files(self.folders, found.identity).items():
            if public_key in (None, found.identity.newest.hub_pk):
                with Recorder(self.folders, report.findings, path, Severity.KEYLESS):
                    self.check_key(path, public_key)

    def _compare_settings(self, found: HubMetadata, report: FsckReport) -> None:
        """Nobody signed limits and profile: compare them with those that the hub uses.

        The hub writes lowered limits after it uses them, so the file may still have earlier ones.
        """
        used = self.hub_metadata()
        limits = (used.limits, *(one.limits for one in used.earlier_limits))
        for path, same in (
            (self.folders.profile, found.profile == used.profile),
            (self.folders.limits, found.limits in limits),
            (self.folders.limit_history, found.earlier_limits == used.earlier_limits[: len(found.earlier_limits)]),
        ):
            if not same:
                report.add(Finding(Severity.DAMAGED, path.name, "it differs from what the hub uses"))

    def _binding(self, findings: list[Finding]) -> Iterator[int]:
        """The binding must list the checkpoint of every closed chunk, as it is stored."""
        path = self.folders.binding
        closed = self._closed_chunks()  # first: a chunk gets its row here before its row in the index
        with Recorder(self.folders, findings, path, Severity.REPAIRABLE):
            data = safe_open.read(path)
            yield cost(data)
            found = CheckpointBinding.decode(data)
            if found.hub_id != self.hub_metadata().identity.hub_id:
                raise Unverified("checkpoint binding", "it belongs to another hub")
            for row in found.checkpoints:
                yield BLOCK_BYTES
                if self._signed(row) not in (None, row):
                    raise Unverified("checkpoint binding", f"row {row.upto_seq} does not match its checkpoint")
            known = {row.place for row in found.checkpoints}
            if lacking := next((one for one in closed if one not in known), None):
                what = f"it lacks checkpoint {lacking[1]} of {lacking[0].hex()}"
                raise Unverified("checkpoint binding", what)

    def _closed_chunks(self) -> list[tuple[bytes, int]]:
        """Label and last entry of all closed chunks."""
        found = []
        with self.index.read() as rows:
            label = rows.next_label()
            while label is not None:
                found += [(label, end) for end in rows.chunk_ends(label, 1, self.index.most_rows())]
                label = rows.next_label(label)
        return found

    def _signed(self, row: BoundCheckpoint) -> BoundCheckpoint | None:
        """The row of a stored checkpoint; None if the file is damaged, which the check of its chunk reports."""
        try:
            data = safe_open.read(self.folders.checkpoint(*row.place))
            return checkpoint_files.bound_row(Checkpoint.decode(data), self.hub_metadata())
        except (OSError, VeenError):
            return None

    def _attachments(self, after: ScrubPlace | None) -> Iterator[ScrubPlace]:
        """All attachments after a place. Memory is bounded by the largest of 256 folders."""
        for folder in safe_open.list_folder(self.folders.attachments):
            for path in safe_open.list_folder(folder):
                if _COID.fullmatch(path.name) and path.name.startswith(folder.name):
                    place = ScrubPlace(ScrubPart.ATTACHMENTS, bytes.fromhex(path.name))
                    if after is None or place > after:
                        yield place

    def _attachment(self, place: ScrubPlace, findings: list[Finding]) -> Iterator[int]:
        """Compare an attachment with the hash in its name. It is not known which ones must exist."""
        path, digest = self.folders.attachment(place.name), sha256()
        if not os.path.lexists(path):
            return
        with Recorder(self.folders, findings, path):
            with open(safe_open.open_file(path), "rb", buffering=0) as file:
                while data := file.read(FRAME_BYTES):
                    digest.update(data)
                    yield max(len(data), BLOCK_BYTES)
            if digest.digest() != place.name:
                raise Unverified("attachment", "the bytes do not hash to its name")
