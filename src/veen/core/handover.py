"""HAND-OVER: what the log contained when a hub changed its key.

A retired key can still sign, and nothing in its signatures shows when. At each rotation the hub therefore writes the
size and root of every label, under one Merkle root that the old key, the new key and the root key sign. A signature of
the old key that leads to the hand-over was made for the log that the hub handed over.

A signature is valid if its key was active at the time that it states (spec §8.4), but a thief of a retired key can
state any time. A signature of a retired key is *covered* if a proof connects it to a hand-over or to a signature of a
later key. Two covered statements that conflict convict the hub. If one of them is not covered, and nothing else shows
that it existed before the hand-over, either the hub forked then or the key was stolen later.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, TypeAlias

from veen.core import proof, signing
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.hashing import ht, u64be
from veen.core.hub_identity import HubIdentity, HubKey, Lineage
from veen.core.limits import MAX_HUB_KEYS
from veen.core.mmr import Mmr
from veen.core.profile import Profile
from veen.core.proof import Head, MmrProof, label_of, size_of
from veen.core.receipt import Receipt
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


AnchoredLog: TypeAlias = tuple[bytes, int, bytes]  # label, size and root of an anchored checkpoint


class Coverage(StrEnum):
    """The knowledge about the time of a signature."""

    CURRENT = "current"  # the key is not retired
    COVERED = "covered"
    UNCOVERED = "uncovered"


@int_map("cover", VersionField())
class Cover(Wire):
    """The proof that a prefix of a label belongs to the log of a hand-over."""

    handover: Annotated[HandOver, Nested(HandOver)]
    proved: Annotated[ProvedSize, Nested(ProvedSize)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]  # of the last entry of the prefix, in the tree of the row

    def covers(self, identity: HubIdentity, head: Head) -> bool:
        """Whether it is valid, and `head` signs a prefix of the log that was handed over."""
        row = self.proved.row
        if row.label != label_of(head) or size_of(head) > row.size:
            return False
        try:
            self._verify(identity)
            proof.verify_prefix(self.mmr_proof, head, row.size, row.mmr_root)
        except Unverified:
            return False
        return True

    def contradicts(self, identity: HubIdentity, head: Head) -> bool:
        """Whether `head`, signed by the key that handed over or an earlier one, is for a longer log than it had."""
        row = self.proved.row
        if row.label != label_of(head) or size_of(head) <= row.size:
            return False
        try:
            self._verify(identity)
        except Unverified:
            return False
        return True

    def _verify(self, identity: HubIdentity) -> None:
        self.handover.verify(identity)
        self.proved.verify(self.handover.labels, self.handover.rows_root)


@dataclass(frozen=True, slots=True)
class Link:
    """An inclusion proof of a receipt's entry in the tree of a later statement."""

    stream_seq: int
    upto_seq: int
    mmr_proof: MmrProof


@dataclass(frozen=True, slots=True)
class Dating:
    """Everything that shows when statements were signed. `judge` all statements of a hub with it.

    `witnesses` has no key of the hub. `existed` are statements that existed before their key was handed over, as the
    verifier's own records show, and `anchored` the verified times of anchors. An anchor has only the root: the size is
    that of the checkpoint in its file, so that the root of one size dates no statement of another.
    """

    lineage: Lineage
    profile: Profile
    statements: tuple[Head, ...] = ()
    covers: tuple[Cover, ...] = ()
    links: tuple[Link, ...] = ()
    witnesses: frozenset[bytes] = frozenset()
    existed: Collection[Head] = ()
    anchored: Mapping[AnchoredLog, int] = field(default_factory=dict)
    handovers: tuple[HandOver, ...] = ()  # verified, besides those of the covers
    _keys: dict[Head, tuple[HubIdentity, HubKey]] = field(default_factory=dict, compare=False)

    def key_of(self, head: Head) -> tuple[HubIdentity, HubKey]:
        """The hub and the key that signed. Raises `Unverified` if none did."""
        if head not in self._keys:
            key = self.lineage.verify_head(head, self.profile)
            self._keys[head] = self.lineage.identity_at(label_of(head), size_of(head)), key
        return self._keys[head]

    def coverage(self, head: Head) -> Coverage:
        identity, key = self.key_of(head)
        if key == identity.newest:
            return Coverage.CURRENT
        if any(cover.covers(identity, head) for cover in self.covers):
            return Coverage.COVERED
        order = identity.signing_keys
        later = (one for one in self._same_log(head) if order.index(self.key_of(one)[1]) > order.index(key))
        return Coverage.COVERED if any(self._connected(head, one) for one in later) else Coverage.UNCOVERED

    def is_dated(self, head: Head, *, in_tree: bool = True, beyond: bool = False) -> bool:
        """Whether the signature cannot have been made by a thief after the key was retired.

        Proofs and witnesses show which log existed. They do not show what else a receipt states, such as its time: for
        a conflict that is not `in_tree`, only the newest key and the verifier's own records date a receipt. They do
        not show when the log existed or which key signed it: a statement `beyond` the hand-over of its key may repeat
        what a later key signed, and witnesses with it. Only the verifier's own records and anchors date it.
        """
        identity, key = self.key_of(head)
        if key == identity.newest or head in self.existed:
            return True
        if isinstance(head, Receipt) and not in_tree:
            return False
        if not beyond and self.coverage(head) is Coverage.COVERED:
            return True
        is_shown = self._is_anchored if beyond else self._is_shown
        until = self.retired_at(head)
        if is_shown(head, until):
            return True
        return any(self._connected(head, log) and is_shown(log, until) for log in self._same_log(head))

    def _is_anchored(self, head: Head, until: int) -> bool:
        """Whether a checkpoint was anchored before the time `until`."""
        at = self.anchored.get((label_of(head), size_of(head), head.mmr_root))
        return isinstance(head, Checkpoint) and at is not None and at < until

    def _is_shown(self, head: Head, until: int) -> bool:
        """Whether a witness signed a checkpoint, or it was anchored before the time `until`."""
        if self._is_anchored(head, until):
            return True
        if not isinstance(head, Checkpoint):
            return False
        digest, sigs = head.signing_digest(), head.witness_sigs or ()
        return any(signing.is_valid(pk, digest, sig) for pk in self.witnesses for sig in sigs)

    def _same_log(self, head: Head) -> Iterator[Head]:
        """The statements of the same hub for the label."""
        identity = self.key_of(head)[0]
        for other in self.statements:
            if label_of(other) == label_of(head) and self.key_of(other)[0] == identity:
                yield other

    def retired_at(self, head: Head) -> int:
        """When the key of a statement was retired: at its hand-over, or else at the end that the record states."""
        _, key = self.key_of(head)
        made = (*self.handovers, *(cover.handover for cover in self.covers))
        handed = [one.hub_ts for one in made if one.old_pk == key.hub_pk]
        return min([*handed, *([key.valid_until] if key.valid_until else [])], default=0)

    def verdict(self, statements: Iterable[Head], *, in_tree: bool = True, beyond: bool = False) -> str | None:
        """The verdict on statements that conflict: None if they convict the hub, else that its key may be stolen.

        `in_tree` says whether the trees of the log conflict, or something that only receipts state. `beyond` says that
        they conflict with the hand-over of their key.
        """
        undated = [head for head in statements if not self.is_dated(head, in_tree=in_tree, beyond=beyond)]
        return retired_verdict(self.retired_at(undated[0])) if undated else None

    def _connected(self, head: Head, later: Head) -> bool:
        """Whether a later signature confirms what `head` signs."""
        if isinstance(head, Checkpoint):
            return (head.upto_seq, head.mmr_root) == (size_of(later), later.mmr_root)
        if isinstance(later, Receipt) and size_of(later) == size_of(head):
            return (head.leaf_hash, head.mmr_root) == (later.leaf_hash, later.mmr_root)
        for link in self.links:
            if (link.stream_seq, link.upto_seq) == (head.stream_seq, size_of(later)):
                try:
                    proof.verify_prefix(link.mmr_proof, head, size_of(later), later.mmr_root)
                except Unverified:
                    continue
                return True
        return False


def retired_verdict(retired_at: int) -> str:
    """The verdict on conflicting signatures of a retired key."""
    try:
        when = datetime.fromtimestamp(retired_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # after the year 9999
        when = f"second {retired_at}"
    return f"contradiction under a retired key: the hub forked before {when}, or the key was stolen"
