"""Check a data directory, trusting nothing in it; repair what can be made again from the log.

The order: papers, since everything is verified under them; the log from its files alone; the journal, which must go on
where the log ends; then the checkpoint binding, index and node files against what the log says. An index is made from
the log in a scratch folder along the way, with the code a hub writes its own with, and the two are compared row by row.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from veen.core import Checkpoint, Malformed, Mmr, Unverified, VeenError, naming
from veen.storage import (
    checkpoint_keys,
    chunk_blocks,
    index_check,
    journal,
    log_check,
    log_walk,
    metadata_check,
    rebuild,
    safe_open,
)
from veen.storage.accepted_entry import Cursor
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.chunk_blocks import mapped, read_blocks
from veen.storage.directory_reader import read_entries
from veen.storage.durable import Disk
from veen.storage.entry_check import Judge
from veen.storage.frame import LogEntry
from veen.storage.fsck_report import Finding, FsckReport, FsckVerdict, Severity
from veen.storage.index import Index
from veen.storage.index_check import Dump, ShadowFiles
from veen.storage.lock import exclusive, undisturbed
from veen.storage.log_writer import LogWriter
from veen.storage.metadata import HubMetadata, read_metadata
from veen.storage.paths import INDEX_DRAFT, ChunkName, Folders
from veen.storage.rebuild import Progress, Refill, Registrar


def check_checkpoints(
    folders: Folders,
    hub_metadata: HubMetadata,
    bound: Iterable[BoundCheckpoint],
    streams: Collection[bytes] | None,
    report: FsckReport,
) -> None:
    """Add what is wrong with them. `streams` are those the hub was told of; None where that could not be read."""
    by_epoch = attrgetter("epoch")
    for epoch, rows in groupby(sorted(bound, key=by_epoch), by_epoch):
        # With epochs a label shows its stream only to who tries every one: once for all labels of an epoch.
        explained = (
            _explained(hub_metadata, streams, epoch) if hub_metadata.profile.epoch_sec and streams is not None else None
        )
        for row in rows:
            for finding in _check_checkpoint(folders, hub_metadata, row, explained):
                report.add(finding)


def known_streams(hub_metadata: HubMetadata, registered: Iterable[bytes]) -> set[bytes]:
    """The streams that labels can be of: those that were registered, and the control streams of the hubs themselves."""
    return {*registered, *(naming.control_stream(one.hub_id) for one in hub_metadata.lineage.identities)}


def _explained(hub_metadata: HubMetadata, streams: Iterable[bytes], epoch: int) -> dict[bytes, bytes]:
    return {naming.label(hub_metadata.identity.routing_key, stream, epoch): stream for stream in streams}


def _check_checkpoint(
    folders: Folders, hub_metadata: HubMetadata, row: BoundCheckpoint, explained: dict[bytes, bytes] | None
) -> Iterator[Finding]:
    path = folders.checkpoint(row.label, row.upto_seq)
    try:
        found = Checkpoint.decode(safe_open.read(path))
        if explained is not None:
            _check_labels(hub_metadata, found, explained)
    except (OSError, VeenError) as error:
        yield Finding(Severity.DAMAGED, f"log/{path.name}", str(error), row.label, row.upto_seq)
        return
    yield from checkpoint_keys.check(folders, found)


def _check_labels(hub_metadata: HubMetadata, found: Checkpoint, explained: dict[bytes, bytes]) -> None:
    """Raise unless both labels are of one stream, and of the epochs they must be of. Spec §4.4.1."""
    stream = explained.get(found.label_curr)
    if stream is not None:
        found.check_labels(hub_metadata.profile, hub_metadata.identity.routing_key, stream)
    elif found.upto_seq > hub_metadata.lineage.upto(found.label_curr):  # a fork is not told what its origin was told
        raise Unverified("checkpoint", "label_curr is not the label of any stream of the hub in that epoch")


def repack(disk: Disk, folders: Folders) -> None:
    """The caller holds the directory's lock, and has checked the log."""
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
    """Where there are both, the compressed one is the one that was checked."""
    if level is None:
        disk.write_parts(target, (bytes(data) for data, _ in read_blocks(source)))
    elif not target.exists():
        disk.write_parts(target, chunk_blocks.pack(mapped(source), level))


__all__ = ["Finding", "FsckReport", "FsckVerdict", "Severity", "check", "repair"]


def check(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Everything that is wrong with a data directory. Raises `Unavailable` where a hub runs on it.

    `progress` is told bytes of the log done and in all. Without `isolated` the index is read in this process, which a
    damaged one can end.
    """
    folders = Folders(root)
    with undisturbed(folders.lock):
        return _check(folders, progress, isolated=isolated)


def repair(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> FsckReport:
    """Make again what is wrong and follows from the log: index and node files, summaries, peak snapshots, checkpoint
    indexes and binding, and the form in which chunks are kept. Nothing else is touched: not the checkpoints, because
    nothing else has what witnesses signed on them. Returns how it stands afterwards.

    Raises `Unavailable` where a hub runs on the directory, `Malformed` where the log itself is damaged.
    """
    folders = Folders(root)
    with exclusive(folders.lock):
        report = _check(folders, None, isolated=isolated)
        if report.verdict is FsckVerdict.DAMAGED:
            raise Malformed("data directory", f"{report.first}; only what follows from the log can be made again")
        if report.verdict is FsckVerdict.REPAIRABLE:
            _repair(Disk(), folders, report, progress)
            report = _check(folders, None, isolated=isolated)
        return report


def _repair(disk: Disk, folders: Folders, report: FsckReport, progress: Progress | None) -> None:
    """In this order: an index is made from chunks in whatever form, so a crash in between leaves less to repair."""
    what = report.repairable
    for path, data in report.derived.items():
        _make_way(path)
        disk.write_file(path, data)
    if folders.fault.name in what:
        _make_way(folders.fault)
        disk.unlink(folders.fault)
    if folders.log.name in what:
        repack(disk, folders)  # syncs the folder
    if folders.binding.name in what:
        # Of what was verified, and nothing else that lies in the log: what the journal brings is bound when it is.
        hub_id, bound = read_metadata(folders).identity.hub_id, sorted(report.bound, key=attrgetter("place"))
        _make_way(folders.binding)
        checkpoint_keys.write(disk, folders, CheckpointBinding(hub_id, tuple(bound)))
    if what & {folders.index.name, INDEX_DRAFT}:
        rebuild.rebuild_index(disk, folders, progress).close()


def _make_way(path: Path) -> None:
    """A folder does not give way to a file. An empty one goes; what is in another is not ours to remove."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()


def _check(folders: Folders, progress: Progress | None, *, isolated: bool) -> FsckReport:
    report = FsckReport()
    misplaced = _check_places(folders, report)
    hub_metadata = metadata_check.check_metadata(folders, report)
    metadata_check.check_named_by_hash(folders, hub_metadata, report)
    metadata_check.check_strays(folders, report)
    if hub_metadata is None:
        report.add(Finding(Severity.DAMAGED, "log", "it was not checked: the papers it is verified under are damaged"))
        return report
    for folder in (folders.log, folders.journal):
        if folder in misplaced:
            return report
        if not folder.is_dir():
            report.add(Finding(Severity.DAMAGED, folder.name, "it is missing"))
            return report
    with tempfile.TemporaryDirectory(prefix="veen-fsck-") as scratch:
        truth = Index(Path(scratch) / "index", durable=False)
        try:
            _Check(folders, hub_metadata, report, truth).run(Path(scratch), progress, isolated=isolated)
        finally:
            truth.close()
    return report


def _check_places(folders: Folders, report: FsckReport) -> set[Path]:
    """The places of the directory that lead out of it, or are no places: a hub does not start with one of them."""
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
    """One check of what a directory holds under its papers."""

    folders: Folders
    hub_metadata: HubMetadata
    report: FsckReport
    truth: Index
    sizes: dict[bytes, int] = field(default_factory=dict)
    broken: set[bytes] = field(default_factory=set)  # labels that could not be read to their end
    bound: dict[tuple[bytes, int], BoundCheckpoint] = field(default_factory=dict)
    judges: dict[bytes, Judge] = field(default_factory=dict)

    def run(self, scratch: Path, progress: Progress | None, *, isolated: bool) -> None:
        dump = self._read_index(scratch, isolated=isolated)
        try:
            applied, journal_from = rebuild.journal_start(self.folders, dump.applied if dump else None)
        except Malformed as error:
            self._damaged("journal", str(error))
            applied, journal_from = dump.applied if dump else 0, {}
        self._check_log(applied, journal_from, progress)
        self._check_checkpoints()
        self._check_binding(journal_from)
        self._check_journal(dump)
        index_check.check_node_names(self.folders, self.sizes, set(journal_from), self.report)
        if dump:
            self._check_heads(dump)
            if self.report.verdict is not FsckVerdict.DAMAGED:
                index_check.compare_rows(dump, self.truth, self.folders, self.report)

    def _read_index(self, scratch: Path, *, isolated: bool) -> Dump | None:
        used = any(self.folders.log.iterdir()) or journal.segments(self.folders.journal)
        if not used and not (self.folders.index / "data.mdb").exists():
            return None  # no hub has run here yet
        return index_check.read_index(self.folders, scratch, self.report, isolated=isolated)

    def _check_log(self, applied: int, journal_from: dict[bytes, int], progress: Progress | None) -> None:
        files = log_walk.chunk_files(self.folders)
        names = log_check.artifacts_by_label(self.folders, self.report)
        tell = _teller(log_check.bytes_to_read(files), progress)
        shadow = ShadowFiles(self.folders, self.report)
        refill = Refill(LogWriter(shadow, self.truth, self.hub_metadata.limits), Registrar(self.hub_metadata), applied)
        ordered = log_walk.control_first(self.hub_metadata, files)
        others = (names.keys() | self.hub_metadata.lineage.labels()) - files.keys()
        for label in [*ordered, *others]:
            upto = journal_from[label] - 1 if label in journal_from else None
            scratch = (refill, shadow, self.truth)
            one = log_check.LabelCheck(self.folders, self.hub_metadata, self.report, label, upto, scratch, tell)
            one.run(files.get(label, []), names.get(label, set()))
            self.report.labels += 1
            self.sizes[label] = one.size
            self.bound |= {row.place: row for row in one.bound}
            if not one.whole:
                self.broken.add(label)

    def _check_checkpoints(self) -> None:
        """Their labels and witnesses. What the hub was told of is known where all of the log could be read."""
        with self.truth.read() as rows:
            streams = known_streams(self.hub_metadata, rows.streams())
        known = None if self.broken else streams
        check_checkpoints(self.folders, self.hub_metadata, self.bound.values(), known, self.report)

    def _check_binding(self, journal_from: dict[bytes, int]) -> None:
        """It has every checkpoint of the log, and others only where the journal will bring them."""
        if self.report.verdict is FsckVerdict.DAMAGED:
            return  # what it should say is not known
        self.report.bound = tuple(self.bound.values())
        found = checkpoint_keys.read_binding(self.folders)
        rows = {row.place: row for row in found.checkpoints} if found else {}
        wrong = [place for place, row in self.bound.items() if rows.get(place) != row]
        for label, upto_seq in rows.keys() - self.bound.keys():
            if label not in journal_from or upto_seq < journal_from[label] - 1:
                wrong.append((label, upto_seq))
        if found is None or found.hub_id != self.hub_metadata.identity.hub_id:
            what = "it is missing, or cannot be read, or is another hub's"
            self.report.add(Finding(Severity.REPAIRABLE, self.folders.binding.name, what))
        elif wrong:
            label, upto_seq = min(wrong)
            what = "it does not say what the log's checkpoints say"
            self.report.add(Finding(Severity.REPAIRABLE, self.folders.binding.name, what, label, upto_seq))

    def _check_journal(self, dump: Dump | None) -> None:
        """Every group is sound, is what the log has, and goes on where the log ends."""
        segments = journal.segments(self.folders.journal)
        if dump and segments and segments[0][0] > dump.applied + 1:
            what = f"it knows group {dump.applied}, and the journal begins with {segments[0][0]}"
            self.report.add(Finding(Severity.REPAIRABLE, "index/data.mdb", what))
        try:
            for found in journal.read(self.folders.journal, segments[0][0] - 1 if segments else 0):
                if isinstance(found, journal.Torn):
                    self._torn(found)
                    continue
                group, entries = found
                for entry in entries:
                    self._journal_entry(group, entry, dump)
        except Malformed as error:
            if not any(finding.artifact == "journal" for finding in self.report.findings):
                self._damaged("journal", str(error))

    def _torn(self, torn: journal.Torn) -> None:
        artifact = str(torn.path.relative_to(self.folders.root))
        if torn.cut_short:
            what = f"group {torn.group} was never finished, and never acknowledged"
            self.report.add(Finding(Severity.LEFTOVER, artifact, what))
        else:
            self._damaged(artifact, f"the bytes of group {torn.group}, its last, are not those written")

    def _journal_entry(self, group: int, entry: LogEntry, dump: Dump | None) -> None:
        label, seq = entry.label, entry.stream_seq
        size = self.sizes.get(label, 0)
        artifact = f"journal, group {group}"
        if label in self.broken:
            return
        if seq > size + 1:
            self._damaged(artifact, f"it follows entry {size} of its label", label, seq)
        elif seq == size + 1:
            if dump and group <= dump.applied:
                self._damaged(artifact, "the index says the log has it, and the log does not", label, seq)
            for fault in self._judge_of(label).judge(entry, b"")[1]:
                self._damaged(artifact, fault, label, seq)
            self.sizes[label] = seq
        elif label not in self.judges:
            logged = self._logged(label, seq)
            if logged is None or logged.entry_hash != entry.entry_hash:
                self._damaged(artifact, "the log does not have it there", label, seq)
        else:
            self._damaged(artifact, "it stands in the journal twice", label, seq)

    def _logged(self, label: bytes, seq: int) -> LogEntry | None:
        """What the log has there; None also where its chunks are not cut as the limits say, which is known by now."""
        try:
            return next(read_entries(self.folders, self.truth, label, seq, seq), None)
        except VeenError:
            return None

    def _judge_of(self, label: bytes) -> Judge:
        """The judge of a label's entries that only the journal has."""
        judge = self.judges.get(label)
        if judge is None:
            with self.truth.read() as rows:
                head = rows.head(label)

            def known(client_id: bytes) -> Cursor | None:
                with self.truth.read() as rows:
                    return rows.client_cursor(label, client_id)

            tree, hub_ts = (Mmr(head.size, head.peaks), head.hub_ts) if head else (Mmr(), 0)
            judge = self.judges[label] = Judge(self.hub_metadata, label, tree, hub_ts, known)
        return judge

    def _check_heads(self, dump: Dump) -> None:
        """What the index has seen must be somewhere: if not, it is lost, whatever else is sound."""
        for label, head in dump.heads.items():
            size = self.sizes.get(label, 0)
            if head.size > size and label not in self.broken:
                what = f"the index has seen {head.size} entries, and log and journal end with {size}"
                self._damaged(f"log/chunk-{label.hex()}-*", what, label, size + 1)

    def _damaged(self, artifact: str, what: str, label: bytes | None = None, seq: int | None = None) -> None:
        self.report.add(Finding(Severity.DAMAGED, artifact, what, label, seq))


def _teller(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Adds up what was read and tells how far that is."""
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return tell
