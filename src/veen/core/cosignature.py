"""Cosignatures: what a witness is asked, what it signs, and which cosignatures a verifier counts.

A witness cosigns a checkpoint if it continues the last one that it cosigned for the label, so that a hub cannot show
two histories to two readers of one witness. It also cosigns the statement of a recovery, as a *reset*: the label then
continues from the size in the statement, under the new key.

The decisions are functions without state: `witness` stores what they return before a signature leaves it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from veen.core import proof, signing
from veen.core.cbor import Bool, Bstr, ListOf, Nested, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Refused, Unverified
from veen.core.hashing import ht
from veen.core.hub_identity import HubIdentity, HubKey, IdentitySignature
from veen.core.limits import MAX_HELD_LABELS
from veen.core.profile import Profile
from veen.core.proof import MmrProof
from veen.core.recovery import LabelRecovery, Recovery
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

RETIRED_KEY = "RETIRED_KEY"  # the detail of a refusal: the key of the checkpoint is retired


@int_map("cosign request", VersionField())
class CosignRequest(Wire):
    """Cosign a checkpoint. `mmr_proof` leads from the size that the witness holds for the label to the new one."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    profile: Annotated[Profile, Nested(Profile)]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]
    mmr_proof: Annotated[MmrProof | None, Nested(MmrProof, optional=True)] = None


@int_map("reset request", VersionField())
class ResetRequest(Wire):
    """Cosign the statement of a recovery, and continue the label from the size that it states."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    label: Annotated[bytes, Bstr()]
    recovery: Annotated[LabelRecovery, Nested(LabelRecovery)]


@int_map("cosignature", VersionField())
class Cosignature(Wire):
    """The answer of a witness: its signature of the checkpoint's digest, or of `reset_digest`."""

    witness_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]


@int_map("witnessed label", VersionField())
class WitnessedLabel(Wire):
    """The record of a witness for a label: the last checkpoint that it cosigned, and a reset after it."""

    label: Annotated[bytes, Bstr()]
    checkpoint: Annotated[Checkpoint | None, Nested(Checkpoint, optional=True)] = None
    reset: Annotated[LabelRecovery | None, Nested(LabelRecovery, optional=True)] = None

    @property
    def size(self) -> int:
        """The size that the next checkpoint must continue."""
        if self.reset is not None:
            return next((proved.row.size for proved in self.reset.rows if proved.row.label == self.label), 0)
        return self.checkpoint.upto_seq if self.checkpoint else 0

    @property
    def mmr_root(self) -> bytes | None:
        """The root at that size; None at size 0."""
        if self.reset is not None:
            return next((proved.row.mmr_root for proved in self.reset.rows if proved.row.label == self.label), None)
        return self.checkpoint.mmr_root if self.checkpoint else None


@int_map("held request", VersionField())
class HeldRequest(Wire):
    """Ask a witness what it holds of a hub: the labels after `after`, in ascending order."""

    hub_id: Annotated[bytes, Bstr()]
    nonce: Annotated[bytes, Bstr()]
    after: Annotated[bytes | None, Bstr(optional=True)] = None


@int_map("held labels", VersionField())
class HeldLabels(Wire):
    """The records of a witness for a hub. The nonce of the request shows that the answer is not an old one."""

    hub_id: Annotated[bytes, Bstr()]
    nonce: Annotated[bytes, Bstr()]
    labels: Annotated[
        tuple[WitnessedLabel, ...], ListOf(Nested(WitnessedLabel, name="witnessed label"), most=MAX_HELD_LABELS)
    ]
    has_more: Annotated[bool, Bool()]
    witness_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    @classmethod
    def sign(
        cls, key: DigestSigner, asked: HeldRequest, labels: tuple[WitnessedLabel, ...], *, has_more: bool
    ) -> "HeldLabels":
        made = cls(asked.hub_id, asked.nonce, labels, has_more, key.public_key, bytes(SIGNATURE_BYTES))
        return replace(made, sig=key.sign(made._digest()))

    def verify(self, asked: HeldRequest, witness_pk: bytes) -> None:
        """Raise `Unverified` unless the witness signed it as the answer to this request."""
        if (self.hub_id, self.nonce, self.witness_pk) != (asked.hub_id, asked.nonce, witness_pk):
            raise Unverified("held labels", "it does not answer this request")
        found = [one.label for one in self.labels]
        before = [asked.after] if asked.after is not None else []
        if [*before, *found] != sorted({*before, *found}):
            raise Unverified("held labels", "the labels are not in ascending order")
        if any(one.checkpoint is not None and one.checkpoint.label_curr != one.label for one in self.labels):
            raise Unverified("held labels", "a checkpoint is of another label")
        signing.verify(witness_pk, self._digest(), self.sig, "held labels")

    def _digest(self) -> bytes:
        return ht("veen/witness-held", replace(self, sig=bytes(SIGNATURE_BYTES)).encode())


def reset_digest(stated: Recovery) -> bytes:
    """The digest of a recovery that a witness signs."""
    return ht("veen/witness-reset", stated.encode())


@int_map("fork proof", VersionField())
class ForkProof(Wire):
    """Two checkpoints of one hub for one size, with different roots: a witness refused the second."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    profile: Annotated[Profile, Nested(Profile)]
    held: Annotated[Checkpoint, Nested(Checkpoint)]
    offered: Annotated[Checkpoint, Nested(Checkpoint)]


class Forked(Refused):
    """A checkpoint that contradicts one that the witness cosigned."""

    def __init__(self, proof_of_fork: ForkProof) -> None:
        held, offered = proof_of_fork.held, proof_of_fork.offered
        super().__init__(
            "E.CONFLICT",
            f"the witness cosigned another root of the label at upto_seq {held.upto_seq}",
            detail_enum="FORK",
            detail={**shown(held), "offered": replace(offered, witness_sigs=None).encode().hex()},
        )
        self.proof = proof_of_fork


def shown(held: Checkpoint) -> dict[str, int | str]:
    """The held checkpoint in the detail of a refusal."""
    return {"held_size": held.upto_seq, "held": replace(held, witness_sigs=None).encode().hex()}


def cosigned(known: HubIdentity | None, held: WitnessedLabel | None, asked: CosignRequest, now: int) -> HubIdentity:
    """Decide about a checkpoint. Returns the newest known record of the hub; raises `Refused` or `Unverified`.

    `known` is the hub's record and `held` the state of the label that the witness has stored. A checkpoint of a key
    that is retired at the time `now` is refused: a cosignature shows that it existed while its key was active. The
    checkpoint that the witness cosigned last is accepted again.
    """
    offered = asked.checkpoint
    identity = _newest(known, asked.identity, asked.signature)
    key = identity.verify_checkpoint(offered, asked.profile)
    last = held.checkpoint if held is not None and held.reset is None else None
    if last is not None and last.signing_digest() == offered.signing_digest():
        return identity  # it cosigned this one before, and may answer again after the key is retired
    if key != identity.newest and not key.active_at(now):
        raise Refused("E.FORBIDDEN", "the key of the checkpoint is retired", detail_enum=RETIRED_KEY)
    if held is None:
        return identity
    if _order(identity, key) < _signed_until(identity, held):
        raise Refused("E.CONFLICT", "a later key of the hub signed what the witness holds", detail_enum="OLD_KEY")
    size = held.size
    if last is not None and offered.upto_seq == size:
        raise Forked(ForkProof(identity, asked.signature, asked.profile, last, offered))
    detail: dict[str, int | str] = {"held_size": size} if last is None else shown(last)
    if offered.upto_seq < size:
        text = f"upto_seq {offered.upto_seq} is lower than the cosigned size {size}"
        raise Refused("E.CONFLICT", text, detail_enum="OLDER", detail=detail)
    root = held.mmr_root
    if root is None:
        return identity
    if asked.mmr_proof is None:
        text = f"the request has no proof that its tree continues the tree of size {size}"
        raise Refused("E.CONFLICT", text, detail_enum="PROOF", detail=detail)
    try:
        proof.verify_extension(asked.mmr_proof, size, root, offered.upto_seq, offered.mmr_root)
    except Unverified as error:
        text = f"the tree does not continue the tree of size {size}: {error.reason}"
        offer = replace(offered, witness_sigs=None).encode().hex()
        raise Refused("E.CONFLICT", text, detail_enum="PROOF", detail={**detail, "offered": offer}) from None
    return identity


def reset(
    known: HubIdentity | None, held: WitnessedLabel | None, asked: ResetRequest
) -> tuple[HubIdentity, WitnessedLabel | None]:
    """Decide about a recovery. Returns the newest record of the hub, and the new state if the label goes back.

    Raises `Refused` or `Unverified`. The root must have endorsed the statement, or the old key in a hub without one. A
    label goes back only under a key that is later than all keys that signed what the witness holds, so that no
    statement is used twice.
    """
    stated = asked.recovery.statement
    if known is not None and asked.identity.is_other_incarnation(known) and asked.identity.begins_after(known):
        asked.identity.verify(asked.signature, asked.identity.hub_id)
        identity = asked.identity
        if not stated.is_incarnation(identity):
            raise Refused("E.CONFLICT", "the hub began again, but the statement is of another recovery")
    else:
        identity = _newest(known, asked.identity, asked.signature)
    size = asked.recovery.size_of(asked.label, identity)
    if held is None or held.size <= size:
        return identity, None
    new = next(key for key in identity.signing_keys if key.key_id == stated.recovery.new_key_id)
    if held.reset is not None and held.reset.statement.recovery == stated.recovery:
        return identity, None
    if _order(identity, new) <= _signed_until(identity, held):
        detail: dict[str, int | str] = {"held_size": held.size}
        text = "the witness holds a signature of the key that the statement introduces, or of a later one"
        raise Refused("E.CONFLICT", text, detail_enum="USED_RESET", detail=detail)
    return identity, WitnessedLabel(asked.label, held.checkpoint, asked.recovery)


def _newest(known: HubIdentity | None, given: HubIdentity, signature: IdentitySignature) -> HubIdentity:
    """The newer of two records, one of which must continue the other."""
    given.verify(signature, given.hub_id)
    if known is None:
        return given
    try:
        given.check_follows(known)
    except Unverified as error:
        try:
            known.check_follows(given)
        except Unverified:
            text = f"{error.reason}; the keys of the hub have two histories"
            raise Refused("E.CONFLICT", text, detail_enum="KEY_HISTORY") from None
        return known
    return given


def _order(identity: HubIdentity, key: HubKey) -> int:
    return identity.signing_keys.index(key)


def _signed_until(identity: HubIdentity, held: WitnessedLabel) -> int:
    """The order of the last key that signed what is held; -1 if an earlier incarnation of the hub did."""
    if held.reset is not None:
        wanted = held.reset.statement.recovery.new_key_id
        return next((at for at, key in enumerate(identity.signing_keys) if key.key_id == wanted), -1)
    if held.checkpoint is None:
        return -1
    digest, sig = held.checkpoint.signing_digest(), held.checkpoint.hub_sig
    signed = (at for at, key in enumerate(identity.signing_keys) if signing.is_valid(key.hub_pk, digest, sig))
    return next(signed, -1)


@dataclass(frozen=True, slots=True)
class WitnessPolicy:
    """How many of which witnesses must have cosigned, such as 2 of 3. The keys are by name."""

    threshold: int
    witnesses: Mapping[str, bytes]

    def signers(self, checkpoint: Checkpoint, *identities: HubIdentity) -> tuple[str, ...]:
        """The names of the witnesses that cosigned. A key of the hub itself is never a witness (001, KEX0.1).

        `identities` are all records with keys of the hub: also those of the hubs that it was forked from.
        """
        return self._signers(checkpoint.signing_digest(), checkpoint.witness_sigs or (), identities)

    def reset_signers(self, recovery: LabelRecovery, identity: HubIdentity) -> tuple[str, ...]:
        """The names of the witnesses that cosigned the statement of a recovery."""
        stated = recovery.statement
        return self._signers(reset_digest(stated.recovery), stated.witness_sigs or (), (identity,))

    def check(self, checkpoint: Checkpoint, *identities: HubIdentity) -> tuple[str, ...]:
        """Raise `Unverified` unless enough witnesses cosigned. Returns their names."""
        return self._enough("checkpoint", self.signers(checkpoint, *identities))

    def check_reset(self, recovery: LabelRecovery, identity: HubIdentity) -> tuple[str, ...]:
        """Raise `Unverified` unless enough witnesses cosigned the statement of a recovery. Returns their names."""
        return self._enough("recovery statement", self.reset_signers(recovery, identity))

    def _enough(self, what: str, found: tuple[str, ...]) -> tuple[str, ...]:
        if len(found) < self.threshold:
            names = ", ".join(found) or "none"
            wanted = f"{self.threshold} of {len(self.witnesses)} witnesses"
            raise Unverified(what, f"cosigned by {names}, but the policy requires {wanted}")
        return found

    def _signers(self, digest: bytes, sigs: tuple[bytes, ...], identities: Iterable[HubIdentity]) -> tuple[str, ...]:
        own = {key.hub_pk for identity in identities for key in identity.hub_keys}
        return tuple(
            name
            for name, pk in self.witnesses.items()
            if pk not in own and any(signing.is_valid(pk, digest, sig) for sig in sigs)
        )
