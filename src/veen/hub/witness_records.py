"""What a hub keeps beside its log: regular checkpoints and their witnesses, attachments, proof of its own faults."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock

from plumbing.http.message import Response
from veen.core import Checkpoint, HubIdentity, Malformed, Refused, signing
from veen.core.hashing import h
from veen.core.limits import MAX_EVIDENCE, MAX_PAGE_ITEMS, MAX_WITNESS_SIGS
from veen.core.origin import ForkOrigin
from veen.core.tooling_messages import CheckpointList, Equivocation, EquivocationList, WitnessRequest
from veen.hub import responses
from veen.storage import checkpoint_keys, safe_open
from veen.storage.attachment_store import AttachmentStore
from veen.storage.durable import Disk
from veen.storage.index import Index
from veen.storage.paths import Folders

OCTETS = b"application/octet-stream"


class WitnessRecords:
    """Reads and writes those papers, on the executor."""

    def __init__(
        self,
        disk: Disk,
        folders: Folders,
        index: Index,
        identity: HubIdentity,
        known_witnesses: frozenset[bytes],
        attachments: AttachmentStore,
        proved: Callable[[Equivocation], object],
    ) -> None:
        """`proved` hears of each new proof that this hub contradicted itself."""
        self._disk = disk
        self._folders = folders
        self._index = index
        self._identity = identity
        self._witnesses = known_witnesses
        self._attachments = attachments
        self._proved = proved
        self._lock = Lock()  # these papers are read, changed and written back on several threads
        self.equivocations = len(self.evidence().equivocations)

    def origin(self) -> ForkOrigin:
        """Where the log comes from, if this hub is a fork: clients verify the part that was kept with it."""
        if not self._folders.origin.exists():
            raise Refused("E.NOT_FOUND", "this hub is not a fork")
        return ForkOrigin.decode(safe_open.read(self._folders.origin))

    def checkpoints(self, label: bytes, from_seq: int | None) -> CheckpointList:
        """A page of the regular checkpoints of a label: the latest, or the first that reach as far as `from_seq`."""
        with self._index.read() as rows:
            ends = rows.chunk_ends(label, from_seq, MAX_PAGE_ITEMS)
        return CheckpointList(label, tuple(self._checkpoint(label, upto_seq) for upto_seq in ends))

    def add_witness(self, body: bytes, as_json: bool) -> Response:
        """Store a known witness's signature with the checkpoint it is for, and its key beside that."""
        asked = responses.checked(WitnessRequest, body, as_json)
        if asked.witness_pk not in self._witnesses:
            raise Refused("E.FORBIDDEN", "the operator does not know this witness")
        with self._lock:
            return responses.answer(self._witnessed(asked), as_json=as_json)

    def _witnessed(self, asked: WitnessRequest) -> Checkpoint:
        checkpoint = self._checkpoint(asked.label, asked.upto_seq)
        known = checkpoint_keys.read_witnesses(self._folders, asked.label, asked.upto_seq)
        digest, sigs = checkpoint.signing_digest(), checkpoint.witness_sigs or ()
        signing.verify(asked.witness_pk, digest, asked.sig, "witness signature")
        # A key can sign in many ways. One of them is its word; more would take the places of others.
        if not any(signing.is_valid(asked.witness_pk, digest, sig) for sig in sigs):
            if len(sigs) >= MAX_WITNESS_SIGS:
                raise Refused("E.LIMIT", "this checkpoint has as many witnesses as it can carry")
            checkpoint = replace(checkpoint, witness_sigs=(*sigs, asked.sig))
            self._disk.write_file(self._folders.checkpoint(asked.label, asked.upto_seq), checkpoint.encode())
        # Also where it was there: whoever wrote it may not have lived to this line.
        self._disk.sync_folder(self._folders.log)
        if asked.witness_pk not in known:
            known = (*known, asked.witness_pk)
        checkpoint_keys.write_witnesses(self._disk, self._folders, asked.label, asked.upto_seq, known)
        return checkpoint

    def keep_equivocation(self, body: bytes, as_json: bool) -> Response:
        """Keep two contradicting receipts, if both are this hub's: the proof outlives whoever brought it."""
        found = responses.checked(Equivocation, body, as_json)
        self._identity.verify_receipt(found.first)
        self._identity.verify_receipt(found.second)
        # Either order proves the same.
        encoded = min(found.encode(), Equivocation(found.second, found.first).encode())
        path = self._folders.evidence / _evidence_name(encoded)
        with self._lock:
            if not path.exists():
                if self.equivocations >= MAX_EVIDENCE:
                    raise Refused("E.LIMIT", "this hub is proved to equivocate often enough")
                self._disk.write_file(path, encoded)
                self.equivocations += 1
                self._proved(found)
            self._disk.sync_folder(self._folders.evidence)
        return responses.answer(found, as_json=as_json)

    def evidence(self) -> EquivocationList:
        """All proofs of this hub's own faults. One that has rotted, or never was one, is for fsck to tell of."""
        found = map(_evidence_in, sorted(self._folders.evidence.glob("equivocation-*.cbor")))
        return EquivocationList(tuple(islice((one for one in found if one is not None), MAX_EVIDENCE)))

    def get_attachment(self, coid: bytes) -> Response:
        """A large one is mapped: it is read as the peer takes it."""
        sealed = self._attachments.mapped(coid)
        if sealed is None:
            raise Refused("E.NOT_FOUND", "there is no attachment of that name")
        return Response(200, sealed, OCTETS)

    def _checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        path = self._folders.checkpoint(label, upto_seq)
        if not path.exists():
            detail: dict[str, int | str] = {"label": label.hex(), "stream_seq": upto_seq}
            raise Refused("E.NOT_FOUND", "there is no regular checkpoint there", detail=detail)
        return Checkpoint.decode(safe_open.read(path))


def _evidence_name(encoded: bytes) -> str:
    return f"equivocation-{h(encoded).hex()}.cbor"


def _evidence_in(path: Path) -> Equivocation | None:
    try:
        encoded = safe_open.read(path)
        return Equivocation.decode(encoded) if path.name == _evidence_name(encoded) else None
    except Malformed:
        return None
