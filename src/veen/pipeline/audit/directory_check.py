"""What a data directory holds besides entries: its papers, the names in its log, indexes, bindings, attachments."""

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
# Without these nothing in the log can be judged.
_FOUNDATIONS = {NAMES.identity.name, NAMES.identity_sig.name, NAMES.profile.name, NAMES.origin.name}
_LOOKED_AT = 8
DRAFT_SUFFIX = ".draft"


def check_metadata(source: DirectoryChunks) -> tuple[HubMetadata | None, list[Finding]]:
    """Identity, limits, profile and origin; None where the log cannot be judged under them. Secret keys are left be."""
    report = FsckReport()
    with _at_hand(source) as folders:
        hub_metadata = metadata_check.check_metadata(folders, report)
    found = [finding for finding in report.findings if finding.severity is not Severity.KEYLESS]
    if hub_metadata is not None and _is_another_profile(source, hub_metadata):
        found.append(Finding(Severity.DAMAGED, NAMES.profile.name, "no message in the log is of this profile"))
    damaged = {finding.artifact for finding in found if finding.severity is Severity.DAMAGED}
    if hub_metadata is None or damaged & _FOUNDATIONS:
        hub_metadata = None
        what = "it was not checked: the papers it is verified under are damaged"
        found.append(Finding(Severity.DAMAGED, "log", what))
    return hub_metadata, found


def _is_another_profile(source: DirectoryChunks, hub_metadata: HubMetadata) -> bool:
    """Whether the first messages there are say so, all of them: one that does not may be damaged itself."""
    seen = set()
    try:
        for chunk in source.chunks()[:_LOOKED_AT]:
            entry, _ = frame.read(source.first_frame(chunk))
            seen.add(Msg.decode(entry.msg).profile_id)
    except VeenError:
        return False
    return len(seen) == 1 and hub_metadata.profile.profile_id() not in seen


@contextmanager
def _at_hand(source: DirectoryChunks) -> Iterator[Folders]:
    """The papers as files of this machine."""
    if isinstance(source.files, LocalFiles):
        yield Folders(source.files.root)
        return
    with tempfile.TemporaryDirectory(prefix="veen-papers-") as here:
        for path in _METADATA_FILES:
            try:
                (Path(here) / path.name).write_bytes(source.files.read(path.name))
            except Unavailable:
                continue  # that it is missing is for the check to say
        yield Folders(Path(here))


def check_attachments(source: DirectoryChunks, hub_metadata: HubMetadata | None) -> list[Finding]:
    """What is kept under the hash of its content, where that is on this machine."""
    report = FsckReport()
    if isinstance(source.files, LocalFiles):
        metadata_check.check_named_by_hash(Folders(source.files.root), hub_metadata, report)
    return report.findings


def check_names(
    names: Iterable[str], chunks: Sequence[Chunk], gone: Sequence[Chunk], journal_from: dict[bytes, int]
) -> Iterator[Finding]:
    """Nothing stands in the log folder that no chunk explains, nor what the journal will write again."""
    expected = {chunk.name for chunk in chunks}
    for chunk in (*(one for one in chunks if one.closed), *gone):
        expected.update((*chunk_verifier.names_beside(chunk), NAMES.checkpoint_index(chunk.label).name))
    starts = {(chunk.label, chunk.start_seq): chunk for chunk in chunks}
    for name in sorted(set(names) - expected):
        told, of = ChunkName.parse(name), _ARTIFACT.fullmatch(name)
        label = bytes.fromhex(of[1]) if of else None
        twin = starts.get((told.label, told.start_seq)) if told else None
        if name.endswith(DRAFT_SUFFIX):
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it was never finished")
        elif told and twin and told.end_seq == twin.end_seq and twin.closed:
            yield Finding(
                Severity.REPAIRABLE, f"log/{name}", "the chunk is there twice, compressed and as it is", label
            )
        elif told and told.end_seq is None and twin is None:
            yield Finding(Severity.LEFTOVER, f"log/{name}", "it holds no whole entry", label)
        elif label and label in journal_from and _ends_at(name) >= journal_from[label] - 1:
            what = "an interrupted write left it, and the journal has what it is of"
            yield Finding(Severity.LEFTOVER, f"log/{name}", what, label)
        elif label:
            yield Finding(Severity.DAMAGED, f"log/{name}", "nothing in the log explains it", label)
        else:
            yield Finding(Severity.DAMAGED, f"log/{name}", "nothing in a log has such a name")


def _ends_at(name: str) -> int:
    """The last number in a name; a checkpoint index has none, and is of the newest."""
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else U64_MAX


def check_ends(names: dict[str, int], chunks: Sequence[Chunk], journal_from: dict[bytes, int]) -> Iterator[Finding]:
    """An open chunk ends with a whole entry, unless the journal has the one that is cut off."""
    for chunk in chunks:
        if not chunk.closed and names[chunk.name] > chunk.size:
            severity = Severity.LEFTOVER if chunk.label in journal_from else Severity.DAMAGED
            what = f"it ends within an entry, at byte {chunk.size}"
            yield Finding(severity, f"log/{chunk.name}", what, chunk.label, chunk.end_seq + 1)


def check_checkpoint_index(source: DirectoryChunks, label: Sequence[ChainLink], *, live: bool) -> Iterator[Finding]:
    """It has the row of every closed chunk, and no other, unless a hub is about to close one."""
    rows = chain.indexed(label)
    if not rows or not all(link.outcome.sound for link in label):
        return
    of = label[0].piece.chunk.label
    name = NAMES.checkpoint_index(of).name
    try:
        found = CheckpointIndex.decode(source.artifact(name))
        said = list(found.checkpoints[: len(rows)] if live else found.checkpoints)
        if found.label != of or said != rows:
            raise Unverified("checkpoint index", "it is not that of the log's checkpoints")
    except Malformed as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", error.reason, of)
    except Unverified as error:
        yield Finding(Severity.DAMAGED, f"log/{name}", str(error), of)


def check_binding(source: DirectoryChunks, hub_metadata: HubMetadata, links: Iterable[ChainLink]) -> Iterator[Finding]:
    """Which key signed which checkpoint, as the checkpoints themselves say it."""
    ends = [link for link in links if link.piece.chunk.closed and link.piece.last == link.piece.chunk.end_seq]
    rows = {link.outcome.bound.place: link.outcome.bound for link in ends if link.outcome.bound}
    damaged = {(link.outcome.label, link.piece.last) for link in ends if not link.outcome.bound}
    name = NAMES.binding.name
    try:
        found = CheckpointBinding.decode(source.files.read(name))
        said = {row.place: row for row in found.checkpoints if row.place not in damaged}
        if found.hub_id != hub_metadata.identity.hub_id or said != rows:
            raise Unverified("checkpoint binding", "it does not say what the log's checkpoints say")
    except VeenError as error:
        yield Finding(Severity.REPAIRABLE, name, str(error))


def check_sizes(source: DirectoryChunks, sizes: dict[bytes, int]) -> Iterator[Finding]:
    """What the tree nodes have seen must be somewhere: if not, it is lost, whatever else is sound."""
    for label, seen in tree_sizes(source).items():
        if seen > sizes.get(label, 0):
            what = f"the tree has seen {seen} entries, and log and journal end with {sizes.get(label, 0)}"
            yield Finding(Severity.DAMAGED, f"log/chunk-{label.hex()}-*", what, label, sizes.get(label, 0) + 1)
