"""Check the log of one label from its files alone: every entry, every chunk, and the artifacts beside them."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from veen.core import Checkpoint, Malformed, Mmr, Unverified, VeenError, mmr
from veen.core.hashing import HASH_BYTES
from veen.core.retention import Manifest
from veen.storage import frame, journal, pruned_chunk, safe_open
from veen.storage.artifacts import BoundCheckpoint, CheckpointIndex, ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.chunk_reader import ChunkFile, check_packing, is_packed, read_blocks
from veen.storage.entry_check import EntryVerifier, Failure, Taken
from veen.storage.frame import Cursor, LogEntry
from veen.storage.fsck_report import Finding, FsckReport, Severity, are_missing
from veen.storage.index import Index
from veen.storage.index_check import ShadowFiles
from veen.storage.metadata import HubMetadata
from veen.storage.metadata_check import DRAFT_SUFFIX
from veen.storage.paths import ChunkName, Folders, pruned_range
from veen.storage.pruned_chunk import PrunedChunk
from veen.storage.rebuild import IndexFiller

_ARTIFACT = re.compile(
    r"(?:chunk|peaks|checkpoint|checkpoint-index|manifest)-([0-9a-f]{64})(?:-(\d{20}))?(?:-(\d{20}|open))?"
    r"\.(?:log(?:\.zst)?|summary|cbor|pruned)"
)
MAX_CURSORS = 65_536
NO_MANIFEST = "missing, so nothing proves that entries of this label were pruned"
_LEFT_BEHIND = "left by an interrupted write; the journal has its entries"
_UNFINISHED = "left by an interrupted prune; `veen retention run` completes it"


def artifacts_by_label(folders: Folders, report: FsckReport) -> dict[bytes, set[str]]:
    """The file names in the log folder by label. Names that match no artifact are findings."""
    found: dict[bytes, set[str]] = {}
    for path in folders.log.iterdir():
        name = path.name
        match = _ARTIFACT.fullmatch(name)
        if match:
            found.setdefault(bytes.fromhex(match[1]), set()).add(name)
        else:
            report.add(stray_file(name, (), None))
    return found


def stray_file(name: str, closed: Collection[tuple[int, int]], upto: int | None) -> Finding:
    """The fault of a file in the log folder that is not among those of the chunks of its label.

    `closed` has the first and last entry of each closed chunk. `upto` is the last entry before those of the journal,
    which will write all files behind it again; None if the journal has none.
    """

    def fault(severity: Severity, what: str) -> Finding:
        return Finding(severity, f"log/{name}", what, bytes.fromhex(match[1]) if match else None)

    match, chunk, pruned = _ARTIFACT.fullmatch(name), ChunkName.parse(name), pruned_range(name)
    if match is None:
        draft = name.endswith(DRAFT_SUFFIX)
        return (
            fault(Severity.LEFTOVER, "an incomplete draft") if draft else fault(Severity.DAMAGED, "not a file of a log")
        )
    if pruned and pruned[1:] in closed:
        return fault(Severity.LEFTOVER, _UNFINISHED)
    if chunk and (chunk.start_seq, chunk.end_seq) in closed:
        return fault(Severity.REPAIRABLE, "the chunk exists twice, compressed and plain")
    # An open chunk that was already compressed, or one behind the valid entries, is written again.
    numbers = [int(number) for number in match.groups()[1:] if number and number != "open"]
    if upto is not None and ((chunk and chunk.end_seq is None) or not numbers or numbers[-1] >= upto):
        return fault(Severity.LEFTOVER, _LEFT_BEHIND)
    return fault(Severity.DAMAGED, "it belongs to no chunk")


@dataclass(slots=True)
class ScannedChunk:
    """A chunk while it is read."""

    start_seq: int
    hashes: Mmr = field(default_factory=Mmr)
    size_bytes: int = 0

    def read(self, data: frame.Data, pos: int) -> tuple[LogEntry, int]:
        """The next entry, which must be at `pos`, and the offset behind it. Raises if it is unreadable."""
        entry, end = frame.read(data, pos)
        if entry.stream_seq != self.start_seq + self.hashes.size:
            raise Malformed("entry", f"its header has stream_seq {entry.stream_seq}")
        self.hashes.append(entry.entry_hash)
        self.size_bytes += end - pos
        return entry, end

    def summary(self, label: bytes, root: bytes) -> ChunkSummary:
        """The summary of the entries read so far. `root` is that of the tree that ends with them."""
        end_seq = self.start_seq + self.hashes.size - 1
        return ChunkSummary(label, self.start_seq, end_seq, root, self.hashes.size, self.size_bytes, self.hashes.root())


class LabelCheck:
    """The check of one label: its chunks in order, then the artifacts beside them."""

    def __init__(
        self,
        folders: Folders,
        hub_metadata: HubMetadata,
        report: FsckReport,
        label: bytes,
        upto: int | None,
        scratch: tuple[IndexFiller, ShadowFiles, Index],
        progress: Callable[[int], None],
    ) -> None:
        """`upto` is the last entry before the journal's. Later entries in the log come from an interrupted write."""
        self._folders = folders
        self._hub_metadata = hub_metadata
        self._report = report
        self._label = label
        self._upto = upto
        self._filler, self._shadow, self._rebuilt = scratch
        self._progress = progress
        self._judge = EntryVerifier(hub_metadata, label, Mmr(), 0, self._cursor)
        self._expected: set[str] = set()
        self._rows: list[IndexedCheckpoint] = []
        self._closed: list[tuple[int, int]] = []
        self.bound: list[BoundCheckpoint] = []
        self.size = 0
        self.whole = True  # everything up to `size` could be read
        self._anchored = True  # the tree up to `size` is known
        self._sound = True  # every entry so far is valid
        self._named: set[str] = set()  # artifacts already reported as repairable
        self._manifest: Manifest | None = None
        self._is_unproven = False  # the manifest is damaged or missing, and that was reported

    def run(self, chunks: Iterable[ChunkFile], names: set[str]) -> None:
        self._shadow.closed.clear()
        self._read_manifest()
        for file in chunks:
            if self._upto is not None and file.start_seq > self._upto:
                break
            if file.start_seq > self.size + 1:
                self._missing(names, file.start_seq - 1, file.path.name)
                self._restart(file.start_seq)
            elif file.start_seq <= self.size:
                self._damaged(file.path.name, f"expected a chunk that starts at entry {self.size + 1}")
                self._restart(file.start_seq)
            self._chunk(file)
        if self._upto is None and (lost := [end for start, end in _summaries(names) if start > self.size]):
            self._missing(names, max(lost), "")
            self.whole = False
        if self._upto is not None and self.size < self._upto and self.whole:
            self._damaged(
                "", f"the log ends with entry {self.size}, but the journal continues after entry {self._upto}"
            )
            self.whole = False
        kept = self._hub_metadata.lineage.upto(self._label)
        if self.size < kept and self.whole:
            self._damaged("", f"the log ends with entry {self.size}, but the fork kept {kept} entries of its origin")
        self._filler.flush()
        if self.whole:
            self._check_rolling()
        self._check_checkpoint_index()
        self._check_names(names)

    def _missing(self, names: set[str], last: int, name: str) -> None:
        """Report missing entries once: the files beside their chunks do not count as files without a chunk.

        `name` is the file behind them, for a range without a chunk that such a file names.
        """
        first, label = self.size + 1, self._label
        gone = [(start, end) for start, end in _summaries(names) if first <= start and end <= last]
        for start, end in gone:
            self._expected |= self._beside(start, end) & names
        what = are_missing(first, last)
        if gone and gone[0][0] == first:
            self._damaged(ChunkName(label, *gone[0]).file_name(), what, first)
        else:
            self._damaged(name, f"{what} before it", first)

    def _chunk(self, file: ChunkFile) -> None:
        """Check every entry of a chunk, then the artifacts that describe it."""
        chunk = ScannedChunk(file.start_seq)
        try:
            if file.pruned and self._manifest is None:
                self._no_manifest(file)
                return
            if file.pruned:
                at_end = self._pruned(chunk, file)
            else:
                check_packing(file.path)
                at_end = self._entries(chunk, file)
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
                self._report.add(Finding(Severity.LEFTOVER, f"log/{file.path.name}", _LEFT_BEHIND, self._label))
            else:
                self._close(chunk, file, file.end_seq)

    def _entries(self, chunk: ScannedChunk, file: ChunkFile) -> bool:
        """Read the valid entries of a chunk. Returns whether they reach its end."""
        for data, pos in read_blocks(file.path):
            while pos < len(data):
                if self._upto is not None and self.size >= self._upto:
                    return False
                pos = self._entry(chunk, file.path.name, data, pos)
        return True

    def _read_manifest(self) -> None:
        path = self._folders.manifest(self._label)
        try:
            self._manifest = pruned_chunk.verified_manifest(self._folders, self._hub_metadata.identity, self._label)
        except (OSError, VeenError) as error:
            self._damaged(path.name, str(error))
            self._is_unproven = True
        if path.exists():
            self._expected.add(path.name)

    def _no_manifest(self, file: ChunkFile) -> None:
        """Report once that nothing proves that chunks of the label were pruned."""
        assert file.end_seq is not None
        name = self._folders.manifest(self._label).name
        if not self._is_unproven:
            self._damaged(name, NO_MANIFEST, file.start_seq)
            self._is_unproven = True
        self._progress(file.path.lstat().st_size)
        self._expected |= self._names_of(file)
        self._restart(file.end_seq + 1)

    def _pruned(self, chunk: ScannedChunk, file: ChunkFile) -> bool:
        """Check what is left of a pruned chunk. Without a valid manifest that lists it, it is damage."""
        with PrunedChunk(file.path) as left:
            segment = pruned_chunk.check_pruned(left, self._manifest)
            if left.level < segment.level:
                self._report.add(Finding(Severity.LEFTOVER, f"log/{file.path.name}", _UNFINISHED, self._label))
            for entry in left.entries():
                taken, faults = self._judge.judge_pruned(entry)
                chunk.hashes.append(entry.entry_hash)
                chunk.size_bytes += entry.size
                self._take(file.path.name, taken, faults)
        return True

    def _entry(self, chunk: ScannedChunk, name: str, data: frame.Data, pos: int) -> int:
        """Check one entry and return the offset of the next. Raises if it is unreadable, as is all behind it then."""
        entry, end = chunk.read(data, pos)
        taken, faults = self._judge.judge(entry, data[pos:end])
        if taken is None:
            raise Malformed("entry", faults[0])
        self._take(name, taken, faults)
        return end

    def _take(self, name: str, taken: Taken, faults: list[Failure]) -> None:
        """Report the faults of an entry, and add it to the index that is built for comparison."""
        seq = self.size + 1
        for fault in [*faults, *self._origin_faults(seq)]:
            self._sound = False
            self._damaged(name, fault, seq)
        self.size = seq
        self._report.entries += 1
        if self.whole:
            try:
                self._filler.add(*taken)
            except VeenError as error:
                self._damaged(name, f"not a valid control message: {error}", seq)
            if len(self._judge.cursors) > MAX_CURSORS:
                self._filler.flush()
                self._judge.cursors.clear()

    def _origin_faults(self, seq: int) -> list[str]:
        """The prefix that a fork kept must end with the root that its origin signed."""
        kept = self._hub_metadata.lineage.checkpoint(self._label)
        if kept is None or kept.upto_seq != seq or not self._anchored or self._judge.tree.root() == kept.mmr_root:
            return []
        return ["the log up to here does not match the origin's checkpoint"]

    def _close(self, chunk: ScannedChunk, file: ChunkFile, end: int) -> None:
        """Check a closed chunk against its name, summary, snapshot and checkpoint."""
        label, folders = self._label, self._folders
        start = file.start_seq
        if end != self.size:
            self._damaged(file.path.name, f"its last entry is {self.size}, not {end}")
            return
        self._closed.append((start, end))
        self._expected |= self._names_of(file)
        if not self._anchored:
            self._restart(end + 1)
            return
        root, peaks = self._judge.tree.root(), tuple(self._judge.tree.peaks)
        self._compare(folders.summary(label, start, end), chunk.summary(label, root).encode(), "the chunk")
        self._compare(folders.peaks(label, end), PeakSnapshot(label, end, peaks).encode(), "the tree")
        path = folders.checkpoint(label, end)
        try:
            self.bound.append(check_checkpoint(_read(path), self._hub_metadata, label, end, root))
        except VeenError as error:
            self._damaged(path.name, str(error), end)
        self._rows.append(IndexedCheckpoint(end, root, start, end, end))
        if chunk.size_bytes > self._hub_metadata.limits.max_chunk_bytes:
            self._damaged(file.path.name, f"{chunk.size_bytes} bytes, above max_chunk_bytes")
        if not file.pruned and is_packed(file.path) != (self._hub_metadata.limits.chunk_zstd_level is not None):
            kept_as = "plain" if is_packed(file.path) else "compressed"
            self._repairable(file.path.name, f"the limits require {kept_as} chunks")

    def _check_rolling(self) -> None:
        """The chunks must end where the limits end them."""
        due = set(self._shadow.closed)
        for start, end in sorted(due.symmetric_difference(self._closed)):
            name = ChunkName(self._label, start, end).file_name()
            missing = (start, end) in due
            what = "missing: the limits end a chunk here" if missing else "the limits do not end a chunk here"
            self._damaged(name, what)

    def _is_due(self, file: ChunkFile) -> bool:
        """Whether the limits end the chunk with its last entry, not only with the next one."""
        if self.whole:
            self._filler.flush()
        return (file.start_seq, file.end_seq) in self._shadow.closed

    def _check_checkpoint_index(self) -> None:
        path = self._folders.checkpoint_index(self._label)
        if not self._rows and (self._upto is not None or not path.exists()):
            return
        self._expected.add(path.name)
        try:
            check_index(_read(path), self._label, self._rows if self.whole else None, self._upto)
        except VeenError as error:
            if self._rows:
                self._derivable(path, CheckpointIndex(self._label, tuple(self._rows)).encode(), str(error))
            else:
                self._damaged(path.name, str(error))

    def _check_names(self, names: set[str]) -> None:
        """Report missing files, and files that belong to no chunk."""
        for name in sorted(self._expected - names - self._named):
            self._damaged(name, "missing")
        for name in sorted(names - self._expected):
            self._report.add(stray_file(name, self._closed, self._upto))

    def _restart(self, seq: int) -> None:
        """Continue after a gap from the peak snapshot before it, if a valid checkpoint confirms the snapshot."""
        self.whole = False
        self.size = seq - 1
        tree, self._anchored = tree_at(self._folders, self._hub_metadata, self._label, self.size)
        hub_ts = self._judge.hub_ts
        self._judge = EntryVerifier(self._hub_metadata, self._label, tree, hub_ts, None, in_step=self._anchored)

    def _cursor(self, client_id: bytes) -> Cursor | None:
        with self._rebuilt.read() as rows:
            return rows.client_cursor(self._label, client_id)

    def _names_of(self, file: ChunkFile) -> set[str]:
        assert file.end_seq is not None
        return {file.path.name} | self._beside(file.start_seq, file.end_seq)

    def _beside(self, start: int, end: int) -> set[str]:
        """The names of the files that describe a closed chunk."""
        folders, label = self._folders, self._label
        return {
            path.name
            for path in (folders.summary(label, start, end), folders.peaks(label, end), folders.checkpoint(label, end))
        }

    def _compare(self, path: Path, expected: bytes, source: str) -> None:
        try:
            if _read(path) != expected:
                raise Unverified("it", f"does not match {source}")
        except VeenError as error:
            self._derivable(path, expected, str(error))

    def _derivable(self, path: Path, expected: bytes, what: str) -> None:
        """Report an artifact that is missing or wrong. If all entries are valid, it can be derived from them."""
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


def check_index(data: bytes, label: bytes, rows: Sequence[IndexedCheckpoint] | None, upto: int | None) -> None:
    """Raise unless the bytes are the checkpoint index of a label with these rows; None if they are not known.

    Rows from `upto` on, which the journal writes again, may follow.
    """
    found = CheckpointIndex.decode(data)
    matches = found.label == label
    if rows is not None:
        early = any(upto is None or row.upto_seq < upto for row in found.checkpoints[len(rows) :])
        matches = matches and not early and found.checkpoints[: len(rows)] == tuple(rows)
    if not matches:
        raise Unverified("checkpoint index", "it does not match the checkpoints in the log")


class JournalCheck:
    """Compares the journal with the log: each entry is the one that the log has, or follows on the end of its label."""

    def __init__(
        self,
        sizes: dict[bytes, int],
        logged: Callable[[bytes, int], bytes | None],
        verifier: Callable[[bytes], EntryVerifier | None],
    ) -> None:
        """`sizes` has the entries of each label in the log, and grows by those that only the journal has.

        `logged` returns the hash of an entry in the log. `verifier` returns one for the entries after the log; None if
        its end is unknown.
        """
        self.sizes = sizes
        self.entries = 0  # that only the journal has
        self.first: dict[bytes, int] = {}  # first journal entry of each label
        self._logged = logged
        self._verifier = verifier
        self._verifiers: dict[bytes, EntryVerifier | None] = {}

    def check(self, group: int, entry: LogEntry) -> Iterator[Finding]:
        label, seq = entry.label, entry.stream_seq
        for what in self._faults(entry):
            yield Finding(Severity.DAMAGED, f"journal, group {group}", what, label, seq)

    def _faults(self, entry: LogEntry) -> Sequence[str]:
        label, seq = entry.label, entry.stream_seq
        size = self.sizes.get(label, 0)
        self.first.setdefault(label, seq)
        if seq > size + 1:
            return (f"it follows entry {size} of its label",)
        if seq <= size:
            if label in self._verifiers:
                return ("it occurs twice in the journal",)
            same = self._logged(label, seq) == entry.entry_hash
            return () if same else ("the log has another entry at its place",)
        if label not in self._verifiers:
            self._verifiers[label] = self._verifier(label)
        verifier = self._verifiers[label]
        self.sizes[label] = seq
        self.entries += 1
        return verifier.judge(entry, b"")[1] if verifier else ()


def torn_group(torn: journal.Torn, artifact: str) -> Finding:
    if torn.cut_short:
        what = f"group {torn.group} is incomplete, as after a crash; {journal.DISK_LOSS}"
        return Finding(Severity.LEFTOVER, artifact, what)
    return Finding(Severity.DAMAGED, artifact, f"the last group, {torn.group}, is corrupt")


def _summaries(names: Iterable[str]) -> list[tuple[int, int]]:
    """The first and last entry of each chunk of a label that has a summary."""
    found = (_ARTIFACT.fullmatch(name) for name in names if name.endswith(".summary"))
    return sorted((int(one[2]), int(one[3])) for one in found if one and one[2] and one[3] != "open")


def tree_at(folders: Folders, hub_metadata: HubMetadata, label: bytes, size: int) -> tuple[Mmr, bool]:
    """The tree at the end of a chunk, from the peak snapshot there, if a valid checkpoint confirms it.

    Otherwise a tree of that size with unknown peaks, and False: roots cannot be checked from there on.
    """
    if not size:
        return Mmr(), True
    try:
        snapshot = PeakSnapshot.decode(_read(folders.peaks(label, size)))
        signed = _read(folders.checkpoint(label, size))
        check_checkpoint(signed, hub_metadata, label, size, mmr.root_of(snapshot.peaks))
        return Mmr(size, list(snapshot.peaks)), True
    except VeenError:
        return Mmr(size, [bytes(HASH_BYTES)] * size.bit_count()), False


def check_checkpoint(
    data: bytes, hub_metadata: HubMetadata, label: bytes, upto_seq: int, root: bytes
) -> BoundCheckpoint:
    """Raise unless the bytes are a valid checkpoint of that root. Returns its row for the binding."""
    found = Checkpoint.decode(data)
    if (found.label_curr, found.upto_seq) != (label, upto_seq):
        raise Unverified("checkpoint", "label or upto_seq differ from the file name")
    if found.mmr_root != root:
        raise Unverified("checkpoint", "mmr_root does not match the log")
    if not hub_metadata.profile.epoch_sec and (found.epoch or found.label_prev != label):
        raise Unverified("checkpoint", "it names an epoch, but the profile has none")
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
