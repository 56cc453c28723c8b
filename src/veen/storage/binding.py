"""The checkpoint binding: which key of the hub signed which checkpoint, over which root. Spec §8.4.

It follows from the checkpoints and the identity, so it can be made again at any time, and comes out the same. It is
written whole, after the checkpoints it names and before the index row of their chunks: a crash in between leaves it
without their rows, and the chunks are then closed again from the journal, as `chunks` tells. It grows with the log, so
none of it is kept in memory, and a start does not read it.
"""

import re
from bisect import bisect_left
from itertools import pairwise

from veen.core import Checkpoint, Malformed, Unverified, signing
from veen.core.cbor.heads import write_bstr
from veen.storage import openings, rowfile
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.directory import Papers
from veen.storage.durable import Disk
from veen.storage.folders import Folders

_ROW = re.compile(
    rb"(\xa5(\x01%b\x02%b)\x03%b\x04%b\x05%b)"
    % (rowfile.HASH, rowfile.FROM_1, rowfile.UINT, rowfile.HASH, rowfile.HASH),
    re.DOTALL,
)
_CHECKPOINT = re.compile(r"checkpoint-([0-9a-f]{64})-(\d{20})\.cbor")


class Binding:
    """The binding of one data directory, kept up to date. One writer."""

    def __init__(self, disk: Disk, folders: Folders, papers: Papers) -> None:
        self._disk = disk
        self._folders = folders
        self._papers = papers
        self._added: dict[bytes, bytes] = {}  # rows by their place, both encoded
        self._is_there = _starts_with(folders, _head(papers.identity.hub_id))

    def add(self, checkpoint: Checkpoint) -> None:
        """Take note of a regular checkpoint."""
        row = bound(checkpoint, self._papers).encode()
        found = _ROW.fullmatch(row)
        assert found, "the pattern is that of a row"
        self._added[found[2]] = row

    def save(self) -> None:
        """Make it durable, if anything in it is new, or if what is there is nothing that can be read."""
        if self._is_there and not self._added:
            return
        head = _head(self._papers.identity.hub_id)
        data, rows = _read(self._folders, head)
        if rows is None:
            known = derived(self._folders, self._papers).checkpoints
            data, rows = b"", [row.encode() for row in known]
        # Whole rows compare as their places do: an integer in its shortest form is the greater, the greater it is.
        for place, row in self._added.items():
            at = bisect_left(rows, place, key=lambda known: known[1 : 1 + len(place)])
            same = at < len(rows) and rows[at].startswith(place, 1)
            rows[at : at + same] = [row]
        made = rowfile.joined(head, rows)
        if made != data:
            self._disk.write_file(self._folders.binding, made)
            self._disk.sync_folder(self._folders.root)
        self._added.clear()
        self._is_there = True


def _head(hub_id: bytes) -> bytes:
    return b"\xa3\x01\x01\x02" + write_bstr(hub_id) + b"\x03"


def _starts_with(folders: Folders, head: bytes) -> bool:
    try:
        with open(openings.open_file(folders.binding), "rb", buffering=0) as file:
            return file.read(len(head)) == head
    except (FileNotFoundError, Malformed):
        return False


def _read(folders: Folders, head: bytes) -> tuple[bytes, list[bytes] | None]:
    """The file and its rows, encoded; None where they are not those of a binding of this hub."""
    try:
        data = openings.read(folders.binding)
    except (FileNotFoundError, Malformed):
        return b"", None
    found = rowfile.split(data, head, _ROW)
    if found is None or not all(a < b for (_, a), (_, b) in pairwise(found)):
        return data, None
    return data, [row for row, _ in found]


def newest(data: bytes, hub_id: bytes) -> dict[bytes, int]:
    """The last bound entry of each label. Raises `Malformed` where the bytes are not a binding of this hub."""
    found = rowfile.split(data, _head(hub_id), _ROW)
    if found is None or not all(a < b for (_, a), (_, b) in pairwise(found)):
        raise Malformed("checkpoint binding", "it is not one of this hub")
    return {place[3:35]: rowfile.uint(place[36:]) for _, place in found}


def read(folders: Folders) -> CheckpointBinding | None:
    """What is there, if it can be read."""
    try:
        return CheckpointBinding.decode(openings.read(folders.binding))
    except (Malformed, FileNotFoundError):
        return None


def write(disk: Disk, folders: Folders, binding: CheckpointBinding) -> None:
    disk.write_file(folders.binding, binding.encode())
    disk.sync_folder(folders.root)


def bound(checkpoint: Checkpoint, papers: Papers) -> BoundCheckpoint:
    """A checkpoint's row. Raises `Unverified` where no key of the hub signed it.

    Whether the key was to sign it then is for whoever checks the checkpoint itself.
    """
    label, upto_seq, digest = checkpoint.label_curr, checkpoint.upto_seq, checkpoint.signing_digest()
    for key in reversed(papers.identity_at(label, upto_seq).hub_keys):
        if signing.is_valid(key.hub_pk, digest, checkpoint.hub_sig):
            return BoundCheckpoint(label, upto_seq, checkpoint.epoch, checkpoint.mmr_root, key.key_id)
    raise Unverified("checkpoint", "no key of the hub signed it")


def derived(folders: Folders, papers: Papers) -> CheckpointBinding:
    """The binding of the checkpoints that are there. One that does not hold has no row; that is for others to name."""
    rows = []
    for path in folders.log.iterdir():
        if not _CHECKPOINT.fullmatch(path.name):
            continue
        try:
            rows.append(bound(Checkpoint.decode(openings.read(path)), papers))
        except (Malformed, Unverified):
            continue
    return CheckpointBinding(papers.identity.hub_id, tuple(sorted(rows, key=lambda row: row.place)))
