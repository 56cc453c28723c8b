"""A fork: a new hub that keeps a prefix of another's log and goes on from there. Both verify. Spec §0.

What a fork takes over is what was written: entries with the receipts they have, regular checkpoints with their
witnesses, profile, limits and attachments. What it does not take over is who may write: capabilities and registered
streams are what the other hub was told, on a control stream of its own, and the fork's operator says anew what holds.

It keeps the other hub's routing key, because the label is part of every leaf: only so can new entries follow the old
ones in the same tree, and clients go on under the labels they know.

The order: folders; log and index, by the code a hub writes its own with; attachments; the origin; all of it synced;
keys and papers, the identity last. A crash before that leaves a folder that is no hub's, and is not written over.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import lmdb

from veen.core import Checkpoint, Malformed, Mmr, SigningKey, Unavailable, VeenError, checkpoint, naming
from veen.core import hub_identity as identities
from veen.core.limits import MAX_ORIGIN_LABELS, MAX_ORIGINS
from veen.core.origin import ForkOrigin, OriginHub
from veen.storage import attachment_store, checkpoint_keys, log_walk, metadata, rebuild, safe_open
from veen.storage.accepted_entry import CommitGroup
from veen.storage.chunks import ChunkWriter
from veen.storage.durable import Disk
from veen.storage.index import FORMAT, Index
from veen.storage.lock import undisturbed
from veen.storage.log_walk import ChunkFile
from veen.storage.log_writer import LogWriter
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.rebuild import BATCH_BYTES, BATCH_ENTRIES


def fork(
    disk: Disk,
    source: Path,
    target: Path,
    upto: Mapping[bytes, int] | None,
    now: int,
    progress: Callable[[int, int], None] | None = None,
) -> HubMetadata:
    """Keep each label of `upto` up to that entry, or without `upto` everything, under a new identity in `target`.

    `progress` is told entries done and in all. Raises `Unavailable` where a hub runs on the source, its log lacks what
    is asked for or its key is not here, `Malformed` or `Unverified` where the log is not what the source signed; what
    was written to `target` by then is removed.
    """
    safe_open.check_folders(Folders(source))
    with undisturbed(Folders(source).lock):
        hub_metadata = metadata.read_metadata(Folders(source))
        if len(hub_metadata.lineage.identities) > MAX_ORIGINS:
            raise Unavailable(f"it has been forked {MAX_ORIGINS} times, and cannot be again")
        forked = _Source(Folders(source), hub_metadata, log_walk.chunk_files(Folders(source)))
        wanted = forked.wanted(upto)
        folders = metadata.lay_out(disk, target)
        try:
            return _Fork(disk, forked, folders, _teller(sum(wanted.values()), progress)).make(wanted, now)
        except (OSError, lmdb.Error) as error:
            shutil.rmtree(target)
            why = error.strerror if isinstance(error, OSError) else error
            raise Unavailable(f"{target} cannot be written: {why}") from error
        except VeenError:
            shutil.rmtree(target)
            raise


@dataclass(frozen=True, slots=True)
class _Source:
    """The hub that is forked."""

    folders: Folders
    hub_metadata: HubMetadata
    files: dict[bytes, list[ChunkFile]]

    def wanted(self, upto: Mapping[bytes, int] | None) -> dict[bytes, int]:
        """The labels to keep, ascending, and how far."""
        _, pending = rebuild.journal_start(self.folders)
        sizes = {label: log_walk.size_of(self.files[label]) for label in self.files if upto is None or label in upto}
        asked = sizes if upto is None else upto
        if len(asked) > MAX_ORIGIN_LABELS:
            raise Unavailable(f"{len(asked)} labels, and a fork keeps at most {MAX_ORIGIN_LABELS}: name those to keep")
        behind = [label for label in pending if upto is None or upto.get(label, 0) >= pending[label]]
        if behind:
            raise Unavailable("the log has not caught up with its journal: start the hub and stop it, then fork")
        for label, last in asked.items():
            if not 1 <= last <= sizes.get(label, 0):
                raise Unavailable(f"{label.hex()} has {sizes.get(label, 0)} entries, and none at {last}")
        return {label: asked[label] for label in sorted(asked)}

    def regular(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """The regular checkpoint that a chunk of the prefix ends with."""
        return self._checked(self._stored(label, upto_seq), label, upto_seq, mmr_root)

    def checkpoint(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """The hub's word on a prefix: one it has given, or else one made now, as it would have been made then."""
        found = self._stored(label, upto_seq) or self._sign(label, upto_seq, mmr_root, hub_ts)
        return self._checked(found, label, upto_seq, mmr_root)

    def _checked(self, found: Checkpoint | None, label: bytes, upto_seq: int, mmr_root: bytes) -> Checkpoint:
        if found is None or (found.label_curr, found.upto_seq, found.mmr_root) != (label, upto_seq, mmr_root):
            raise Malformed("log", f"the checkpoint of {label.hex()[:16]}… at {upto_seq} is not that of its entries")
        self.hub_metadata.identity_at(label, upto_seq).verify_checkpoint(found, self.hub_metadata.profile)
        return found

    def _stored(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        path, kept = self.folders.checkpoint(label, upto_seq), self.hub_metadata.lineage.checkpoint(label)
        if path.exists():
            return Checkpoint.decode(safe_open.read(path))
        return kept if kept and kept.upto_seq == upto_seq else None

    def _sign(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        identity = self.hub_metadata.identity_at(label, upto_seq)
        if identity != self.hub_metadata.identity:
            raise Unavailable(f"entry {upto_seq} is of the hub this one was forked from: fork that one, or later")
        key = metadata.read_signing_key(self.folders, identity.signing_key_at(hub_ts).key_id)
        epoch, previous = self._rotation(label, hub_ts)
        return checkpoint.sign(
            key, label_prev=previous, label_curr=label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=epoch
        )

    def _rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """The epoch of a label, and its stream's label of the epoch before; itself where no stream explains it."""
        profile, routing = self.hub_metadata.profile, self.hub_metadata.identity.routing_key
        if not profile.epoch_sec:
            return 0, label
        for stream in self._streams():
            for epoch in profile.epochs_around(hub_ts, self.hub_metadata.limits.max_epoch_skew_sec):
                if naming.label(routing, stream, epoch) == label:
                    return epoch, naming.label(routing, stream, epoch - 1) if epoch else label
        return profile.epoch(hub_ts), label

    def _streams(self) -> set[bytes]:
        """Every stream the hub was told of, from its control stream."""
        registrar, batch = rebuild.Registrar(self.hub_metadata), CommitGroup()
        for label in log_walk.control_labels(self.hub_metadata, self.files):
            for entry, _ in log_walk.read_log(self.files[label], None):
                registrar.note(*entry.open(), batch)
        return {*batch.streams, naming.control_stream(self.hub_metadata.identity.hub_id)}


@dataclass(frozen=True, slots=True)
class _Fork:
    """The hub that is made of it."""

    disk: Disk
    source: _Source
    folders: Folders
    tell: Callable[[int], None]

    def make(self, wanted: Mapping[bytes, int], now: int) -> HubMetadata:
        hub_metadata = self.source.hub_metadata
        checkpoints = self._copy_log(wanted)
        attachment_store.copy(self.disk, self.source.folders, self.folders)
        checkpoint_keys.copy(self.disk, self.source.folders, self.folders)
        before = (
            ForkOrigin.decode(safe_open.read(self.source.folders.origin)).hubs if hub_metadata.identity.origin else ()
        )
        origin = ForkOrigin((OriginHub(hub_metadata.identity, hub_metadata.signature, checkpoints), *before))
        self.disk.write_file(self.folders.origin, origin.encode())
        key = SigningKey.generate()
        record = identities.create(key, now, origin=origin.ref())
        lineage = metadata.read_lineage(self.folders, record)
        made = HubMetadata(record, identities.sign(record, key), hub_metadata.limits, hub_metadata.profile, lineage)
        checkpoint_keys.write(self.disk, self.folders, checkpoint_keys.derived(self.folders, made))
        self.disk.sync_filesystem(self.folders.root)
        metadata.write_metadata(self.disk, self.folders, record, key, hub_metadata.profile, hub_metadata.limits)
        return metadata.read_metadata(self.folders)

    def _copy_log(self, wanted: Mapping[bytes, int]) -> tuple[Checkpoint, ...]:
        """Write the prefixes as a hub that had taken these entries would have; returns a checkpoint of each."""
        hub_metadata = self.source.hub_metadata
        bound = checkpoint_keys.BindingFile(self.disk, self.folders, hub_metadata)
        files = ChunkWriter(self.disk, self.folders, self.source.regular, bound, hub_metadata.limits.chunk_zstd_level)
        index = Index(self.folders.index, durable=False)
        try:
            writer = LogWriter(files, index, hub_metadata.limits)
            checkpoints = tuple(self._copy_label(writer, label, last) for label, last in wanted.items())
            with index.write() as rows:
                rows.put_number("format", FORMAT)
                rows.commit()
            index.sync()
        finally:
            index.close()
        return checkpoints

    def _copy_label(self, writer: LogWriter, label: bytes, last: int) -> Checkpoint:
        tree, batch, size, hub_ts = Mmr(), CommitGroup(), 0, 0
        for entry, framed in log_walk.read_log(self.source.files[label], last):
            if entry.label != label:
                raise Malformed("log", f"an entry of another label stands in that of {label.hex()[:16]}…")
            record, _, receipt = rebuild.taken(entry, framed, tree)
            batch.records.append(record)
            size, hub_ts = size + len(framed), receipt.hub_ts
            if len(batch.records) >= BATCH_ENTRIES or size >= BATCH_BYTES:
                self._apply(writer, batch)
                batch, size = CommitGroup(), 0
        self._apply(writer, batch)
        return self.source.checkpoint(label, last, tree.root(), hub_ts)

    def _apply(self, writer: LogWriter, batch: CommitGroup) -> None:
        writer.apply(batch, 0)
        self.tell(len(batch.records))


def _teller(total: int, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return tell
