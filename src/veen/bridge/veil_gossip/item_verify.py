"""Whether what was received holds: judged by its bytes, and by what is known of the hub. Nobody is asked.

Anyone can send anything, so that whatever does not hold is a `Refusal` with a reason that can be counted.
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
    """Why something is not taken."""

    OVERSIZED = "oversized"  # more bytes than any item has
    MALFORMED = "malformed"  # the bytes are no item, or not the object that the item says
    FOREIGN = "foreign"  # it is of another hub
    AGAIN = "again"  # it came before
    PARTS = "parts"  # the parts are not those of what the manifest says
    IDENTITY = "identity"  # its papers are not the hub's, or do not continue those that are known
    SIGNATURE = "signature"  # no key of the hub that counts then signed it
    EVIDENCE = "evidence"  # the file proves nothing
    BUNDLE = "bundle"  # the bundle does not hold
    ROOM = "room"  # there is no room for it, now


class ItemRejected(Exception):
    """It is not taken, and this is why."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint that a key of the hub signed, and the record that names the key."""

    checkpoint: Checkpoint
    record: HubRecord


def checkpoint(body: bytes, known: HubRecord) -> VerifiedCheckpoint:
    """The checkpoint of an item, if the hub that is known here signed it. Raises `Refusal`."""
    try:
        shown = ShownCheckpoint.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    record = newer(known, shown.identity, shown.signature)
    found = shown.checkpoint
    try:
        # Of a fork, what it kept is its origin's word.
        signer = lineage(record.identity, record.origin).identity_at(found.label_curr, found.upto_seq)
        signer.verify_checkpoint(found, record.profile)
    except Unverified as error:
        raise ItemRejected(RejectReason.SIGNATURE, error.reason) from None
    return VerifiedCheckpoint(found, record)


def evidence(body: bytes, known: HubRecord) -> tuple[EvidenceReport, bytes]:
    """What an evidence file shows of the hub that is known here, and the hash of what is no words of its maker's.

    Raises `Refusal`.
    """
    try:
        shown = Evidence.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    newer(known, shown.identity, shown.signature)
    if shown.profile != known.profile:
        raise ItemRejected(RejectReason.IDENTITY, "its profile is not the hub's, which has one for ever")
    try:
        report = evidence_verify.verify(body, known.identity.hub_id)
    except (Malformed, Unverified) as error:
        raise ItemRejected(RejectReason.EVIDENCE, str(error)) from None
    return report, h(replace(shown, claim="", made_at=0).encode())


def bundled(body: bytes, known: HubRecord) -> bundle.Bundle:
    """A bundle of the hub that is known here. Raises `Refusal`."""
    try:
        return bundle_verify.verify(body, {known.identity.hub_id}).bundle
    except BundleFault as fault:
        raise ItemRejected(RejectReason.BUNDLE, f"{fault.code}: {fault.reason}") from None


def newer(known: HubRecord, identity: HubIdentity, signature: IdentitySignature) -> HubRecord:
    """What is known of the hub, with the keys that these papers add. Raises `Refusal` where they do not continue it.

    Papers with fewer keys are no lie: who wrote them has not heard of the newest.
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
