"""The checkpoint index of a label: read if it is complete, derived from the log files otherwise. Spec §4.8.3.

Every closed chunk has one row and the rows are contiguous, so a missing row is detected. Each row is redundant: the
range is also in the chunk's file name, and the root is also in the checkpoint, in the chunk summary, and in the receipt
of the chunk's last entry.
"""

import re
from contextlib import suppress

from veen.core import Checkpoint, Malformed
from veen.core.cbor.heads import write_bstr
from veen.storage import artifacts, log_walk, safe_open
from veen.storage.artifacts import CheckpointIndex, ChunkSummary, IndexedCheckpoint
from veen.storage.log_walk import ChunkFile
from veen.storage.paths import Folders

# upto_seq, chunk_end and peaks_ref are equal.
_ROW = re.compile(
    rb"(\xa5\x01(%b)\x02%b\x03(%b)\x04\2\x05\2)" % (artifacts.FROM_1, artifacts.HASH, artifacts.FROM_1), re.DOTALL
)


def with_row(folders: Folders, label: bytes, added: IndexedCheckpoint) -> bytes:
    """The index file with one row added. Incomplete earlier rows are derived from the log files."""
    head = b"\xa3\x01\x01\x02" + write_bstr(label) + b"\x03"
    rows = _encoded_before(folders, head, label, added.chunk_start)
    if rows is None:
        rows = [row.encode() for row in rows_before(folders, label, added.chunk_start)]
    return artifacts.joined(head, [*rows, added.encode()])


def _encoded_before(folders: Folders, head: bytes, label: bytes, start_seq: int) -> list[bytes] | None:
    """The encoded rows of a complete index file; None if the file is damaged or lacks rows."""
    try:
        found = artifacts.split(safe_open.read(folders.checkpoint_index(label)), head, _ROW)
    except (OSError, Malformed):
        return None
    rows, expected = [], 1
    for row, end, start in found or ():
        if expected == start_seq or artifacts.uint(start) != expected:
            break
        rows.append(row)
        expected = artifacts.uint(end) + 1
    return rows if expected == start_seq else None


def rows_before(folders: Folders, label: bytes, start_seq: int) -> tuple[IndexedCheckpoint, ...]:
    """The rows of all chunks before `start_seq`. Raises if the files they are derived from are damaged, too."""
    try:
        found = CheckpointIndex.decode(safe_open.read(folders.checkpoint_index(label)))
        rows = tuple(row for row in found.checkpoints if row.upto_seq < start_seq)
        if found.label == label and _is_whole(rows, start_seq):
            return rows
    except (OSError, Malformed):
        pass
    if start_seq == 1:
        return ()
    return derived(folders, label, start_seq)


def derived(folders: Folders, label: bytes, start_seq: int) -> tuple[IndexedCheckpoint, ...]:
    """The same rows, derived from chunk names, checkpoints and summaries."""
    rows = []
    for chunk in log_walk.chunk_files(folders, label).get(label, []):
        if chunk.end_seq is not None and chunk.end_seq < start_seq:
            root = _root_after(folders, label, chunk, chunk.end_seq)
            rows.append(IndexedCheckpoint(chunk.end_seq, root, chunk.start_seq, chunk.end_seq, chunk.end_seq))
    return tuple(rows)


def _is_whole(rows: tuple[IndexedCheckpoint, ...], start_seq: int) -> bool:
    """Whether the rows cover 1 to `start_seq - 1` without gaps, and each row is consistent with its chunk."""
    starts = [1, *(row.chunk_end + 1 for row in rows)]
    return starts == [*(row.chunk_start for row in rows), start_seq] and all(
        row.upto_seq == row.chunk_end == row.peaks_ref for row in rows
    )


def _root_after(folders: Folders, label: bytes, chunk: ChunkFile, end_seq: int) -> bytes:
    """Use the root that checkpoint and summary agree on. If they differ, read the last receipt of the chunk."""
    with suppress(OSError, Malformed):
        signed = Checkpoint.decode(safe_open.read(folders.checkpoint(label, end_seq)))
        summary = ChunkSummary.decode(safe_open.read(folders.summary(label, chunk.start_seq, end_seq)))
        if (signed.label_curr, signed.upto_seq, signed.mmr_root) == (label, end_seq, summary.mmr_root_end):
            return signed.mmr_root
    return log_walk.last_entry(chunk.path).open()[1].mmr_root
