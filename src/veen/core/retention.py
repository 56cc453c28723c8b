"""Retention: which parts of a log a hub deletes, and the signed statements that it deleted them. Spec §3.4.1.

A hub deletes the payloads of closed chunks, later also their receipts. Before it deletes anything it logs a `Prune` on
its control stream. Afterwards the manifest of the label lists every closed chunk of that time, pruned or not, under one
Merkle root that the hub signs. A `Tombstone` is one row of a manifest with its proof. A request for a pruned
entry gets it, and the reader verifies that the hub deleted the entry and did not lose it.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Annotated

from veen.core import proof
from veen.core.cbor import Bool, Bstr, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.errors import Refused, Unverified
from veen.core.hashing import ht, u64be
from veen.core.hub_identity import HubIdentity
from veen.core.limits import MAX_CHUNKS_PER_LABEL, MAX_PRUNED_ATTACHMENTS, MAX_REASON_BYTES, MAX_RULES
from veen.core.mmr import Mmr
from veen.core.proof import MmrProof
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

PRUNED = "pruned"  # the detail of E.NOT_FOUND for a pruned entry or attachment


class Level(IntEnum):
    """The missing parts of a chunk."""

    WHOLE = 0
    PAYLOADS = 1  # ciphertexts and signatures of the messages
    RECEIPTS = 2  # also the hub's signatures in the receipts


@int_map("segment")
class Segment(Wire):
    """One closed chunk in a manifest. The last three fields exist if it was pruned."""

    start_seq: Annotated[int, Uint(least=1)]
    end_seq: Annotated[int, Uint(least=1)]
    mmr_root_end: Annotated[bytes, Bstr()]
    entry_hashes_root: Annotated[bytes, Bstr()]
    total_bytes: Annotated[int, Uint(least=1)]  # of the chunk before it was pruned
    end_ts: Annotated[int, Uint()]  # hub_ts of the last entry
    level: Annotated[int, Uint(most=Level.RECEIPTS)]
    artifact_hash: Annotated[bytes | None, Bstr(optional=True)] = None  # of the file that replaced the chunk
    pruned_at: Annotated[int | None, Uint(optional=True)] = None  # hub_ts of the `Prune` on the control stream
    event_seq: Annotated[int | None, Uint(least=1, optional=True)] = None  # its stream_seq

    def flaw(self) -> str | None:
        pruned = [self.artifact_hash is not None, self.pruned_at is not None, self.event_seq is not None]
        if set(pruned) != {self.level > Level.WHOLE}:
            return "artifact_hash, pruned_at and event_seq belong to a pruned segment"
        return None if self.start_seq <= self.end_seq else "it ends before it starts"

    def leaf_hash(self) -> bytes:
        return ht("veen/segment", self.encode())


@int_map("manifest", VersionField())
class Manifest(Wire):
    """Every chunk of a label that was closed at `hub_ts`, from the first entry on, and which of them were pruned."""

    hub_id: Annotated[bytes, Bstr()]
    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    hub_ts: Annotated[int, Uint()]
    segments: Annotated[
        tuple[Segment, ...], ListOf(Nested(Segment, name="segment"), least=1, most=MAX_CHUNKS_PER_LABEL)
    ]
    hub_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def flaw(self) -> str | None:
        next_seq = 1
        for segment in self.segments:
            if segment.start_seq != next_seq:
                return "the segments are not consecutive from entry 1 on"
            next_seq = segment.end_seq + 1
        return None

    def verify(self, identity: HubIdentity) -> None:
        """Raise `Unverified` unless a key of that hub signed it that was active at its `hub_ts`."""
        root = _tree(self.segments)[0].root()
        _verify(identity, self.hub_id, self.label, self.epoch, self.hub_ts, len(self.segments), root, self.hub_sig)

    def find(self, stream_seq: int) -> int | None:
        """The index of the segment with an entry."""
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.segments[middle].end_seq < stream_seq else (low, middle)
        return low if low < len(self.segments) and stream_seq else None

    def tombstone(self, index: int) -> "Tombstone":
        """The statement that one segment was pruned."""
        tree, nodes = _tree(self.segments)
        made = proof.prove(nodes.__getitem__, index + 1, len(self.segments))
        place = (self.hub_id, self.label, self.epoch, self.hub_ts, len(self.segments), tree.root())
        return Tombstone(*place, self.segments[index], index + 1, made, self.hub_sig)


@int_map("tombstone", VersionField())
class Tombstone(Wire):
    """One pruned segment, and the proof that the hub signed it in a manifest with `segments` rows."""

    hub_id: Annotated[bytes, Bstr()]
    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    hub_ts: Annotated[int, Uint()]
    segments: Annotated[int, Uint(least=1, most=MAX_CHUNKS_PER_LABEL)]
    segments_root: Annotated[bytes, Bstr()]
    segment: Annotated[Segment, Nested(Segment)]
    place: Annotated[int, Uint(least=1)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]
    hub_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def flaw(self) -> str | None:
        return None if self.segment.level > Level.WHOLE else "the segment was not pruned"

    @classmethod
    def of_answer(cls, refused: Refused, identity: HubIdentity, label: bytes, stream_seq: int) -> "Tombstone":
        """The verified tombstone in a hub's answer that an entry was pruned. Raises if the answer has no valid one."""
        try:
            encoded = bytes.fromhex(str(refused.detail.get("tombstone", "")))
        except ValueError:
            raise Unverified("tombstone", "it is not hexadecimal") from None
        found = cls.decode(encoded)
        found.verify(identity)
        if found.label != label or not found.segment.start_seq <= stream_seq <= found.segment.end_seq:
            raise Unverified("tombstone", "it is for other entries")
        return found

    def verify(self, identity: HubIdentity) -> None:
        """Raise `Unverified` unless that hub signed that the segment was pruned."""
        proof.verify_leaf(self.mmr_proof, self.segment.leaf_hash(), self.place, self.segments, self.segments_root)
        size, root = self.segments, self.segments_root
        _verify(identity, self.hub_id, self.label, self.epoch, self.hub_ts, size, root, self.hub_sig)


def sign_manifest(
    key: DigestSigner, hub_id: bytes, label: bytes, epoch: int, hub_ts: int, segments: Sequence[Segment]
) -> Manifest:
    digest = _digest(hub_id, label, epoch, hub_ts, len(segments), _tree(segments)[0].root())
    return Manifest(hub_id, label, epoch, hub_ts, tuple(segments), key.sign(digest))


def _tree(segments: Sequence[Segment]) -> tuple[Mmr, list[bytes]]:
    tree, nodes = Mmr(), list[bytes]()
    for segment in segments:
        nodes += tree.append(segment.leaf_hash())
    return tree, nodes


def _digest(hub_id: bytes, label: bytes, epoch: int, hub_ts: int, size: int, root: bytes) -> bytes:
    return ht("veen/manifest", hub_id + label + u64be(epoch) + u64be(hub_ts) + u64be(size) + root)


def _verify(
    identity: HubIdentity, hub_id: bytes, label: bytes, epoch: int, hub_ts: int, size: int, root: bytes, sig: bytes
) -> None:
    if hub_id != identity.hub_id:
        raise Unverified("manifest", "it is of another hub")
    identity.verify_statement(_digest(hub_id, label, epoch, hub_ts, size, root), sig, hub_ts, "manifest")


# Attachments. A hub cannot see which entry refers to one, so an upload names the label.


@int_map("upload record", VersionField())
class UploadRecord(Wire):
    """The label whose policy an attachment follows, and the hub_ts at which it was last uploaded.

    `digest` is a hash over the other fields, because a changed bit would decide when an attachment is deleted. Records
    of earlier versions have neither `coid` nor `digest`.
    """

    label: Annotated[bytes, Bstr()]
    uploaded_at: Annotated[int, Uint()]
    coid: Annotated[bytes | None, Bstr(optional=True)] = None
    digest: Annotated[bytes | None, Bstr(optional=True)] = None

    @classmethod
    def of(cls, coid: bytes, label: bytes, uploaded_at: int) -> "UploadRecord":
        unbound = cls(label, uploaded_at, coid)
        return replace(unbound, digest=unbound._digest())

    def flaw(self) -> str | None:
        if (self.coid is None) != (self.digest is None):
            return "coid and digest occur together"
        return None if self.coid is None or self.digest == self._digest() else "digest is not that of the record"

    def _digest(self) -> bytes:
        return ht("veen/upload-record", self.unsigned())


@int_map("attachment tombstone", VersionField())
class AttachmentTombstone(Wire):
    """The statement of a hub that it deleted an attachment, and by which event of its control stream."""

    hub_id: Annotated[bytes, Bstr()]
    coid: Annotated[bytes, Bstr()]
    pruned_at: Annotated[int, Uint()]
    event_seq: Annotated[int, Uint(least=1)]
    hub_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, identity: HubIdentity, coid: bytes) -> None:
        """Raise `Unverified` unless that hub signed that it deleted this attachment."""
        if (self.hub_id, self.coid) != (identity.hub_id, coid):
            raise Unverified("attachment tombstone", "it is of another hub or attachment")
        identity.verify_statement(self._digest(), self.hub_sig, self.pruned_at, "attachment tombstone")

    def _digest(self) -> bytes:
        signed = self.hub_id + self.coid + u64be(self.pruned_at) + u64be(self.event_seq)
        return ht("veen/attachment-pruned", signed)


def sign_attachment_tombstone(
    key: DigestSigner, hub_id: bytes, coid: bytes, pruned_at: int, event_seq: int
) -> AttachmentTombstone:
    unsigned = AttachmentTombstone(hub_id, coid, pruned_at, event_seq, bytes(SIGNATURE_BYTES))
    return replace(unsigned, hub_sig=key.sign(unsigned._digest()))


# Events of the control stream.


@int_map("attachment prune", VersionField())
class AttachmentPrune(Wire):
    """The hub is about to delete attachments. Logged before anything is deleted."""

    coids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="coid"), least=1, most=MAX_PRUNED_ATTACHMENTS)]
    label: Annotated[bytes | None, Bstr(optional=True)] = None
    reason: Annotated[str | None, Text(MAX_REASON_BYTES, optional=True)] = None  # of an erasure; None for a policy


@int_map("prune", VersionField())
class Prune(Wire):
    """The hub is about to prune the chunks of a label that hold these entries. Logged before anything is deleted."""

    label: Annotated[bytes, Bstr()]
    start_seq: Annotated[int, Uint(least=1)]
    end_seq: Annotated[int, Uint(least=1)]
    level: Annotated[int, Uint(least=Level.PAYLOADS, most=Level.RECEIPTS)]
    reason: Annotated[str | None, Text(MAX_REASON_BYTES, optional=True)] = None  # of an erasure; None for a policy


@int_map("retention policy", VersionField())
class RetentionPolicy(Wire):
    """How long payloads and receipts are kept. A missing number means for ever.

    It applies to one label, to all labels of one stream, or by default. The most specific policy decides.
    """

    payload_sec: Annotated[int | None, Uint(optional=True)] = None
    receipt_sec: Annotated[int | None, Uint(optional=True)] = None
    label: Annotated[bytes | None, Bstr(optional=True)] = None
    stream_id: Annotated[bytes | None, Bstr(optional=True)] = None
    label_class: Annotated[str | None, Text(MAX_REASON_BYTES, optional=True)] = None  # why the label has it

    def flaw(self) -> str | None:
        if self.receipt_sec is not None and (self.payload_sec is None or self.receipt_sec < self.payload_sec):
            return "receipts must be kept for at least as long as payloads"
        return None

    @property
    def scope(self) -> tuple[bytes, bytes]:
        return self.label or b"", self.stream_id or b""


@int_map("hold", VersionField())
class Hold(Wire):
    """A legal hold on a label, on a stream or on everything, or its end. It prevents every deletion."""

    held: Annotated[int, Uint(most=1)]
    reason: Annotated[str, Text(MAX_REASON_BYTES)]
    label: Annotated[bytes | None, Bstr(optional=True)] = None
    stream_id: Annotated[bytes | None, Bstr(optional=True)] = None

    @property
    def scope(self) -> tuple[bytes, bytes]:
        return self.label or b"", self.stream_id or b""


@int_map("retention rules", VersionField())
class RetentionRules(Wire):
    """The policies and holds in force, by scope: what the events of the control stream add up to."""

    policies: Annotated[
        tuple[RetentionPolicy, ...], ListOf(Nested(RetentionPolicy, name="policy"), most=MAX_RULES)
    ] = ()
    holds: Annotated[tuple[Hold, ...], ListOf(Nested(Hold, name="hold"), most=MAX_RULES)] = ()

    def after(self, event: RetentionPolicy | Hold) -> "RetentionRules":
        """The rules after an event. A policy without numbers and a hold that ends remove the earlier one."""
        if isinstance(event, RetentionPolicy):
            others = tuple(one for one in self.policies if one.scope != event.scope)
            added = () if event.payload_sec is None else (event,)
            return replace(self, policies=tuple(sorted(others + added, key=lambda one: one.scope)))
        kept = tuple(one for one in self.holds if one.scope != event.scope)
        return replace(self, holds=tuple(sorted(kept + ((event,) if event.held else ()), key=lambda one: one.scope)))

    def policy_of(self, label: bytes, stream_id: bytes | None) -> RetentionPolicy | None:
        """The policy for a label: its own, that of its stream, or the default."""
        by_scope = {one.scope: one for one in self.policies}
        return by_scope.get((label, b"")) or by_scope.get((b"", stream_id or b"?")) or by_scope.get((b"", b""))

    def hold_of(self, label: bytes, stream_id: bytes | None) -> Hold | None:
        scopes = {(label, b""), (b"", stream_id or b"?"), (b"", b"")}
        return next((one for one in self.holds if one.scope in scopes), None)


# Requests of the operator.


@int_map("retention request", VersionField())
class RetentionRequest(Wire):
    """Prune what the policies allow, of one label or of all; or with a range, the chunks with those entries; or with a
    coid, that attachment.

    With `dry`, nothing is deleted: the report says what would be.
    """

    dry: Annotated[bool, Bool()]
    label: Annotated[bytes | None, Bstr(optional=True)] = None
    from_seq: Annotated[int | None, Uint(least=1, optional=True)] = None
    to_seq: Annotated[int | None, Uint(least=1, optional=True)] = None
    reason: Annotated[str | None, Text(MAX_REASON_BYTES, optional=True)] = None
    coid: Annotated[bytes | None, Bstr(optional=True)] = None

    @property
    def is_erasure(self) -> bool:
        return self.from_seq is not None or self.coid is not None

    def flaw(self) -> str | None:
        if self.coid is not None and self.reason is None:
            return "an erasure needs a reason"
        if self.from_seq is not None and (self.label is None or self.reason is None):
            return "an erasure needs a label and a reason"
        return None if self.to_seq is None or self.from_seq is not None else "to_seq needs from_seq"


@int_map("pruned range")
class PrunedRange(Wire):
    """Consecutive chunks of a label, and the bytes that they took and take."""

    label: Annotated[bytes, Bstr()]
    start_seq: Annotated[int, Uint(least=1)]
    end_seq: Annotated[int, Uint(least=1)]
    level: Annotated[int, Uint(least=Level.PAYLOADS, most=Level.RECEIPTS)]
    bytes_before: Annotated[int, Uint()]
    bytes_after: Annotated[int, Uint()]


@int_map("retention report", VersionField())
class RetentionReport(Wire):
    """The result of a run: the first ranges, how many there are, the bytes freed, and the entries under a hold;
    then the attachments, their bytes, and those under a hold.
    """

    ranges: Annotated[tuple[PrunedRange, ...], ListOf(Nested(PrunedRange, name="pruned range"), most=MAX_RULES)]
    range_count: Annotated[int, Uint()]
    freed_bytes: Annotated[int, Uint()]
    held_entries: Annotated[int, Uint()]
    attachments: Annotated[int, Uint()]
    attachment_bytes: Annotated[int, Uint()]
    held_attachments: Annotated[int, Uint()]
