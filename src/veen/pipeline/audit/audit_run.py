"""Run an audit: plan every directory, verify every piece, chain the pieces, compare copies.

A peak snapshot serves one purpose only: a chunk can be verified before the chunk in front of it. When pieces are
chained, the snapshot is compared with the tree of that chunk. If they differ, the snapshot is wrong, and the chunk is
verified again.

The parts of a directory that are not entries of a chunk are checked too: metadata, names, indexes, binding, journal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from time import perf_counter

from veen.core import HubIdentity, Limits, Malformed, Mmr, Msg, Unavailable, Unverified, VeenError
from veen.core.handover import Coverage, HandOver
from veen.core.receipt import time_fault
from veen.core.recovery import RecoveryStatement
from veen.pipeline import chunk_verifier
from veen.pipeline.audit.equivocation import (
    NO_DATES,
    ConflictingReceipts,
    KnownDates,
    LogCopy,
    compare,
    coverage_of,
)
from veen.pipeline.audit.piece_audit import AuditTask, ChainLink, ClientRun, audit_pieces, outcomes_of
from veen.pipeline.extents import is_live, journal_groups, missing_chunks, tree_sizes
from veen.pipeline.jobs import Progress, Runner, no_progress
from veen.pipeline.read_plan import Piece, Task, deal, pinned
from veen.pipeline.sources import (
    METADATA_FILES,
    NAMES,
    OPTIONAL_FILES,
    Chunk,
    DirectoryChunks,
    LocalFiles,
    Missing,
    by_label,
    open_source,
)
from veen.storage import frame, journal, metadata_check
from veen.storage.artifacts import CheckpointBinding, IndexedCheckpoint
from veen.storage.checkpoint_files import binding_fault
from veen.storage.entry_check import EntryVerifier
from veen.storage.fsck_report import Finding, FsckReport, Severity, are_missing
from veen.storage.log_check import NO_MANIFEST, JournalCheck, check_index, stray_file, torn_group
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders


@dataclass(slots=True)
class Directory:
    """One data directory under audit."""

    source: DirectoryChunks
    metadata: HubMetadata | None = None
    live: bool = False
    names: dict[str, int] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    labels: dict[bytes, list[ChainLink]] = field(default_factory=dict)
    journal_entries: int = 0
    # Statements of the hub about itself on its control stream, and the coverage of signatures by retired keys.
    handovers: tuple[HandOver, ...] = ()
    recoveries: tuple[RecoveryStatement, ...] = ()
    coverage: dict[bytes, Coverage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    directories: tuple[Directory, ...]
    equivocations: tuple[ConflictingReceipts, ...]
    seconds: float


def audit(
    paths: Sequence[str],
    run: Runner,
    *,
    progress: Progress = no_progress,
    pin: bytes | None = None,
    parallelism: int | None = None,
    dates: KnownDates = NO_DATES,
) -> Audit:
    """Audit whole data directories. `progress` gets the number of entries done and in total.

    `dates` shows when receipts of retired keys existed; without it, only the log after them does.

    Damage becomes findings, never exceptions. Raises `Unavailable` if a path is not a data directory.
    """
    start = perf_counter()
    directories = [_begin(path, pin) for path in paths]
    metadata = {one.source.url: one.metadata for one in directories if one.metadata is not None}

    def verified(tasks: Sequence[Task]) -> dict[Piece, ChainLink]:
        """The link of each piece, by the piece as it was planned."""
        results = run(audit_pieces, [AuditTask(task, metadata) for task in tasks], progress)
        outcomes = (outcome for data in results for outcome in outcomes_of(data))
        pieces = (piece for task in tasks for piece in task)
        return {replace(one, peaks=None): ChainLink(one, found) for one, found in zip(pieces, outcomes, strict=True)}

    planned = [
        Piece(one.source.url, one.metadata.identity.hub_id, chunk, chunk.start_seq, chunk.end_seq)
        for one in directories
        if one.metadata is not None
        for chunk in one.chunks
    ]
    links = verified(deal(planned, parallelism))
    # Each round anchors one more chunk of a label, so the loop ends. Pieces stay as they are: `deal` would split them.
    while again := [piece for _, label in _by_label(links.values()) for piece in to_repeat(label)]:
        links |= verified([(piece,) for piece in again])
    copies = []
    with ExitStack() as held:
        for one in directories:
            if one.metadata is not None:
                found = (link for link in links.values() if link.piece.source == one.source.url)
                one.labels = {label: of_label for (_, label), of_label in _by_label(found)}
                names = _statement_files(one.metadata.identity)
                statements = held.enter_context(one.source.local_copy((), names))
                copies.append(LogCopy(one.source.url, one.metadata, one.labels, statements))
                _finish(one, one.metadata)
                _read_statements(one, copies[-1])
        equivocations = tuple(compare(copies, run, dates))
    return Audit(tuple(directories), equivocations, perf_counter() - start)


def _statement_files(identity: HubIdentity) -> Iterator[str]:
    """The files with the hand-overs and the recoveries of a hub."""
    for key in (one.key_id for one in identity.signing_keys):
        beside = NAMES.handover(key), NAMES.handover_rows(key), NAMES.handover_nodes(key), NAMES.recovery(key)
        yield from map(str, beside)


def _read_statements(directory: Directory, copy: LogCopy) -> None:
    """Collect the statements of the control stream, and compare them with the files of the directory."""
    outcomes = [link.outcome for found in directory.labels.values() for link in found]
    # A crash may have logged one twice.
    handovers = {data: HandOver.decode(data) for one in outcomes for data in one.handovers}
    recoveries = {data: RecoveryStatement.decode(data) for one in outcomes for data in one.recoveries}
    directory.handovers = tuple(sorted(handovers.values(), key=lambda made: made.hub_ts))
    directory.recoveries = tuple(sorted(recoveries.values(), key=lambda made: made.recovery.recovered_at))
    own = [one for one in directory.recoveries if one.recovery.hub_id == copy.metadata.identity.hub_id]
    for made in own:
        path = copy.statements.recovery(made.recovery.new_key_id)
        if not path.exists():
            what = "it is missing: the control stream has the statement of this recovery"
            directory.findings.append(Finding(Severity.DAMAGED, f"recoveries/{path.name}", what))
    directory.coverage = coverage_of(copy)


def _by_label(links: Iterable[ChainLink]) -> Iterator[tuple[tuple[str, bytes], list[ChainLink]]]:
    for place, found in groupby(links, key=lambda link: (link.piece.source, link.piece.chunk.label)):
        yield place, list(found)


def _begin(path: str, pin: bytes | None) -> Directory:
    """Check what needs no entries, and list the chunks to verify."""
    source = open_source(path)
    if not isinstance(source, DirectoryChunks):
        error = Malformed("audit", f"{path} is the address of a hub; an audit needs a data directory")
        error.add_note("to check a stream of a running hub, use veen verify --stream NAME")
        raise error
    _check_is_data_directory(source, path)
    made = Directory(source)
    made.metadata, made.findings = check_metadata(source)
    made.findings += check_attachments(source, made.metadata)
    made.live = is_live(source)
    if made.metadata is None:
        return made
    at = "hub-identity.json"
    try:
        pinned(made.metadata, pin)
        at = "log"
        made.names = source.names()
        made.chunks = source.chunks_of(made.names)
    except VeenError as error:
        made.findings.append(Finding(Severity.DAMAGED, at, str(error)))
        made.metadata = None
    return made


def _check_is_data_directory(source: DirectoryChunks, path: str) -> None:
    """Raise `Unavailable` if the path has neither identity nor log: nothing to audit is not damage."""
    try:
        source.files.read(NAMES.identity.name)
    except Unavailable:
        try:
            source.names()
        except Missing:
            error = Unavailable(f"{path} is not a hub's data directory")
            error.add_note("check the path; veen hub init creates a data directory")
            raise error from None


def _finish(directory: Directory, metadata: HubMetadata) -> None:
    """Checks that need more than one piece."""
    source, add = directory.source, directory.findings.extend
    lost = missing_chunks(directory.names, directory.chunks)
    add(_damaged(chunk, are_missing(chunk.start_seq, chunk.end_seq), chunk.start_seq) for chunk in lost)
    manifests = list(check_manifests(source, metadata, directory.chunks))
    add(manifests)
    unproven = {finding.label for finding in manifests}
    for label, found in directory.labels.items():
        for link in found:
            if not link.piece.chunk.pruned or label not in unproven:
                add(link.outcome.findings)
        missing = {chunk.start_seq for chunk in lost if chunk.label == label}
        add(check_label(found, metadata.limits, missing))
        if not missing:
            add(check_checkpoint_index(source, found, live=directory.live))
    journal_from, sizes = _check_journal(directory, metadata)
    add(check_names(directory.names, directory.chunks, lost, journal_from))
    links = [link for found in directory.labels.values() for link in found]
    if not lost and not journal_from and not directory.live and all(link.outcome.sound for link in links):
        add(check_binding(source, metadata, links))
    if not directory.live:
        add(check_ends(directory.names, directory.chunks, journal_from))
        broken = {finding.label for finding in directory.findings if finding.severity is Severity.DAMAGED}
        add([finding for finding in check_sizes(source, sizes) if finding.label not in broken])


def _check_journal(directory: Directory, metadata: HubMetadata) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """The first journal entry of each label, and the end of each label in log and journal.

    The journal of a running hub cannot be read by other processes.
    """
    sizes = {label: found[-1].piece.last for label, found in directory.labels.items()}
    if directory.live:  # treat open chunks as the journal: the hub is about to close them
        return {chunk.label: chunk.start_seq for chunk in directory.chunks if not chunk.closed}, sizes
    if not isinstance(directory.source.files, LocalFiles):
        return {}, sizes
    root = directory.source.files.root
    found, tail = check_journal(directory.source, root, metadata, directory.labels)
    directory.findings.extend(found)
    directory.journal_entries = tail.entries
    return tail.first, tail.sizes


def to_repeat(label: Sequence[ChainLink]) -> Iterator[Piece]:
    """The pieces of a label to verify again, from peaks that are now known to be right."""
    chunk_peaks: tuple[bytes, ...] | None = ()  # of the tree before the current chunk; None if unknown
    before: ChainLink | None = None
    for link in label:
        chunk = link.piece.chunk
        if before is None:
            chunk_peaks = () if chunk.start_seq == 1 else None
        elif before.piece.chunk != chunk:
            follows = before.piece.last + 1 == chunk.start_seq and before.outcome.sound
            chunk_peaks = before.outcome.peaks if follows else None
        before = link
        if chunk_peaks is not None and link.outcome.peaks_before != chunk_peaks:
            yield replace(link.piece, peaks=chunk_peaks)
            # The outcome of this piece is not trusted, so it cannot anchor later pieces in this round.
            before = ChainLink(link.piece, replace(link.outcome, sound=False))


def check_label(label: Sequence[ChainLink], limits: Limits, missing: set[int]) -> Iterator[Finding]:
    """Checks across pieces. `missing` holds the start of each chunk that is known to be gone."""
    gaps = list(_check_following(label, missing))
    yield from gaps
    yield from _check_order(label)
    yield from _check_rolling(label, limits)
    behind = {finding.artifact for finding in gaps}
    for link in label:
        if not link.outcome.anchored and f"log/{link.piece.chunk.name}" not in behind:
            what = "its roots could not be checked: the peaks before it and the chunk that yields them are damaged"
            yield _damaged(link.piece.chunk, what, link.piece.first)


def _check_following(label: Sequence[ChainLink], missing: set[int]) -> Iterator[Finding]:
    expected = 1
    misplaced: Chunk | None = None
    for link in label:
        chunk = link.piece.chunk
        if link.piece.first == chunk.start_seq and chunk.start_seq != expected and expected not in missing:
            if chunk.start_seq > expected:
                yield _damaged(chunk, f"{are_missing(expected, chunk.start_seq - 1)} before it", expected)
            else:
                yield _damaged(chunk, f"expected a chunk that starts at entry {expected}", None)
            misplaced = chunk if chunk.start_seq < expected else None  # the next chunk continues another one
        if chunk != misplaced:
            expected = chunk.end_seq + 1


def _check_order(label: Sequence[ChainLink]) -> Iterator[Finding]:
    """Client sequence numbers and hub time continue from one piece to the next."""
    known: dict[bytes, ClientRun] = {}
    whole, clock, expected = True, 0, 1
    for link in label:
        outcome, chunk = link.outcome, link.piece.chunk
        if link.piece.first != expected:  # missing entries may have continued the sequences
            known, whole = {}, False
        for client, run in outcome.clients.items() if link.piece.first > 1 else ():  # the verifier checked entry 1
            last = known.get(client)
            if (last is None and not whole) or 0 < outcome.doubtful_from < run.stream_seq:
                continue
            seq, ack = (last.last_seq, last.last_ack) if last else (0, 0)
            if run.first_seq != seq + 1:
                yield _damaged(chunk, f"order: client_seq {run.first_seq} follows {seq}", run.stream_seq)
            if run.first_ack < ack:
                yield _damaged(chunk, f"order: prev_ack {run.first_ack} is lower than {ack} before it", run.stream_seq)
        known |= outcome.clients
        if outcome.doubtful_from:
            known, whole = {}, False
        if outcome.hub_ts is not None:
            fault = time_fault(clock, outcome.hub_ts[0])
            if fault:
                yield _damaged(chunk, f"order: {fault}", link.piece.first)
            clock = max(clock, outcome.hub_ts[1])
        expected = link.piece.last + 1


def _check_rolling(label: Sequence[ChainLink], limits: Limits) -> Iterator[Finding]:
    """Chunks end where the limits require it and nowhere else."""
    for before, link in pairwise([*label, None]):
        if before is None or not before.outcome.sound:
            continue
        chunk, size = before.piece.chunk, before.outcome.chunk_bytes
        if before.piece.last != chunk.end_seq:
            continue
        full = chunk.entries >= limits.max_checkpoint_interval
        if chunk.entries > limits.max_checkpoint_interval or (size > limits.max_chunk_bytes and chunk.entries > 1):
            yield _damaged(chunk, "it holds more than the limits allow", None)
        elif link is None or link.outcome.first_bytes == 0 or link.piece.chunk.start_seq != chunk.end_seq + 1:
            continue
        elif not full and size + link.outcome.first_bytes <= limits.max_chunk_bytes:
            yield _damaged(chunk, "it ends before it reaches a limit", None)


def _damaged(chunk: Chunk, what: str, seq: int | None) -> Finding:
    return Finding(Severity.DAMAGED, f"log/{chunk.name}", what, chunk.label, seq)


_LABEL = re.compile(r"(?<=-)[0-9a-f]{64}(?=[-.])")
# Without these no entry can be verified.
_FOUNDATIONS = {NAMES.identity.name, NAMES.identity_sig.name, NAMES.profile.name, NAMES.origin.name}
_SAMPLED_CHUNKS = 8


def check_metadata(source: DirectoryChunks) -> tuple[HubMetadata | None, list[Finding]]:
    """Check identity, limits, profile and origin. None if they do not allow verifying the log. Ignores secret keys."""
    report = FsckReport()
    with source.local_copy((), (*METADATA_FILES, *OPTIONAL_FILES)) as folders:
        metadata = metadata_check.check_metadata(folders, report)
    found = [finding for finding in report.findings if finding.severity is not Severity.KEYLESS]
    if metadata is not None and _is_another_profile(source, metadata):
        found.append(Finding(Severity.DAMAGED, NAMES.profile.name, "no message in the log is of this profile"))
    damaged = {finding.artifact for finding in found if finding.severity is Severity.DAMAGED}
    if metadata is None or damaged & _FOUNDATIONS:
        metadata = None
        what = "it was not checked: the hub metadata needed to verify it is damaged"
        found.append(Finding(Severity.DAMAGED, "log", what))
    return metadata, found


def _is_another_profile(source: DirectoryChunks, metadata: HubMetadata) -> bool:
    """Whether all of the first messages have another profile. A single one may be damaged itself."""
    seen = set()
    try:
        for chunk in source.chunks()[:_SAMPLED_CHUNKS]:
            entry, _ = frame.read(source.first_frame(chunk))
            seen.add(Msg.decode(entry.msg).profile_id)
    except VeenError:
        return False
    return len(seen) == 1 and metadata.profile.profile_id() not in seen


def check_attachments(source: DirectoryChunks, metadata: HubMetadata | None) -> list[Finding]:
    """Check files that are named by the hash of their content, if they are on this machine."""
    report = FsckReport()
    if isinstance(source.files, LocalFiles):
        metadata_check.check_attachments(Folders(source.files.root), report)
        metadata_check.check_evidence(Folders(source.files.root), metadata, report)
    return report.findings


def check_manifests(source: DirectoryChunks, metadata: HubMetadata, chunks: Iterable[Chunk]) -> Iterator[Finding]:
    """Report once for each label that nothing proves that its chunks were pruned."""
    for label, of_label in by_label(chunk for chunk in chunks if chunk.pruned).items():
        try:
            what = None if source.pruned_segments(metadata.identity, label) else NO_MANIFEST
        except (Malformed, Unverified) as error:
            what = str(error)
        if what is not None:
            artifact = f"log/{NAMES.manifest(label).name}"
            yield Finding(Severity.DAMAGED, artifact, what, label, of_label[0].start_seq)


def check_names(
    names: Iterable[str], chunks: Sequence[Chunk], gone: Sequence[Chunk], journal_from: dict[bytes, int]
) -> Iterator[Finding]:
    """Report files in the log folder that no chunk explains, and leftovers that the journal will write again."""
    expected = {chunk.name for chunk in chunks} | {NAMES.manifest(chunk.label).name for chunk in chunks}
    for chunk in (*(one for one in chunks if one.closed), *gone):
        expected.update((*chunk_verifier.artifact_names(chunk), NAMES.checkpoint_index(chunk.label).name))
    closed = {
        label: {(one.start_seq, one.end_seq) for one in found if one.closed}
        for label, found in by_label(chunks).items()
    }
    held = {(chunk.label, chunk.start_seq) for chunk in chunks}
    for name in sorted(set(names) - expected):
        parsed, named = ChunkName.parse(name), _LABEL.search(name)
        label = bytes.fromhex(named[0]) if named else b""
        if parsed and parsed.end_seq is None and (label, parsed.start_seq) not in held:
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it has no whole entry", label)
        else:
            upto = journal_from[label] - 1 if label in journal_from else None
            yield stray_file(name, closed.get(label, ()), upto)


def check_ends(names: dict[str, int], chunks: Sequence[Chunk], journal_from: dict[bytes, int]) -> Iterator[Finding]:
    """An open chunk ends with a whole entry, unless the journal has the rest."""
    for chunk in chunks:
        if not chunk.closed and names[chunk.name] > chunk.size:
            severity = Severity.LEFTOVER if chunk.label in journal_from else Severity.DAMAGED
            what = f"it ends within an entry, at byte {chunk.size}"
            yield Finding(severity, f"log/{chunk.name}", what, chunk.label, chunk.end_seq + 1)


def check_checkpoint_index(source: DirectoryChunks, label: Sequence[ChainLink], *, live: bool) -> Iterator[Finding]:
    """The index has one row per closed chunk and no others, unless a hub is about to close a chunk."""
    rows = []
    for link in label:
        if link.piece.closes_chunk:
            start, end = link.piece.chunk.start_seq, link.piece.last
            rows.append(IndexedCheckpoint(end, link.outcome.root, start, end, end))
    if not rows or not all(link.outcome.sound for link in label):
        return
    of = label[0].piece.chunk.label
    name = NAMES.checkpoint_index(of).name
    try:
        check_index(source.artifact(name), of, rows, 0 if live else None)
    except (Malformed, Unverified) as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", error.reason, of)


def check_binding(source: DirectoryChunks, metadata: HubMetadata, links: Iterable[ChainLink]) -> Iterator[Finding]:
    """The binding must match the keys that signed the checkpoints."""
    ends = [link for link in links if link.piece.closes_chunk]
    rows = {link.outcome.bound.place: link.outcome.bound for link in ends if link.outcome.bound}
    damaged = {(link.piece.chunk.label, link.piece.last) for link in ends if not link.outcome.bound}
    found: CheckpointBinding | None = None
    with suppress(VeenError):
        found = CheckpointBinding.decode(source.files.read(NAMES.binding.name))
    fault = binding_fault(found, metadata.identity.hub_id, rows, lambda *place: place in damaged)
    if fault is not None:
        yield fault


def check_sizes(source: DirectoryChunks, sizes: dict[bytes, int]) -> Iterator[Finding]:
    """Entries in the stored tree nodes must be in log or journal; otherwise they are lost."""
    for label, seen in tree_sizes(source).items():
        if seen > sizes.get(label, 0):
            what = f"the tree has {seen} entries, but log and journal end with entry {sizes.get(label, 0)}"
            yield Finding(Severity.DAMAGED, f"log/chunk-{label.hex()}-*", what, label, sizes.get(label, 0) + 1)


def check_journal(
    source: DirectoryChunks, root: Path, metadata: HubMetadata, labels: Mapping[bytes, list[ChainLink]]
) -> tuple[list[Finding], JournalCheck]:
    """Check the journal of a stopped hub on this machine. It may have entries that no chunk has."""
    log = _LoggedEntries(source, metadata, labels)
    sizes = {label: links[-1].piece.last for label, links in labels.items()}
    check, found = JournalCheck(sizes, log.hash_of, log.verifier), list[Finding]()
    try:
        for group in journal_groups(Folders(root).journal):
            if isinstance(group, journal.Torn):
                found.append(torn_group(group, str(group.path.relative_to(root))))
            else:
                found += [finding for entry in group[1] for finding in check.check(group[0], entry)]
    except Malformed as error:
        found.append(Finding(Severity.DAMAGED, "journal", str(error)))
    return found, check


class _LoggedEntries:
    """The entries of the log as far as the journal repeats them, and its end."""

    def __init__(self, source: DirectoryChunks, metadata: HubMetadata, labels: Mapping[bytes, list[ChainLink]]) -> None:
        self._source = source
        self._metadata = metadata
        self._labels = labels
        self._hashed: tuple[Chunk, list[bytes]] | None = None

    def verifier(self, label: bytes) -> EntryVerifier | None:
        """The verifier for entries after the log; None if the end of the log is unknown."""
        links = self._labels.get(label, [])
        if not links:
            return EntryVerifier(self._metadata, label, Mmr(), 0, None)
        last = links[-1].outcome
        if not last.sound:
            return None
        tree, clock = Mmr(links[-1].piece.last, last.peaks), last.hub_ts[1] if last.hub_ts else 0
        made = EntryVerifier(self._metadata, label, tree, clock, None)
        for link in links:
            made.cursors |= {client: (run.last_seq, run.last_ack) for client, run in link.outcome.clients.items()}
        return made

    def hash_of(self, label: bytes, seq: int) -> bytes | None:
        """The hash of the entry that the log has at this place."""
        pieces = (link.piece for link in self._labels[label])
        chunk = next((piece.chunk for piece in pieces if piece.first <= seq <= piece.last), None)
        if chunk is None:
            return None
        if self._hashed is None or self._hashed[0] != chunk:
            self._hashed = chunk, list(self._hashes(chunk))
        at = seq - chunk.start_seq
        return self._hashed[1][at] if at < len(self._hashed[1]) else None

    def _hashes(self, chunk: Chunk) -> Iterator[bytes]:
        with suppress(Malformed, Unverified):  # the audit of the chunk reports it
            if chunk.pruned:
                with self._source.pruned(chunk, self._metadata.identity) as left:
                    yield from (entry.entry_hash for entry in left.entries())
                return
            for data, begin in self._source.blocks(chunk):
                pos = begin
                while pos < len(data):
                    entry, pos = frame.read_unhashed(data, pos)
                    yield entry.entry_hash
