"""Check a data directory, trusting nothing in it; repair what can be made again from the log.

The order: papers, since everything is verified under them; the log from its files alone; the journal, which must go on
where the log ends; then the checkpoint binding, index and node files against what the log says. An index is made from
the log in a scratch folder along the way, with the code a hub writes its own with, and the two are compared row by row.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from veen.core import Malformed, Mmr, VeenError
from veen.storage import (
    binding,
    checkpointcheck,
    indexcheck,
    journal,
    logcheck,
    openings,
    papercheck,
    rebuild,
    repacking,
    walk,
)
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.directory import Papers, read_papers
from veen.storage.durable import Disk
from veen.storage.findings import Finding, Report, Severity, Verdict
from veen.storage.folders import INDEX_DRAFT, Folders
from veen.storage.frame import Entry
from veen.storage.index import Index
from veen.storage.indexcheck import Dump, ShadowFiles
from veen.storage.judge import Judge
from veen.storage.lock import exclusive, undisturbed
from veen.storage.logwriter import LogWriter
from veen.storage.reader import read_entries
from veen.storage.rebuild import Progress, Refill, Registrar
from veen.storage.record import Cursor

__all__ = ["Finding", "Report", "Severity", "Verdict", "check", "repair"]


def check(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> Report:
    """Everything that is wrong with a data directory. Raises `Unavailable` where a hub runs on it.

    `progress` is told bytes of the log done and in all. Without `isolated` the index is read in this process, which a
    damaged one can end.
    """
    folders = Folders(root)
    with undisturbed(folders.lock):
        return _check(folders, progress, isolated=isolated)


def repair(root: Path, progress: Progress | None = None, *, isolated: bool = True) -> Report:
    """Make again what is wrong and follows from the log: index and node files, summaries, peak snapshots, checkpoint
    indexes and binding, and the form in which chunks are kept. Nothing else is touched: not the checkpoints, because
    nothing else has what witnesses signed on them. Returns how it stands afterwards.

    Raises `Unavailable` where a hub runs on the directory, `Malformed` where the log itself is damaged.
    """
    folders = Folders(root)
    with exclusive(folders.lock):
        report = _check(folders, None, isolated=isolated)
        if report.verdict is Verdict.DAMAGED:
            raise Malformed("data directory", f"{report.first}; only what follows from the log can be made again")
        if report.verdict is Verdict.REPAIRABLE:
            _repair(Disk(), folders, report, progress)
            report = _check(folders, None, isolated=isolated)
        return report


def _repair(disk: Disk, folders: Folders, report: Report, progress: Progress | None) -> None:
    """In this order: an index is made from chunks in whatever form, so a crash in between leaves less to repair."""
    what = report.repairable
    for path, data in report.derived.items():
        _make_way(path)
        disk.write_file(path, data)
    if folders.fault.name in what:
        _make_way(folders.fault)
        disk.unlink(folders.fault)
    if folders.log.name in what:
        repacking.repack(disk, folders)  # syncs the folder
    if folders.binding.name in what:
        # Of what was verified, and nothing else that lies in the log: what the journal brings is bound when it is.
        hub_id, bound = read_papers(folders).identity.hub_id, sorted(report.bound, key=attrgetter("place"))
        _make_way(folders.binding)
        binding.write(disk, folders, CheckpointBinding(hub_id, tuple(bound)))
    if what & {folders.index.name, INDEX_DRAFT}:
        rebuild.rebuild_index(disk, folders, progress).close()


def _make_way(path: Path) -> None:
    """A folder does not give way to a file. An empty one goes; what is in another is not ours to remove."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()


def _check(folders: Folders, progress: Progress | None, *, isolated: bool) -> Report:
    report = Report()
    misplaced = _check_places(folders, report)
    papers = papercheck.check_papers(folders, report)
    papercheck.check_named_by_hash(folders, papers, report)
    papercheck.check_strays(folders, report)
    if papers is None:
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
            _Check(folders, papers, report, truth).run(Path(scratch), progress, isolated=isolated)
        finally:
            truth.close()
    return report


def _check_places(folders: Folders, report: Report) -> set[Path]:
    """The places of the directory that lead out of it, or are no places: a hub does not start with one of them."""
    made_again = (folders.index.name, INDEX_DRAFT, folders.fault.name)
    found = set()
    for path, what in openings.misplaced(folders):
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
    papers: Papers
    report: Report
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
        indexcheck.check_node_names(self.folders, self.sizes, set(journal_from), self.report)
        if dump:
            self._check_heads(dump)
            if self.report.verdict is not Verdict.DAMAGED:
                indexcheck.compare_rows(dump, self.truth, self.folders, self.report)

    def _read_index(self, scratch: Path, *, isolated: bool) -> Dump | None:
        used = any(self.folders.log.iterdir()) or journal.segments(self.folders.journal)
        if not used and not (self.folders.index / "data.mdb").exists():
            return None  # no hub has run here yet
        return indexcheck.read_index(self.folders, scratch, self.report, isolated=isolated)

    def _check_log(self, applied: int, journal_from: dict[bytes, int], progress: Progress | None) -> None:
        files = walk.chunk_files(self.folders)
        names = logcheck.artifacts_by_label(self.folders, self.report)
        tell = _teller(logcheck.bytes_to_read(files), progress)
        shadow = ShadowFiles(self.folders, self.report)
        refill = Refill(LogWriter(shadow, self.truth, self.papers.limits), Registrar(self.papers), applied)
        ordered = walk.control_first(self.papers, files)
        others = (names.keys() | self.papers.lineage.labels()) - files.keys()
        for label in [*ordered, *others]:
            upto = journal_from[label] - 1 if label in journal_from else None
            scratch = (refill, shadow, self.truth)
            one = logcheck.LabelCheck(self.folders, self.papers, self.report, label, upto, scratch, tell)
            one.run(files.get(label, []), names.get(label, set()))
            self.report.labels += 1
            self.sizes[label] = one.size
            self.bound |= {row.place: row for row in one.bound}
            if not one.whole:
                self.broken.add(label)

    def _check_checkpoints(self) -> None:
        """Their labels and witnesses. What the hub was told of is known where all of the log could be read."""
        with self.truth.read() as rows:
            streams = checkpointcheck.known_streams(self.papers, rows.streams())
        known = None if self.broken else streams
        checkpointcheck.check_checkpoints(self.folders, self.papers, self.bound.values(), known, self.report)

    def _check_binding(self, journal_from: dict[bytes, int]) -> None:
        """It has every checkpoint of the log, and others only where the journal will bring them."""
        if self.report.verdict is Verdict.DAMAGED:
            return  # what it should say is not known
        self.report.bound = tuple(self.bound.values())
        found = binding.read(self.folders)
        rows = {row.place: row for row in found.checkpoints} if found else {}
        wrong = [place for place, row in self.bound.items() if rows.get(place) != row]
        for label, upto_seq in rows.keys() - self.bound.keys():
            if label not in journal_from or upto_seq < journal_from[label] - 1:
                wrong.append((label, upto_seq))
        if found is None or found.hub_id != self.papers.identity.hub_id:
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

    def _journal_entry(self, group: int, entry: Entry, dump: Dump | None) -> None:
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

    def _logged(self, label: bytes, seq: int) -> Entry | None:
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
            judge = self.judges[label] = Judge(self.papers, label, tree, hub_ts, known)
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
