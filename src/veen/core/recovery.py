"""The statement of a hub that lost entries, or may have: how far each label goes, and the key that goes on. Spec §8.4.

A hub never signs two receipts for one place with one key. If it cannot prove that its log is complete, it states the
last provable size and root of every label, and continues from there with a new key. Receipts of older keys beyond these
sizes are true, and show what was lost. Entries of the new key may have the same places.

A new incarnation of a hub makes the same statement. It lists no label, and names the root as the old key, because its
machine does not know which keys signed before.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated

from veen.core import handover, naming, signing
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.errors import Malformed, Unverified
from veen.core.handover import LabelSize, ProvedSize
from veen.core.hashing import ht
from veen.core.hub_identity import INCARNATION, HubIdentity, HubKey
from veen.core.limits import MAX_RECOVERED_LABELS, MAX_RECOVERIES, MAX_WITNESS_SIGS
from veen.core.signing import SIGNATURE_BYTES, DigestSigner


@int_map("recovery", VersionField())
class Recovery(Wire):
    """The signed content. `labels_root` is the root over the `LabelSize` of every label with a provable entry."""

    hub_id: Annotated[bytes, Bstr()]
    old_key_id: Annotated[bytes, Bstr()]
    new_key_id: Annotated[bytes, Bstr()]
    recovered_at: Annotated[int, Uint()]
    labels: Annotated[int, Uint()]
    labels_root: Annotated[bytes, Bstr()]

    def digest(self) -> bytes:
        """The digest that the new key signs and the root endorses."""
        return ht("veen/recovery", self.encode())


@int_map("recovery statement", VersionField())
class RecoveryStatement(Wire):
    """A recovery, signed by the new key and endorsed by the root key, or by the old key in a hub without a root."""

    recovery: Annotated[Recovery, Nested(Recovery)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    endorsement: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    witness_sigs: Annotated[
        tuple[bytes, ...] | None,
        ListOf(Bstr(SIGNATURE_BYTES, name="witness_sig"), most=MAX_WITNESS_SIGS, least=1, optional=True),
    ] = None  # of witnesses that cosigned the statement as a reset

    def verify(self, identity: HubIdentity) -> None:
        """Raise `Unverified` unless the keys of this hub signed and endorsed it."""
        said, digest = self.recovery, self.recovery.digest()
        if said.hub_id != identity.hub_id:
            raise Unverified("recovery statement", "it is of another hub")
        new, root = _key(identity, said.new_key_id), identity.root
        if root is not None and said.old_key_id == root.key_id:
            if (new.role, said.labels, said.recovered_at) != (INCARNATION, 0, new.valid_from):
                raise Unverified("recovery statement", "only an incarnation begins without keys, and without entries")
            endorser = root
        else:
            old = _key(identity, said.old_key_id)
            if identity.hub_keys.index(old) >= identity.hub_keys.index(new):
                raise Unverified("recovery statement", "its new key is not after the old one")
            endorser = root if root is not None and root.valid_from <= said.recovered_at else old
        signing.verify(new.hub_pk, digest, self.sig, "recovery statement")
        signing.verify(endorser.hub_pk, digest, self.endorsement, "endorsement of the recovery")

    def is_incarnation(self, identity: HubIdentity) -> bool:
        """Whether it states that the hub with this record began without a log."""
        return identity.root is not None and self.recovery.old_key_id == identity.root.key_id

    def replaces(self, identity: HubIdentity, key: HubKey) -> bool:
        """Whether a key signed before the recovery. Keys of a hub from which this one was forked did."""
        new = _key(identity, self.recovery.new_key_id)
        return key.hub_pk not in {one.hub_pk for one in identity.hub_keys[identity.hub_keys.index(new) :]}


@int_map("recovered log", VersionField())
class RecoveredLog(Wire):
    """A statement with all its labels: the file in the data directory."""

    statement: Annotated[RecoveryStatement, Nested(RecoveryStatement)]
    labels: Annotated[tuple[LabelSize, ...], ListOf(Nested(LabelSize, name="label size"), most=MAX_RECOVERED_LABELS)]

    def flaw(self) -> str | None:
        if any(a.label >= b.label for a, b in pairwise(self.labels)):
            return "labels are not in strictly ascending order"
        said = self.statement.recovery
        same = (said.labels, said.labels_root) == (len(self.labels), root_of(self.labels))
        return None if same else "the labels do not match the statement"


@int_map("label recovery")
class LabelRecovery(Wire):
    """A statement with its row for one label, or with the rows around a label that had no provable entry."""

    statement: Annotated[RecoveryStatement, Nested(RecoveryStatement)]
    rows: Annotated[tuple[ProvedSize, ...], ListOf(Nested(ProvedSize, name="proved size"), most=2)]

    def size_of(self, label: bytes, identity: HubIdentity) -> int:
        """The last provable size of a label. Raises `Unverified` unless the statement is valid and shows it."""
        self.statement.verify(identity)
        said = self.statement.recovery
        for proved in self.rows:
            proved.verify(said.labels, said.labels_root)
        if len(self.rows) == 1 and self.rows[0].row.label == label:
            return self.rows[0].row.size
        before = next((proved.place for proved in self.rows if proved.row.label < label), 0)
        after = next((proved.place for proved in self.rows if proved.row.label > label), said.labels + 1)
        if after != before + 1:
            raise Unverified("recovery statement", "its rows do not show the size of this label")
        return 0


@int_map("recovery list", VersionField())
class RecoveryList(Wire):
    """The recoveries of a hub, oldest first, each with its row for one label."""

    recoveries: Annotated[
        tuple[LabelRecovery, ...], ListOf(Nested(LabelRecovery, name="label recovery"), most=MAX_RECOVERIES)
    ]


def incarnate(root: DigestSigner, key: DigestSigner, valid_from: int) -> RecoveryStatement:
    """The statement of a hub that begins without a log, with a signing key that nobody has used before."""
    old, new = (naming.key_id(one.public_key) for one in (root, key))
    said = Recovery(naming.hub_id(root.public_key), old, new, valid_from, 0, root_of(()))
    return RecoveryStatement(said, key.sign(said.digest()), root.sign(said.digest()))


def root_of(labels: Iterable[LabelSize]) -> bytes:
    """The root over labels in ascending order."""
    return handover.tree_of_labels(labels)[0].root()


def _key(identity: HubIdentity, key_id: bytes) -> HubKey:
    for key in identity.signing_keys:
        if key.key_id == key_id:
            return key
    raise Unverified("recovery statement", f"{key_id.hex()[:16]}… is not a key of the hub")


def check_count(labels: int) -> None:
    """Raise `Malformed` if a statement cannot list that many labels."""
    if labels > MAX_RECOVERED_LABELS:
        raise Malformed("recovery", f"the log has {labels} labels; a statement can list {MAX_RECOVERED_LABELS}")
