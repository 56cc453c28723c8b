"""How far each label of a data directory reaches, by its chunks and by everything else in the directory that says so.

Chunks prove what they hold. Other files prove that entries were written: names in the log folder, the checkpoint
binding, checkpoint indexes, tree nodes, the journal and a fork's origin. An entry that is proven to have been written
is missing if no chunk holds it. A copy without those files proves less: its chunks must still follow on each other.

A hub writes an entry to the chunk before any other file of log or index speaks of it. So the proofs are read before the
chunks are measured: a hub that writes meanwhile only makes the chunks longer.
"""

import re
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from veen.core import Malformed, Unavailable, Unverified, mmr
from veen.core.hashing import HASH_BYTES
from veen.pipeline.sources import Chunk, DirectoryChunks, HubChunks
from veen.pipeline.sources.files import LocalFiles
from veen.storage import checkpoint_keys, journal
from veen.storage.artifacts import CheckpointIndex
from veen.storage.entry_check import EntryCheck, Failure
from veen.storage.frame import LogEntry
from veen.storage.lock import is_held
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders

_NAMES = Folders(Path())
_NODES = "index/nodes"
_NODE_FILE = re.compile(r"([0-9a-f]{64})\.mmr")
_SUMMARY = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20})\.summary")
_UPTO = re.compile(r"(?:chunk-([0-9a-f]{64})-\d{20}|(?:peaks|checkpoint)-([0-9a-f]{64}))-(\d{20})\.[a-z.]+")
_INDEX = re.compile(r"checkpoint-index-([0-9a-f]{64})\.cbor")


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries of a label that are not where the directory says they are."""

    label: bytes
    first: int
    last: int
    failure: Failure
    name: str = ""  # of the chunk file that is missing or misplaced, where it is known

    def refusal(self, url: str) -> Unverified:
        """What a read that must be complete ends with."""
        where = f"/log/{self.name}" if self.name else f", label {self.label.hex()}"
        error = Unverified(f"{url}{where}, entry {self.first}", str(self.failure))
        error.add_note("veen audit DIR names all that is wrong; a read with verify=entry has a row for each such place")
        return error


@dataclass(frozen=True, slots=True)
class Extent:
    """A directory's chunks, and what is missing between and behind them."""

    chunks: list[Chunk]
    gaps: list[Gap]
    labels: frozenset[bytes]  # all that the directory names, with or without entries


@dataclass(frozen=True, slots=True)
class _Proof:
    """A file that shows that a label has an entry."""

    upto: int
    where: str


Proofs = dict[bytes, _Proof]


def extent_of(
    source: DirectoryChunks | HubChunks,
    hub_metadata: HubMetadata,
    labels: frozenset[bytes] | None,
    *,
    check: bool = True,
) -> Extent:
    """What there is of these labels, or of all. Without `check`, nothing is said to be missing."""
    if isinstance(source, HubChunks):
        chunks = source.chunks(labels)
        return Extent(chunks, [], frozenset(chunk.label for chunk in chunks))
    if not check:
        names, chunks = source.measured(labels)
        return Extent(chunks, [], frozenset(_proven_by_names(names)))
    logged = _journal_entries(source)
    bound = _bound(source, hub_metadata)
    proofs = _proofs(source, hub_metadata, bound, logged)
    names, chunks = source.measured(labels)
    _add(proofs, _proven_by_names(names))
    for label, name in _indexes(names).items():
        if label not in bound and (labels is None or label in labels):
            _add(proofs, {label: _Proof(_indexed(source, name), f"log/{name}")})
    wanted = proofs if labels is None else {label: proof for label, proof in proofs.items() if label in labels}
    gaps = list(_gaps(names, chunks, wanted, logged))
    while gaps:
        # A chunk may have grown since, and one that is renamed while the folder is listed may be seen under no name.
        before = names
        names, chunks = source.measured(labels)
        gaps = list(_gaps(names, chunks, wanted, logged))
        if names.keys() == before.keys():
            break
    if gaps and is_live(source):
        # Behind the start of its open chunk a hub may be writing again what a crash cut off.
        opened = {name.label: name.start_seq for name in map(ChunkName.parse, names) if name and name.end_seq is None}
        gaps = [gap for gap in gaps if gap.label not in opened or gap.first < opened[gap.label]]
    return Extent(chunks, gaps, frozenset(proofs))


def is_live(source: DirectoryChunks) -> bool:
    """Whether a hub runs on the directory, so that what is being written there is not damage."""
    return isinstance(source.files, LocalFiles) and is_held(Folders(source.files.root).lock)


def missing_chunks(names: Iterable[str], chunks: Iterable[Chunk]) -> list[Chunk]:
    """Chunks that are gone, by the summaries they left. Where there are entries, none are gone."""
    there: dict[bytes, list[Chunk]] = defaultdict(list)
    for chunk in sorted(chunks):
        there[chunk.label].append(chunk)
    found = []
    for name in names:
        told = _SUMMARY.fullmatch(name)
        if told:
            label, start, end = bytes.fromhex(told[1]), int(told[2]), int(told[3])
            after = bisect_right(there[label], end, key=lambda chunk: chunk.start_seq)
            if after == 0 or there[label][after - 1].end_seq < start:
                found.append(Chunk(label, start, end, ChunkName(label, start, end).file_name(), 0))
    return sorted(found)


def tree_sizes(source: DirectoryChunks) -> dict[bytes, int]:
    """How many entries the tree nodes of each label were made of; nothing for a copy without its index."""
    try:
        listed = source.files.listed(_NODES)
    except Unavailable:
        return {}
    named = ((_NODE_FILE.fullmatch(name), size) for name, size in sorted(listed.items()))
    return {bytes.fromhex(name[1]): _leaves(size // HASH_BYTES) for name, size in named if name}


def journal_groups(folder: Path) -> Iterator[tuple[int, list[LogEntry]] | journal.Torn]:
    """Every group that a journal has, also those that are in the log."""
    segments = journal.segments(folder) if folder.is_dir() else []
    if segments:
        yield from journal.read(folder, segments[0][0] - 1)


def _leaves(nodes: int) -> int:
    """How many leaves a tree of that many nodes has: between a half and all of them."""
    low, high = 0, nodes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if mmr.node_count(middle) <= nodes else (low, middle - 1)
    return low


def _journal_entries(source: DirectoryChunks) -> dict[bytes, tuple[int, int]]:
    """The first and the last entry of each label that the journal of a stopped hub has.

    A hub that was stopped in order leaves none. While a hub runs, its journal cannot be read by others.
    """
    found: dict[bytes, tuple[int, int]] = {}
    try:
        with _journal_folder(source) as folder:
            if not journal.segments(folder) or is_live(source):
                return {}
            for group in journal_groups(folder):
                for entry in group[1] if isinstance(group, tuple) else ():
                    first, _ = found.get(entry.label, (entry.stream_seq, 0))
                    found[entry.label] = first, entry.stream_seq
    except (Malformed, Unavailable, OSError):
        return {}  # it proves nothing, and excuses nothing
    return found


@contextmanager
def _journal_folder(source: DirectoryChunks) -> Iterator[Path]:
    """The journal as files of this machine."""
    if isinstance(source.files, LocalFiles):
        yield Folders(source.files.root).journal
        return
    with tempfile.TemporaryDirectory(prefix="veen-journal-") as here:
        for name in source.files.listed("journal"):
            (Path(here) / name).write_bytes(source.files.read(f"journal/{name}"))
        yield Path(here)


def _proofs(
    source: DirectoryChunks,
    hub_metadata: HubMetadata,
    bound: Mapping[bytes, int],
    logged: Mapping[bytes, tuple[int, int]],
) -> Proofs:
    """What shows most of each label, outside the log folder."""
    found: Proofs = {}
    _add(found, {label: _Proof(upto, _NAMES.binding.name) for label, upto in bound.items()})
    lineage = hub_metadata.lineage
    _add(found, {label: _Proof(lineage.upto(label), _NAMES.origin.name) for label in lineage.labels()})
    sizes = tree_sizes(source)
    _add(found, {label: _Proof(size, f"{_NODES}/{label.hex()}.mmr") for label, size in sizes.items()})
    _add(found, {label: _Proof(first - 1, "journal") for label, (first, _) in logged.items()})
    return found


def _proven_by_names(names: Iterable[str]) -> Proofs:
    """What the names in the log folder show: each says of which label it is, and most up to which entry."""
    found: Proofs = {}
    for name in names:
        if (told := _UPTO.fullmatch(name)) is not None:
            _add(found, {bytes.fromhex(told[1] or told[2]): _Proof(int(told[3]), f"log/{name}")})
        elif (opened := ChunkName.parse(name)) is not None:
            _add(found, {opened.label: _Proof(opened.start_seq - 1, f"log/{name}")})
    return found


def _add(proofs: Proofs, more: Proofs) -> None:
    """Keep the one of each label that shows most."""
    for label, proof in more.items():
        if label not in proofs or proof.upto > proofs[label].upto:
            proofs[label] = proof


def _indexes(names: Iterable[str]) -> dict[bytes, str]:
    """The checkpoint index of each label."""
    found = ((_INDEX.fullmatch(name), name) for name in names)
    return {bytes.fromhex(index[1]): name for index, name in found if index}


def _bound(source: DirectoryChunks, hub_metadata: HubMetadata) -> dict[bytes, int]:
    """The newest checkpoint of each label, as the binding has it; nothing where it cannot be read."""
    try:
        return checkpoint_keys.newest(source.files.read(_NAMES.binding.name), hub_metadata.identity.hub_id)
    except (Malformed, Unavailable):
        return {}


def _indexed(source: DirectoryChunks, name: str) -> int:
    """The newest checkpoint in a label's index. There is an index only where there is an entry."""
    try:
        return CheckpointIndex.decode(source.artifact(name)).checkpoints[-1].upto_seq
    except Malformed:
        return 1


def _gaps(
    names: Mapping[str, int], chunks: Sequence[Chunk], proofs: Proofs, logged: Mapping[bytes, tuple[int, int]]
) -> Iterator[Gap]:
    """What is not between and behind the chunks, by label and entry."""
    of_label = {label: list(found) for label, found in groupby(chunks, key=lambda chunk: chunk.label)}
    gone = {(chunk.label, chunk.start_seq): chunk.name for chunk in missing_chunks(names, chunks)}
    for label in sorted(of_label.keys() | proofs.keys()):
        expected, end = 1, ""
        for chunk in of_label.get(label, ()):
            if chunk.start_seq > expected:
                what = f"{_are_missing(expected, chunk.start_seq - 1)} before log/{chunk.name}"
                yield _missing(label, expected, chunk.start_seq - 1, what, gone)
            elif chunk.start_seq < expected:
                what = f"it holds entries that the chunk before it has, which ends with entry {expected - 1}"
                last = min(chunk.end_seq, expected - 1)
                yield Gap(label, chunk.start_seq, last, Failure(EntryCheck.PLACE, what), chunk.name)
            expected = max(expected, chunk.end_seq + 1)
            if not chunk.closed and names[chunk.name] > chunk.size:
                end = f"log/{chunk.name} ends within the entry, at byte {chunk.size}"
        first, last = logged.get(label, (0, 0))
        if first and first <= expected:
            expected, end = max(expected, last + 1), ""  # the journal has it
        proof = proofs.get(label)
        if proof is not None and proof.upto >= expected:
            what = f"{_are_missing(expected, proof.upto)} at the end of the label, which {proof.where} proves"
            yield _missing(label, expected, proof.upto, what, gone)
        elif end:
            yield Gap(label, expected, expected, Failure(EntryCheck.MISSING, end))


def _missing(label: bytes, first: int, last: int, what: str, gone: Mapping[tuple[bytes, int], str]) -> Gap:
    return Gap(label, first, last, Failure(EntryCheck.MISSING, what), gone.get((label, first), ""))


def _are_missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
