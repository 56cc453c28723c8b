"""Records beside the log: regular checkpoints with witnesses, attachments, and proofs of equivocation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from threading import Lock

from plumbing.durable import Disk
from plumbing.http.message import Response
from veen.core import Checkpoint, HubIdentity, Malformed, Refused, signing
from veen.core.envelopes import CheckpointList, Equivocation, EquivocationList, WitnessRequest
from veen.core.handover import HandOverList
from veen.core.hashing import h
from veen.core.hub_identity import ForkOrigin
from veen.core.limits import MAX_EVIDENCE, MAX_PAGE_ITEMS, MAX_WITNESS_SIGS
from veen.core.retention import PRUNED
from veen.storage import checkpoint_files, rotation, safe_open
from veen.storage.attachment_store import AttachmentStore
from veen.storage.checkpoint_files import WitnessKeys
from veen.storage.index import Index
from veen.storage.paths import Folders

OCTETS = b"application/octet-stream"


@dataclass(eq=False)
class WitnessRecords:
    """Reads and writes these records, on the thread pool.

    `proved` is called for each new proof that this hub contradicted itself.
    """

    _disk: Disk
    _folders: Folders
    _index: Index
    _identity: HubIdentity
    _witnesses: frozenset[bytes]
    _attachments: AttachmentStore
    _proved: Callable[[Equivocation], object]

    def __post_init__(self) -> None:
        self._lock = Lock()  # files are read, changed and written back on several threads
        self.equivocations = len(self.evidence().equivocations)

    def origin(self) -> ForkOrigin:
        """The origin of a fork. Clients verify the entries that were kept with it."""
        if not self._folders.origin.exists():
            raise Refused("E.NOT_FOUND", "this hub is not a fork")
        return ForkOrigin.decode(safe_open.read(self._folders.origin))

    def follow(self, identity: HubIdentity) -> None:
        """Use a record that continues the known one."""
        self._identity = identity

    def handovers(self, label: bytes | None) -> HandOverList:
        """The hand-overs between the hub's keys, with the row of a label in each if one is given."""
        return rotation.list_handovers(self._folders, self._identity, label)

    def checkpoints(self, label: bytes, from_seq: int | None) -> CheckpointList:
        """A page of the regular checkpoints of a label: the latest, or those from the chunk with `from_seq` on."""
        with self._index.read() as rows:
            ends = rows.chunk_ends(label, from_seq, MAX_PAGE_ITEMS)
        return CheckpointList(label, tuple(self.checkpoint(label, upto_seq) for upto_seq in ends))

    def add_witness(self, request: WitnessRequest) -> Checkpoint:
        """Store the signature of a known witness in its checkpoint, and the key beside it."""
        self._check_known(request.witness_pk)
        with self._lock:
            return self._witnessed(request)

    def check_witness(self, request: WitnessRequest, made: Checkpoint) -> None:
        """Raise unless a known witness signed the checkpoint."""
        self._check_known(request.witness_pk)
        signing.verify(request.witness_pk, made.signing_digest(), request.sig, "witness signature")

    def has_checkpoint(self, label: bytes, upto_seq: int) -> bool:
        """Whether a checkpoint is stored there."""
        return self._path(label, upto_seq) is not None

    def _check_known(self, witness_pk: bytes) -> None:
        """Keys of the hub are in checkpoints of an overlap, and never count as witnesses."""
        own = any(key.hub_pk == witness_pk for key in self._identity.hub_keys)
        if witness_pk not in self._witnesses or own:
            raise Refused("E.FORBIDDEN", "this witness is not in the hub's list of witnesses")

    def store_requested(self, made: Checkpoint) -> Checkpoint:
        """Store a checkpoint that an event of the control stream asks for, so that witnesses can cosign it."""
        with self._lock:
            label, upto_seq = made.label_curr, made.upto_seq
            if self._path(label, upto_seq) is None:
                self._write_requested(self._folders.requested_checkpoint(label, upto_seq), made)
            return self.checkpoint(label, upto_seq)

    def cosigned(self, label: bytes) -> Checkpoint:
        """The newest checkpoint of a label that a witness cosigned."""
        path = self._folders.newest_cosigned(label)
        if not path.exists():
            raise Refused("E.NOT_FOUND", "no witness has cosigned a checkpoint of this label")
        return Checkpoint.decode(safe_open.read(path))

    def _witnessed(self, request: WitnessRequest) -> Checkpoint:
        path = self._need_path(request.label, request.upto_seq)
        checkpoint = self.checkpoint(request.label, request.upto_seq)
        digest, sigs = checkpoint.signing_digest(), checkpoint.witness_sigs or ()
        signing.verify(request.witness_pk, digest, request.sig, "witness signature")
        known = self._known_witnesses(checkpoint, request.witness_pk)
        # A key can produce many valid signatures. Store one per witness: more would use up the places of others.
        if not any(signing.is_valid(request.witness_pk, digest, sig) for sig in sigs):
            if len(sigs) >= MAX_WITNESS_SIGS:
                raise Refused("E.LIMIT", "this checkpoint already has the maximum number of witness signatures")
            checkpoint_files.write_witnesses(self._disk, self._folders, replace(known, is_pending=True))
            checkpoint = replace(checkpoint, witness_sigs=(*sigs, request.sig))
            self._disk.write_file(path, checkpoint.encode())
        # Also if the signature was stored before: an earlier process may have crashed before this line.
        self._disk.sync_folder(path.parent)
        checkpoint_files.write_witnesses(self._disk, self._folders, known)
        newest = self._folders.newest_cosigned(request.label)
        if not newest.exists() or Checkpoint.decode(safe_open.read(newest)).upto_seq <= checkpoint.upto_seq:
            self._write_requested(newest, checkpoint)
        return checkpoint

    def _known_witnesses(self, checkpoint: Checkpoint, witness_pk: bytes) -> WitnessKeys:
        """The witnesses of a stored checkpoint, and this one at the end if it is new."""
        label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
        known = checkpoint_files.read_witnesses(self._folders, label, upto_seq)
        pks = known.witness_pks if known else ()
        if known and known.is_pending:  # an earlier process crashed before or after it stored the signature
            digest, sigs = checkpoint.signing_digest(), checkpoint.witness_sigs or ()
            pks = pks if any(signing.is_valid(pks[-1], digest, sig) for sig in sigs) else pks[:-1]
        return WitnessKeys(label, upto_seq, pks if witness_pk in pks else (*pks, witness_pk))

    def _write_requested(self, path: Path, checkpoint: Checkpoint) -> None:
        if not path.parent.exists():
            self._disk.make_folder(path.parent)
            self._disk.sync_folder(path.parent.parent)
        self._disk.write_file(path, checkpoint.encode())
        self._disk.sync_folder(path.parent)

    def store_equivocation(self, found: Equivocation) -> Equivocation:
        """Store two contradicting receipts of this hub, so that the proof survives its reporter."""
        self._identity.verify_receipt(found.first)
        self._identity.verify_receipt(found.second)
        # The order of the two does not matter.
        encoded = min(found.encode(), Equivocation(found.second, found.first).encode())
        path = self._folders.evidence / _evidence_name(encoded)
        with self._lock:
            if not path.exists():
                if self.equivocations >= MAX_EVIDENCE:
                    raise Refused("E.LIMIT", "this hub already stores the maximum number of equivocation proofs")
                self._disk.write_file(path, encoded)
                self.equivocations += 1
                self._proved(found)
            self._disk.sync_folder(self._folders.evidence)
        return found

    def evidence(self) -> EquivocationList:
        """All valid proofs of this hub's contradictions. fsck reports damaged ones."""
        found = map(_evidence_in, sorted(self._folders.evidence.glob("equivocation-*.cbor")))
        return EquivocationList(tuple(islice((one for one in found if one is not None), MAX_EVIDENCE)))

    def get_attachment(self, coid: bytes) -> Response:
        """A large attachment is mapped, and read while it is sent."""
        sealed = self._attachments.mapped(coid)
        if sealed is None:
            if tombstone := self._attachments.tombstone(coid):
                detail: dict[str, int | str] = {"tombstone": tombstone.encode().hex()}
                raise Refused("E.NOT_FOUND", "this attachment was pruned", detail_enum=PRUNED, detail=detail)
            raise Refused("E.NOT_FOUND", "there is no attachment with that coid")
        return Response(200, sealed, OCTETS)

    def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        """A stored checkpoint: a regular one, or one that was requested."""
        self._need_path(label, upto_seq)
        found = rotation.stored_checkpoint(self._folders, label, upto_seq)
        assert found is not None, "stored checkpoints are never removed"
        return found

    def _path(self, label: bytes, upto_seq: int) -> Path | None:
        places = self._folders.checkpoint(label, upto_seq), self._folders.requested_checkpoint(label, upto_seq)
        return next((path for path in places if path.exists()), None)

    def _need_path(self, label: bytes, upto_seq: int) -> Path:
        path = self._path(label, upto_seq)
        if path is None:
            detail: dict[str, int | str] = {"label": label.hex(), "stream_seq": upto_seq}
            raise Refused("E.NOT_FOUND", "there is no stored checkpoint there", detail=detail)
        return path


def _evidence_name(encoded: bytes) -> str:
    return f"equivocation-{h(encoded).hex()}.cbor"


def _evidence_in(path: Path) -> Equivocation | None:
    try:
        encoded = safe_open.read(path)
        return Equivocation.decode(encoded) if path.name == _evidence_name(encoded) else None
    except Malformed:
        return None
