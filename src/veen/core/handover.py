"""HAND-OVER: what the log contained when a hub changed its key.

A retired key can still sign, and nothing in its signatures shows when. At each rotation the hub therefore writes the
size and root of every label, under one Merkle root that the old key, the new key and the root key sign. A signature of
the old key that leads to the hand-over was made for the log that the hub handed over.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

from veen.core import proof, signing
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.errors import Unverified
from veen.core.hashing import ht, u64be
from veen.core.hub_identity import HubIdentity
from veen.core.limits import MAX_HUB_KEYS
from veen.core.mmr import Mmr
from veen.core.proof import MmrProof
from veen.core.signing import SIGNATURE_BYTES, DigestSigner


@int_map("label size")
class LabelSize(Wire):
    """The size and root of one label: a row of a statement about all labels, in ascending order of label."""

    label: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]

    def leaf_hash(self) -> bytes:
        return ht("veen/label-size", self.label + u64be(self.size) + self.mmr_root)


@int_map("proved size")
class ProvedSize(Wire):
    """A row of a statement, its place among the rows, counted from 1, and the proof that it is there."""

    row: Annotated[LabelSize, Nested(LabelSize)]
    place: Annotated[int, Uint(least=1)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]

    def verify(self, labels: int, root: bytes) -> None:
        """Raise `Unverified` unless a statement with that many rows and that root contains the row."""
        proof.verify_leaf(self.mmr_proof, self.row.leaf_hash(), self.place, labels, root)


def tree_of_labels(rows: Iterable[LabelSize]) -> tuple[Mmr, list[bytes]]:
    """The tree over the rows of a statement, and its nodes by position."""
    tree, nodes = Mmr(), list[bytes]()
    for row in rows:
        nodes += tree.append(row.leaf_hash())
    return tree, nodes


@int_map("hand-over", VersionField())
class HandOver(Wire):
    """A change of the signing key: both keys, the hub's time, and the root over the `LabelSize` of every label."""

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


@int_map("label hand-over")
class LabelHandOver(Wire):
    """A hand-over with its row for one label, if a label was asked for and had entries."""

    handover: Annotated[HandOver, Nested(HandOver)]
    proved: Annotated[ProvedSize | None, Nested(ProvedSize, optional=True)] = None


@int_map("hand-over list", VersionField())
class HandOverList(Wire):
    """The hand-overs of a hub, oldest first."""

    handovers: Annotated[
        tuple[LabelHandOver, ...], ListOf(Nested(LabelHandOver, name="label hand-over"), most=MAX_HUB_KEYS)
    ]
