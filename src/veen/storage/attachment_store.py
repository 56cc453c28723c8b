"""Attachments, stored under the hash of their ciphertext. The name is also the integrity check. Spec §4.6.

The order of writes, and what a crash after each leaves:

    1. the bytes to a draft, synced            a draft, which the next start removes
    2. the draft renamed                       the attachment or the draft
    3. the folder synced                       the attachment

Beside the attachment, `uploads/` has a record with the label that the upload named. Retention deletes an attachment
when it is too old by the policy of that label, and never by age without a record. The order of a deletion, after its
event is durable on the control stream:

    1. the tombstone, synced                   the attachment is still there; the next run deletes it
    2. attachment and record removed           a tombstone

Drafts are in a folder of their own, so that a start finds them without scanning the attachments.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from mmap import ACCESS_READ, MADV_WILLNEED, mmap
from pathlib import Path
from threading import Lock

from plumbing.durable import Disk
from veen.core import HubIdentity, Malformed, Unavailable, Unverified, VeenError
from veen.core.hashing import HASH_BYTES, h
from veen.core.retention import AttachmentTombstone, UploadRecord
from veen.storage import safe_open
from veen.storage.paths import Folders

_SMALL_BYTES = 1 << 16
_COPY_BYTES = 1 << 20
Damaged = Callable[[VeenError], object]
_NAME = re.compile(r"[0-9a-f]{64}")


class AttachmentStore:
    """The attachments of one data directory."""

    def __init__(self, disk: Disk, folders: Folders) -> None:
        self.disk = disk
        self.folders = folders
        self.publish_lock = Lock()  # if one attachment is uploaded twice at once, exactly one upload is reported as new
        self.numbers: Iterator[int] = count()

    def put(self, coid: bytes, sealed: bytes) -> bool:
        """Store and sync an attachment. Returns False if it was already stored.

        Raises `Malformed` if the bytes do not hash to `coid`. Raises `Unavailable` if the disk is full; nothing is
        stored then, and the upload can be repeated.
        """
        if len(coid) != HASH_BYTES or h(sealed) != coid:
            raise Malformed("attachment", "the bytes do not hash to its coid")
        try:
            draft = AttachmentDraft(self, coid)
            try:
                draft.write(sealed)
                return draft.keep()
            finally:
                draft.drop()
        except OSError as error:
            raise Unavailable(f"the attachment cannot be written: {error.strerror}") from error

    def get(self, coid: bytes) -> bytes | None:
        try:
            return safe_open.read(self.folders.attachment(coid))
        except FileNotFoundError:
            return None

    def mapped(self, coid: bytes) -> mmap | bytes | None:
        """Like `get`, but maps a large file instead of reading it, with a hint to the kernel to read ahead."""
        try:
            fd = safe_open.open_file(self.folders.attachment(coid))
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size <= _SMALL_BYTES:
                return file.read()
            found = mmap(fd, 0, access=ACCESS_READ)
        found.madvise(MADV_WILLNEED)
        return found

    def note_upload(self, coid: bytes, label: bytes | None, hub_ts: int) -> None:
        """Record that an attachment was uploaded, for a label. A repeated upload renews it.

        The first label stays: a reader of an attachment could upload it again, for another label. A damaged record is
        replaced: nothing says its label any more, and an upload that failed because of it could never succeed.
        """
        path, tombstone = self.folders.upload(coid), self.folders.attachment_tombstone(coid)
        with self.publish_lock, _disk_errors():
            is_again = tombstone.exists()
            known = None
            with suppress(Malformed):
                known = None if is_again else read_upload(self.folders, coid)
            if label is not None and (known is None or known.label == label):
                if not self.folders.uploads.is_dir():
                    self.disk.make_folder(self.folders.uploads)
                    self.disk.sync_folder(self.folders.root)
                self.disk.write_file(path, UploadRecord.of(coid, label, hub_ts).encode())
                self.disk.sync_folder(self.folders.uploads)
            if is_again:
                self.disk.unlink(tombstone)
                self.disk.sync_folder(self.folders.uploads)

    def record(self, coid: bytes, damaged: Damaged) -> UploadRecord | None:
        """The label of an attachment, and when it was uploaded; None for an upload without label.

        `damaged` is called for a damaged record, which says nothing.
        """
        try:
            return read_upload(self.folders, coid)
        except Malformed as error:
            damaged(error)
            return None

    def records(self, damaged: Damaged) -> Iterator[tuple[bytes, UploadRecord]]:
        """Every attachment with a sound record."""
        for coid in _names(self.folders, ".cbor"):
            if found := self.record(coid, damaged):
                yield coid, found

    def exists(self, coid: bytes) -> bool:
        return safe_open.is_file(self.folders.attachment(coid))

    def size(self, coid: bytes) -> int:
        """0 if there is no such attachment."""
        path = self.folders.attachment(coid)
        return path.lstat().st_size if safe_open.is_file(path) else 0

    def tombstone(self, coid: bytes) -> AttachmentTombstone | None:
        """The statement that an attachment was deleted. The reader verifies it."""
        try:
            return AttachmentTombstone.decode(safe_open.read(self.folders.attachment_tombstone(coid)))
        except FileNotFoundError:
            return None

    def tombstones(self, identity: HubIdentity, damaged: Damaged) -> Iterator[AttachmentTombstone]:
        """The verified statements about all attachments that were deleted. `damaged` is called for every other one."""
        for coid in _names(self.folders, ".tombstone"):
            try:
                found = verified_tombstone(self.folders, identity, coid)
            except VeenError as error:
                damaged(error)
                continue
            if found:
                yield found

    def prune(self, tombstone: AttachmentTombstone) -> int:
        """Delete an attachment. Returns the bytes freed."""
        with self.publish_lock, _disk_errors():
            if not self.folders.uploads.is_dir():
                self.disk.make_folder(self.folders.uploads)
                self.disk.sync_folder(self.folders.root)
            self.disk.write_file(self.folders.attachment_tombstone(tombstone.coid), tombstone.encode())
            self.disk.sync_folder(self.folders.uploads)
            return self._remove(tombstone.coid)

    def finish_prunes(self, identity: HubIdentity, damaged: Damaged) -> int:
        """Delete the attachments whose deletion a crash interrupted. Returns the bytes freed."""
        freed = 0
        for tombstone in self.tombstones(identity, damaged):
            with self.publish_lock, _disk_errors():
                if self.folders.attachment_tombstone(tombstone.coid).exists():
                    freed += self._remove(tombstone.coid)
        return freed

    def _remove(self, coid: bytes) -> int:
        path, record, size = self.folders.attachment(coid), self.folders.upload(coid), self.size(coid)
        if path.exists():
            self.disk.unlink(path)
            self.disk.sync_folder(path.parent)
        if record.exists():
            self.disk.unlink(record)
            self.disk.sync_folder(self.folders.uploads)
        return size

    def probe(self, size: int) -> None:
        """Raise `Unavailable` unless a draft of that size can be written and synced now."""
        draft = AttachmentDraft(self, bytes(HASH_BYTES))
        try:
            draft.write(bytes(size))
            draft.sync()
        finally:
            draft.drop()

    def remove_drafts(self) -> None:
        """Remove the drafts of interrupted uploads. Call it before the first upload: later drafts may be in use."""
        drafts = self.folders.attachment_drafts
        if drafts.is_dir() and not drafts.is_symlink():
            for path in drafts.iterdir():
                with suppress(IsADirectoryError):  # not written by a hub
                    self.disk.unlink(path)


def read_upload(folders: Folders, coid: bytes) -> UploadRecord | None:
    """The record of an upload; None if it has none. Raises `Malformed` with the name of the file if it is damaged."""
    path = folders.upload(coid)
    try:
        found = UploadRecord.decode(safe_open.read(path))
    except FileNotFoundError:
        return None
    except Malformed as error:
        raise Malformed(str(path.relative_to(folders.root)), error.reason) from error
    if found.coid not in (None, coid):
        raise Malformed(str(path.relative_to(folders.root)), "it is of another attachment")
    return found


def verified_tombstone(folders: Folders, identity: HubIdentity, coid: bytes) -> AttachmentTombstone | None:
    """The hub's statement that it deleted an attachment; None if there is none. Raises if it is damaged."""
    path = folders.attachment_tombstone(coid)
    try:
        found = AttachmentTombstone.decode(safe_open.read(path))
        found.verify(identity, coid)
    except FileNotFoundError:
        return None
    except (Malformed, Unverified) as error:
        raise Malformed(str(path.relative_to(folders.root)), error.reason) from error
    return found


def uploaded(folders: Folders) -> list[bytes]:
    """The attachments with a record or a tombstone, in order."""
    return sorted({*_names(folders, ".cbor"), *_names(folders, ".tombstone")})


def _names(folders: Folders, suffix: str) -> Iterator[bytes]:
    for path in safe_open.list_folder(folders.uploads):
        if path.suffix == suffix and _NAME.fullmatch(path.stem):
            yield bytes.fromhex(path.stem)


def copy(disk: Disk, source: Folders, target: Folders) -> None:
    """Copy all attachments and no other files. The caller syncs the copy as a whole.

    Raises `Malformed` if an attachment is not a regular file or does not hash to its name.
    """
    for folder in sorted(source.attachments.iterdir()) if source.attachments.is_dir() else ():
        found = sorted(folder.iterdir()) if re.fullmatch("[0-9a-f]{2}", folder.name) and folder.is_dir() else ()
        for path in found:
            if _NAME.fullmatch(path.name) and path.name.startswith(folder.name):
                _copy(disk, path, target.attachment(bytes.fromhex(path.name)))


def _copy(disk: Disk, source: Path, target: Path) -> None:
    digest = sha256()
    disk.make_folder(target.parent)
    with open(safe_open.open_file(source), "rb", buffering=0) as file:
        fd = disk.open_append(target)
        try:
            while data := file.read(_COPY_BYTES):
                digest.update(data)
                disk.write(fd, data)
        finally:
            os.close(fd)
    if digest.hexdigest() != source.name:
        raise Malformed(f"attachment {source.name}", "the bytes do not hash to its name")


class AttachmentDraft:
    """An upload in progress, written piece by piece. Not thread-safe.

    Raises `Unavailable` on disk errors; the draft can then only be dropped.
    """

    def __init__(self, store: AttachmentStore, coid: bytes) -> None:
        self._store = store
        self._coid = coid
        self._hash = sha256()
        folder = store.folders.attachment_drafts
        self._path = folder / f"{coid.hex()}-{next(store.numbers)}.draft"
        with _disk_errors():
            store.disk.make_folder(folder)
            self._fd: int | None = store.disk.open_append(self._path)
            try:
                # An earlier run may have left a draft of this name.
                store.disk.truncate(self._fd, 0)
            except BaseException:
                self.drop()
                raise

    def write(self, data: bytes) -> None:
        assert self._fd is not None
        self._hash.update(data)
        with _disk_errors():
            self._store.disk.write(self._fd, data)

    def sync(self) -> None:
        assert self._fd is not None
        with _disk_errors():
            self._store.disk.sync(self._fd)

    def keep(self) -> bool:
        """Sync the draft and rename it to its final name. Returns False if the attachment was already stored.

        Raises `Malformed` if the bytes do not hash to the coid. The caller drops the draft in any case.
        """
        assert self._fd is not None
        if self._hash.digest() != self._coid:
            raise Malformed("attachment", "the bytes do not hash to its coid")
        store, path = self._store, self._store.folders.attachment(self._coid)
        self.sync()
        with store.publish_lock, _disk_errors():
            known = path.exists()
            if not known:
                store.disk.make_folder(path.parent)
                store.disk.sync_folder(store.folders.attachments)
            # Replace an existing file too: its bytes may have been damaged since, and these were just verified.
            store.disk.replace(self._path, path)
            store.disk.sync_folder(path.parent)
        return not known

    def drop(self) -> None:
        """Close and remove the draft. A draft that cannot be removed now is removed at the next start."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            with suppress(OSError):
                self._store.disk.unlink(self._path)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the attachment cannot be written: {error.strerror}") from error
