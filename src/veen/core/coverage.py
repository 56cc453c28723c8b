"""Coverage: whether a signature of a retired key belongs to the log that the hub handed over.

A signature is valid if its key was active at the time that it states (spec §8.4), but a thief of a retired key can
state any time. A signature of a retired key is *covered* if a proof connects it to a hand-over or to a signature of a
later key. Two covered statements that conflict convict the hub. If one of them is not covered, and nothing else shows
that it existed before the hand-over, either the hub forked then or the key was stolen later.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from veen.core import proof, signing
from veen.core.cbor import Nested, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.handover import HandOver, ProvedSize
from veen.core.hub_identity import HubIdentity, HubKey, Lineage
from veen.core.profile import Profile
from veen.core.proof import Head, Leaf, MmrProof, label_of, size_of
from veen.core.receipt import Receipt


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

    `existed` are statements that existed before their key was handed over, as the verifier's own records show, and
    `anchored` the times at which an anchor shows the root of a checkpoint.
    """

    lineage: Lineage
    profile: Profile
    statements: tuple[Head, ...] = ()
    covers: tuple[Cover, ...] = ()
    links: tuple[Link, ...] = ()
    witnesses: frozenset[bytes] = frozenset()
    existed: Collection[Head] = ()
    anchored: Mapping[bytes, int] = field(default_factory=dict)  # by mmr_root
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
        for other in self.statements:
            if label_of(other) != label_of(head) or self.key_of(other)[0] != identity:
                continue
            if order.index(self.key_of(other)[1]) > order.index(key) and self._connected(head, other):
                return Coverage.COVERED
        return Coverage.UNCOVERED

    def is_dated(self, head: Head) -> bool:
        """Whether the signature cannot have been made by a thief after the key was retired."""
        if self.coverage(head) is not Coverage.UNCOVERED or head in self.existed:
            return True
        if not isinstance(head, Checkpoint):
            return False
        if head.mmr_root in self.anchored and self.anchored[head.mmr_root] < self.retired_at(head):
            return True
        digest, sigs = head.signing_digest(), head.witness_sigs or ()
        return any(signing.is_valid(pk, digest, sig) for pk in self.witnesses for sig in sigs)

    def retired_at(self, head: Head) -> int:
        """When the key of a statement was retired: at its hand-over, or else at the end that the record states."""
        _, key = self.key_of(head)
        handed = [cover.handover.hub_ts for cover in self.covers if cover.handover.old_pk == key.hub_pk]
        return min([*handed, *([key.valid_until] if key.valid_until else [])], default=0)

    def verdict(self, statements: Iterable[Head]) -> str | None:
        """The verdict on statements that conflict: None if they convict the hub, else that its key may be stolen."""
        undated = [head for head in statements if not self.is_dated(head)]
        return retired_verdict(self.retired_at(undated[0])) if undated else None

    def _connected(self, head: Head, later: Head) -> bool:
        """Whether a later signature confirms what `head` signs."""
        if size_of(head) == size_of(later):
            return head.mmr_root == later.mmr_root
        if not isinstance(head, Receipt):
            return False
        for link in self.links:
            if (link.stream_seq, link.upto_seq) == (head.stream_seq, size_of(later)):
                try:
                    proof.verify_inclusion(link.mmr_proof, Leaf.of(head), later)
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
