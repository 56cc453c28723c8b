"""Check the parts of a data directory that are not entries of a chunk: metadata, names, indexes, binding, journal."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from veen.core import Malformed, Mmr, Msg, Unverified, VeenError
from veen.core.hashing import U64_MAX
from veen.pipeline import chunk_verifier
from veen.pipeline.audit.piece_audit import ChainLink
from veen.pipeline.extents import journal_groups, tree_sizes
from veen.pipeline.sources import METADATA_FILES, NAMES, OPTIONAL_FILES, Chunk, DirectoryChunks, LocalFiles, by_label
from veen.storage import frame, journal, metadata_check
from veen.storage.artifacts import CheckpointBinding, CheckpointIndex, IndexedCheckpoint
from veen.storage.entry_check import EntryVerifier
from veen.storage.frame import LogEntry
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.log_check import NO_MANIFEST
from veen.storage.metadata import HubMetadata
from veen.storage.metadata_check import DRAFT_SUFFIX
from veen.storage.paths import ChunkName, Folders, pruned_range

_ARTIFACT = re.compile(r"(?:chunk|peaks|checkpoint|checkpoint-index)-([0-9a-f]{64})[-.].*\.(?:log|zst|summary|cbor)")
_NUMBER = re.compile(r"(?<=-)\d{20}(?=[-.])")
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
    starts = {(chunk.label, chunk.start_seq): chunk for chunk in chunks}
    for name in sorted(set(names) - expected):
        parsed, of = ChunkName.parse(name), _ARTIFACT.fullmatch(name)
        label = bytes.fromhex(of[1]) if of else None
        twin = starts.get((parsed.label, parsed.start_seq)) if parsed else None
        if pruned_range(name):
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it is from an interrupted prune", label)
        elif name.endswith(DRAFT_SUFFIX):
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it is an unfinished write")
        elif parsed and twin and parsed.end_seq == twin.end_seq and twin.closed:
            yield Finding(
                Severity.REPAIRABLE, f"log/{name}", "the chunk is there twice, compressed and as it is", label
            )
        elif parsed and parsed.end_seq is None and twin is None:
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it holds no whole entry", label)
        elif label and label in journal_from and _ends_at(name) >= journal_from[label] - 1:
            what = "an interrupted write left it, and the journal has what it is of"
            yield Finding(Severity.LEFTOVER, f"log/{name}", what, label)
        elif label:
            yield Finding(Severity.DAMAGED, f"log/{name}", "no chunk of the log explains this file", label)
        else:
            yield Finding(Severity.DAMAGED, f"log/{name}", "a log has no files with such a name")


def _ends_at(name: str) -> int:
    """The last number in a name. A checkpoint index has none and counts as the newest."""
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else U64_MAX


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
        found = CheckpointIndex.decode(source.artifact(name))
        stored = list(found.checkpoints[: len(rows)] if live else found.checkpoints)
        if found.label != of or stored != rows:
            raise Unverified("checkpoint index", "it does not match the checkpoints of the log")
    except (Malformed, Unverified) as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", error.reason, of)


def check_binding(source: DirectoryChunks, metadata: HubMetadata, links: Iterable[ChainLink]) -> Iterator[Finding]:
    """The binding must match the keys that signed the checkpoints."""
    ends = [link for link in links if link.piece.closes_chunk]
    rows = {link.outcome.bound.place: link.outcome.bound for link in ends if link.outcome.bound}
    damaged = {(link.piece.chunk.label, link.piece.last) for link in ends if not link.outcome.bound}
    name = NAMES.binding.name
    try:
        found = CheckpointBinding.decode(source.files.read(name))
        stored = {row.place: row for row in found.checkpoints if row.place not in damaged}
        if found.hub_id != metadata.identity.hub_id or stored != rows:
            raise Unverified("checkpoint binding", "it does not match the checkpoints of the log")
    except VeenError as error:
        yield Finding(Severity.REPAIRABLE, name, str(error))


def check_sizes(source: DirectoryChunks, sizes: dict[bytes, int]) -> Iterator[Finding]:
    """Entries in the stored tree nodes must be in log or journal; otherwise they are lost."""
    for label, seen in tree_sizes(source).items():
        if seen > sizes.get(label, 0):
            what = f"the tree has seen {seen} entries, and log and journal end with {sizes.get(label, 0)}"
            yield Finding(Severity.DAMAGED, f"log/chunk-{label.hex()}-*", what, label, sizes.get(label, 0) + 1)


class JournalCheck:
    """The journal of a stopped hub on this machine, compared with the log. It may have entries that no chunk has."""

    def __init__(self, source: DirectoryChunks, metadata: HubMetadata, labels: Mapping[bytes, list[ChainLink]]) -> None:
        self._source = source
        self._metadata = metadata
        self._labels = labels
        self._hashed: tuple[Chunk, list[bytes]] | None = None
        self._verifiers: dict[bytes, EntryVerifier | None] = {}
        self.first: dict[bytes, int] = {}  # first journal entry of each label
        self.sizes = {label: links[-1].piece.last for label, links in labels.items()}
        self.entries = 0

    def check(self, root: Path) -> Iterator[Finding]:
        """Every group is intact, matches the log where both have the entry, and continues where the log ends."""
        try:
            for found in journal_groups(Folders(root).journal):
                if isinstance(found, journal.Torn):
                    yield _torn(found, str(found.path.relative_to(root)))
                    continue
                for entry in found[1]:
                    for what in self._faults(entry):
                        place = entry.label, entry.stream_seq
                        yield Finding(Severity.DAMAGED, f"journal, group {found[0]}", what, *place)
        except Malformed as error:
            yield Finding(Severity.DAMAGED, "journal", str(error))

    def _faults(self, entry: LogEntry) -> list[str]:
        label, seq = entry.label, entry.stream_seq
        size = self.sizes.get(label, 0)
        self.first.setdefault(label, seq)
        if seq > size + 1:
            return [f"it does not follow entry {size} of its label"]
        if seq <= size:
            logged = self._logged(label, seq) if label not in self._verifiers else None
            return [] if logged == entry.entry_hash else ["the log has another entry at this place"]
        if label not in self._verifiers:
            self._verifiers[label] = self._verifier(label)
        verifier = self._verifiers[label]
        self.sizes[label] = seq
        self.entries += 1
        return [f"{failure.check}: {failure}" for failure in verifier.judge(entry, b"")[1]] if verifier else []

    def _verifier(self, label: bytes) -> EntryVerifier | None:
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

    def _logged(self, label: bytes, seq: int) -> bytes | None:
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
        with suppress(Malformed):  # the audit of the chunk reports it
            for data, begin in self._source.blocks(chunk):
                pos = begin
                while pos < len(data):
                    entry, pos = frame.read_unhashed(data, pos)
                    yield entry.entry_hash


def _torn(torn: journal.Torn, artifact: str) -> Finding:
    if torn.cut_short:
        what = f"group {torn.group} is incomplete, as after a crash; {journal.DISK_LOSS}"
        return Finding(Severity.LEFTOVER, artifact, what)
    return Finding(Severity.DAMAGED, artifact, f"group {torn.group}, its last, does not match its checksum")
