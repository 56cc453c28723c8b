"""The checkpoint binding: which key of the hub signed which checkpoint, over which root. Spec §8.4.

It follows from the checkpoints and the identity, so it can be made again at any time, and comes out the same. It is
written whole, after the checkpoints it names and before the index row of their chunks: a crash in between leaves it
without their rows, and the chunks are then closed again from the journal, as `chunks` tells.
"""

import re
from bisect import bisect_left, insort

from veen.core import Checkpoint, Malformed, Unverified, signing
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.directory import Papers
from veen.storage.durable import Disk
from veen.storage.folders import Folders

_CHECKPOINT = re.compile(r"checkpoint-([0-9a-f]{64})-(\d{20})\.cbor")


class Binding:
    """The binding of one data directory, kept up to date. One writer."""

    def __init__(self, disk: Disk, folders: Folders, papers: Papers) -> None:
        """What is there, or, where that is nothing that can be read, what follows from the checkpoints."""
        self._disk = disk
        self._folders = folders
        self._papers = papers
        self._changed = False
        known = read(folders)
        if known is None or known.hub_id != papers.identity.hub_id:
            known, self._changed = derived(folders, papers), True
        self._rows = list(known.checkpoints)

    def add(self, checkpoint: Checkpoint) -> None:
        """Take note of a regular checkpoint. The same one again changes nothing."""
        row = bound(checkpoint, self._papers)
        at = bisect_left(self._rows, row.place, key=lambda known: known.place)
        if at < len(self._rows) and self._rows[at].place == row.place:
            if self._rows[at] == row:
                return
            del self._rows[at]
        insort(self._rows, row, key=lambda known: known.place)
        self._changed = True

    def save(self) -> None:
        """Make it durable, if anything in it is new."""
        if self._changed:
            write(self._disk, self._folders, CheckpointBinding(self._papers.identity.hub_id, tuple(self._rows)))
            self._changed = False


def read(folders: Folders) -> CheckpointBinding | None:
    """What is there, if it can be read."""
    try:
        return CheckpointBinding.decode(folders.binding.read_bytes())
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
            rows.append(bound(Checkpoint.decode(path.read_bytes()), papers))
        except (Malformed, Unverified):
            continue
    return CheckpointBinding(papers.identity.hub_id, tuple(sorted(rows, key=lambda row: row.place)))
