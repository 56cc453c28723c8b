"""What a hub keeps beside its log: regular checkpoints and their witnesses, attachments, proof of its own faults."""

from dataclasses import replace
from threading import Lock

from veen.core import Checkpoint, HubIdentity, Refused, signing
from veen.core.hashing import h
from veen.core.limits import MAX_PAGE_ITEMS, MAX_WITNESS_SIGS
from veen.core.tooling import CheckpointList, Equivocation, WitnessRequest
from veen.hub import answers
from veen.hub.http.message import Response
from veen.storage.artifacts import CheckpointIndex
from veen.storage.attachments import AttachmentStore
from veen.storage.durable import Disk
from veen.storage.folders import Folders

OCTETS = b"application/octet-stream"


class PaperDesk:
    """Reads and writes those papers, on the executor."""

    def __init__(self, disk: Disk, folders: Folders, identity: HubIdentity, witnesses: frozenset[bytes]) -> None:
        self._disk = disk
        self._folders = folders
        self._identity = identity
        self._witnesses = witnesses
        self._attachments = AttachmentStore(disk, folders)
        self._lock = Lock()  # these papers are read, changed and written back on several threads
        self.equivocations = sum(1 for _ in folders.evidence.glob("equivocation-*.cbor"))

    def checkpoints(self, label: bytes) -> CheckpointList:
        """The latest regular checkpoints of a label."""
        path = self._folders.checkpoint_index(label)
        if not path.exists():
            return CheckpointList(label, ())
        rows = CheckpointIndex.decode(path.read_bytes()).checkpoints[-MAX_PAGE_ITEMS:]
        return CheckpointList(label, tuple(self._checkpoint(label, row.upto_seq) for row in rows))

    def add_witness(self, body: bytes, as_json: bool) -> Response:
        """Store a known witness's signature with the checkpoint it is for."""
        asked = answers.decoded(WitnessRequest, body, as_json)
        if asked.witness_pk not in self._witnesses:
            raise Refused("E.FORBIDDEN", "the operator does not know this witness")
        with self._lock:
            return answers.answer(self._witnessed(asked), as_json=as_json)

    def _witnessed(self, asked: WitnessRequest) -> Checkpoint:
        checkpoint = self._checkpoint(asked.label, asked.upto_seq)
        signing.verify(asked.witness_pk, checkpoint.signing_digest(), asked.sig, "witness signature")
        sigs = checkpoint.witness_sigs or ()
        if asked.sig not in sigs:
            if len(sigs) >= MAX_WITNESS_SIGS:
                raise Refused("E.LIMIT", "this checkpoint has as many witnesses as it can carry")
            checkpoint = replace(checkpoint, witness_sigs=(*sigs, asked.sig))
            self._disk.write_file(self._folders.checkpoint(asked.label, asked.upto_seq), checkpoint.encode())
            self._disk.sync_folder(self._folders.log)
        return checkpoint

    def keep_equivocation(self, body: bytes, as_json: bool) -> Response:
        """Keep two contradicting receipts, if both are this hub's: the proof outlives whoever brought it."""
        found = answers.decoded(Equivocation, body, as_json)
        self._identity.verify_receipt(found.first)
        self._identity.verify_receipt(found.second)
        encoded = found.encode()
        path = self._folders.evidence / f"equivocation-{h(encoded).hex()}.cbor"
        with self._lock:
            if not path.exists():
                self._disk.write_file(path, encoded)
                self._disk.sync_folder(self._folders.evidence)
                self.equivocations += 1
        return answers.answer(found, as_json=as_json)

    def put_attachment(self, coid: bytes, sealed: bytes) -> Response:
        return Response(201 if self._attachments.put(coid, sealed) else 200)

    def get_attachment(self, coid: bytes) -> Response:
        sealed = self._attachments.get(coid)
        if sealed is None:
            raise Refused("E.NOT_FOUND", "there is no attachment of that name")
        return Response(200, sealed, OCTETS)

    def _checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        path = self._folders.checkpoint(label, upto_seq)
        if not path.exists():
            detail: dict[str, int | str] = {"label": label.hex(), "stream_seq": upto_seq}
            raise Refused("E.NOT_FOUND", "there is no regular checkpoint there", detail=detail)
        return Checkpoint.decode(path.read_bytes())
