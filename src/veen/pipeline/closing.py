"""What stands beside a closed chunk: its summary, the peak snapshot and the checkpoint, held against its entries."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Malformed, Mmr, Unverified, mmr
from veen.pipeline.sources import Chunk, DirectorySource
from veen.pipeline.verifying import ChunkVerifier
from veen.storage.artifacts import BoundCheckpoint, ChunkSummary, PeakSnapshot
from veen.storage.directory import Papers
from veen.storage.folders import Folders
from veen.storage.logcheck import check_checkpoint

NAMES = Folders(Path())  # what things are called, wherever the directory is


@dataclass(frozen=True, slots=True)
class Flaw:
    """An artifact that does not say what the chunk says."""

    name: str
    what: str


def names_beside(chunk: Chunk) -> tuple[str, str, str]:
    """Summary, peak snapshot and checkpoint of a closed chunk."""
    label, start, end = chunk.label, chunk.start_seq, chunk.end_seq
    return NAMES.summary(label, start, end).name, NAMES.peaks(label, end).name, NAMES.checkpoint(label, end).name


def check_beside(
    source: DirectorySource, papers: Papers, chunk: Chunk, verifier: ChunkVerifier
) -> tuple[list[Flaw], BoundCheckpoint | None]:
    """What is wrong with them, and the row of the checkpoint in the binding, where it holds."""
    summary, snapshot, checkpoint = names_beside(chunk)
    flaws = [*_packing(source, chunk), *_compare(source, summary, _summaries(chunk, verifier), "the chunk")]
    peaks = PeakSnapshot(chunk.label, chunk.end_seq, tuple(verifier.tree.peaks)).encode()
    flaws += _compare(source, snapshot, {peaks}, "the tree")
    try:
        signed = source.artifact(checkpoint)
        bound = check_checkpoint(signed, papers, chunk.label, chunk.end_seq, mmr.root_of(verifier.tree.peaks))
    except (Malformed, Unverified) as error:
        return [*flaws, Flaw(checkpoint, str(error))], None
    return flaws, bound


def _packing(source: DirectorySource, chunk: Chunk) -> Iterator[Flaw]:
    """A compressed chunk is, byte for byte, what was written; unpacking alone does not notice every flipped bit."""
    try:
        source.check_packing(chunk)
    except Malformed as error:
        yield Flaw(chunk.name, str(error))


def _summaries(chunk: Chunk, verifier: ChunkVerifier) -> set[bytes]:
    """What the summary may be: where an entry and its hash disagree, it was made when one of the two was right."""
    root = mmr.root_of(verifier.tree.peaks)

    def made(hashes: Mmr) -> bytes:
        counted = (chunk.entries, verifier.size_bytes, hashes.root())
        return ChunkSummary(chunk.label, chunk.start_seq, chunk.end_seq, root, *counted).encode()

    return {made(verifier.hashes), made(verifier.rehashed)}


def _compare(source: DirectorySource, name: str, expected: set[bytes], of: str) -> Iterator[Flaw]:
    try:
        if source.artifact(name) not in expected:
            yield Flaw(name, f"it does not say what {of} says")
    except Malformed as error:
        yield Flaw(name, error.reason)
