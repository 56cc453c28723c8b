"""The log read from its files alone, without an index: which chunks there are, and what is in them, in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Malformed, Unavailable, naming
from veen.storage import frame
from veen.storage.directory import Papers
from veen.storage.folders import ChunkName, Folders
from veen.storage.frame import Entry
from veen.storage.reader import mapped


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A chunk file under its name."""

    start_seq: int
    end_seq: int | None  # None while it is open
    path: Path


def chunk_files(folders: Folders) -> dict[bytes, list[ChunkFile]]:
    """Every label's chunks by start; where a crash left two of one start, the closed one, which is whole."""
    if not folders.log.is_dir():
        raise Unavailable("the data directory has no log folder")
    found: dict[bytes, dict[int, ChunkFile]] = {}
    for path in folders.log.iterdir():
        name = ChunkName.parse(path.name)
        if name is None:
            continue
        chunks = found.setdefault(name.label, {})
        known = chunks.get(name.start_seq)
        if known is None or known.end_seq is None:
            chunks[name.start_seq] = ChunkFile(name.start_seq, name.end_seq, path)
    return {label: [chunks[start] for start in sorted(chunks)] for label, chunks in sorted(found.items())}


def read_log(chunks: Iterable[ChunkFile], upto: int | None) -> Iterator[tuple[Entry, bytes]]:
    """The entries of a label and their frames, as far as `upto`. Raises `Malformed` where they do not follow."""
    seq = 1
    for chunk in chunks:
        if upto is not None and chunk.start_seq > upto:
            break
        if chunk.start_seq != seq:
            raise Malformed("log", f"{chunk.path.name} stands where a chunk from {seq} belongs")
        data, pos = mapped(chunk.path), 0
        while pos < len(data) and (upto is None or seq <= upto):
            entry, end = frame.read(data, pos)
            if entry.stream_seq != seq:
                raise Malformed("log", f"entry {entry.stream_seq} stands where {seq} belongs, in {chunk.path.name}")
            yield entry, data[pos:end]
            seq, pos = seq + 1, end
        if chunk.end_seq is not None and pos == len(data) and seq != chunk.end_seq + 1:
            raise Malformed("log", f"{chunk.path.name} ends with entry {seq - 1}")
    if upto is not None and seq <= upto:
        raise Malformed("log", f"it ends with entry {seq - 1}, and the journal goes on after {upto}")


def control_first(papers: Papers, files: dict[bytes, list[ChunkFile]]) -> list[bytes]:
    """The labels of the control stream by age, then the others: what the hub was told explains what it took."""
    routing, stream = naming.routing_key(papers.identity.hub_id), naming.control_stream(papers.identity.hub_id)
    if not papers.profile.epoch_sec:
        label = naming.label(routing, stream, 0)
        return [*({label} & files.keys()), *(other for other in files if other != label)]
    control = []
    for label, chunks in files.items():
        hub_ts = _first_hub_ts(chunks)
        if hub_ts is not None and naming.label(routing, stream, papers.profile.epoch(hub_ts)) == label:
            control.append((hub_ts, label))
    known = {label for _, label in control}
    return [label for _, label in sorted(control)] + [label for label in files if label not in known]


def _first_hub_ts(chunks: list[ChunkFile]) -> int | None:
    """When a label began; None where its first entry cannot be read, which others will notice."""
    try:
        entry, _ = frame.read(mapped(chunks[0].path))
        return entry.open()[1].hub_ts
    except Malformed:
        return None
