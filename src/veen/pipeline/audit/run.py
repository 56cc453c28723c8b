"""Run an audit: plan every directory, verify every piece, chain the pieces, compare copies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter

from veen.core import Malformed, Unavailable, VeenError
from veen.pipeline.audit import chain, directory_check
from veen.pipeline.audit.audit_runner import Runner
from veen.pipeline.audit.chain import ChainLink, Outcomes
from veen.pipeline.audit.equivocation import ConflictingReceipts, Copy, Join, compare
from veen.pipeline.audit.journal_check import JournalTail
from veen.pipeline.chunk_verifier import NAMES
from veen.pipeline.extents import is_live, missing_chunks
from veen.pipeline.read_plan import Piece, deal, pinned
from veen.pipeline.sources import Chunk, DirectoryChunks, open_source
from veen.pipeline.sources.files import LocalFiles, Missing
from veen.storage.fsck_report import Finding, Severity
from veen.storage.metadata import HubMetadata


@dataclass(slots=True)
class Directory:
    """One data directory under audit."""

    source: DirectoryChunks
    metadata: HubMetadata | None = None
    live: bool = False
    names: dict[str, int] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    labels: dict[bytes, list[ChainLink]] = field(default_factory=dict)
    journal_entries: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    directories: tuple[Directory, ...]
    equivocations: tuple[ConflictingReceipts, ...]
    seconds: float


def audit(
    paths: Sequence[str],
    run: Runner,
    join: Join,
    *,
    pin: bytes | None = None,
    parallelism: int | None = None,
) -> Audit:
    """Audit whole data directories. Damage in the directories becomes findings, never exceptions.

    Raises `Unavailable` if a path is not a data directory.
    """
    start = perf_counter()
    directories = [_begin(path, pin) for path in paths]
    tasks = deal([piece for directory in directories for piece in directory.pieces], parallelism)
    # `deal` splits large pieces; the parts are what gets chained.
    dealt = [piece for task in tasks for piece in task]
    for directory in directories:
        directory.pieces = [piece for piece in dealt if piece.source == directory.source.url]
    outcomes: Outcomes = {}
    while tasks:
        outcomes |= {outcome.place: outcome for outcome in run(tasks)}
        # Each round anchors one more chunk of a label, so the loop ends.
        tasks = deal(list(_to_repeat(directories, outcomes)), parallelism)
    for directory in directories:
        if directory.metadata is not None:
            _finish(directory, directory.metadata, outcomes)
    copies = [Copy(one.source.url, one.metadata, one.labels) for one in directories if one.metadata is not None]
    return Audit(tuple(directories), tuple(compare(copies, join)), perf_counter() - start)


def _begin(path: str, pin: bytes | None) -> Directory:
    """Check what needs no entries, and list the pieces to verify."""
    source = open_source(path)
    if not isinstance(source, DirectoryChunks):
        error = Malformed("audit", f"{path} is the address of a hub; an audit needs a data directory")
        error.add_note("to check a stream of a running hub, use veen verify --stream NAME")
        raise error
    _check_is_data_directory(source, path)
    made = Directory(source)
    made.metadata, made.findings = directory_check.check_metadata(source)
    made.findings += directory_check.check_attachments(source, made.metadata)
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
    hub_id = made.metadata.identity.hub_id
    made.pieces = [Piece(source.url, hub_id, chunk, chunk.start_seq, chunk.end_seq) for chunk in made.chunks]
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


def _by_label(directory: Directory, outcomes: Outcomes) -> Iterator[tuple[bytes, list[ChainLink]]]:
    made = chain.links(directory.pieces, outcomes)
    for label, found in groupby(made, key=lambda link: link.piece.chunk.label):
        yield label, list(found)


def _to_repeat(directories: Sequence[Directory], outcomes: Outcomes) -> Iterator[Piece]:
    for directory in directories:
        for _, found in _by_label(directory, outcomes):
            yield from chain.to_repeat(found)


def _finish(directory: Directory, metadata: HubMetadata, outcomes: Outcomes) -> None:
    """Checks that need more than one piece."""
    source, add = directory.source, directory.findings.extend
    directory.labels = dict(_by_label(directory, outcomes))
    lost = missing_chunks(directory.names, directory.chunks)
    add(Finding(Severity.DAMAGED, f"log/{chunk.name}", "it is missing", chunk.label, chunk.start_seq) for chunk in lost)
    for label, found in directory.labels.items():
        for link in found:
            add(link.outcome.findings)
        missing = {chunk.start_seq for chunk in lost if chunk.label == label}
        add(chain.check_label(found, metadata.limits, missing))
        if not missing:
            add(directory_check.check_checkpoint_index(source, found, live=directory.live))
    journal_from, sizes = _check_journal(directory, metadata)
    add(directory_check.check_names(directory.names, directory.chunks, lost, journal_from))
    links = [link for found in directory.labels.values() for link in found]
    if not lost and not journal_from and not directory.live and all(link.outcome.sound for link in links):
        add(directory_check.check_binding(source, metadata, links))
    if not directory.live:
        add(directory_check.check_ends(directory.names, directory.chunks, journal_from))
        broken = {finding.label for finding in directory.findings if finding.severity is Severity.DAMAGED}
        add([finding for finding in directory_check.check_sizes(source, sizes) if finding.label not in broken])


def _check_journal(directory: Directory, metadata: HubMetadata) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """The first journal entry of each label, and the end of each label in log and journal.

    The journal of a running hub cannot be read by other processes.
    """
    sizes = {label: found[-1].piece.last for label, found in directory.labels.items()}
    if directory.live:  # treat open chunks as the journal: the hub is about to close them
        return {chunk.label: chunk.start_seq for chunk in directory.chunks if not chunk.closed}, sizes
    if not isinstance(directory.source.files, LocalFiles):
        return {}, sizes
    tail = JournalTail(directory.source, directory.source.files.root, metadata)
    directory.findings.extend(tail.check(directory.labels))
    directory.journal_entries = tail.entries
    return tail.first, tail.sizes
