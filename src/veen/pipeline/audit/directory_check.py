"""Check the parts of a data directory that are not entries: metadata, file names, indexes, binding, attachments."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from veen.core import Malformed, Msg, Unavailable, Unverified, VeenError
from veen.core.hashing import U64_MAX
from veen.pipeline import chunk_verifier
from veen.pipeline.audit import chain
from veen.pipeline.audit.chain import ChainLink
from veen.pipeline.chunk_verifier import NAMES
from veen.pipeline.extents import tree_sizes
from veen.pipeline.sources import Chunk, DirectoryChunks
from veen.pipeline.sources.files import LocalFiles
from veen.storage import frame, metadata_check
from veen.storage.artifacts import CheckpointBinding, CheckpointIndex
from veen.storage.fsck_report import Finding, FsckReport, Severity
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders

_ARTIFACT = re.compile(r"(?:chunk|peaks|checkpoint|checkpoint-index)-([0-9a-f]{64})[-.].*\.(?:log|zst|summary|cbor)")
_METADATA_FILES = (NAMES.identity, NAMES.identity_sig, NAMES.key_map, NAMES.limits, NAMES.profile, NAMES.origin)
_NUMBER = re.compile(r"(?<=-)\d{20}(?=[-.])")
# Without these no entry can be verified.
_FOUNDATIONS = {NAMES.identity.name, NAMES.identity_sig.name, NAMES.profile.name, NAMES.origin.name}
_SAMPLED_CHUNKS = 8
DRAFT_SUFFIX = ".draft"


def check_metadata(source: DirectoryChunks) -> tuple[HubMetadata | None, list[Finding]]:
    """Check identity, limits, profile and origin. None if they do not allow verifying the log. Ignores secret keys."""
    report = FsckReport()
    with _local_metadata(source) as folders:
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


@contextmanager
def _local_metadata(source: DirectoryChunks) -> Iterator[Folders]:
    """The metadata as local files."""
    if isinstance(source.files, LocalFiles):
        yield Folders(source.files.root)
        return
    with tempfile.TemporaryDirectory(prefix="veen-metadata-") as folder:
        for path in _METADATA_FILES:
            try:
                (Path(folder) / path.name).write_bytes(source.files.read(path.name))
            except Unavailable:
                continue  # the check reports missing files
        yield Folders(Path(folder))


def check_attachments(source: DirectoryChunks, metadata: HubMetadata | None) -> list[Finding]:
    """Check files that are named by the hash of their content, if they are on this machine."""
    report = FsckReport()
    if isinstance(source.files, LocalFiles):
        metadata_check.check_named_by_hash(Folders(source.files.root), metadata, report)
    return report.findings


def check_names(
    names: Iterable[str], chunks: Sequence[Chunk], gone: Sequence[Chunk], journal_from: dict[bytes, int]
) -> Iterator[Finding]:
    """Report files in the log folder that no chunk explains, and leftovers that the journal will write again."""
    expected = {chunk.name for chunk in chunks}
    for chunk in (*(one for one in chunks if one.closed), *gone):
        expected.update((*chunk_verifier.artifact_names(chunk), NAMES.checkpoint_index(chunk.label).name))
    starts = {(chunk.label, chunk.start_seq): chunk for chunk in chunks}
    for name in sorted(set(names) - expected):
        parsed, of = ChunkName.parse(name), _ARTIFACT.fullmatch(name)
        label = bytes.fromhex(of[1]) if of else None
        twin = starts.get((parsed.label, parsed.start_seq)) if parsed else None
        if name.endswith(DRAFT_SUFFIX):
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
    rows = chain.indexed(label)
    if not rows or not all(link.outcome.sound for link in label):
        return
    of = label[0].piece.chunk.label
    name = NAMES.checkpoint_index(of).name
    try:
        found = CheckpointIndex.decode(source.artifact(name))
        stored = list(found.checkpoints[: len(rows)] if live else found.checkpoints)
        if found.label != of or stored != rows:
            raise Unverified("checkpoint index", "it does not match the checkpoints of the log")
    except Malformed as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", error.reason, of)
    except Unverified as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", str(error), of)


def check_binding(source: DirectoryChunks, metadata: HubMetadata, links: Iterable[ChainLink]) -> Iterator[Finding]:
    """The binding must match the keys that signed the checkpoints."""
    ends = [link for link in links if link.piece.chunk.closed and link.piece.last == link.piece.chunk.end_seq]
    rows = {link.outcome.bound.place: link.outcome.bound for link in ends if link.outcome.bound}
    damaged = {(link.outcome.label, link.piece.last) for link in ends if not link.outcome.bound}
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
