"""The hub status, as far as the checks depend on it. Spec §12: epoch discovery; §8.4, §14.1."""

from dataclasses import dataclass

from veen.core import (
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Malformed,
    Profile,
    Receipt,
    Unverified,
    limits,
    naming,
)
from veen.core.hashing import U64_MAX, h
from veen.core.strict_json import Json
from veen.core.wire_json import Fields

OPEN, CAPABILITY = "open", "capability"
# The limit registry of spec §14.1, with the maximum that spec §14 allows.
REGISTRY: dict[str, int] = {
    "max_msg_bytes": limits.MAX_MSG_BYTES,
    "max_hdr_bytes": limits.MAX_HDR_BYTES,
    "max_body_bytes": limits.MAX_BODY_BYTES,
    "max_attachments_per_msg": limits.MAX_ATTACHMENTS,
    "max_attachment_bytes": U64_MAX,
    "max_chunk_bytes": U64_MAX,
    "max_checkpoint_interval": U64_MAX,
    "max_cap_rate_per_sec": U64_MAX,
    "max_cap_rate_burst": U64_MAX,
    "max_epoch_skew_sec": U64_MAX,
}


@dataclass(frozen=True, slots=True)
class HubFacts:
    """A parsed GET /tooling/status."""

    hub_id: bytes
    hub_pk: bytes
    key_id: bytes
    profile: Profile
    profile_id: bytes  # as claimed; a check compares it with the profile
    routing_key: bytes
    limits: dict[str, int]
    admission: str
    epoch: int
    hub_ts: int
    identity: HubIdentity | None  # only some hubs include it
    signature: IdentitySignature | None
    identity_holds: bool  # whether it verifies; a separate check reports if it does not

    @classmethod
    def read(cls, found: dict[str, Json]) -> "HubFacts":
        """Raises `Malformed` if a field is missing that the checks need."""
        status = Fields("status", found)
        shows_identity = "identity" in found and "identity_sig" in found
        identity = status.wire("identity", HubIdentity) if shows_identity else None
        signature = status.wire("identity_sig", IdentitySignature) if shows_identity else None
        hub_id = status.hash("hub_id")
        return cls(
            hub_id=hub_id,
            hub_pk=status.hash("hub_pk"),
            key_id=status.hash("key_id"),
            profile=status.wire("profile", Profile),
            profile_id=status.hash("profile_id"),
            routing_key=identity.routing_key if identity else naming.routing_key(hub_id),
            limits=_limits(status),
            admission=_admission(status),
            epoch=status.number("epoch"),
            hub_ts=status.number("hub_ts"),
            identity=identity,
            signature=signature,
            identity_holds=bool(identity and signature and _verifies(identity, signature, hub_id)),
        )

    def verify_receipt(self, receipt: Receipt) -> None:
        """Raise `Unverified` unless a hub key that was active then signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_receipt(receipt)
        else:
            receipt.verify_signature(self.hub_pk)

    def verify_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raise `Unverified` unless a hub key that was active in its epoch signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_checkpoint(checkpoint, self.profile)
        else:
            checkpoint.verify_signature(self.hub_pk)

    def verify_identity(self, pin: bytes) -> None:
        """Raise `Unverified` unless the hub has this `hub_id` or `H(hub_pk)`."""
        if self.identity and self.signature:
            self.identity.verify(self.signature, pin)
        elif pin not in (self.hub_id, h(self.hub_pk)):
            raise Unverified("hub", "is not the pinned hub")

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        if not 0 <= epoch <= U64_MAX:
            raise Malformed("status", f"epoch {epoch} does not fit into a label")
        return naming.label(self.routing_key, stream_id, epoch)

    @property
    def max_msg_bytes(self) -> int:
        """Bounded by the protocol maximum, whatever the hub claims."""
        return min(self.limits["max_msg_bytes"], limits.MAX_MSG_BYTES)

    def window(self) -> int:
        """The number of epochs before and after its own that the hub accepts. Spec §12."""
        return self.limits["max_epoch_skew_sec"] // self.profile.epoch_sec if self.profile.epoch_sec else 0


def _verifies(identity: HubIdentity, signature: IdentitySignature, hub_id: bytes) -> bool:
    try:
        identity.verify(signature, hub_id)
    except Unverified:
        return False
    return True


def _limits(status: Fields) -> dict[str, int]:
    limits_object = status.field("limits")
    if not isinstance(limits_object, dict):
        raise Malformed("status", "limits is not an object")
    registry = Fields("status", limits_object)
    return {name: registry.number(name) for name in REGISTRY}


def _admission(status: Fields) -> str:
    mode = status.field("admission")
    if mode not in (OPEN, CAPABILITY):
        raise Malformed("status", f"admission is neither {OPEN} nor {CAPABILITY}")
    return str(mode)
