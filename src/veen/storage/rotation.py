"""Key rotation of a data directory: the next key, the hand-over, and the identity that names both. Spec §8.4.

The identity is three files that must agree, and a crash can come between any two of them. The new identity is therefore
first written to one file. Once that file is durable the rotation is final, and the three files are derived from it,
after a crash if necessary.

    1. the new key, synced                        no record names it yet
    2. rows, nodes and hand-over, synced          they belong to a key that no record names
    3. hub-identity.next, synced                  the rotation has happened
    4. key map, signature, record, synced         the public files
    5. hub-identity.next and request removed      done

A hand-over has three files in `handovers/`, named by the id of the old key: the statement (`.cbor`), one row of 72
bytes for each label in ascending order (`.rows`), and the nodes of the tree over the rows (`.mmr`). With epochs, the
folder also has the last checkpoint of every label whose epoch is over: the new key may not sign for that epoch.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from plumbing.durable import PRIVATE_FOLDER, Disk
from veen.core import (
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Malformed,
    Receipt,
    Unavailable,
    Unverified,
    checkpoint,
    handover,
    mmr,
    naming,
    proof,
    wire_json,
)
from veen.core import hub_identity as identities
from veen.core.handover import HandOver, HandOverList, LabelHandOver, LabelSize, ProvedSize
from veen.core.hub_identity import HubKey
from veen.core.root_key import KeyRequest, RootEndorsement, RootRequest
from veen.core.signing import DigestSigner
from veen.storage import checkpoint_files, frame, journal, journal_mark, metadata, safe_open, secret_keys
from veen.storage.index import MARKED, Index, IndexRows, NodeFile
from veen.storage.journal import JournalIncomplete
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.store import Store

_ROW = struct.Struct(">32sQ32s")


# The sizes that are handed over.


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The last entry of a label."""

    label: bytes
    size: int
    mmr_root: bytes
    hub_ts: int

    def row(self) -> LabelSize:
        return LabelSize(self.label, self.size, self.mmr_root)


def last_entries(folders: Folders) -> list[LastEntry]:
    """The last entry of every label of a stopped hub, in log and journal, in ascending order of label.

    Raises `Unavailable` or `Malformed` if the index cannot be trusted, or if the journal may lack groups, as at a
    start: a hand-over must not leave out entries that the old key has signed.
    """
    if folders.recovery_pending.exists():
        raise Malformed("journal", "a recovery of this directory is not finished")
    found: dict[bytes, LastEntry] = {}
    mark, applied = journal_mark.read(folders.journal), 0
    if (folders.index / "data.mdb").exists() or any(folders.log.iterdir()):
        index = Index(folders.index, readonly=True)
        try:
            with index.read() as rows:
                if not rows.sum_matches(index.most_rows()):
                    raise Malformed("index", "the checksum does not match the rows")
                applied = rows.number("applied")
                if mark is None and rows.number(MARKED):
                    raise JournalIncomplete("journal.mark is missing", f"groups after {applied}")
                found = {last.label: last for last in indexed_entries(rows)}
        finally:
            index.close()
    for _, entries in journal.read_complete(folders.journal, applied, mark):
        for entry in entries:
            receipt = Receipt.decode(entry.receipt)
            found[receipt.label] = LastEntry(receipt.label, receipt.stream_seq, receipt.mmr_root, receipt.hub_ts)
    return [found[label] for label in sorted(found)]


def indexed_entries(rows: IndexRows) -> Iterator[LastEntry]:
    """The last entry of every label in the log."""
    for label, head in rows.labels():
        yield LastEntry(label, head.size, mmr.root_of(head.peaks), head.hub_ts)


def current_entries(store: Store) -> list[LastEntry]:
    """The last entry of every label of a running hub, in ascending order of label. No group may be committed now."""
    tails = store.tails()  # first: an entry leaves them only after the log has it
    with store.index.read() as rows:
        found = {last.label: last for last in indexed_entries(rows)}
    for tail in reversed(tails):
        for label, records in tail.labels.items():
            receipt = Receipt.decode(frame.read(records[-1].frame)[0].receipt)
            if label not in found or found[label].size < receipt.stream_seq:
                found[label] = LastEntry(label, receipt.stream_seq, receipt.mmr_root, receipt.hub_ts)
    return [found[label] for label in sorted(found)]


# Requests and rotation.


def request_rotation(disk: Disk, folders: Folders, now: int) -> RootRequest:
    """Create the next signing key, and ask the root to endorse it.

    Asking again returns the same request until the key is in use: an endorsement may be on its way.
    """
    identity = metadata.read_metadata(folders).identity
    if identity.root is None:
        raise Unavailable("the hub has no root key: its newest key endorses the next one")
    pending = read_root_request(folders)
    if pending is not None and pending.root_pk == identity.root.hub_pk:
        return pending
    new, valid_from = metadata.next_key(folders, identity), max(now, identity.hub_keys[-1].valid_from + 1)
    request = RootRequest(identity.hub_id, identity.root.hub_pk, KeyRequest(new.signer.public_key, valid_from))
    try:
        metadata.add_signing_key(disk, folders, new)
        disk.write_file(folders.root_request, wire_json.encode(request))
        disk.sync_folder(folders.root)
    except OSError as error:
        raise Unavailable(f"the request cannot be written: {error.strerror}") from error
    return request


def read_root_request(folders: Folders) -> RootRequest | None:
    """The request for a new key that waits for an answer of the root."""
    return metadata.read_json(folders.root_request, RootRequest) if folders.root_request.exists() else None


def rotate_key(
    disk: Disk, folders: Folders, at: int, overlap_sec: int, endorsement: RootEndorsement | None = None
) -> HubIdentity:
    """Add a key that signs from `at` on to a stopped hub. The caller holds the lock of the directory.

    In a hub with a root, `endorsement` answers `request_rotation`, and the requested key is added. Otherwise the
    newest key endorses a new one.
    """
    finish_rotation(disk, folders)
    hub_metadata = metadata.read_metadata(folders)
    identity = hub_metadata.identity
    old = metadata.read_signing_key(folders, identity.newest.key_id)
    entries = last_entries(folders)
    new, added = _next_key(disk, folders, identity, at, endorsement)
    with _LabelEpochs(folders, hub_metadata) as epoch_of:
        return hand_over(disk, folders, hub_metadata, old, new, added, at, overlap_sec, entries, epoch_of)


def replace_key(disk: Disk, folders: Folders, at: int, endorsement: RootEndorsement | None = None) -> HubIdentity:
    """As `rotate_key`, but without a hand-over: the log may lack entries that the old key signed.

    The statement of a recovery takes the place of the hand-over. With a root the old key is not needed.
    """
    finish_rotation(disk, folders)
    identity = metadata.read_metadata(folders).identity
    new, added = _next_key(disk, folders, identity, at, endorsement)
    try:
        rotated = identities.add_key(identity, added.hub_pk, added.valid_from, added.endorsement or b"", at)
        replace_identity(disk, folders, rotated, new)
    except ValueError as error:
        raise Unavailable(f"the key cannot be rotated: {error}") from None
    except OSError as error:
        raise Unavailable(f"the key cannot be rotated: {error.strerror}") from error
    return rotated


def _next_key(
    disk: Disk,
    folders: Folders,
    identity: HubIdentity,
    at: int,
    endorsement: RootEndorsement | None,
) -> tuple[DigestSigner, HubKey]:
    """The key that follows, stored and endorsed."""
    if identity.root is None:
        old = metadata.read_signing_key(folders, identity.newest.key_id)
        new = metadata.next_key(folders, identity)
        try:
            added = identities.rotate(identity, old, new.signer, at).newest
        except ValueError as error:
            raise Unavailable(f"the key cannot be rotated: {error}") from None
        try:
            metadata.add_signing_key(disk, folders, new)
        except OSError as error:
            raise Unavailable(f"the key cannot be rotated: {error.strerror}") from error
        return new.signer, added
    request = read_root_request(folders)
    if request is None:
        raise Unavailable("no key was requested: write a request for the root first")
    added = endorsed_key(identity, request, endorsement)
    return metadata.read_signing_key(folders, added.key_id), added


def endorsed_key(identity: HubIdentity, request: RootRequest, endorsement: RootEndorsement | None) -> HubKey:
    """The requested key with the root's endorsement. Raises `Unverified` if the endorsement is for anything else."""
    if endorsement is None:
        raise Unavailable("the root must endorse the new key")
    endorsement.verify(identity, request.digest())
    hub_pk = request.key.hub_pk
    return HubKey(naming.key_id(hub_pk), hub_pk, request.key.valid_from, endorsement=endorsement.sig)


# The epoch of a label and the label of the epoch before, from the label and the hub_ts of an entry.
EpochOf = Callable[[bytes, int], tuple[int, bytes]]


def hand_over(
    disk: Disk,
    folders: Folders,
    hub_metadata: HubMetadata,
    old: DigestSigner,
    new: DigestSigner,
    added: HubKey,
    at: int,
    overlap_sec: int,
    entries: Iterable[LastEntry],
    epoch_of: EpochOf,
) -> HubIdentity:
    """Write the hand-over and the new identity. `entries` are the last ones that the old key signed, by label."""
    identity, entries = hub_metadata.identity, list(entries)
    try:
        rotated = identities.add_key(
            identity, added.hub_pk, added.valid_from, added.endorsement or b"", at + overlap_sec
        )
        rotated.verify_chain()
    except ValueError as error:
        raise Unavailable(f"the key cannot be rotated: {error}") from None
    rows = [entry.row() for entry in entries]
    tree, nodes = handover.tree_of_labels(rows)
    made = handover.sign(identity.hub_id, old, new, at, tree.size, tree.root())
    made.verify(rotated)
    try:
        disk.make_folder(folders.handovers, PRIVATE_FOLDER)
        for last in _final(hub_metadata, rotated, entries, epoch_of):
            _store_final(disk, folders, last, old, epoch_of)
        name = naming.key_id(made.old_pk)
        disk.write_file(folders.handover_rows(name), b"".join(_ROW.pack(r.label, r.size, r.mmr_root) for r in rows))
        disk.write_file(folders.handover_nodes(name), b"".join(nodes))
        disk.write_file(folders.handover(name), made.encode())
        disk.sync_folder(folders.handovers)
        replace_identity(disk, folders, rotated, new)
    except OSError as error:
        raise Unavailable(f"the key cannot be rotated: {error.strerror}") from error
    return rotated


def _final(
    hub_metadata: HubMetadata, rotated: HubIdentity, entries: list[LastEntry], epoch_of: EpochOf
) -> Iterator[LastEntry]:
    """The entries whose checkpoints the old key may still sign, and the new key may not."""
    if not hub_metadata.profile.epoch_sec:
        return
    old, new = rotated.signing_keys[-2:]
    for last in entries:
        window = epoch_window(hub_metadata, epoch_of(last.label, last.hub_ts)[0])
        kept = hub_metadata.lineage.upto(last.label)
        if last.size > kept and old.active_between(*window) and not new.active_between(*window):
            yield last


def epoch_window(hub_metadata: HubMetadata, epoch: int) -> tuple[int, int]:
    """The hub times of an epoch: from the first until just before the second."""
    length = hub_metadata.profile.epoch_sec
    return epoch * length, (epoch + 1) * length


def _store_final(disk: Disk, folders: Folders, last: LastEntry, old: DigestSigner, epoch_of: EpochOf) -> None:
    if stored_checkpoint(folders, last.label, last.size) is not None:
        return
    epoch, previous = epoch_of(last.label, last.hub_ts)
    made = checkpoint.sign(
        old, label_prev=previous, label_curr=last.label, upto_seq=last.size, mmr_root=last.mmr_root, epoch=epoch
    )
    disk.write_file(folders.final_checkpoint(last.label, last.size), made.encode())


def stored_checkpoint(folders: Folders, label: bytes, upto_seq: int) -> Checkpoint | None:
    """The stored checkpoint of a prefix: a regular one, the last one of an epoch, or a requested one."""
    places = folders.checkpoint, folders.final_checkpoint, folders.requested_checkpoint
    for path in (place(label, upto_seq) for place in places):
        if path.exists():
            return checkpoint_files.with_all_cosignatures(folders, Checkpoint.decode(safe_open.read(path)))
    return None


class _LabelEpochs:
    """The epochs of the labels of a stopped hub, from its index."""

    def __init__(self, folders: Folders, hub_metadata: HubMetadata) -> None:
        self._hub_metadata = hub_metadata
        needed = hub_metadata.profile.epoch_sec and any(folders.log.iterdir())
        self._index = Index(folders.index, readonly=True) if needed else None

    def __enter__(self) -> EpochOf:
        return self._epoch_of

    def __exit__(self, *_: object) -> None:
        if self._index:
            self._index.close()

    def _epoch_of(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        profile, routing = self._hub_metadata.profile, self._hub_metadata.identity.routing_key
        found = None
        if self._index:
            with self._index.read() as rows:
                found = rows.stream_and_epoch(label)
        if found is None:
            return profile.epoch(hub_ts), label
        stream, epoch = found
        return epoch, naming.label(routing, stream, epoch - 1) if epoch else label


# Adoption of a root.


def adopt_root(disk: Disk, folders: Folders, root_pk: bytes, now: int) -> HubIdentity:
    """Give a hub without a root key one, once. The caller holds the lock of the directory.

    The first key endorses the root, because hub_id is derived from it, and the newest key signs the record.
    """
    finish_rotation(disk, folders)
    record = metadata.read_metadata(folders).identity
    newest = metadata.read_signing_key(folders, record.newest.key_id)
    try:
        first = metadata.read_signing_key(folders, record.hub_keys[0].key_id)
        adopted = identities.adopt_root(record, first, root_pk, max(now, record.newest.valid_from + 1))
    except ValueError as error:
        raise Unavailable(f"the hub cannot adopt a root key: {error}") from None
    try:
        replace_identity(disk, folders, adopted, newest)
    except OSError as error:
        raise Unavailable(f"the new identity cannot be written: {error.strerror}") from error
    return adopted


# The identity files.


class InterruptedRotation(Unavailable):
    """The next start completes the rotation. The old key must sign nothing more."""


def replace_identity(disk: Disk, folders: Folders, record: HubIdentity, newest: DigestSigner) -> None:
    """Put a new identity in place, atomically.

    After an `OSError` nothing has changed. Raises `InterruptedRotation` if the new identity is on disk, or may be.
    """
    signature = identities.sign(record, newest)
    try:
        disk.write_file(folders.rotation, wire_json.encode(record) + b"\n" + wire_json.encode(signature))
        disk.sync_folder(folders.root)
    except OSError as error:
        _withdraw_rotation(disk, folders, error)
        raise
    try:
        finish_rotation(disk, folders)
    except Unavailable as error:
        raise InterruptedRotation(str(error)) from error


def _withdraw_rotation(disk: Disk, folders: Folders, cause: OSError) -> None:
    """Remove `hub-identity.next`, which could not be written. Raises `InterruptedRotation` if it may come back."""
    try:
        if folders.rotation.exists():
            disk.unlink(folders.rotation)
        disk.sync_folder(folders.root)
    except OSError:
        raise InterruptedRotation(f"the new identity is only partly written: {cause.strerror}") from cause


def finish_rotation(disk: Disk, folders: Folders) -> bool:
    """Complete a rotation that a crash interrupted. Returns False if there was none.

    Raises `NewerFormat` before anything is written, if this version does not know the format of the directory.
    """
    metadata.read_format(folders)
    if not folders.rotation.exists():
        return False
    try:
        _finish_rotation(disk, folders)
    except OSError as error:
        raise Unavailable(f"the new identity cannot be written: {error.strerror}") from error
    return True


def _finish_rotation(disk: Disk, folders: Folders) -> None:
    rotated, signed = read_rotation(folders)
    before = wire_json.decode_canonical(HubIdentity, safe_open.read(folders.identity))
    if before != rotated:
        rotated.check_follows(before)
    if len(rotated.hub_keys) < len(before.hub_keys):
        raise Malformed("hub-identity.next", "it has fewer keys than the current identity")
    metadata.write_identity(disk, folders, rotated, signed)
    request = read_root_request(folders)
    if request is not None and request.key.hub_pk == rotated.newest.hub_pk:
        disk.unlink(folders.root_request)  # answered
    disk.unlink(folders.rotation)
    disk.sync_folder(folders.root)


def read_rotation(folders: Folders) -> tuple[HubIdentity, IdentitySignature]:
    """The identity of an unfinished rotation, verified."""
    record, _, signature = safe_open.read(folders.rotation).partition(b"\n")
    rotated = wire_json.decode_canonical(HubIdentity, record)
    signed = wire_json.decode_canonical(IdentitySignature, signature)
    rotated.verify(signed, rotated.hub_id)
    return rotated, signed


def check_needless(hub_metadata: HubMetadata, now: int) -> None:
    """Raise `Unavailable` if a retired key may still have to sign: the last checkpoints of an epoch.

    Labels of epochs before the newest key get entries as long as `max_epoch_skew_sec` permits.
    """
    profile, newest = hub_metadata.profile, hub_metadata.identity.newest
    if profile.epoch_sec and len(hub_metadata.identity.signing_keys) > 1:
        skew = hub_metadata.limits.max_epoch_skew_sec // profile.epoch_sec
        until = (profile.epoch(newest.valid_from) + skew) * profile.epoch_sec
        if now < until:
            text = f"labels of epochs before the newest key get entries until {until} (hub_ts), and the old key signs"
            raise Unavailable(f"{text} their checkpoints")


def destroy_retired(disk: Disk, folders: Folders, identity: HubIdentity) -> list[bytes]:
    """Destroy the secret keys that no longer sign. Returns the ids of those that were there.

    A key in a token is destroyed there. The file is overwritten and removed. Overwriting in place destroys the key on
    a disk that writes in place; a copy-on-write file system, a solid-state disk or a backup may keep old blocks.
    """
    destroyed = []
    try:
        for key in identity.signing_keys[:-1]:
            path = secret_keys.key_path(folders.keys, metadata.key_name(key.key_id))
            if not path.exists():
                continue
            secret_keys.destroy_in_token(path)
            fd = disk.open_update(path)
            try:
                disk.write_at(fd, os.urandom(os.fstat(fd).st_size), 0)
                disk.sync(fd)
            finally:
                os.close(fd)
            disk.unlink(path)
            destroyed.append(key.key_id)
        disk.sync_folder(folders.keys)
    except OSError as error:
        raise Unavailable(f"an old key cannot be destroyed: {error.strerror or error}") from error
    except ValueError as error:
        raise Unavailable(f"an old key cannot be destroyed: {error}") from error
    return destroyed


# Reading hand-overs.


def read_handovers(folders: Folders, identity: HubIdentity) -> list[HandOver]:
    """The valid hand-overs of a hub, oldest first. fsck reports damaged ones; hubs that rotated earlier have none."""
    found = []
    for key in identity.signing_keys[:-1]:
        try:
            made = HandOver.decode(safe_open.read(folders.handover(key.key_id)))
            made.verify(identity)
        except (FileNotFoundError, Malformed, Unverified):
            continue
        found.append(made)
    return found


def signs_from(folders: Folders, identity: HubIdentity) -> int:
    """The hub time from which only the newest key signs: that of the hand-over to it, or 0 if there was none."""
    return max((made.hub_ts for made in read_handovers(folders, identity)), default=0)


def unlogged_handovers(folders: Folders, identity: HubIdentity) -> list[HandOver]:
    """The hand-overs that are not known to be on the control stream, oldest first."""
    found = read_handovers(folders, identity)
    return [made for made in found if not folders.handover_logged(naming.key_id(made.old_pk)).exists()]


def mark_logged(disk: Disk, folders: Folders, made: HandOver) -> None:
    """Record that a hand-over is on the control stream."""
    disk.write_file(folders.handover_logged(naming.key_id(made.old_pk)), b"")
    disk.sync_folder(folders.handovers)


def list_handovers(folders: Folders, identity: HubIdentity, label: bytes | None) -> HandOverList:
    """All hand-overs, each with its row for a label."""
    made = read_handovers(folders, identity)
    rows = [handed_over(folders, one, label) if label is not None else None for one in made]
    return HandOverList(tuple(map(LabelHandOver, made, rows)))


def handed_over(folders: Folders, made: HandOver, label: bytes) -> ProvedSize | None:
    """The row of a label with its proof, verified; None if the label is not in the hand-over. O(log n) reads."""
    name = naming.key_id(made.old_pk)
    with open(safe_open.open_file(folders.handover_rows(name)), "rb", buffering=0) as file:
        read = partial(_read_row, file.fileno(), name)
        low, high = 0, made.labels
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if read(middle).label < label else (low, middle)
        row = read(low) if low < made.labels else None
    if row is None or row.label != label:
        return None
    with NodeFile(folders.handover_nodes(name)) as nodes:
        proved = ProvedSize(row, low + 1, proof.prove(nodes.read, low + 1, made.labels))
    proved.verify(made.labels, made.rows_root)
    return proved


def _read_row(fd: int, name: bytes, at: int) -> LabelSize:
    data = os.pread(fd, _ROW.size, at * _ROW.size)
    if len(data) != _ROW.size:
        raise Malformed("hand-over", f"the rows of {name.hex()[:16]} end before row {at}")
    return LabelSize(*_ROW.unpack(data))


def check_handover(folders: Folders, identity: HubIdentity, path: Path) -> None:
    """Raise unless a stored hand-over is valid and its rows and nodes lead to its root."""
    made = HandOver.decode(safe_open.read(path))
    made.verify(identity)
    name = naming.key_id(made.old_pk)
    if path != folders.handover(name):
        raise Unverified("hand-over", "it belongs to another key than its name says")
    data = safe_open.read(folders.handover_rows(name))
    rows = [LabelSize(*row) for row in _ROW.iter_unpack(data)] if len(data) % _ROW.size == 0 else []
    tree, nodes = handover.tree_of_labels(rows)
    if (tree.size, tree.root()) != (made.labels, made.rows_root):
        raise Unverified("hand-over", f"{folders.handover_rows(name).name} does not lead to its root")
    if safe_open.read(folders.handover_nodes(name)) != b"".join(nodes):
        raise Unverified("hand-over", f"{folders.handover_nodes(name).name} does not match its rows")


def attach_root_signature(
    disk: Disk, folders: Folders, identity: HubIdentity, endorsement: RootEndorsement
) -> HandOver:
    """Add the root's signature to the hand-over that it endorses."""
    for made in read_handovers(folders, identity):
        if made.signing_digest() == endorsement.digest:
            endorsement.verify(identity, made.signing_digest())
            signed = replace(made, root_sig=endorsement.sig)
            try:
                disk.write_file(folders.handover(naming.key_id(made.old_pk)), signed.encode())
                disk.sync_folder(folders.handovers)
            except OSError as error:
                raise Unavailable(f"the hand-over cannot be written: {error.strerror}") from error
            return signed
    raise Unverified("root endorsement", "it endorses no hand-over of this hub")
