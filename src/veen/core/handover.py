"""HAND-OVER: what the log contained when a hub changed its key.

A retired key can still sign, and nothing in its signatures shows when. At each rotation the hub therefore writes the
size and root of every label, under one Merkle root that the old key, the new key and the root key sign. A signature of
the old key that leads to the hand-over was made for the log that the hub handed over.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

from veen.core import mmr, proof, signing
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.errors import Unverified
from veen.core.hashing import HASH_BYTES, ht, u64be
from veen.core.hub_identity import HubIdentity
from veen.core.limits import MAX_HUB_KEYS
from veen.core.mmr import Mmr
from veen.core.proof import MmrProof
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

NO_LABELS = bytes(HASH_BYTES)  # the root over no rows


@int_map("hand-over row")
class HandOverRow(Wire):
    """The size and root of one label."""

    label: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]

    def leaf_hash(self) -> bytes:
        return ht("veen/hand-over-row", self.label + u64be(self.size) + self.mmr_root)


@int_map("hand-over", VersionField())
class HandOver(Wire):
    """A change of the signing key: both keys, the hub's time, and the root over the rows in order of label."""

    hub_id: Annotated[bytes, Bstr()]
    old_pk: Annotated[bytes, Bstr()]
    new_pk: Annotated[bytes, Bstr()]
    hub_ts: Annotated[int, Uint()]  # the old key signed before it, the new key from then on
    labels: Annotated[int, Uint()]
    rows_root: Annotated[bytes, Bstr()]
    old_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    new_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    root_sig: Annotated[bytes | None, Bstr(SIGNATURE_BYTES, optional=True)] = None  # attached later if it is offline

    def signing_digest(self) -> bytes:
        """All three keys sign the same digest."""
        parts = self.hub_id, self.old_pk, self.new_pk, u64be(self.hub_ts), u64be(self.labels), self.rows_root
        return ht("veen/hand-over", b"".join(parts))

    def verify(self, identity: HubIdentity) -> None:
        """Raise `Unverified` unless it is the change between two successive signing keys of that hub."""
        changes = [(old, new) for old, new in pairwise(identity.signing_keys) if old.hub_pk == self.old_pk]
        if self.hub_id != identity.hub_id or not changes or changes[0][1].hub_pk != self.new_pk:
            raise Unverified("hand-over", "it is not between two successive keys of this hub")
        old, new = changes[0]
        if not new.valid_from <= self.hub_ts <= (old.valid_until or self.hub_ts):
            raise Unverified("hand-over", "its hub_ts is not within the time of its keys")
        digest = self.signing_digest()
        signing.verify(self.old_pk, digest, self.old_sig, "hand-over")
        signing.verify(self.new_pk, digest, self.new_sig, "hand-over")
        if self.root_sig is not None:
            if identity.root is None:
                raise Unverified("hand-over", "it has the signature of a root, but the hub has none")
            signing.verify(identity.root.hub_pk, digest, self.root_sig, "hand-over")


def sign(hub_id: bytes, old: DigestSigner, new: DigestSigner, hub_ts: int, labels: int, rows_root: bytes) -> HandOver:
    """A hand-over with the signatures of both hub keys."""
    none = bytes(SIGNATURE_BYTES)
    made = HandOver(hub_id, old.public_key, new.public_key, hub_ts, labels, rows_root, none, none)
    digest = made.signing_digest()
    return replace(made, old_sig=old.sign(digest), new_sig=new.sign(digest))


def tree_of(rows: Iterable[HandOverRow]) -> tuple[Mmr, list[bytes]]:
    """The tree over rows in ascending order of label, and its nodes by position."""
    tree, nodes = Mmr(), []
    for row in rows:
        nodes += tree.append(row.leaf_hash())
    return tree, nodes


def root_of(tree: Mmr) -> bytes:
    return tree.root() if tree.size else NO_LABELS


@int_map("hand-over place")
class HandOverPlace(Wire):
    """The row of a label in the hand-over of `old_pk`, with its inclusion proof."""

    old_pk: Annotated[bytes, Bstr()]
    place: Annotated[int, Uint(least=1)]
    row: Annotated[HandOverRow, Nested(HandOverRow)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]

    def verify(self, handover: HandOver) -> None:
        """Raise `Unverified` unless the hand-over contains the row. The caller must have verified the hand-over."""
        if self.old_pk != handover.old_pk:
            raise Unverified("hand-over", "the row belongs to another hand-over")
        proof.verify_leaf(self.mmr_proof, self.row.leaf_hash(), self.place, handover.labels, handover.rows_root)


@int_map("hand-over list", VersionField())
class HandOverList(Wire):
    """The hand-overs of a hub, oldest first, and the rows of one label if a label was asked for."""

    handovers: Annotated[tuple[HandOver, ...], ListOf(Nested(HandOver, name="hand-over"), most=MAX_HUB_KEYS)]
    places: Annotated[
        tuple[HandOverPlace, ...], ListOf(Nested(HandOverPlace, name="hand-over place"), most=MAX_HUB_KEYS)
    ] = ()


def prove(node: mmr.NodeReader, old_pk: bytes, place: int, row: HandOverRow, labels: int) -> HandOverPlace:
    """The proof that the hand-over of `old_pk` has the row at `place`."""
    return HandOverPlace(old_pk, place, row, proof.prove(node, place, labels))
