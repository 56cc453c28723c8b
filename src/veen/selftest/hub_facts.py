"""What a hub says of itself, as far as the checks build on it. Spec §12: epoch discovery; §8.4, §14.1."""

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
# The registry of spec §14.1, with the most a hub may set where spec §14 has a number.
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
    """GET /tooling/status, read."""

    hub_id: bytes
    hub_pk: bytes
    key_id: bytes
    profile: Profile
    profile_id: bytes  # as it says; whether it is that of the profile is for a check
    routing_key: bytes
    limits: dict[str, int]
    admission: str
    epoch: int
    hub_ts: int
    identity: HubIdentity | None  # only some hubs show theirs
    signature: IdentitySignature | None
    identity_holds: bool  # good enough to judge by; that one does not hold, a check of its own says

    @classmethod
    def read(cls, found: dict[str, Json]) -> "HubFacts":
        """Raises `Malformed` where something is missing that the checks cannot do without."""
        said = Fields("status", found)
        shows_identity = "identity" in found and "identity_sig" in found
        identity = said.wire("identity", HubIdentity) if shows_identity else None
        signature = said.wire("identity_sig", IdentitySignature) if shows_identity else None
        hub_id = said.hash("hub_id")
        return cls(
            hub_id=hub_id,
            hub_pk=said.hash("hub_pk"),
            key_id=said.hash("key_id"),
            profile=said.wire("profile", Profile),
            profile_id=said.hash("profile_id"),
            routing_key=identity.routing_key if identity else naming.routing_key(hub_id),
            limits=_limits(said),
            admission=_admission(said),
            epoch=said.number("epoch"),
            hub_ts=said.number("hub_ts"),
            identity=identity,
            signature=signature,
            identity_holds=bool(identity and signature and _holds(identity, signature, hub_id)),
        )

    def verify_receipt(self, receipt: Receipt) -> None:
        """Raise `Unverified` unless a key of the hub that was active then signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_receipt(receipt)
        else:
            receipt.verify_signature(self.hub_pk)

    def verify_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raise `Unverified` unless a key of the hub that was active in its epoch signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_checkpoint(checkpoint, self.profile)
        else:
            checkpoint.verify_signature(self.hub_pk)

    def verify_identity(self, pin: bytes) -> None:
        """Raise `Unverified` unless this is the hub with that `hub_id`, or with that `H(hub_pk)`."""
        if self.identity and self.signature:
            self.identity.verify(self.signature, pin)
        elif pin not in (self.hub_id, h(self.hub_pk)):
            raise Unverified("hub", "it is not the pinned hub")

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        if not 0 <= epoch <= U64_MAX:
            raise Malformed("status", f"epoch {epoch} is beyond what a label can name")
        return naming.label(self.routing_key, stream_id, epoch)

    @property
    def max_msg_bytes(self) -> int:
        """Whatever a hub says, nothing larger is made here."""
        return min(self.limits["max_msg_bytes"], limits.MAX_MSG_BYTES)

    def window(self) -> int:
        """How many epochs around its own a hub takes. Spec §12."""
        return self.limits["max_epoch_skew_sec"] // self.profile.epoch_sec if self.profile.epoch_sec else 0


def _holds(identity: HubIdentity, signature: IdentitySignature, hub_id: bytes) -> bool:
    try:
        identity.verify(signature, hub_id)
    except Unverified:
        return False
    return True


def _limits(said: Fields) -> dict[str, int]:
    shown = said.field("limits")
    if not isinstance(shown, dict):
        raise Malformed("status", "limits is not an object")
    registry = Fields("status", shown)
    return {name: registry.number(name) for name in REGISTRY}


def _admission(said: Fields) -> str:
    mode = said.field("admission")
    if mode not in (OPEN, CAPABILITY):
        raise Malformed("status", f"admission is neither {OPEN} nor {CAPABILITY}")
    return str(mode)
