"""Where a fork comes from: the hub before it, and that hub's word on every prefix the fork goes on from. Spec §0.

A fork is a new hub, with a key and a `hub_id` of its own, that keeps a prefix of another hub's labels and goes on from
there. The prefix stays what it was: its receipts are the other hub's, and are verified with that hub's keys. What
comes after is the fork's. The fork's identity record names the digest of this file, so the fork's own signature fixes
where the one ends and the other begins.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from veen.core.cbor import ListOf, Map, Nested, VersionField, Wire
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.hashing import ht
from veen.core.hub_identity import HubIdentity, IdentitySignature, OriginRef
from veen.core.limits import MAX_ORIGIN_LABELS, MAX_ORIGINS
from veen.core.profile import Profile


@dataclass(frozen=True, slots=True)
class OriginHub(Wire):
    """A hub that was forked, and its checkpoint of each prefix that the fork kept, by label."""

    identity: HubIdentity
    signature: IdentitySignature
    checkpoints: tuple[Checkpoint, ...]

    LAYOUT: ClassVar = Map(
        "origin hub",
        {
            1: Nested("identity", HubIdentity),
            2: Nested("signature", IdentitySignature),
            3: ListOf("checkpoints", Nested("checkpoint", Checkpoint), most=MAX_ORIGIN_LABELS),
        },
    )

    def flaw(self) -> str | None:
        ascending = all(a.label_curr < b.label_curr for a, b in pairwise(self.checkpoints))
        return None if ascending else "its checkpoints do not ascend by label, each once"


@dataclass(frozen=True, slots=True)
class ForkOrigin(Wire):
    """`origin.cbor` of a fork: the hub it comes from, then the one that was forked from, and so on."""

    hubs: tuple[OriginHub, ...]

    LAYOUT: ClassVar = Map(
        "origin of a fork",
        {1: VersionField(), 2: ListOf("hubs", Nested("hub", OriginHub), least=1, most=MAX_ORIGINS)},
    )

    def ref(self) -> OriginRef:
        """What a fork's identity record says of it."""
        first = self.hubs[0].identity
        return OriginRef(first.hub_id, first.routing_key, ht("veen/origin", self.encode()))


@dataclass(frozen=True, slots=True)
class Lineage:
    """The hubs whose log this is, newest first, and how far each label of one is the next one's."""

    identities: tuple[HubIdentity, ...]
    kept: tuple[dict[bytes, Checkpoint], ...] = ()

    def identity_at(self, label: bytes, stream_seq: int) -> HubIdentity:
        """The hub whose word that entry, or a checkpoint that ends with it, is."""
        at = 0
        while at < len(self.kept) and stream_seq <= _upto(self.kept[at].get(label)):
            at += 1
        return self.identities[at]

    def checkpoint(self, label: bytes) -> Checkpoint | None:
        """The origin's word on the prefix of a label that was kept; None where none was."""
        return self.kept[0].get(label) if self.kept else None

    def labels(self) -> set[bytes]:
        """The labels of which a prefix is the origin's."""
        return set(self.kept[0]) if self.kept else set()

    def upto(self, label: bytes) -> int:
        """How much of a label is the origin's."""
        return _upto(self.checkpoint(label))

    def verify(self, profile: Profile) -> None:
        """Raise unless every checkpoint here is by the hub whose word it must be."""
        for at, checkpoints in enumerate(self.kept):
            older = Lineage(self.identities[at + 1 :], self.kept[at + 1 :])
            for label, checkpoint in checkpoints.items():
                older.identity_at(label, checkpoint.upto_seq).verify_checkpoint(checkpoint, profile)


def lineage(identity: HubIdentity, origin: ForkOrigin | None) -> Lineage:
    """The hubs behind a log, from the newest one's record, which is trusted, and its origin.

    Raises `Unverified` unless each is the one that the record after it names.
    """
    hubs = origin.hubs if origin else ()
    identities = (identity, *(hub.identity for hub in hubs))
    for at, hub in enumerate(hubs):
        if identities[at].origin != ForkOrigin(hubs[at:]).ref():
            raise Unverified("origin", "it is not the one that the identity names")
        hub.identity.verify(hub.signature, hub.identity.hub_id)
    if identities[-1].origin is not None:
        raise Unverified("origin", "it is missing, and the identity names one")
    kept = tuple({checkpoint.label_curr: checkpoint for checkpoint in hub.checkpoints} for hub in hubs)
    return Lineage(identities, kept)


def _upto(checkpoint: Checkpoint | None) -> int:
    return checkpoint.upto_seq if checkpoint else 0
