"""How far each label of a data directory reaches, by its chunks and by every other file that proves entries.

Chunks prove what they hold. Other files prove that entries were written: names in the log folder, the checkpoint
binding, checkpoint indexes, tree nodes, the journal and a fork's origin. If an entry is proven to have been written and
no chunk holds it, it is missing. A copy without those files proves less, but its chunks must still be consecutive.

A hub writes an entry to the chunk before any other file of log or index refers to it. The proofs are therefore read
before the chunks are measured: a hub that writes meanwhile can only make the chunks longer.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from veen.core import Malformed, Unavailable, Unverified, mmr
from veen.core.hashing import HASH_BYTES
from veen.pipeline.sources import NAMES, Chunk, ChunkSource, DirectoryChunks, HubChunks, LocalFiles, by_label
from veen.storage import checkpoint_files, journal
from veen.storage.artifacts import CheckpointIndex
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.frame import LogEntry
from veen.storage.fsck_report import are_missing
from veen.storage.lock import is_held
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders

_NODES = "index/nodes"
_NODE_FILE = re.compile(r"([0-9a-f]{64})\.mmr")
_SUMMARY = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20})\.summary")
_UPTO = re.compile(r"(?:chunk-([0-9a-f]{64})-\d{20}|(?:peaks|checkpoint)-([0-9a-f]{64}))-(\d{20})\.[a-z.]+")
_INDEX = re.compile(r"checkpoint-index-([0-9a-f]{64})\.cbor")


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries of a label that were written but are not in the chunk where they belong."""

    label: bytes
    first: int
    last: int
    failure: Failure
    name: str = ""  # the missing or misplaced chunk file, if known

    def refusal(self, url: str) -> Unverified:
        """The error that ends a read that must be complete."""
        where = f"/log/{self.name}" if self.name else f", label {self.label.hex()}"
        error = Unverified(f"{url}{where}, entry {self.first}", str(self.failure))
        error.add_note(
            "run veen audit DIR for all damage, or read with verify=entry to get a row for each missing entry"
        )
        return error


@dataclass(frozen=True, slots=True)
class Extent:
    """The chunks of a directory, and the entries missing between and after them."""

    chunks: list[Chunk]
    gaps: list[Gap]
    labels: frozenset[bytes]  # every label that the directory names
    pruned: list[Chunk] = field(default_factory=list)  # left out, because the hub signed that it pruned them

    @property
    def with_pruned(self) -> list[Chunk]:
        return sorted([*self.chunks, *self.pruned])


@dataclass(frozen=True, slots=True)
class _Proof:
    """A file that proves that a label has entries up to `upto`."""

    upto: int
    where: str


Proofs = dict[bytes, _Proof]


def extent_of(
    source: ChunkSource, metadata: HubMetadata, labels: frozenset[bytes] | None, *, check: bool = True
) -> Extent:
    """The extent of these labels, or of all. Without `check`, no gaps are reported."""
    if isinstance(source, HubChunks):
        chunks = source.chunks(labels)
        return Extent(chunks, [], frozenset(chunk.label for chunk in chunks))
    if not check:
        names, chunks = source.measured(labels)
        return _extent(chunks, [], frozenset(_proven_by_names(names)))
    logged = _journal_entries(source)
    bound = _bound(source, metadata)
    proofs = _proofs(source, metadata, bound, logged)
    names, chunks = source.measured(labels)
    _add(proofs, _proven_by_names(names))
    for label, name in _indexes(names).items():
        if label not in bound and (labels is None or label in labels):
            _add(proofs, {label: _Proof(_indexed(source, name), f"log/{name}")})
    wanted = proofs if labels is None else {label: proof for label, proof in proofs.items() if label in labels}
    chunks = explained(source, metadata, chunks)
    gaps = list(_gaps(names, chunks, wanted, logged))
    while gaps:
        # A chunk may have grown since. A chunk renamed during the listing may have been missed under both names.
        before = names
        names, chunks = source.measured(labels)
        chunks = explained(source, metadata, chunks)
        gaps = list(_gaps(names, chunks, wanted, logged))
        if names.keys() == before.keys():
            break
    if gaps and is_live(source):
        # After the start of its open chunk, a running hub may be writing again what a crash cut off.
        opened = {name.label: name.start_seq for name in map(ChunkName.parse, names) if name and name.end_seq is None}
        gaps = [gap for gap in gaps if gap.label not in opened or gap.first < opened[gap.label]]
    return _extent(chunks, gaps, frozenset(proofs))


def _extent(chunks: Sequence[Chunk], gaps: list[Gap], labels: frozenset[bytes]) -> Extent:
    kept = [chunk for chunk in chunks if not chunk.pruned]
    return Extent(kept, gaps, labels, [chunk for chunk in chunks if chunk.pruned])


def explained(source: DirectoryChunks, metadata: HubMetadata, chunks: list[Chunk]) -> list[Chunk]:
    """The chunks without those pruned ones that no manifest of the hub explains: their entries are missing."""
    labels = {chunk.label for chunk in chunks if chunk.pruned}
    pruned: dict[bytes, set[tuple[int, int]]] = {}
    for label in labels:
        try:
            segments = source.pruned_segments(metadata.identity, label)
            pruned[label] = {(one.start_seq, one.end_seq) for one in segments}
        except (Malformed, Unverified):
            pruned[label] = set()
    return [one for one in chunks if not one.pruned or (one.start_seq, one.end_seq) in pruned[one.label]]


def is_live(source: DirectoryChunks) -> bool:
    """Whether a hub runs on the directory. Unfinished writes are then not damage."""
    return isinstance(source.files, LocalFiles) and is_held(Folders(source.files.root).lock)


def missing_chunks(names: Iterable[str], chunks: Iterable[Chunk]) -> list[Chunk]:
    """Chunks that are gone although their summaries remain. A range that has entries is not gone."""
    chunks_of: dict[bytes, list[Chunk]] = defaultdict(list)
    for chunk in sorted(chunks):
        chunks_of[chunk.label].append(chunk)
    found = []
    for name in names:
        found_name = _SUMMARY.fullmatch(name)
        if found_name:
            label, start, end = bytes.fromhex(found_name[1]), int(found_name[2]), int(found_name[3])
            after = bisect_right(chunks_of[label], end, key=lambda chunk: chunk.start_seq)
            if after == 0 or chunks_of[label][after - 1].end_seq < start:
                found.append(Chunk(label, start, end, ChunkName(label, start, end).file_name(), 0))
    return sorted(found)


def tree_sizes(source: DirectoryChunks) -> dict[bytes, int]:
    """The number of entries in the stored tree nodes of each label; empty for a copy without its index."""
    try:
        listed = source.files.listed(_NODES)
    except Unavailable:
        return {}
    named = ((_NODE_FILE.fullmatch(name), size) for name, size in sorted(listed.items()))
    return {bytes.fromhex(name[1]): _leaves(size // HASH_BYTES) for name, size in named if name}


def journal_groups(folder: Path) -> Iterator[tuple[int, list[LogEntry]] | journal.Torn]:
    """Every group in a journal, including those that the log already has."""
    segments = journal.segments(folder) if folder.is_dir() else []
    if segments:
        yield from journal.read(folder, segments[0][0] - 1)


def _leaves(nodes: int) -> int:
    """How many leaves a tree with `nodes` nodes has (binary search between half of them and all)."""
    low, high = 0, nodes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if mmr.node_count(middle) <= nodes else (low, middle - 1)
    return low


def _journal_entries(source: DirectoryChunks) -> dict[bytes, tuple[int, int]]:
    """The first and the last entry of each label in the journal of a stopped hub.

    A cleanly stopped hub leaves none. The journal of a running hub cannot be read by other processes.
    """
    found: dict[bytes, tuple[int, int]] = {}
    try:
        paths = [f"journal/{name}" for name in source.files.listed("journal")]
        with source.local_copy(paths) as folders:
            if not journal.segments(folders.journal) or is_live(source):
                return {}
            for group in journal_groups(folders.journal):
                for entry in group[1] if isinstance(group, tuple) else ():
                    first, _ = found.get(entry.label, (entry.stream_seq, 0))
                    found[entry.label] = first, entry.stream_seq
    except (Malformed, Unavailable, OSError):
        return {}  # an unreadable journal neither proves entries nor explains missing ones
    return found


def _proofs(
    source: DirectoryChunks, metadata: HubMetadata, bound: Mapping[bytes, int], logged: Mapping[bytes, tuple[int, int]]
) -> Proofs:
    """The furthest proof for each label from files outside the log folder."""
    found: Proofs = {}
    _add(found, {label: _Proof(upto, NAMES.binding.name) for label, upto in bound.items()})
    lineage = metadata.lineage
    _add(found, {label: _Proof(lineage.upto(label), NAMES.origin.name) for label in lineage.labels()})
    sizes = tree_sizes(source)
    _add(found, {label: _Proof(size, f"{_NODES}/{label.hex()}.mmr") for label, size in sizes.items()})
    _add(found, {label: _Proof(first - 1, "journal") for label, (first, _) in logged.items()})
    return found


def _proven_by_names(names: Iterable[str]) -> Proofs:
    """Proofs from file names in the log folder: each names a label, and most an entry number."""
    found: Proofs = {}
    for name in names:
        if (found_name := _UPTO.fullmatch(name)) is not None:
            _add(found, {bytes.fromhex(found_name[1] or found_name[2]): _Proof(int(found_name[3]), f"log/{name}")})
        elif (opened := ChunkName.parse(name)) is not None:
            _add(found, {opened.label: _Proof(opened.start_seq - 1, f"log/{name}")})
    return found


def _add(proofs: Proofs, more: Proofs) -> None:
    """Keep the furthest proof for each label."""
    for label, proof in more.items():
        if label not in proofs or proof.upto > proofs[label].upto:
            proofs[label] = proof


def _indexes(names: Iterable[str]) -> dict[bytes, str]:
    found = ((_INDEX.fullmatch(name), name) for name in names)
    return {bytes.fromhex(index[1]): name for index, name in found if index}


def _bound(source: DirectoryChunks, metadata: HubMetadata) -> dict[bytes, int]:
    """The newest checkpoint of each label according to the binding; empty if it cannot be read."""
    try:
        return checkpoint_files.newest_bound(source.files.read(NAMES.binding.name), metadata.identity.hub_id)
    except (Malformed, Unavailable):
        return {}


def _indexed(source: DirectoryChunks, name: str) -> int:
    """The newest checkpoint in a label's index. An index exists only if the label has an entry."""
    try:
        return CheckpointIndex.decode(source.artifact(name)).checkpoints[-1].upto_seq
    except Malformed:
        return 1


def _gaps(
    names: Mapping[str, int], chunks: Sequence[Chunk], proofs: Proofs, logged: Mapping[bytes, tuple[int, int]]
) -> Iterator[Gap]:
    """The gaps between and after the chunks, by label and entry."""
    of_label = by_label(chunks)
    gone = {(chunk.label, chunk.start_seq): chunk.name for chunk in missing_chunks(names, chunks)}
    for label in sorted(of_label.keys() | proofs.keys()):
        expected, end = 1, ""
        for chunk in of_label.get(label, ()):
            if chunk.start_seq > expected:
                what = f"{are_missing(expected, chunk.start_seq - 1)} before log/{chunk.name}"
                yield _missing(label, expected, chunk.start_seq - 1, what, gone)
            elif chunk.start_seq < expected:
                what = f"it repeats entries of the chunk before it, which ends with entry {expected - 1}"
                last = min(chunk.end_seq, expected - 1)
                yield Gap(label, chunk.start_seq, last, Failure(EntryCheck.PLACE, what), chunk.name)
            expected = max(expected, chunk.end_seq + 1)
            if not chunk.closed and names[chunk.name] > chunk.size:
                end = f"log/{chunk.name} ends within the entry, at byte {chunk.size}"
        first, last = logged.get(label, (0, 0))
        if first and first <= expected:
            expected, end = max(expected, last + 1), ""  # the journal has the rest
        proof = proofs.get(label)
        if proof is not None and proof.upto >= expected:
            what = (
                f"{are_missing(expected, proof.upto)} at the end of the label; {proof.where} proves that they existed"
            )
            yield _missing(label, expected, proof.upto, what, gone)
        elif end:
            yield Gap(label, expected, expected, Failure(EntryCheck.MISSING, end))


def _missing(label: bytes, first: int, last: int, what: str, gone: Mapping[tuple[bytes, int], str]) -> Gap:
    return Gap(label, first, last, Failure(EntryCheck.MISSING, what), gone.get((label, first), ""))
