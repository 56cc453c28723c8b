"""Files about checkpoints: the binding, the index of a label, and the keys of witnesses. Spec §4.8.3, §8.4.

The binding says which hub key signed which checkpoint, over which root. It can be derived from the checkpoints and the
identity record at any time, with the same result. The file is written as a whole, after the checkpoints it names and
before the index row of their chunks. A crash in between leaves a binding without those rows; the chunks are then closed
again from the journal (see `log_writer`). The file grows with the log, so it is not kept in memory and not read at
start.

The checkpoint index of a label has one row for every closed chunk, and the rows are contiguous, so a missing row is
detected. Each row is redundant: the range is also in the chunk's file name, and the root is also in the checkpoint, in
the chunk summary, and in the receipt of the chunk's last entry.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from plumbing.durable import Disk
from veen.core import Checkpoint, Malformed, Unverified, VeenError, signing
from veen.core.cbor import Bool, Bstr, ListOf, Uint, VersionField, Wire, int_map
from veen.core.cbor.heads import write_bstr
from veen.core.limits import MAX_WITNESS_SIGS
from veen.storage import artifacts, chunk_reader, safe_open
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding, ChunkSummary, IndexedCheckpoint
from veen.storage.chunk_reader import ChunkFile
from veen.storage.fsck_report import Finding, Severity
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import PrunedChunk

_NAMES = Folders(Path())  # for file names only
_BINDING_ROW = re.compile(
    rb"(\xa5(\x01%b\x02%b)\x03%b\x04%b\x05%b)"
    % (artifacts.HASH, artifacts.FROM_1, artifacts.UINT, artifacts.HASH, artifacts.HASH),
    re.DOTALL,
)
_CHECKPOINT = re.compile(r"checkpoint-([0-9a-f]{64})-(\d{20})\.cbor")


class BindingFile:
    """Maintains the binding of one data directory. One writer."""

    def __init__(self, disk: Disk, folders: Folders, hub_metadata: HubMetadata) -> None:
        self._disk = disk
        self._folders = folders
        self._hub_metadata = hub_metadata
        self._added: dict[bytes, bytes] = {}  # rows by their place, both encoded
        self._exists = _binding_starts_with(folders, _binding_head(hub_metadata.identity.hub_id))

    def follow(self, hub_metadata: HubMetadata) -> None:
        """Bind checkpoints to the keys of a record that continues the known one."""
        self._hub_metadata = hub_metadata

    def can_bind(self, checkpoint: Checkpoint) -> bool:
        """Whether a key of the hub signed the checkpoint."""
        try:
            bound_row(checkpoint, self._hub_metadata)
        except Unverified:
            return False
        return True

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a regular checkpoint; `save` writes it."""
        row = bound_row(checkpoint, self._hub_metadata).encode()
        found = _BINDING_ROW.fullmatch(row)
        assert found, "the pattern is that of a row"
        self._added[found[2]] = row

    def save(self) -> None:
        """Write the file if there are new rows, or if the existing file is unreadable."""
        if self._exists and not self._added:
            return
        head = _binding_head(self._hub_metadata.identity.hub_id)
        data, rows = _read_binding_rows(self._folders, head)
        if rows is None:
            known = derived_binding(self._folders, self._hub_metadata).checkpoints
            data, rows = b"", [row.encode() for row in known]
        # Encoded rows sort like their places: the shortest form of a larger integer compares greater.
        for place, row in self._added.items():
            at = bisect_left(rows, place, key=lambda known: known[1 : 1 + len(place)])
            same = at < len(rows) and rows[at].startswith(place, 1)
            rows[at : at + same] = [row]
        made = artifacts.joined(head, rows)
        if made != data:
            self._disk.write_file(self._folders.binding, made)
        # Also if the file has the rows: an attempt that failed or was killed may have left its name unsynced.
        self._disk.sync_folder(self._folders.root)
        self._added.clear()
        self._exists = True


def _binding_head(hub_id: bytes) -> bytes:
    return b"\xa3\x01\x01\x02" + write_bstr(hub_id) + b"\x03"


def _binding_starts_with(folders: Folders, head: bytes) -> bool:
    try:
        with open(safe_open.open_file(folders.binding), "rb", buffering=0) as file:
            return file.read(len(head)) == head
    except (FileNotFoundError, Malformed):
        return False


def _read_binding_rows(folders: Folders, head: bytes) -> tuple[bytes, list[bytes] | None]:
    """The file and its encoded rows; None instead of rows if it is not a valid binding of this hub."""
    try:
        data = safe_open.read(folders.binding)
    except (FileNotFoundError, Malformed):
        return b"", None
    found = artifacts.split(data, head, _BINDING_ROW)
    if found is None or not all(a < b for (_, a), (_, b) in pairwise(found)):
        return data, None
    return data, [row for row, _ in found]


def newest_bound(data: bytes, hub_id: bytes) -> dict[bytes, int]:
    """The last bound entry of each label. Raises `Malformed` if the bytes are not a binding of this hub."""
    found = artifacts.split(data, _binding_head(hub_id), _BINDING_ROW)
    if found is None or not all(a < b for (_, a), (_, b) in pairwise(found)):
        raise Malformed("checkpoint binding", "not a binding of this hub")
    return {place[3:35]: artifacts.uint(place[36:]) for _, place in found}


def binding_upto(folders: Folders, hub_metadata: HubMetadata, last: Mapping[bytes, int]) -> bytes:
    """The binding of the checkpoints of each label up to an entry. Raises `Malformed` if it is damaged."""
    head = _binding_head(hub_metadata.identity.hub_id)
    data, rows = _read_binding_rows(folders, head)
    if rows is None:
        raise Malformed(folders.binding.name, "it is missing, damaged, or of another hub")
    found = artifacts.split(data, head, _BINDING_ROW) or ()
    return artifacts.joined(
        head, [row for row, place in found if artifacts.uint(place[36:]) <= last.get(place[3:35], 0)]
    )


def read_binding(folders: Folders) -> CheckpointBinding | None:
    """The stored binding; None if it is missing or unreadable."""
    try:
        return CheckpointBinding.decode(safe_open.read(folders.binding))
    except (Malformed, FileNotFoundError):
        return None


def binding_fault(
    found: CheckpointBinding | None,
    hub_id: bytes,
    bound: Mapping[tuple[bytes, int], BoundCheckpoint],
    may_follow: Callable[[bytes, int], bool],
) -> Finding | None:
    """The fault of a binding, which must have the rows of all checkpoints of the log, by place.

    `may_follow` says whether there may be a row that is not among them.
    """
    name = _NAMES.binding.name
    if found is None or found.hub_id != hub_id:
        return Finding(Severity.REPAIRABLE, name, "missing, unreadable, or of another hub")
    rows = {row.place: row for row in found.checkpoints}
    wrong = [place for place, row in bound.items() if rows.get(place) != row]
    wrong += [place for place in rows.keys() - bound.keys() if not may_follow(*place)]
    if not wrong:
        return None
    return Finding(Severity.REPAIRABLE, name, "it does not match the checkpoints in the log", *min(wrong))


def write_binding(disk: Disk, folders: Folders, binding: CheckpointBinding) -> None:
    disk.write_file(folders.binding, binding.encode())
    disk.sync_folder(folders.root)


def bound_row(checkpoint: Checkpoint, hub_metadata: HubMetadata) -> BoundCheckpoint:
    """The row of a checkpoint. Raises `Unverified` if no key of the hub signed it.

    The caller checks whether the key was valid at that time.
    """
    label, upto_seq, digest = checkpoint.label_curr, checkpoint.upto_seq, checkpoint.signing_digest()
    for key in reversed(hub_metadata.identity_at(label, upto_seq).signing_keys):
        if signing.is_valid(key.hub_pk, digest, checkpoint.hub_sig):
            return BoundCheckpoint(label, upto_seq, checkpoint.epoch, checkpoint.mmr_root, key.key_id)
    raise Unverified("checkpoint", "no key of the hub signed it")


def derived_binding(folders: Folders, hub_metadata: HubMetadata) -> CheckpointBinding:
    """The binding of the stored checkpoints. An invalid checkpoint gets no row; other checks report it."""
    rows = []
    for path in folders.log.iterdir():
        if not _CHECKPOINT.fullmatch(path.name):
            continue
        try:
            rows.append(bound_row(Checkpoint.decode(safe_open.read(path)), hub_metadata))
        except (Malformed, Unverified):
            continue
    return CheckpointBinding(hub_metadata.identity.hub_id, tuple(sorted(rows, key=lambda row: row.place)))


@int_map("witness keys", VersionField())
class WitnessKeys(Wire):
    """The keys of the witnesses that signed a checkpoint, in order of arrival.

    The file is written before a new signature, with `is_pending`, and again after it. So a signature never lacks its
    key, and only the last key may lack its signature, and only after a crash between the two writes.
    """

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    witness_pks: Annotated[tuple[bytes, ...], ListOf(Bstr(name="witness_pk"), least=1, most=MAX_WITNESS_SIGS)]
    is_pending: Annotated[bool | None, Bool(optional=True)] = None  # the signature of the last key may be missing

    def flaw(self) -> str | None:
        if self.is_pending is False:
            return "is_pending is neither absent nor true"
        return None if len(set(self.witness_pks)) == len(self.witness_pks) else "a witness key occurs twice"


def read_witnesses(folders: Folders, label: bytes, upto_seq: int) -> WitnessKeys | None:
    """The known witness keys; None if no witness signed the checkpoint. Raises if the file is damaged."""
    path = folders.witnesses_of(label, upto_seq)
    try:
        data = safe_open.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Malformed("witness keys", f"they cannot be read: {error.strerror}") from None
    found = WitnessKeys.decode(data)
    if (found.label, found.upto_seq) != (label, upto_seq):
        raise Unverified("witness keys", "label or upto_seq differ from the file name")
    return found


def write_witnesses(disk: Disk, folders: Folders, known: WitnessKeys) -> None:
    """Store witness keys. Unless the last is pending, their signatures must already be on disk."""
    new = not folders.witnesses.exists()
    disk.make_folder(folders.witnesses)
    disk.write_file(folders.witnesses_of(known.label, known.upto_seq), known.encode())
    disk.sync_folder(folders.witnesses)
    if new:
        disk.sync_folder(folders.root)


def copy_witnesses(disk: Disk, source: Folders, target: Folders) -> None:
    """Copy the witness keys of all checkpoints that exist in the target. The caller syncs the copy as a whole."""
    for path in sorted(source.witnesses.glob("*.cbor")):
        if (target.log / f"checkpoint-{path.name}").exists():
            disk.make_folder(target.witnesses)
            disk.write_file(target.witnesses / path.name, safe_open.read(path))


def with_all_cosignatures(folders: Folders, checkpoint: Checkpoint) -> Checkpoint:
    """A stored checkpoint with the cosignatures of every file for the same prefix.

    A requested one may be cosigned before the regular one of the same prefix is stored.
    """
    label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
    found = [checkpoint]
    for place in (folders.checkpoint, folders.final_checkpoint, folders.requested_checkpoint):
        with suppress(OSError, Malformed):
            found.append(Checkpoint.decode(safe_open.read(place(label, upto_seq))))
    digest = checkpoint.signing_digest()
    sigs = dict.fromkeys(sig for one in found if one.signing_digest() == digest for sig in one.witness_sigs or ())
    return replace(checkpoint, witness_sigs=tuple(sigs)[:MAX_WITNESS_SIGS] or None)


def check_witnesses(folders: Folders, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Findings about the witness signatures of a checkpoint."""
    checkpoint = with_all_cosignatures(folders, checkpoint)
    label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
    try:
        known = read_witnesses(folders, label, upto_seq)
    except VeenError as error:
        artifact = str(folders.witnesses_of(label, upto_seq).relative_to(folders.root))
        yield Finding(Severity.DAMAGED, artifact, str(error), label, upto_seq)
        return
    artifact = str(folders.checkpoint(label, upto_seq).relative_to(folders.root))
    digest, unmatched, lost = checkpoint.signing_digest(), list(checkpoint.witness_sigs or ()), False
    for number, witness_pk in enumerate(known.witness_pks if known else (), 1):
        held = next((sig for sig in unmatched if signing.is_valid(witness_pk, digest, sig)), None)
        if held is not None:
            unmatched.remove(held)
        elif not (known and known.is_pending and number == len(known.witness_pks) and not unmatched):
            what = f"the signature of witness {witness_pk.hex()[:16]}… is missing or invalid"
            yield Finding(Severity.DAMAGED, artifact, what, label, upto_seq)
            lost = True
    if unmatched and not lost:
        what = f"the keys of {len(unmatched)} witness signatures are not stored, so they cannot be verified"
        yield Finding(Severity.NOTICE, artifact, what, label, upto_seq)


# upto_seq, chunk_end and peaks_ref are equal.
_INDEX_ROW = re.compile(
    rb"(\xa5\x01(%b)\x02%b\x03(%b)\x04\2\x05\2)" % (artifacts.FROM_1, artifacts.HASH, artifacts.FROM_1), re.DOTALL
)


def rows_before(folders: Folders, label: bytes, start_seq: int) -> list[bytes] | None:
    """The encoded rows of all chunks before `start_seq`; None if the file is damaged or lacks rows."""
    return _encoded_before(folders, _index_head(label), label, start_seq)


def _index_head(label: bytes) -> bytes:
    return b"\xa3\x01\x01\x02" + write_bstr(label) + b"\x03"


def index_upto(folders: Folders, label: bytes, start_seq: int) -> bytes:
    """The index file of all chunks before `start_seq`."""
    rows = rows_before(folders, label, start_seq)
    if rows is None:
        rows = [row.encode() for row in derived_rows(folders, label, start_seq)]
    return artifacts.joined(_index_head(label), rows)


def index_with_row(folders: Folders, label: bytes, added: IndexedCheckpoint) -> bytes:
    """The index file with one row added. Incomplete earlier rows are derived from the log files."""
    head = _index_head(label)
    rows = _encoded_before(folders, head, label, added.chunk_start)
    if rows is None:
        rows = [row.encode() for row in derived_rows(folders, label, added.chunk_start)]
    return artifacts.joined(head, [*rows, added.encode()])


def _encoded_before(folders: Folders, head: bytes, label: bytes, start_seq: int) -> list[bytes] | None:
    """The encoded rows of a complete index file; None if the file is damaged or lacks rows."""
    try:
        found = artifacts.split(safe_open.read(folders.checkpoint_index(label)), head, _INDEX_ROW)
    except (OSError, Malformed):
        return None
    rows, expected = [], 1
    for row, end, start in found or ():
        if expected == start_seq or artifacts.uint(start) != expected:
            break
        rows.append(row)
        expected = artifacts.uint(end) + 1
    return rows if expected == start_seq else None


def derived_rows(folders: Folders, label: bytes, start_seq: int) -> tuple[IndexedCheckpoint, ...]:
    """The rows of all chunks before `start_seq`, derived from chunk names, checkpoints and summaries.

    Raises if these are damaged, too.
    """
    if start_seq == 1:
        return ()
    rows = []
    for chunk in chunk_reader.chunk_files(folders, label).get(label, []):
        if chunk.end_seq is not None and chunk.end_seq < start_seq:
            root = _root_after(folders, label, chunk, chunk.end_seq)
            rows.append(IndexedCheckpoint(chunk.end_seq, root, chunk.start_seq, chunk.end_seq, chunk.end_seq))
    return tuple(rows)


def _root_after(folders: Folders, label: bytes, chunk: ChunkFile, end_seq: int) -> bytes:
    """Use the root that checkpoint and summary agree on. If they differ, read the last receipt of the chunk."""
    with suppress(OSError, Malformed):
        signed = Checkpoint.decode(safe_open.read(folders.checkpoint(label, end_seq)))
        summary = ChunkSummary.decode(safe_open.read(folders.summary(label, chunk.start_seq, end_seq)))
        if (signed.label_curr, signed.upto_seq, signed.mmr_root) == (label, end_seq, summary.mmr_root_end):
            return signed.mmr_root
    if chunk.pruned:
        with PrunedChunk(chunk.path) as left:
            return left.root
    return chunk_reader.last_entry(chunk.path).open()[1].mmr_root
