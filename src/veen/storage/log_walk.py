"""Read the log from its files alone, without an index: find the chunks, and read their entries in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from veen.core import Malformed, Unavailable, naming
from veen.storage import frame
from veen.storage.chunk_blocks import read_blocks
from veen.storage.frame import LogEntry
from veen.storage.metadata import HubMetadata
from veen.storage.paths import ChunkName, Folders


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A chunk file."""

    start_seq: int
    end_seq: int | None  # None while it is open
    path: Path


def chunk_files(folders: Folders, label: bytes | None = None) -> dict[bytes, list[ChunkFile]]:
    """The chunks of every label, or of one, in order. If two start at the same entry, a closed or compressed chunk is
    preferred: it is complete."""
    if not folders.log.is_dir():
        raise Unavailable("the data directory has no log folder")
    found: dict[bytes, dict[int, ChunkFile]] = {}
    for path in folders.log.iterdir():
        name = ChunkName.parse(path.name)
        if name is None or label not in (None, name.label):
            continue
        chunks = found.setdefault(name.label, {})
        known = chunks.get(name.start_seq)
        if known is None or known.end_seq is None or (name.packed and name.end_seq == known.end_seq):
            chunks[name.start_seq] = ChunkFile(name.start_seq, name.end_seq, path)
    return {label: [chunks[start] for start in sorted(chunks)] for label, chunks in sorted(found.items())}


def read_log(chunks: Iterable[ChunkFile], upto: int | None) -> Iterator[tuple[LogEntry, bytes]]:
    """The entries of a label and their frames, up to `upto`. Raises `Malformed` if they are not consecutive."""
    seq = 1
    for chunk in chunks:
        if upto is not None and chunk.start_seq > upto:
            break
        if chunk.start_seq != seq:
            raise Malformed("log", f"{chunk.path.name} found where a chunk from entry {seq} is expected")
        for data, pos in read_blocks(chunk.path):
            while pos < len(data):
                if upto is not None and seq > upto:
                    return
                entry, end = frame.read(data, pos)
                if entry.stream_seq != seq:
                    raise Malformed(
                        "log", f"{chunk.path.name} has entry {entry.stream_seq} at the place of entry {seq}"
                    )
                yield entry, data[pos:end]
                seq, pos = seq + 1, end
        if chunk.end_seq is not None and seq != chunk.end_seq + 1:
            raise Malformed("log", f"{chunk.path.name} ends with entry {seq - 1}")
    if upto is not None and seq <= upto:
        raise Malformed("log", f"it ends with entry {seq - 1}, but must reach entry {upto}")


def last_entry(path: Path, offset: int = 0, size: int = 0) -> LogEntry:
    """The last entry of a chunk. `offset` is the offset of any entry before it; `size` is as for `read_blocks`."""
    last: LogEntry | None = None
    for data, pos in read_blocks(path, offset, size):
        at: int | None = None
        while pos < len(data):
            at, pos = pos, pos + frame.length_at(data, pos)
        last = last if at is None else frame.read(data, at)[0]
    if last is None:
        raise Malformed("log", f"{path.name} has no entry")
    return last


def size_of(chunks: list[ChunkFile]) -> int:
    """The number of entries in a label's chunks, by the lengths in their headers."""
    last = chunks[-1]
    if last.end_seq is not None:
        return last.end_seq
    size = last.start_seq - 1
    for data, pos in read_blocks(last.path):
        while pos < len(data):
            if data[pos] != frame.ENTRY_VERSION:  # fail fast on a file of zeros
                raise Malformed("log", f"{last.path.name} has no entry at byte {pos}")
            pos += frame.length_at(data, pos)
            size += 1
    return size


def control_first(hub_metadata: HubMetadata, files: dict[bytes, list[ChunkFile]]) -> list[bytes]:
    """The labels of the control stream by age, then the others: control entries register what others depend on.

    With epochs the other labels are ordered by age, too, so that the labels of one epoch are adjacent.
    """
    control = control_labels(hub_metadata, files)
    known = set(control)
    others = [label for label in files if label not in known]
    if hub_metadata.profile.epoch_sec:
        others.sort(key=lambda label: _first_hub_ts(files[label]) or 0)
    return control + others


def control_labels(hub_metadata: HubMetadata, files: dict[bytes, list[ChunkFile]]) -> list[bytes]:
    """The labels of the control stream, oldest first."""
    routing, stream = hub_metadata.identity.routing_key, naming.control_stream(hub_metadata.identity.hub_id)
    if not hub_metadata.profile.epoch_sec:
        return [*({naming.label(routing, stream, 0)} & files.keys())]
    control = []
    for label, chunks in files.items():
        hub_ts = _first_hub_ts(chunks)
        if hub_ts is not None and naming.label(routing, stream, hub_metadata.profile.epoch(hub_ts)) == label:
            control.append((hub_ts, label))
    return [label for _, label in sorted(control)]


def _first_hub_ts(chunks: list[ChunkFile]) -> int | None:
    """The hub_ts of a label's first entry; None if it is unreadable, which other checks report."""
    try:
        data, _ = next(read_blocks(chunks[0].path))
        entry, _ = frame.read(data)
        return entry.open()[1].hub_ts
    except Malformed:
        return None
