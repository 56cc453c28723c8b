"""The statement of a hub that lost entries, or may have: how far each label goes, and the key that goes on. Spec §8.4.

A hub never signs two receipts for one place with one key. If it cannot prove that its log is complete, it states the
last provable size and root of every label, and continues from there with a new key. Receipts of older keys beyond these
sizes are true, and show what was lost. Entries of the new key may have the same places.
"""

from itertools import pairwise
from typing import Annotated

from veen.core import mmr, proof, signing
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import ht, u64be
from veen.core.hub_identity import HubIdentity, HubKey
from veen.core.limits import MAX_RECOVERED_LABELS, MAX_RECOVERIES
from veen.core.proof import MmrProof
from veen.core.signing import SIGNATURE_BYTES


@int_map("recovered label")
class RecoveredLabel(Wire):
    """The last provable state of a label. A label that is not listed had no provable entry."""

    label: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]

    def leaf(self) -> bytes:
        return ht("veen/recovered-label", self.label + u64be(self.size) + self.mmr_root)


@int_map("recovery", VersionField())
class Recovery(Wire):
    """What the statement says. `labels_root` is the root of a tree over the `RecoveredLabel`s, ascending by label."""

    hub_id: Annotated[bytes, Bstr()]
    old_key_id: Annotated[bytes, Bstr()]
    new_key_id: Annotated[bytes, Bstr()]
    recovered_at: Annotated[int, Uint()]
    labels: Annotated[int, Uint()]
    labels_root: Annotated[bytes, Bstr()]

    def digest(self) -> bytes:
        """What the new key signs, and the root endorses."""
        return ht("veen/recovery", self.encode())


@int_map("recovery statement", VersionField())
class RecoveryStatement(Wire):
    """A recovery, signed by the new key and endorsed by the root key, or by the old key in a hub without a root."""

    recovery: Annotated[Recovery, Nested(Recovery)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    endorsement: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, identity: HubIdentity) -> None:
        """Raise `Unverified` unless the keys of this hub signed and endorsed it."""
        said, digest = self.recovery, self.recovery.digest()
        if said.hub_id != identity.hub_id:
            raise Unverified("recovery statement", "it is of another hub")
        old, new = _key(identity, said.old_key_id), _key(identity, said.new_key_id)
        if identity.hub_keys.index(old) >= identity.hub_keys.index(new):
            raise Unverified("recovery statement", "its new key is not after the old one")
        signing.verify(new.hub_pk, digest, self.sig, "recovery statement")
        root = identity.root
        endorser = root if root is not None and root.valid_from <= said.recovered_at else old
        signing.verify(endorser.hub_pk, digest, self.endorsement, "endorsement of the recovery")

    def replaces(self, identity: HubIdentity, key: HubKey) -> bool:
        """Whether a key signed before the recovery."""
        return identity.hub_keys.index(key) < identity.hub_keys.index(_key(identity, self.recovery.new_key_id))


@int_map("recovered log", VersionField())
class RecoveredLog(Wire):
    """A statement with all its labels: the file in the data directory."""

    statement: Annotated[RecoveryStatement, Nested(RecoveryStatement)]
    labels: Annotated[
        tuple[RecoveredLabel, ...],
        ListOf(Nested(RecoveredLabel, name="recovered label"), most=MAX_RECOVERED_LABELS),
    ]

    def flaw(self) -> str | None:
        if any(a.label >= b.label for a, b in pairwise(self.labels)):
            return "labels are not in strictly ascending order"
        said = self.statement.recovery
        same = (said.labels, said.labels_root) == (len(self.labels), root_of(self.labels))
        return None if same else "the labels are not those of the statement"


@int_map("proved label")
class ProvedLabel(Wire):
    """A label of a statement, its place among the labels, counted from 1, and the proof that it is there."""

    row: Annotated[RecoveredLabel, Nested(RecoveredLabel)]
    place: Annotated[int, Uint(least=1)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]


@int_map("label recovery")
class LabelRecovery(Wire):
    """A statement for one label. Without `proved` the label had no provable entry."""

    statement: Annotated[RecoveryStatement, Nested(RecoveryStatement)]
    proved: Annotated[ProvedLabel | None, Nested(ProvedLabel, optional=True)] = None

    @property
    def size(self) -> int:
        """The last provable size of the label, not verified."""
        return self.proved.row.size if self.proved else 0

    def size_of(self, label: bytes, identity: HubIdentity) -> int:
        """The last provable size of a label. Raises `Unverified` unless the statement is valid and contains the row."""
        self.statement.verify(identity)
        if self.proved is not None:
            said, row = self.statement.recovery, self.proved.row
            if row.label != label:
                raise Unverified("recovery statement", "its row is of another label")
            leaf, place = row.leaf(), self.proved.place
            proof.verify_leaf(self.proved.mmr_proof, leaf, place, said.labels, said.labels_root)
        return self.size


@int_map("recovery list", VersionField())
class RecoveryList(Wire):
    """The recoveries of a hub, oldest first, each with its row for one label."""

    recoveries: Annotated[
        tuple[LabelRecovery, ...], ListOf(Nested(LabelRecovery, name="label recovery"), most=MAX_RECOVERIES)
    ]


def root_of(labels: tuple[RecoveredLabel, ...]) -> bytes:
    """The root over labels in ascending order."""
    return mmr.root(label.leaf() for label in labels)


def _key(identity: HubIdentity, key_id: bytes) -> HubKey:
    for key in identity.signing_keys:
        if key.key_id == key_id:
            return key
    raise Unverified("recovery statement", f"{key_id.hex()[:16]}… is not a key of the hub")


def check_count(labels: int) -> None:
    """Raise `Malformed` if a statement cannot list that many labels."""
    if labels > MAX_RECOVERED_LABELS:
        raise Malformed("recovery", f"the log has {labels} labels; a statement can list {MAX_RECOVERED_LABELS}")
