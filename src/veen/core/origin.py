"""The origin of a forked hub: the hubs before it, with their checkpoints of the prefixes that it keeps. Spec §0.

A fork is a new hub, with its own key and `hub_id`, that keeps a prefix of another hub's labels and appends to it. The
receipts of the prefix were signed by the other hub and verify with that hub's keys; later receipts are the fork's. The
fork's identity record contains the digest of this file, so the fork's signature fixes where the prefix ends.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from veen.core.cbor import ListOf, Nested, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.hashing import ht
from veen.core.hub_identity import HubIdentity, IdentitySignature, OriginRef
from veen.core.limits import MAX_ORIGIN_LABELS, MAX_ORIGINS
from veen.core.profile import Profile


@int_map("origin hub")
class OriginHub(Wire):
    """A hub that was forked, and its checkpoint of each prefix that the fork kept, by label."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    checkpoints: Annotated[
        tuple[Checkpoint, ...], ListOf(Nested(Checkpoint, name="checkpoint"), most=MAX_ORIGIN_LABELS)
    ]

    def flaw(self) -> str | None:
        ascending = all(a.label_curr < b.label_curr for a, b in pairwise(self.checkpoints))
        return None if ascending else "checkpoints are not in strictly ascending order of label"


@int_map("origin of a fork", VersionField())
class ForkOrigin(Wire):
    """`origin.cbor` of a fork: the hub that was forked, then the hub which that one was forked from, and so on."""

    hubs: Annotated[tuple[OriginHub, ...], ListOf(Nested(OriginHub, name="hub"), least=1, most=MAX_ORIGINS)]

    def ref(self) -> OriginRef:
        """The reference to this file for the fork's identity record."""
        first = self.hubs[0].identity
        return OriginRef(first.hub_id, first.routing_key, ht("veen/origin", self.encode()))


@dataclass(frozen=True, slots=True)
class Lineage:
    """The hubs that signed a log, newest first, and the prefix of each label that an older hub signed."""

    identities: tuple[HubIdentity, ...]
    kept: tuple[dict[bytes, Checkpoint], ...] = ()

    def identity_at(self, label: bytes, stream_seq: int) -> HubIdentity:
        """The hub that signed the entry, or a checkpoint that ends with it."""
        at = 0
        while at < len(self.kept) and stream_seq <= _upto(self.kept[at].get(label)):
            at += 1
        return self.identities[at]

    def checkpoint(self, label: bytes) -> Checkpoint | None:
        """The origin's checkpoint of the kept prefix of a label; None if no prefix was kept."""
        return self.kept[0].get(label) if self.kept else None

    def labels(self) -> set[bytes]:
        """The labels with a prefix from the origin."""
        return set(self.kept[0]) if self.kept else set()

    def upto(self, label: bytes) -> int:
        """The length of the label's prefix from the origin."""
        return _upto(self.checkpoint(label))

    def verify(self, profile: Profile) -> None:
        """Raise `Unverified` unless each checkpoint was signed by the hub that owned the end of its prefix."""
        for at, checkpoints in enumerate(self.kept):
            older = Lineage(self.identities[at + 1 :], self.kept[at + 1 :])
            for label, checkpoint in checkpoints.items():
                older.identity_at(label, checkpoint.upto_seq).verify_checkpoint(checkpoint, profile)


def lineage(identity: HubIdentity, origin: ForkOrigin | None) -> Lineage:
    """The hubs behind a log, from the newest hub's verified identity record and its origin.

    Raises `Unverified` unless each record names the digest of the origin that follows it.
    """
    hubs = origin.hubs if origin else ()
    identities = (identity, *(hub.identity for hub in hubs))
    for at, hub in enumerate(hubs):
        if identities[at].origin != ForkOrigin(hubs[at:]).ref():
            raise Unverified("origin", "its digest is not the one in the identity record")
        hub.identity.verify(hub.signature, hub.identity.hub_id)
    if identities[-1].origin is not None:
        raise Unverified("origin", "the identity record names an origin, but it is missing")
    kept = tuple({checkpoint.label_curr: checkpoint for checkpoint in hub.checkpoints} for hub in hubs)
    return Lineage(identities, kept)


def _upto(checkpoint: Checkpoint | None) -> int:
    return checkpoint.upto_seq if checkpoint else 0
