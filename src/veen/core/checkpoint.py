"""CHECKPOINT: the hub's signature over a whole prefix of a log. Witnesses may cosign it. Spec §4.4."""

from dataclasses import replace
from typing import Annotated

from veen.core import naming, signing
from veen.core.cbor import Bstr, ListOf, Uint, VersionField, Wire, array, int_map
from veen.core.errors import Unverified
from veen.core.hashing import ht
from veen.core.limits import MAX_WITNESS_SIGS
from veen.core.profile import Profile
from veen.core.signing import SIGNATURE_BYTES, DigestSigner


@array("checkpoint", VersionField())
class Checkpoint(Wire):
    """The root of `label_curr` at `upto_seq`. If the labels differ, the stream moved on from `label_prev`."""

    label_prev: Annotated[bytes, Bstr()]
    label_curr: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint()]
    mmr_root: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    hub_sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    witness_sigs: Annotated[
        tuple[bytes, ...] | None,
        ListOf(Bstr(SIGNATURE_BYTES, name="witness_sig"), most=MAX_WITNESS_SIGS, least=1, optional=True),
    ] = None

    def flaw(self) -> str | None:
        return None if self.upto_seq else "upto_seq is 0: a checkpoint covers at least one message"

    def signing_digest(self) -> bytes:
        """The first six fields as an array of six. The hub and its witnesses sign the same digest."""
        signed = [self.label_prev, self.label_curr, self.upto_seq, self.mmr_root, self.epoch]
        body = self.LAYOUT.write([*signed, _NO_SIG, None])
        return ht("veen/sig", b"\x86" + body[1:-_SIG_TAIL])

    def verify_signature(self, hub_pk: bytes) -> None:
        signing.verify(hub_pk, self.signing_digest(), self.hub_sig, "checkpoint")

    def witnessed(self, *keys: DigestSigner) -> "Checkpoint":
        """The same checkpoint with these witnesses' signatures added."""
        if not keys:
            return self
        digest = self.signing_digest()
        return replace(self, witness_sigs=(self.witness_sigs or ()) + tuple(key.sign(digest) for key in keys))

    def check_labels(self, profile: Profile, routing_key: bytes, stream_id: bytes) -> None:
        """Raise `Unverified` unless the labels are this stream's, of the epoch and the one before. Spec §4.4.1."""
        if not profile.epoch_sec and self.epoch:
            raise Unverified("checkpoint", f"epoch {self.epoch} , but the profile has no epochs")
        if naming.label(routing_key, stream_id, self.epoch) != self.label_curr:
            raise Unverified("checkpoint", "label_curr is not the stream's label in that epoch")
        if self.label_prev == self.label_curr:
            return
        if self.epoch == 0 or naming.label(routing_key, stream_id, self.epoch - 1) != self.label_prev:
            raise Unverified("checkpoint", "label_prev is not the stream's label in the epoch before")

    def check_follows(self, previous: "Checkpoint") -> None:
        """Raise `Unverified` if it goes back behind, or contradicts, an accepted checkpoint of the same label."""
        if previous.label_curr != self.label_curr:
            return
        if self.upto_seq < previous.upto_seq:
            raise Unverified("checkpoint", f"upto_seq {self.upto_seq} is lower than the accepted {previous.upto_seq}")
        if self.upto_seq == previous.upto_seq and self.mmr_root != previous.mmr_root:
            raise Unverified("checkpoint", f"its root differs from the accepted root at upto_seq {self.upto_seq}")


@int_map("requested checkpoint", VersionField())
class RequestedCheckpoint(Wire):
    """An event of the control stream: the hub stores a checkpoint of this prefix, and asks its witnesses to cosign it.

    The log alone decides which checkpoints are stored, so that the same log gives the same ones.
    """

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]


_NO_SIG = bytes(SIGNATURE_BYTES)
_SIG_TAIL = 2 + SIGNATURE_BYTES


def sign(
    key: DigestSigner, *, label_prev: bytes, label_curr: bytes, upto_seq: int, mmr_root: bytes, epoch: int
) -> Checkpoint:
    unsigned = Checkpoint(label_prev, label_curr, upto_seq, mmr_root, epoch, _NO_SIG)
    return replace(unsigned, hub_sig=key.sign(unsigned.signing_digest()))
