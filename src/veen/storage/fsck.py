"""Check a data directory without trusting anything in it, and repair what can be derived from the log.

Order of the checks: the metadata, which the rest depends on; the log, from its files alone; the journal, which must
continue where the log ends; then checkpoint binding, index and node files against the log. Meanwhile an index is built
from the log in a scratch folder, with the code that a hub uses, and compared with the stored one row by row.

A directory that a hub writes to is checked through a consistent copy, which is made as a backup is made. Files that
never change are links to those of the hub, so it needs a folder on the same file system; nothing in the data directory
is changed. A killed check leaves a folder that can be deleted. The index and the secret keys are not part of a copy:
the hub's scrubber checks the index, and a hub that signs has its keys.
"""

import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from plumbing.durable import Disk
from veen.core import Checkpoint, Malformed, Mmr, Unavailable, Unverified, VeenError, naming
from veen.storage import (
    checkpoint_files,
    chunk_reader,
    index_check,
    journal,
    journal_mark,
    log_check,
    metadata,
    metadata_check,
    rebuild,
    safe_open,
)
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.chunk_reader import mapped, read_blocks
from veen.storage.directory_copy import DirectoryCopy
from veen.storage.directory_reader import read_entries
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import Cursor, LogEntry
from veen.storage.fsck_report import Finding, FsckReport, FsckVerdict, Severity
from veen.storage.index import Index
from veen.storage.index_check import IndexDump, ShadowFiles
from veen.storage.journal_mark import Mark
from veen.storage.lock import exclusive, shared
from veen.storage.log_check import JournalCheck
from veen.storage.log_writer import LogWriter
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.metadata_check import NO_KEYS
from veen.storage.paths import INDEX_DRAFT, ChunkName, Folders
from veen.storage.pruned_chunk import Pruned, PrunedChunk
from veen.storage.rebuild import IndexFiller, Progress, Registrar, progress_counter

__all__ = ["Finding", "FsckReport", "FsckVerdict", "Severity", "check", "repair"]


def check(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Check a data directory. Raises `Unavailable` if a hub runs on it, or if its format is that of a later version.

    `progress` is called with bytes of the log done and total. With `isolated` False the index is read in this process,
    which a damaged index can crash.
    """
    folders = Folders(root)
    check_format(folders)
    with shared(folders.lock):
        return _check(folders, progress, isolated=isolated)


def check_online(root: Path, scratch: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Check a data directory on which a hub may run. `scratch` is a folder on the same file system.

    Raises `Unavailable` if it cannot be read, or if it changes faster than it can be copied.
    """
    source = Folders(root)
    check_format(source)
    try:
        with tempfile.TemporaryDirectory(prefix=".veen-fsck-", dir=scratch, ignore_cleanup_errors=True) as made:
            copy = Path(made) / "copy"
            try:
                DirectoryCopy(Disk(), source, Folders(copy), source, verify=False).run()
            except (Malformed, Unverified) as error:
                return _damaged(error)
            return _of_copy(check(copy, progress, isolated=isolated))
    except OSError as error:
        raise Unavailable(f"the directory cannot be copied to {scratch}: {error.strerror or error}") from error


def repair(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Rewrite what can be derived from the log: index and node files, summaries, peak snapshots, checkpoint indexes,
    checkpoint binding, and the form of the chunks. Checkpoints are never rewritten, because nothing else contains their
    witness signatures. Returns the report after the repair.

    Raises `Unavailable` if a hub runs on the directory, `Malformed` if the log itself is damaged.
    """
    folders = Folders(root)
    check_format(folders)
    with exclusive(folders.lock):
        report = _check(folders, None, isolated=isolated)
        if report.blocking is not None:
            raise Malformed(
                "data directory",
                f"{report.blocking}; repair cannot derive this from the log, restore it from another copy",
            )
        if report.is_repairable:
            _repair(Disk(), folders, report, progress)
            report = _check(folders, None, isolated=isolated)
        return report


def check_format(folders: Folders) -> None:
    """Raise `NewerFormat` rather than report as damage what this version does not know."""
    with suppress(Malformed):
        metadata.read_format(folders)


def _repair(disk: Disk, folders: Folders, report: FsckReport, progress: Progress | None) -> None:
    """The index comes last: it can be built from chunks in either form, so a crash in between leaves less to repair."""
    what = report.repairable
    for path, data in report.derived.items():
        _remove_empty_folder(path)
        disk.write_file(path, data)
    if folders.fault.name in what:
        _remove_empty_folder(folders.fault)
        disk.unlink(folders.fault)
    if folders.log.name in what:
        repack(disk, folders)  # syncs the folder
    if folders.binding.name in what:
        # Only verified checkpoints. Those that the journal still brings are bound when their chunks are closed.
        hub_id, bound = read_metadata(folders).identity.hub_id, sorted(report.bound, key=attrgetter("place"))
        _remove_empty_folder(folders.binding)
        checkpoint_files.write_binding(disk, folders, CheckpointBinding(hub_id, tuple(bound)))
    if what & {folders.index.name, INDEX_DRAFT}:
        rebuild.rebuild_index(disk, folders, progress).close()


def _remove_empty_folder(path: Path) -> None:
    """Remove an empty folder where a file must go. Fails if the folder is not empty: its content is not ours."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()


def _check(folders: Folders, progress: Progress | None, *, isolated: bool) -> FsckReport:
    report = FsckReport()
    misplaced = _check_places(folders, report)
    hub_metadata = metadata_check.check_metadata(folders, report)
    metadata_check.check_attachments(folders, report)
    metadata_check.check_uploads(folders, hub_metadata, report)
    metadata_check.check_evidence(folders, hub_metadata, report)
    metadata_check.check_recoveries(folders, hub_metadata, report)
    metadata_check.check_strays(folders, report)
    if hub_metadata is None:
        report.add(Finding(Severity.DAMAGED, "log", "not checked: the hub metadata that verifies it is damaged"))
        return report
    for folder in (folders.log, folders.journal):
        if folder in misplaced:
            return report
        if not folder.is_dir():
            report.add(Finding(Severity.DAMAGED, folder.name, "missing"))
            return report
    with tempfile.TemporaryDirectory(prefix="veen-fsck-") as scratch:
        truth = Index(Path(scratch) / "index", durable=False)
        try:
            _Check(folders, hub_metadata, report, truth).run(Path(scratch), progress, isolated=isolated)
        finally:
            truth.close()
    return report


def _check_places(folders: Folders, report: FsckReport) -> set[Path]:
    """Places of the directory with a link or something of the wrong type. A hub does not start with one of them."""
    made_again = (folders.index.name, INDEX_DRAFT, folders.fault.name)
    found = set()
    for path, what in safe_open.misplaced(folders):
        artifact = str(path.relative_to(folders.root))
        again = artifact.partition("/")[0] in made_again
        severity = Severity.KEYLESS if path == folders.keys else Severity.REPAIRABLE if again else Severity.DAMAGED
        report.add(Finding(severity, artifact, what))
        found.add(path)
    return found


@dataclass(slots=True)
class _Check:
    """The check of one directory whose metadata could be read."""

    folders: Folders
    hub_metadata: HubMetadata
    report: FsckReport
    truth: Index
    sizes: dict[bytes, int] = field(default_factory=dict)
    broken: set[bytes] = field(default_factory=set)  # labels that could not be read to their end
    bound: dict[tuple[bytes, int], BoundCheckpoint] = field(default_factory=dict)
    mark: Mark | None = None
    journal_ends: dict[bytes, int] = field(default_factory=dict)  # labels whose last chunk the journal closes

    def run(self, scratch: Path, progress: Progress | None, *, isolated: bool) -> None:
        dump = self._read_index(scratch, isolated=isolated)
        self._check_mark(dump)
        try:
            applied, journal_from = rebuild.journal_start(self.folders, dump.applied if dump else None)
            rebuild.check_log_end(self.folders, chunk_reader.chunk_files(self.folders), applied)
        except Malformed as error:
            self._journal_damaged(error.reason)
            applied, journal_from = dump.applied if dump else 0, {}
        self.journal_ends = rebuild.journal_ends(self.folders, self.hub_metadata, applied)
        self._check_log(applied, journal_from, progress)
        self._check_checkpoints()
        self._check_binding(journal_from)
        self._check_journal(dump)
        self._check_limits()
        if dump:
            self._check_heads(dump)
        index_check.check_node_names(self.folders, self.sizes, journal_from.keys() | self.broken, self.report)
        if dump and self.report.blocking is None:
            index_check.compare_rows(dump, self.truth, self.folders, self.report)

    def _read_index(self, scratch: Path, *, isolated: bool) -> IndexDump | None:
        used = any(self.folders.log.iterdir()) or any(self.folders.journal.glob("*.wal"))
        if not used and not (self.folders.index / "data.mdb").exists():
            return None  # no hub has run here yet
        return index_check.read_index(self.folders, scratch, self.report, isolated=isolated)

    def _check_mark(self, dump: IndexDump | None) -> None:
        """Report segments that must exist and do not, or are cut."""
        try:
            mark = journal_mark.read(self.folders.journal)
            if mark is not None:
                self.mark = mark
                journal.check(self.folders.journal, mark)
            elif dump and not dump.is_marked:
                what = "missing, as in directories of earlier versions; the next start writes it"
                self.report.add(Finding(Severity.NOTICE, self.folders.journal_mark.name, what))
            else:
                self._journal_damaged("journal.mark is missing; groups that the log lacks may have been acknowledged")
        except Malformed as error:
            self._journal_damaged(error.reason)

    def _check_log(self, applied: int, journal_from: dict[bytes, int], progress: Progress | None) -> None:
        files = chunk_reader.chunk_files(self.folders)
        names = log_check.artifacts_by_label(self.folders, self.report)
        count = progress_counter(log_check.bytes_to_read(files), progress)
        shadow = ShadowFiles(self.folders, self.report)
        registrar = Registrar(self.hub_metadata, rebuild.logged_ends(self.hub_metadata, files, journal_from))
        refill = IndexFiller(LogWriter(shadow, self.truth, self.hub_metadata.limits), registrar, applied)
        ordered = chunk_reader.control_first(self.hub_metadata, files)
        others = (names.keys() | self.hub_metadata.lineage.labels()) - files.keys()
        for label in [*ordered, *others]:
            upto = journal_from[label] - 1 if label in journal_from else self.journal_ends.get(label)
            scratch = (refill, shadow, self.truth)
            one = log_check.LabelCheck(self.folders, self.hub_metadata, self.report, label, upto, scratch, count)
            one.run(files.get(label, []), names.get(label, set()))
            self.report.labels += 1
            self.sizes[label] = one.size
            self.bound |= {row.place: row for row in one.bound}
            if not one.whole:
                self.broken.add(label)

    def _check_checkpoints(self) -> None:
        """Check labels and witnesses. The registered streams are only known if the whole log could be read."""
        with self.truth.read() as rows:
            streams = possible_streams(self.hub_metadata, rows.streams())
        known = None if self.broken else streams
        check_checkpoints(self.folders, self.hub_metadata, self.bound.values(), known, self.report)

    def _check_limits(self) -> None:
        """limits.json and its history follow the control stream. They may be ahead of the log by the journal."""
        with self.truth.read() as rows:
            logged = rows.limits()
        stored = self.hub_metadata.limit_registry
        if logged is None or logged == stored or len(stored.earlier) > len(logged.earlier):
            return
        what = "older than the last change on the control stream; the next start writes it"
        self.report.add(Finding(Severity.LEFTOVER, self.folders.limits.name, what))

    def _check_binding(self, journal_from: dict[bytes, int]) -> None:
        """The binding must list every checkpoint of the log, and others only if the journal still brings them."""
        if self.report.blocking is not None:
            return  # its correct content is unknown
        self.report.bound = tuple(self.bound.values())
        found = checkpoint_files.read_binding(self.folders)

        def may_follow(label: bytes, upto_seq: int) -> bool:
            is_ending = self.journal_ends.get(label) == upto_seq
            return is_ending or (label in journal_from and upto_seq >= journal_from[label] - 1)

        fault = checkpoint_files.binding_fault(found, self.hub_metadata.identity.hub_id, self.bound, may_follow)
        if fault is not None:
            self.report.add(fault)

    def _check_journal(self, dump: IndexDump | None) -> None:
        """Every group must be sound, match the log, and continue where the log ends."""
        labels, check = len(self.sizes), JournalCheck(self.sizes, self._logged, self._verifier)
        try:
            first = journal.first_group(self.folders.journal)
            if dump and first > dump.applied + 1:
                what = f"its last group is {dump.applied}, but the journal starts at group {first}"
                self.report.add(Finding(Severity.REPAIRABLE, "index/data.mdb", what))
            ended = first - 1  # the last segment may have no groups yet
            for found in journal.read(self.folders.journal, first - 1):
                if isinstance(found, journal.Torn):
                    self.report.add(log_check.torn_group(found, str(found.path.relative_to(self.folders.root))))
                    continue
                ended, entries = found
                for entry in entries:
                    self._journal_entry(ended, entry, dump, check)
            if self.mark:
                journal.check_end(self.mark, dump.applied if dump else first - 1, ended)
        except Malformed as error:
            self._journal_damaged(error.reason)
        self.report.entries += check.entries
        self.report.labels += len(self.sizes) - labels

    def _journal_damaged(self, what: str) -> None:
        """Report the first fault of the journal as a whole. Later checks meet the same fault again."""
        if not any(finding.artifact == "journal" for finding in self.report.findings):
            self._damaged("journal", what)

    def _journal_entry(self, group: int, entry: LogEntry, dump: IndexDump | None, check: JournalCheck) -> None:
        label, seq = entry.label, entry.stream_seq
        if label in self.broken:
            return
        if dump and group <= dump.applied and seq == self.sizes.get(label, 0) + 1:
            self._damaged(f"journal, group {group}", "the index lists it as logged, but the log lacks it", label, seq)
        for finding in check.check(group, entry):
            self.report.add(finding)

    def _logged(self, label: bytes, seq: int) -> bytes | None:
        """The hash of an entry; None also if chunks do not end where the limits say, which is already reported."""
        with suppress(VeenError):
            try:
                return next((one.entry_hash for one in read_entries(self.folders, self.truth, label, seq, seq)), None)
            except Pruned as pruned:  # since it was written to the log; the journal is trimmed later
                with PrunedChunk(self.folders.pruned_chunk(label, pruned.start_seq, pruned.end_seq)) as left:
                    return left.entry(seq).entry_hash
        return None

    def _verifier(self, label: bytes) -> EntryVerifier:
        """The verifier for entries of a label that are only in the journal."""

        def known(client_id: bytes) -> Cursor | None:
            with self.truth.read() as rows:
                return rows.client_cursor(label, client_id)

        with self.truth.read() as rows:
            head = rows.head(label)
        tree, hub_ts = (Mmr(head.size, head.peaks), head.hub_ts) if head else (Mmr(), 0)
        return EntryVerifier(self.hub_metadata, label, tree, hub_ts, known)

    def _check_heads(self, dump: IndexDump) -> None:
        """Report entries that the index lists but neither log nor journal contains: they are lost."""
        for label, head in dump.heads.items():
            size = self.sizes.get(label, 0)
            if head.size > size and label not in self.broken:
                what = f"the index lists {head.size} entries, but log and journal end with entry {size}"
                self._damaged(f"log/chunk-{label.hex()}-*", what, label, size + 1)
                self.broken.add(label)

    def _damaged(self, artifact: str, what: str, label: bytes | None = None, seq: int | None = None) -> None:
        self.report.add(Finding(Severity.DAMAGED, artifact, what, label, seq))


def check_checkpoints(
    folders: Folders,
    hub_metadata: HubMetadata,
    bound: Iterable[BoundCheckpoint],
    streams: Collection[bytes] | None,
    report: FsckReport,
) -> None:
    """Add the faults of the checkpoints. `streams` are the registered streams; None if they could not be read."""
    by_epoch = attrgetter("epoch")
    for epoch, rows in groupby(sorted(bound, key=by_epoch), by_epoch):
        # With epochs a label is only matched to its stream by trying every stream: do that once per epoch.
        streams_by_label = (
            {naming.label(hub_metadata.identity.routing_key, stream, epoch): stream for stream in streams}
            if hub_metadata.profile.epoch_sec and streams is not None
            else None
        )
        for row in rows:
            for finding in _check_checkpoint(folders, hub_metadata, row, streams_by_label):
                report.add(finding)


def possible_streams(hub_metadata: HubMetadata, registered: Iterable[bytes]) -> set[bytes]:
    """All streams that a label can belong to: registered ones, and control streams of this hub and its origins."""
    return {*registered, *(naming.control_stream(one.hub_id) for one in hub_metadata.lineage.identities)}


def _check_checkpoint(
    folders: Folders, hub_metadata: HubMetadata, row: BoundCheckpoint, streams_by_label: dict[bytes, bytes] | None
) -> Iterator[Finding]:
    path = folders.checkpoint(row.label, row.upto_seq)
    try:
        found = Checkpoint.decode(safe_open.read(path))
        if streams_by_label is not None:
            _check_labels(hub_metadata, found, streams_by_label)
    except (OSError, VeenError) as error:
        yield Finding(Severity.DAMAGED, f"log/{path.name}", str(error), row.label, row.upto_seq)
        return
    yield from checkpoint_files.check_witnesses(folders, found)


def _check_labels(hub_metadata: HubMetadata, found: Checkpoint, streams_by_label: dict[bytes, bytes]) -> None:
    """Raise unless both labels belong to one stream, and to consecutive epochs. Spec §4.4.1."""
    stream = streams_by_label.get(found.label_curr)
    if stream is not None:
        found.check_labels(hub_metadata.profile, hub_metadata.identity.routing_key, stream)
    elif found.upto_seq > hub_metadata.lineage.upto(found.label_curr):  # a fork does not know its origin's streams
        raise Unverified("checkpoint", "label_curr is not the label of any stream of the hub in that epoch")


def repack(disk: Disk, folders: Folders) -> None:
    """Convert closed chunks to the form that the limits require. The caller holds the lock and has checked the log."""
    level = read_metadata(folders).limits.chunk_zstd_level
    for path in sorted(folders.log.iterdir()):
        name = ChunkName.parse(path.name)
        if name is None or name.end_seq is None or name.packed == (level is not None):
            continue
        wanted = ChunkName(name.label, name.start_seq, name.end_seq, packed=level is not None)
        _write(disk, path, folders.log / wanted.file_name(), level)
        disk.sync_folder(folders.log)
        disk.unlink(path)
    disk.sync_folder(folders.log)


def _write(disk: Disk, source: Path, target: Path, level: int | None) -> None:
    """If both forms exist, keep the compressed one: it was the one that was checked."""
    if level is None:
        disk.write_file(target, (bytes(data) for data, _ in read_blocks(source)))
    elif not target.exists():
        disk.write_file(target, chunk_reader.pack(mapped(source), level))


def _damaged(error: Malformed | Unverified) -> FsckReport:
    report = FsckReport()
    report.add(Finding(Severity.DAMAGED, error.what, error.reason))
    return report


def _of_copy(found: FsckReport) -> FsckReport:
    """Without what a copy never has."""
    report = FsckReport(entries=found.entries, labels=found.labels)
    for one in found.findings:
        is_index = one.artifact.partition("/")[0] in (Folders(Path()).index.name, INDEX_DRAFT)
        if not is_index and one.what != NO_KEYS:
            report.add(one)
    return report
