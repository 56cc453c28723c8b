"""RECEIPT: the hub's signed word that one message is at one place in one log. Spec §4.3."""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import ClassVar

from veen.core import signing
from veen.core.cbor import Array, Bstr, Uint, Version, Wire
from veen.core.cbor.heads import UINT, write_head
from veen.core.errors import Unverified
from veen.core.hashing import ht, tag_prefix
from veen.core.msg import Msg
from veen.core.signing import SIGNATURE_BYTES, SigningKey

_SIG_TAIL = 2 + SIGNATURE_BYTES
_SIGNED = tag_prefix("veen/sig") + b"\x86"


@dataclass(frozen=True, slots=True)
class Receipt(Wire):
    """The place of one message, and the root of the tree that ends with it."""

    label: bytes
    stream_seq: int
    leaf_hash: bytes
    mmr_root: bytes  # of the tree whose last leaf this is: its size is `stream_seq`, signed with it
    hub_ts: int
    hub_sig: bytes

    LAYOUT: ClassVar = Array(
        "receipt",
        Version(),
        Bstr("label"),
        Uint("stream_seq"),
        Bstr("leaf_hash"),
        Bstr("mmr_root"),
        Uint("hub_ts"),
        Bstr("hub_sig", SIGNATURE_BYTES),
    )

    def flaw(self) -> str | None:
        return None if self.stream_seq else "stream_seq is 0: the first message of a label has 1"

    def signing_digest(self) -> bytes:
        """The first six fields as an array of six."""
        return ht("veen/sig", b"\x86" + self.encode()[1:-_SIG_TAIL])

    def verify_signature(self, hub_pk: bytes) -> None:
        signing.verify(hub_pk, self.signing_digest(), self.hub_sig, "receipt")

    def check_binds(self, msg: Msg) -> None:
        """Raise unless this receipt is for that message: invariants I1 and I2."""
        msg.check_ct_hash()
        if msg.label != self.label:
            raise Unverified("receipt", "its label is not the message's")
        if msg.leaf_hash() != self.leaf_hash:
            raise Unverified("receipt", "its leaf_hash is not the message's")


def sign(key: SigningKey, *, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int) -> Receipt:
    unsigned = Receipt(label, stream_seq, leaf_hash, mmr_root, hub_ts, bytes(SIGNATURE_BYTES))
    return replace(unsigned, hub_sig=key.sign(unsigned.signing_digest()))


def sign_encoded(
    key: SigningKey, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
) -> bytes:
    """What `sign` would encode to, without building the object: a hub makes one for every message it has checked."""
    seq, ts = write_head(UINT, stream_seq), write_head(UINT, hub_ts)
    fields = b"\x01\x58\x20" + label + seq + b"\x58\x20" + leaf_hash + b"\x58\x20" + mmr_root + ts
    return b"\x87" + fields + b"\x58\x40" + key.sign(sha256(_SIGNED + fields).digest())
