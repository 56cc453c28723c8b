"""Fork a hub: a new hub that keeps a prefix of another hub's log and continues it. Both logs verify. Spec §0.

A fork copies what was written: entries with their receipts, regular checkpoints with their witness signatures,
profile, limits and attachments. It does not copy permissions: capabilities and registered streams are on the control
stream of the other hub, and the operator of the fork grants them again.

It keeps the routing key of the other hub, because the label is part of every leaf. Only with the same labels can new
entries follow the old ones in the same tree, and clients continue under the labels they know.

Write order: folders; log and index, with the same code that a hub uses; attachments; origin; sync of everything; keys
and metadata, the identity record last. A crash before that leaves a folder without identity record, which is not a
hub and is never overwritten.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import lmdb

from plumbing.durable import Disk
from veen.core import Checkpoint, Malformed, Mmr, SigningKey, Unavailable, VeenError, checkpoint, naming
from veen.core import hub_identity as identities
from veen.core.hub_identity import ForkOrigin, OriginHub
from veen.core.limits import MAX_ORIGIN_LABELS, MAX_ORIGINS
from veen.storage import attachment_store, checkpoint_files, chunk_reader, metadata, rebuild, rotation, safe_open
from veen.storage.chunk_reader import ChunkFile
from veen.storage.frame import CommitGroup, LogEntry
from veen.storage.index import FORMAT, Index
from veen.storage.lock import shared
from veen.storage.log_writer import ChunkWriter, LogWriter
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import PrunedEntry
from veen.storage.rebuild import progress_counter


def fork(
    disk: Disk,
    source: Path,
    target: Path,
    upto: Mapping[bytes, int] | None,
    now: int,
    progress: Callable[[int, int], None] | None = None,
    root_key: SigningKey | None = None,
) -> HubMetadata:
    """Create a hub in `target` that keeps each label up to the entry in `upto`, or everything if `upto` is None.

    `progress` is called with entries done and total. `root_key` endorses the key of the new hub.

    Raises `Unavailable` if a hub runs on the source, the log lacks a requested entry or a key is missing; `Malformed`
    or `Unverified` if the log is damaged. Everything written to `target` is then removed.
    """
    safe_open.check_folders(Folders(source))
    with shared(Folders(source).lock):
        hub_metadata = metadata.read_metadata(Folders(source))
        if len(hub_metadata.lineage.identities) > MAX_ORIGINS:
            raise Unavailable(f"a hub can be forked {MAX_ORIGINS} times in a row, and this one already was")
        forked = _Source(Folders(source), hub_metadata, chunk_reader.chunk_files(Folders(source)))
        wanted = forked.wanted(upto)
        folders = metadata.create_folders(disk, target)
        try:
            count = progress_counter(sum(wanted.values()), progress)
            return _Fork(disk, forked, folders, count, root_key).make(wanted, now)
        except (OSError, lmdb.Error) as error:
            shutil.rmtree(target)
            why = error.strerror if isinstance(error, OSError) else error
            raise Unavailable(f"{target} cannot be written: {why}") from error
        except VeenError:
            shutil.rmtree(target)
            raise


@dataclass(frozen=True, slots=True)
class _Source:
    """The hub to fork."""

    folders: Folders
    hub_metadata: HubMetadata
    files: dict[bytes, list[ChunkFile]]

    def wanted(self, upto: Mapping[bytes, int] | None) -> dict[bytes, int]:
        """The labels to keep, in ascending order, with their last entry."""
        _, pending = rebuild.journal_start(self.folders)
        sizes = {
            label: chunk_reader.size_of(self.files[label]) for label in self.files if upto is None or label in upto
        }
        requested = sizes if upto is None else upto
        if len(requested) > MAX_ORIGIN_LABELS:
            raise Unavailable(
                f"{len(requested)} labels, but a fork keeps at most {MAX_ORIGIN_LABELS}: name the labels to keep"
            )
        behind = [label for label in pending if upto is None or upto.get(label, 0) >= pending[label]]
        if behind:
            raise Unavailable("the log has not caught up with its journal: start the hub and stop it, then fork")
        for label, last in requested.items():
            if not 1 <= last <= sizes.get(label, 0):
                raise Unavailable(f"{label.hex()} has {sizes.get(label, 0)} entries, so entry {last} cannot be kept")
        return {label: requested[label] for label in sorted(requested)}

    def regular(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """The regular checkpoint at the end of a closed chunk."""
        return self._checked(self._stored(label, upto_seq), label, upto_seq, mmr_root)

    def checkpoint(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """A checkpoint of the prefix: the stored one, or one signed now."""
        found = self._stored(label, upto_seq) or self._sign(label, upto_seq, mmr_root, hub_ts)
        return self._checked(found, label, upto_seq, mmr_root)

    def _checked(self, found: Checkpoint | None, label: bytes, upto_seq: int, mmr_root: bytes) -> Checkpoint:
        if found is None or (found.label_curr, found.upto_seq, found.mmr_root) != (label, upto_seq, mmr_root):
            raise Malformed("log", f"the checkpoint of {label.hex()[:16]}… at {upto_seq} does not match the entries")
        self.hub_metadata.identity_at(label, upto_seq).verify_checkpoint(found, self.hub_metadata.profile)
        return found

    def _stored(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        found = rotation.stored_checkpoint(self.folders, label, upto_seq)
        if found is not None:
            return found
        kept = self.hub_metadata.lineage.checkpoint(label)
        return kept if kept and kept.upto_seq == upto_seq else None

    def _sign(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        identity = self.hub_metadata.identity_at(label, upto_seq)
        if identity != self.hub_metadata.identity:
            raise Unavailable(
                f"entry {upto_seq} belongs to the origin of this fork: fork the origin, or choose a later entry"
            )
        epoch, previous = self._rotation(label, hub_ts)
        signer = identity.newest
        if self.hub_metadata.profile.epoch_sec and not signer.active_between(
            *rotation.epoch_window(self.hub_metadata, epoch)
        ):
            signer = identity.signing_key_at(hub_ts)
        key = metadata.read_signing_key(self.folders, signer.key_id)
        return checkpoint.sign(
            key, label_prev=previous, label_curr=label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=epoch
        )

    def _rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """The epoch of a label, and the label of the epoch before; the same label if its stream is unknown."""
        profile, routing = self.hub_metadata.profile, self.hub_metadata.identity.routing_key
        if not profile.epoch_sec:
            return 0, label
        for stream in self._streams():
            for epoch in profile.epochs_around(hub_ts, self.hub_metadata.limits.max_epoch_skew_sec):
                if naming.label(routing, stream, epoch) == label:
                    return epoch, naming.label(routing, stream, epoch - 1) if epoch else label
        return profile.epoch(hub_ts), label

    def _streams(self) -> set[bytes]:
        """Every stream registered on the control stream."""
        registrar, batch = rebuild.Registrar(self.hub_metadata), CommitGroup()
        for label in chunk_reader.control_labels(self.hub_metadata, self.files):
            for entry, _ in chunk_reader.read_log(self.files[label], None):
                assert isinstance(entry, LogEntry), "control streams are never pruned"
                registrar.note(*entry.open(), batch)
        return {*batch.streams, naming.control_stream(self.hub_metadata.identity.hub_id)}


@dataclass(frozen=True, slots=True)
class _Fork:
    """The new hub."""

    disk: Disk
    source: _Source
    folders: Folders
    count_progress: Callable[[int], None]
    root_key: SigningKey | None

    def make(self, wanted: Mapping[bytes, int], now: int) -> HubMetadata:
        hub_metadata = self.source.hub_metadata
        checkpoints = self._copy_log(wanted)
        attachment_store.copy(self.disk, self.source.folders, self.folders)
        checkpoint_files.copy_witnesses(self.disk, self.source.folders, self.folders)
        before = (
            ForkOrigin.decode(safe_open.read(self.source.folders.origin)).hubs if hub_metadata.identity.origin else ()
        )
        origin = ForkOrigin((OriginHub(hub_metadata.identity, hub_metadata.signature, checkpoints), *before))
        self.disk.write_file(self.folders.origin, origin.encode())
        keys = metadata.new_keys()
        signing = keys[0].signer
        record = identities.create(signing, now, origin=origin.ref(), root=self.root_key)
        lineage = metadata.read_lineage(self.folders, record)
        signature, registry = identities.sign(record, signing), hub_metadata.limit_registry
        made = HubMetadata(record, signature, registry.limits, hub_metadata.profile, lineage, registry.earlier)
        checkpoint_files.write_binding(self.disk, self.folders, checkpoint_files.derived_binding(self.folders, made))
        self.disk.sync_filesystem(self.folders.root)
        metadata.write_metadata(
            self.disk,
            self.folders,
            record,
            keys,
            hub_metadata.profile,
            registry,
            bare_tokens=metadata.accepts_bare_tokens(self.source.folders),
        )
        return metadata.read_metadata(self.folders)

    def _copy_log(self, wanted: Mapping[bytes, int]) -> tuple[Checkpoint, ...]:
        """Write the prefixes with the code a hub uses. Returns one checkpoint per label."""
        hub_metadata = self.source.hub_metadata
        bound = checkpoint_files.BindingFile(self.disk, self.folders, hub_metadata)
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
        tree, batch, hub_ts = Mmr(), CommitGroup(), 0
        for entry, framed in chunk_reader.read_log(self.source.files[label], last):
            if entry.label != label:
                raise Malformed("log", f"the log of {label.hex()[:16]}… contains an entry of another label")
            if isinstance(entry, PrunedEntry):
                why = f"entry {entry.stream_seq} of label {label.hex()} was pruned, so a fork cannot keep it"
                raise Unavailable(why)
            record, _, receipt = rebuild.accepted_entry(entry, framed, tree)
            batch.add(record)
            hub_ts = receipt.hub_ts
            if rebuild.is_full(batch):
                self._apply(writer, batch)
                batch = CommitGroup()
        self._apply(writer, batch)
        return self.source.checkpoint(label, last, tree.root(), hub_ts)

    def _apply(self, writer: LogWriter, batch: CommitGroup) -> None:
        writer.apply(batch, 0)
        self.count_progress(len(batch.records))
