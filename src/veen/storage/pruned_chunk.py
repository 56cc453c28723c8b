"""The file that replaces a pruned chunk: the headers of its entries in records of one size, so any entry is one read.

    header   magic, version, level, label, profile_id, start_seq, end_seq, mmr_root_end
    record   msg_len, receipt_len, whether auth_ref exists, client_id, client_seq, prev_ack, auth_ref, ct_hash,
             entry_hash, hub_ts; then the hub_sig of the receipt, unless receipts were pruned, too

A record has every field of MSG and RECEIPT except ciphertext and signature of the message. Leaf and root follow from
the records, so receipts are restored byte by byte, and the index can be rebuilt.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from veen.core import Malformed, Msg, Receipt, Unavailable, Unverified
from veen.core.hub_identity import HubIdentity
from veen.core.retention import Level, Manifest, Segment, Tombstone
from veen.core.signing import SIGNATURE_BYTES
from veen.storage import frame, safe_open
from veen.storage.frame import LogEntry
from veen.storage.paths import Folders

_MAGIC, _VERSION = b"veenprun", 1
_HEAD = struct.Struct(">8sBB32s32sQQ32s")
_RECORD = struct.Struct(">IIB32sQQ32s32s32sQ")
_NONE = bytes(32)
_NO_SIG = bytes(SIGNATURE_BYTES)
_PART_RECORDS = 1024


class Pruned(Unavailable):
    """The payload of an entry was pruned."""

    def __init__(self, label: bytes, start_seq: int, end_seq: int) -> None:
        super().__init__(f"entries {start_seq} to {end_seq} of {label.hex()[:16]}… were pruned")
        self.label = label
        self.start_seq = start_seq
        self.end_seq = end_seq


@dataclass(frozen=True, slots=True)
class PrunedEntry:
    """The remainder of a pruned entry. `message` has neither ciphertext nor signature."""

    stream_seq: int
    size: int  # of the framed entry
    message: Msg
    entry_hash: bytes
    hub_ts: int
    hub_sig: bytes | None
    root: bytes | None  # of the tree that ends with it, if it is the last of its chunk

    @property
    def label(self) -> bytes:
        return self.message.label

    def receipt(self, root: bytes) -> Receipt:
        """The receipt, for the root of the tree that ends with this entry. Without signature if that was pruned."""
        leaf, sig = self.message.leaf_hash(), self.hub_sig or _NO_SIG
        return Receipt(self.label, self.stream_seq, leaf, root, self.hub_ts, sig)


class PrunedChunk:
    """A pruned chunk. Raises `Malformed` if the file is not one, `Unavailable` if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = safe_open.open_file(path)
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be read: {error.strerror}") from None
        try:
            head = os.pread(self._fd, _HEAD.size, 0)
            if len(head) != _HEAD.size:
                raise Malformed("pruned chunk", f"{path.name} ends within its header")
            magic, version, level, *place = _HEAD.unpack(head)
            self.label, self.profile_id = bytes(place[0]), bytes(place[1])
            self.start_seq, self.end_seq, self.root = int(place[2]), int(place[3]), bytes(place[4])
            if magic != _MAGIC or version != _VERSION or level not in (Level.PAYLOADS, Level.RECEIPTS):
                raise Malformed("pruned chunk", f"{path.name} does not begin like one")
            self.level = Level(level)
            self._record_bytes = _RECORD.size + (SIGNATURE_BYTES if level == Level.PAYLOADS else 0)
            size = os.fstat(self._fd).st_size
            if self.start_seq > self.end_seq or size != _HEAD.size + self.entry_count * self._record_bytes:
                raise Malformed("pruned chunk", f"{path.name} has {size} bytes, which do not fit its header")
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> "PrunedChunk":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def entry_count(self) -> int:
        return self.end_seq - self.start_seq + 1

    def entry(self, stream_seq: int) -> PrunedEntry:
        at = _HEAD.size + (stream_seq - self.start_seq) * self._record_bytes
        return self._entry(stream_seq, self._read(at, self._record_bytes))

    def entries(self) -> Iterator[PrunedEntry]:
        """All entries in order."""
        return (self._entry(seq, record) for seq, record in self.records())

    def records(self) -> Iterator[tuple[int, bytes]]:
        """The stream_seq and the bytes of every record."""
        for first in range(self.start_seq, self.end_seq + 1, _PART_RECORDS):
            last = min(first + _PART_RECORDS - 1, self.end_seq)
            at = _HEAD.size + (first - self.start_seq) * self._record_bytes
            part = self._read(at, (last - first + 1) * self._record_bytes)
            for seq in range(first, last + 1):
                start = (seq - first) * self._record_bytes
                yield seq, part[start : start + self._record_bytes]

    def digest(self) -> bytes:
        """The hash of the whole file, as the manifest has it."""
        made, at, size = sha256(), 0, os.fstat(self._fd).st_size
        while at < size:
            part = self._read(at, min(1 << 20, size - at))
            made.update(part)
            at += len(part)
        return made.digest()

    def _read(self, at: int, size: int) -> bytes:
        data = os.pread(self._fd, size, at)
        if len(data) != size:
            raise Malformed("pruned chunk", f"{self._path.name} is shorter than {at + size} bytes")
        return data

    def _entry(self, seq: int, record: bytes) -> PrunedEntry:
        msg_len, receipt_len, has_auth, client, client_seq, ack, auth, ct_hash, digest, hub_ts = _RECORD.unpack_from(
            record
        )
        auth_ref = auth if has_auth else None
        message = Msg(self.profile_id, self.label, client, client_seq, ack, auth_ref, ct_hash, b"", _NO_SIG)
        sig = record[_RECORD.size :] or None
        root = self.root if seq == self.end_seq else None
        return PrunedEntry(seq, frame.HEADER_BYTES + msg_len + receipt_len, message, digest, hub_ts, sig, root)


def size_of(entries: int, level: Level) -> int:
    """The size of the file for that many entries."""
    return _HEAD.size + entries * (_RECORD.size + (SIGNATURE_BYTES if level is Level.PAYLOADS else 0))


def of_entries(entries: Iterable[LogEntry], label: bytes, start_seq: int, end_seq: int) -> bytes:
    """The file for the entries of a chunk. Raises `Malformed` unless they are exactly those."""
    records: list[bytes] = []
    profile_id = root = b""
    for entry in entries:
        message, receipt = entry.open()
        if (entry.label, entry.stream_seq) != (label, start_seq + len(records)):
            raise Malformed("chunk", f"it has entry {entry.stream_seq} at place {start_seq + len(records)}")
        if message.profile_id != (profile_id or message.profile_id):
            raise Malformed("chunk", f"entry {entry.stream_seq} has another profile than the first")
        lengths = (len(entry.msg), len(entry.receipt), message.auth_ref is not None)
        client = (message.client_id, message.client_seq, message.prev_ack, message.auth_ref or _NONE)
        hashes = (message.ct_hash, entry.entry_hash, receipt.hub_ts)
        records.append(_RECORD.pack(*lengths, *client, *hashes) + receipt.hub_sig)
        profile_id, root = message.profile_id, receipt.mmr_root
    if start_seq + len(records) != end_seq + 1:
        raise Malformed("chunk", f"it has {len(records)} entries, not {end_seq - start_seq + 1}")
    head = _HEAD.pack(_MAGIC, _VERSION, Level.PAYLOADS, label, profile_id, start_seq, end_seq, root)
    return b"".join((head, *records))


def without_receipts(chunk: PrunedChunk) -> bytes:
    """The file for the same entries without the signatures of their receipts."""
    place = (chunk.label, chunk.profile_id, chunk.start_seq, chunk.end_seq, chunk.root)
    head = _HEAD.pack(_MAGIC, _VERSION, Level.RECEIPTS, *place)
    return b"".join((head, *(record[: _RECORD.size] for _, record in chunk.records())))


def read_manifest(folders: Folders, label: bytes) -> Manifest | None:
    """The manifest of a label, not verified; None if nothing of it was pruned. Raises `Malformed` if it is damaged."""
    try:
        found = Manifest.decode(safe_open.read(folders.manifest(label)))
    except FileNotFoundError:
        return None
    if found.label != label:
        raise Malformed("manifest", "it is of another label")
    return found


def verified_manifest(folders: Folders, identity: HubIdentity, label: bytes) -> Manifest | None:
    """As `read_manifest`, with the signature verified."""
    found = read_manifest(folders, label)
    if found is not None:
        found.verify(identity)
    return found


def tombstone(folders: Folders, label: bytes, stream_seq: int) -> Tombstone:
    """The statement of the manifest about a pruned entry. Raises `Malformed` if there is none."""
    manifest = read_manifest(folders, label)
    at = manifest.find(stream_seq) if manifest else None
    if manifest is None or at is None or not manifest.segments[at].level:
        raise Malformed("log", f"the chunk with entry {stream_seq} of {label.hex()[:16]}… is missing, and not pruned")
    return manifest.tombstone(at)


def check_pruned(chunk: PrunedChunk, manifest: Manifest | None) -> Segment:
    """Raise unless the manifest, which the caller verified, lists this file. Returns its row.

    A file may still have the receipts that the manifest calls pruned: a crash came before they were cut off.
    """
    at = manifest.find(chunk.end_seq) if manifest else None
    if manifest is None or at is None:
        raise Unverified("pruned chunk", "no manifest says that it was pruned")
    segment = manifest.segments[at]
    if (segment.start_seq, segment.end_seq) != (chunk.start_seq, chunk.end_seq) or segment.level < chunk.level:
        raise Unverified("pruned chunk", "the manifest has no such segment")
    if segment.mmr_root_end != chunk.root:
        raise Unverified("pruned chunk", "its root differs from the manifest")
    digest = chunk.digest()
    if chunk.level < segment.level:
        digest = sha256(without_receipts(chunk)).digest()
    if digest != segment.artifact_hash:
        raise Unverified("pruned chunk", "its bytes do not match the manifest")
    return segment
