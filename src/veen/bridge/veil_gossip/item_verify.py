"""Verifies received items offline, from their bytes and the known hub record.

Anyone can send anything. An item that does not verify raises `ItemRejected` with a countable reason.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from veen.bridge import bundle, bundle_verify
from veen.bridge.bundle import BundleFault
from veen.bridge.veil_gossip.gossip_items import ShownCheckpoint
from veen.client import evidence_verify
from veen.client.evidence import Evidence
from veen.client.evidence_verify import EvidenceReport
from veen.client.trust import HubRecord
from veen.core import Checkpoint, HubIdentity, IdentitySignature, Malformed, Unverified
from veen.core.hashing import h
from veen.core.origin import lineage


class RejectReason(StrEnum):
    OVERSIZED = "oversized"  # longer than any item
    MALFORMED = "malformed"  # the bytes do not decode as the item or the object it names
    FOREIGN = "foreign"  # belongs to another hub
    AGAIN = "again"  # already received
    PARTS = "parts"  # the parts do not match the manifest
    IDENTITY = "identity"  # the identity record is not the hub's, or does not continue the known one
    SIGNATURE = "signature"  # no hub key that was valid then signed it
    EVIDENCE = "evidence"  # the file proves nothing
    BUNDLE = "bundle"  # the bundle does not verify
    ROOM = "room"  # the inbox is full


class ItemRejected(Exception):
    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint signed by a hub key, and the record that names the key."""

    checkpoint: Checkpoint
    record: HubRecord


def checkpoint(body: bytes, known: HubRecord) -> VerifiedCheckpoint:
    """Decode and verify a checkpoint of the known hub. Raises `ItemRejected`."""
    try:
        shown = ShownCheckpoint.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    record = newer(known, shown.identity, shown.signature)
    found = shown.checkpoint
    try:
        # A fork's origin signed the entries that the fork kept.
        signer = lineage(record.identity, record.origin).identity_at(found.label_curr, found.upto_seq)
        signer.verify_checkpoint(found, record.profile)
    except Unverified as error:
        raise ItemRejected(RejectReason.SIGNATURE, error.reason) from None
    return VerifiedCheckpoint(found, record)


def evidence(body: bytes, known: HubRecord) -> tuple[EvidenceReport, bytes]:
    """Verify evidence about the known hub. Also returns the hash of its content without claim and time.

    Raises `ItemRejected`.
    """
    try:
        shown = Evidence.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    newer(known, shown.identity, shown.signature)
    if shown.profile != known.profile:
        raise ItemRejected(RejectReason.IDENTITY, "the profile differs from the hub's, which never changes")
    try:
        report = evidence_verify.verify(body, known.identity.hub_id)
    except (Malformed, Unverified) as error:
        raise ItemRejected(RejectReason.EVIDENCE, str(error)) from None
    return report, h(replace(shown, claim="", made_at=0).encode())


def bundled(body: bytes, known: HubRecord) -> bundle.Bundle:
    """Verify a bundle of the known hub. Raises `ItemRejected`."""
    try:
        return bundle_verify.verify(body, {known.identity.hub_id}).bundle
    except BundleFault as fault:
        raise ItemRejected(RejectReason.BUNDLE, f"{fault.code}: {fault.reason}") from None


def newer(known: HubRecord, identity: HubIdentity, signature: IdentitySignature) -> HubRecord:
    """The known hub record with any new keys of this identity record. Raises `ItemRejected` if they do not continue it.

    A record with fewer keys is not a contradiction: its sender may not know the newest keys.
    """
    try:
        identity.verify(signature, known.identity.hub_id)
        if len(identity.hub_keys) <= len(known.identity.hub_keys):
            known.identity.check_follows(identity)
            return known
        identity.check_follows(known.identity)
    except Unverified as error:
        raise ItemRejected(RejectReason.IDENTITY, error.reason) from None
    return replace(known, identity=identity, signature=signature)
