"""Check the parts of a data directory that are not entries of a chunk: metadata, names, indexes, binding, journal."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from veen.core import Malformed, Mmr, Msg, Unverified, VeenError
from veen.pipeline import chunk_verifier
from veen.pipeline.audit.piece_audit import ChainLink
from veen.pipeline.extents import journal_groups, tree_sizes
from veen.pipeline.sources import METADATA_FILES, NAMES, OPTIONAL_FILES, Chunk, DirectoryChunks, LocalFiles, by_label
from veen.storage import frame, journal, metadata_check
from veen.storage.artifacts import CheckpointBinding, IndexedCheckpoint
from veen.storage.checkpoint_files import binding_fault
from veen.storage.entry_check import EntryVerifier
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.log_check import NO_MANIFEST, JournalCheck, check_index, stray_file, torn_group
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders

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
