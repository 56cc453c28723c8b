"""Creates a large data directory quickly: every entry is signed by client and hub, but nothing is synced."""

import os
import shutil
from copy import copy
from hashlib import sha256
from pathlib import Path

from plumbing.durable import Disk
from veen.core import Limits, Mmr, Profile, SigningKey, checkpoint, msg, naming, receipt
from veen.core.checkpoint import Checkpoint
from veen.storage import frame, metadata, rotation
from veen.storage.checkpoint_files import BindingFile
from veen.storage.frame import AcceptedEntry, CommitGroup
from veen.storage.index import FORMAT, Index
from veen.storage.log_writer import ChunkWriter, LogWriter
from veen.storage.paths import Folders

BORN = 1_700_000_000
BODY_BYTES = 400
_BATCH = 20_000


class UnsyncedDisk(Disk):
    """The real disk without syncs, for data that may be lost."""

    def sync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_folder(self, folder: Path) -> None:
        folder.stat()

    def sync_filesystem(self, folder: Path) -> None:
        folder.stat()


class BigLog:
    """A data directory that grows by a given number of entries, over some streams and clients in turn."""

    def __init__(
        self,
        root: Path,
        *,
        streams: int = 1,
        clients: int = 8,
        limits: Limits | None = None,
        per_sec: int = 50,
        profile: Profile | None = None,
    ) -> None:
        """`per_sec` entries have the same `hub_ts`."""
        metadata.create(UnsyncedDisk(), root, profile or Profile(), limits or Limits(), BORN)
        self._open(root)
        self.labels = [self.label(f"stream {number}") for number in range(streams)]
        self._keys = [SigningKey(sha256(b"client %d" % number).digest()) for number in range(clients)]
        self._trees = {label: Mmr() for label in self.labels}
        self._seqs: dict[tuple[int, bytes], int] = {}
        self._per_sec = per_sec
        self._born = BORN
        self._made = 0

    def _open(self, root: Path) -> None:
        self.folders = Folders(root)
        self._disk = UnsyncedDisk()
        self.hub_metadata = metadata.read_metadata(self.folders)
        self._hub = metadata.read_signing_key(self.folders, self.hub_metadata.identity.newest.key_id)

    def copied(self, root: Path) -> "BigLog":
        """A copy of the hub in another folder; the two diverge from here on."""
        shutil.copytree(self.folders.root, root)
        made = copy(self)
        made._open(root)
        made._trees = {label: tree.copy() for label, tree in self._trees.items()}
        made._seqs = dict(self._seqs)
        return made

    def rotate(self) -> None:
        """Rotate the hub key."""
        self._born += 10
        rotation.rotate_key(self._disk, self.folders, self._born + self._made // self._per_sec, 0)
        self._open(self.folders.root)

    def label(self, stream: str) -> bytes:
        return naming.label(self.hub_metadata.identity.routing_key, naming.stream_id(stream), 0)

    def grow(self, entries: int, body: int = BODY_BYTES) -> None:
        """Add entries and close the chunks that they fill."""
        index = Index(self.folders.index, durable=False)
        with index.write() as rows:
            rows.put_number("format", FORMAT)
            rows.commit()
        binding = BindingFile(self._disk, self.folders, self.hub_metadata)
        files = ChunkWriter(self._disk, self.folders, self._sign, binding, self.hub_metadata.limits.chunk_zstd_level)
        writer = LogWriter(files, index, self.hub_metadata.limits)
        try:
            for start in range(0, entries, _BATCH):
                writer.apply(CommitGroup([self._record(body) for _ in range(min(_BATCH, entries - start))]), 0)
        finally:
            index.close()

    def _sign(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        place = {"label_prev": label, "label_curr": label}
        return checkpoint.sign(self._hub, **place, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0)

    def _record(self, body: int) -> AcceptedEntry:
        client, label = self._made % len(self._keys), self.labels[self._made % len(self.labels)]
        hub_ts = self._born + self._made // self._per_sec
        self._made += 1
        seq = self._seqs[client, label] = self._seqs.get((client, label), 0) + 1
        # Random bytes: it is never opened, and a hub cannot distinguish it from real ciphertext.
        sealed = os.urandom(32) + (16).to_bytes(4, "big") + body.to_bytes(4, "big") + os.urandom(16 + body)
        message = msg.sign(
            self._keys[client],
            profile_id=self.hub_metadata.profile.profile_id(),
            label=label,
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed + bytes(-len(sealed) % self.hub_metadata.profile.pad_block),
        )
        tree, leaf = self._trees[label], message.leaf_hash()
        made = tree.append(leaf)
        signed = receipt.sign_encoded(self._hub, label, tree.size, leaf, tree.root(), hub_ts)
        framed, digest = frame.write(label, tree.size, message.encode(), signed)
        return AcceptedEntry(label, tree.size, framed, digest, made, message.client_id, seq, 0, hub_ts)
