"""The log of one label checked from its files alone: every entry, every chunk, and the artifacts beside them."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from veen.core import Checkpoint, Malformed, Mmr, Unverified, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.storage import frame, safe_open
from veen.storage.accepted_entry import Cursor
from veen.storage.artifacts import BoundCheckpoint, CheckpointIndex, ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.chunk_blocks import check_packing, is_packed, read_blocks
from veen.storage.entry_check import Judge
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.index import Index
from veen.storage.index_check import ShadowFiles
from veen.storage.log_walk import ChunkFile
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders
from veen.storage.rebuild import Refill

_ARTIFACT = re.compile(
    r"(?:chunk|peaks|checkpoint|checkpoint-index)-([0-9a-f]{64})(?:-(\d{20}))?(?:-(\d{20}|open))?\.(?:log(?:\.zst)?|summary|cbor)"
)
MAX_CURSORS = 65_536


def artifacts_by_label(folders: Folders, report: FsckReport) -> dict[bytes, set[str]]:
    """The names in the log folder by the label they are of; what is no artifact at all is a finding."""
    found: dict[bytes, set[str]] = {}
    for path in folders.log.iterdir():
        name = path.name
        match = _ARTIFACT.fullmatch(name)
        if match:
            found.setdefault(bytes.fromhex(match[1]), set()).add(name)
        elif name.endswith(".draft"):
            report.add(Finding(Severity.LEFTOVER, f"log/{name}", "it was never finished"))
        else:
            report.add(Finding(Severity.DAMAGED, f"log/{name}", "nothing in a log has such a name"))
    return found


@dataclass(slots=True)
class _Chunk:
    """A chunk while it is read."""

    file: ChunkFile
    hashes: Mmr = field(default_factory=Mmr)
    size_bytes: int = 0
    hub_ts: int = 0


class LabelCheck:
    """One label: its chunks in order, then what must and must not stand beside them."""

    def __init__(
        self,
        folders: Folders,
        hub_metadata: HubMetadata,
        report: FsckReport,
        label: bytes,
        upto: int | None,
        scratch: tuple[Refill, ShadowFiles, Index],
        progress: Callable[[int], None],
    ) -> None:
        """`upto` is where the journal takes over: what the log has behind it is an interrupted write's."""
        self._folders = folders
        self._hub_metadata = hub_metadata
        self._report = report
        self._label = label
        self._upto = upto
        self._refill, self._shadow, self._truth = scratch
        self._progress = progress
        self._judge = Judge(hub_metadata, label, Mmr(), 0, self._cursor)
        self._expected: set[str] = set()
        self._rows: list[IndexedCheckpoint] = []
        self._closed: list[tuple[int, int]] = []
        self.bound: list[BoundCheckpoint] = []
        self.size = 0
        self.whole = True  # everything up to `size` was read
        self._anchored = True  # the tree is known
        self._sound = True  # every entry that was read holds
        self._named: set[str] = set()  # artifacts beside the chunks of which a finding says that they can be made again

    def run(self, chunks: Iterable[ChunkFile], names: set[str]) -> None:
        self._shadow.closed.clear()
        for file in chunks:
            if self._upto is not None and file.start_seq > self._upto:
                break
            if file.start_seq != self.size + 1:
                self._damaged(file.path.name, f"it stands where a chunk from {self.size + 1} belongs")
                self._restart(file.start_seq)
            self._chunk(file)
        if self._upto is not None and self.size < self._upto and self.whole:
            self._damaged("", f"it ends with entry {self.size}, and the journal goes on after {self._upto}")
            self.whole = False
        kept = self._hub_metadata.lineage.upto(self._label)
        if self.size < kept and self.whole:
            self._damaged("", f"it ends with entry {self.size}, and the origin's part of it with {kept}")
        self._refill.flush()
        if self.whole:
            self._check_rolling()
        self._check_checkpoint_index()
        self._check_names(names)

    def _chunk(self, file: ChunkFile) -> None:
        """Every entry of a chunk, then the artifacts that speak of it."""
        chunk = _Chunk(file)
        try:
            check_packing(file.path)
            at_end = self._entries(chunk)
        except VeenError as error:
            self._damaged(file.path.name, str(error), self.size + 1)
            self._progress(file.path.lstat().st_size)
            if file.end_seq is None:
                self.whole = False
            else:
                self._expected |= self._names_of(file)
                self._restart(file.end_seq + 1)
            return
        self._progress(file.path.lstat().st_size)
        self._expected.add(file.path.name)
        if file.end_seq is not None and at_end:
            if file.end_seq == self._upto and not self._is_due(file):
                self._leftover(file.path.name)
            else:
                self._close(chunk, file.end_seq)

    def _entries(self, chunk: _Chunk) -> bool:
        """Read a chunk as far as it counts. Whether that was to its end."""
        for data, pos in read_blocks(chunk.file.path):
            while pos < len(data):
                if self._upto is not None and self.size >= self._upto:
                    return False
                pos = self._entry(chunk, data, pos)
        return True

    def _entry(self, chunk: _Chunk, data: frame.Data, pos: int) -> int:
        """One entry, and where the next begins. Raises where it cannot be read, so that nothing after it can."""
        seq = self.size + 1
        entry, end = frame.read(data, pos)
        if entry.stream_seq != seq:
            raise Malformed("entry", f"it says it is {entry.stream_seq}")
        taken, faults = self._judge.judge(entry, data[pos:end])
        if taken is None:
            raise Malformed("entry", faults[0])
        for fault in [*faults, *self._faults_of_origin(seq)]:
            self._sound = False
            self._damaged(chunk.file.path.name, fault, seq)
        chunk.hashes.append(entry.entry_hash)
        chunk.size_bytes += end - pos
        chunk.hub_ts = taken[2].hub_ts
        self.size = seq
        self._report.entries += 1
        if self.whole:
            try:
                self._refill.add(*taken)
            except VeenError as error:
                self._damaged(chunk.file.path.name, f"it cannot be opened as a control message: {error}", seq)
            if len(self._judge.cursors) > MAX_CURSORS:
                self._refill.flush()
                self._judge.cursors.clear()
        return end

    def _faults_of_origin(self, seq: int) -> list[str]:
        """What a fork kept ends with the root its origin signed."""
        kept = self._hub_metadata.lineage.checkpoint(self._label)
        if kept is None or kept.upto_seq != seq or not self._anchored or self._judge.tree.root() == kept.mmr_root:
            return []
        return ["the log up to here is not what the origin's checkpoint says"]

    def _close(self, chunk: _Chunk, end: int) -> None:
        """A closed chunk: what its name, its summary, its snapshot and its checkpoint say."""
        file, label, folders = chunk.file, self._label, self._folders
        start = file.start_seq
        if end != self.size:
            self._damaged(file.path.name, f"it ends with entry {self.size}")
            return
        self._closed.append((start, end))
        self._expected |= self._names_of(file)
        if not self._anchored:
            self._restart(end + 1)
            return
        root, peaks = self._judge.tree.root(), tuple(self._judge.tree.peaks)
        summary = ChunkSummary(label, start, end, root, end - start + 1, chunk.size_bytes, chunk.hashes.root())
        self._compare(folders.summary(label, start, end), summary.encode(), "the chunk")
        self._compare(folders.peaks(label, end), PeakSnapshot(label, end, peaks).encode(), "the tree")
        path = folders.checkpoint(label, end)
        try:
            self.bound.append(check_checkpoint(_read(path), self._hub_metadata, label, end, root))
        except VeenError as error:
            self._damaged(path.name, str(error), end)
        self._rows.append(IndexedCheckpoint(end, root, start, end, end))
        if chunk.size_bytes > self._hub_metadata.limits.max_chunk_bytes:
            self._damaged(file.path.name, f"{chunk.size_bytes} bytes, above max_chunk_bytes")
        if is_packed(file.path) != (self._hub_metadata.limits.chunk_zstd_level is not None):
            kept_as = "as it is" if is_packed(file.path) else "compressed"
            self._repairable(file.path.name, f"the registry says that a chunk is kept {kept_as}")

    def _check_rolling(self) -> None:
        """The chunks that are closed are those the limits close."""
        due = set(self._shadow.closed)
        for start, end in sorted(due.symmetric_difference(self._closed)):
            name = ChunkName(self._label, start, end).file_name()
            missing = (start, end) in due
            what = "the limits close a chunk here, and there is none" if missing else "the limits do not close it here"
            self._damaged(name, what)

    def _is_due(self, file: ChunkFile) -> bool:
        """Whether the limits close the chunk with its last entry, and not only with the next one."""
        if self.whole:
            self._refill.flush()
        return (file.start_seq, file.end_seq) in self._shadow.closed

    def _check_checkpoint_index(self) -> None:
        path = self._folders.checkpoint_index(self._label)
        if not self._rows and (self._upto is not None or not path.exists()):
            return
        self._expected.add(path.name)
        try:
            found = CheckpointIndex.decode(_read(path))
            said, behind = found.checkpoints[: len(self._rows)], found.checkpoints[len(self._rows) :]
            early = any(self._upto is None or row.upto_seq < self._upto for row in behind)
            if found.label != self._label or (self.whole and (list(said) != self._rows or early)):
                raise Unverified("checkpoint index", "it is not that of the log's checkpoints")
        except VeenError as error:
            if self._rows:
                self._derivable(path, CheckpointIndex(self._label, tuple(self._rows)).encode(), str(error))
            else:
                self._damaged(path.name, str(error))

    def _check_names(self, names: set[str]) -> None:
        """Nothing is missing, and nothing is there that no chunk explains."""
        for name in sorted(self._expected - names - self._named):
            self._damaged(name, "it is missing")
        for name in sorted(names - self._expected):
            chunk = ChunkName.parse(name)
            if chunk and (chunk.start_seq, chunk.end_seq) in self._closed:
                self._repairable(name, "the chunk is there twice, compressed and as it is")
            elif self._upto is not None and self._behind(name):
                self._leftover(name)
            else:
                self._damaged(name, "nothing in the log explains it")

    def _behind(self, name: str) -> bool:
        """Whether it speaks of what the journal will write again."""
        chunk = ChunkName.parse(name)
        if chunk and chunk.end_seq is None:
            return True  # an open chunk beside the compressed one it became, or behind what counts
        match = _ARTIFACT.fullmatch(name)
        assert match
        numbers = [int(number) for number in match.groups()[1:] if number and number != "open"]
        return not numbers or numbers[-1] >= (self._upto or 0)

    def _restart(self, seq: int) -> None:
        """Go on after a gap from the snapshot before it, if the checkpoint there vouches for it."""
        self.whole = False
        self.size = seq - 1
        try:
            snapshot = PeakSnapshot.decode(_read(self._folders.peaks(self._label, self.size)))
            root = mmr.root_of(snapshot.peaks)
            signed = _read(self._folders.checkpoint(self._label, self.size))
            check_checkpoint(signed, self._hub_metadata, self._label, self.size, root)
            peaks, self._anchored = list(snapshot.peaks), True
        except VeenError:
            # Roots mean nothing from here on, until a snapshot can be trusted again.
            peaks, self._anchored = [bytes(HASH_BYTES)] * self.size.bit_count(), False
        tree, hub_ts = Mmr(self.size, peaks), self._judge.hub_ts
        self._judge = Judge(self._hub_metadata, self._label, tree, hub_ts, None, in_step=self._anchored)

    def _cursor(self, client_id: bytes) -> Cursor | None:
        with self._truth.read() as rows:
            return rows.client_cursor(self._label, client_id)

    def _names_of(self, file: ChunkFile) -> set[str]:
        assert file.end_seq is not None
        folders, label, end = self._folders, self._label, file.end_seq
        beside = (folders.summary(label, file.start_seq, end), folders.peaks(label, end))
        return {file.path.name, folders.checkpoint(label, end).name, *(path.name for path in beside)}

    def _compare(self, path: Path, expected: bytes, of: str) -> None:
        try:
            if _read(path) != expected:
                raise Unverified("it", f"does not say what {of} says")
        except VeenError as error:
            self._derivable(path, expected, str(error))

    def _derivable(self, path: Path, expected: bytes, what: str) -> None:
        """Something beside the chunks that is not as it must be. Entries that all hold say how it must be."""
        if not (self.whole and self._sound):
            self._damaged(path.name, what)
            return
        self._named.add(path.name)
        self._report.derived[path] = expected
        self._repairable(path.name, what)

    def _damaged(self, name: str, what: str, seq: int | None = None) -> None:
        self._report.add(Finding(Severity.DAMAGED, f"log/{name}", what, self._label, seq))

    def _repairable(self, name: str, what: str) -> None:
        self._report.add(Finding(Severity.REPAIRABLE, f"log/{name}", what, self._label))

    def _leftover(self, name: str) -> None:
        what = "an interrupted write left it, and the journal has what it is of"
        self._report.add(Finding(Severity.LEFTOVER, f"log/{name}", what, self._label))


def check_checkpoint(
    data: bytes, hub_metadata: HubMetadata, label: bytes, upto_seq: int, root: bytes
) -> BoundCheckpoint:
    """Raise unless these bytes are the hub's word on that root. Returns what binds it to the hub."""
    found = Checkpoint.decode(data)
    if (found.label_curr, found.upto_seq) != (label, upto_seq):
        raise Unverified("checkpoint", "it is for another place than its name")
    if found.mmr_root != root:
        raise Unverified("checkpoint", "its mmr_root is not that of the log")
    if not hub_metadata.profile.epoch_sec and (found.epoch or found.label_prev != label):
        raise Unverified("checkpoint", "it speaks of an epoch where there are none")
    key = hub_metadata.identity_at(label, upto_seq).verify_checkpoint(found, hub_metadata.profile)
    return BoundCheckpoint(label, upto_seq, found.epoch, root, key.key_id)


def bytes_to_read(files: dict[bytes, list[ChunkFile]]) -> int:
    return sum(_sizes(files))


def _sizes(files: dict[bytes, list[ChunkFile]]) -> Iterator[int]:
    for chunks in files.values():
        for chunk in chunks:
            yield chunk.path.lstat().st_size


def _read(path: Path) -> bytes:
    try:
        return safe_open.read(path)
    except OSError as error:
        raise Malformed("it", f"cannot be read: {error.strerror}") from None
