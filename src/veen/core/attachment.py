"""Attachments: large parts of a message, sealed separately and stored under the hash of their ciphertext. Spec §4.6.

The spec derives an attachment's nonce from `msg_id`, the hash of a ciphertext that contains `att_root`, which in turn
is the hash of the attachment. To break this cycle, the nonce applies the leaf_hash rule to `H(enc)`, the part of the
ciphertext that exists before the attachments. Keys are fresh for every message, so no key meets a nonce twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from veen.core import hpke, mmr, signing
from veen.core.cbor import Bstr, Uint, VersionField, Wire, int_map
from veen.core.ciphertext import Opened, PayloadHdr, Sealer
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import h, ht, u64be
from veen.core.hpke import XCHACHA_NONCE_BYTES
from veen.core.limits import MAX_UPLOAD_SKEW_SEC
from veen.core.msg import leaf_hash
from veen.core.profile import Limits
from veen.core.read_proof import read_header, write_header
from veen.core.signing import SIGNATURE_BYTES, SigningKey

EMPTY_ROOT = mmr.root((), mmr.ATTACHMENTS)


@dataclass(frozen=True, slots=True)
class SealedAttachment:
    """An attachment as stored. Its address is the hash of its bytes, so any copy can be checked."""

    coid: bytes
    sealed: bytes


def seal(message: Sealer, attachment: bytes) -> SealedAttachment:
    """Seal the next attachment of a message. The message itself must be sealed afterwards."""
    key, nonce = _key_and_nonce(message, message.next_attachment())
    sealed = hpke.xchacha_seal(key, nonce, b"", attachment)
    return SealedAttachment(h(sealed), sealed)


def open_sealed(message: Opened, index: int, coid: bytes, sealed: bytes) -> bytes:
    """Decrypt attachment `index`. `coid` is the address to which the message commits."""
    if h(sealed) != coid:
        raise Unverified("attachment", f"attachment {index} does not match its coid")
    key, nonce = _key_and_nonce(message, index)
    return hpke.xchacha_open(key, nonce, b"", sealed, "attachment")


def root(coids: Sequence[bytes]) -> bytes:
    """att_root: the root of the tree over the addresses, in order."""
    return mmr.root(coids, mmr.ATTACHMENTS)


def check(
    header: PayloadHdr, declared: Sequence[int], coids: Sequence[bytes], sizes: Sequence[int], limits: Limits
) -> None:
    """Raise unless the supplied attachments match the message.

    `declared` are the plaintext sizes in the decrypted body; `coids` and `sizes` are the addresses and plaintext sizes
    of the supplied attachments.
    """
    check_sizes(declared, limits)
    if len(coids) != len(declared) or len(sizes) != len(declared):
        raise Unverified("attachments", f"{len(coids)} supplied, but the message declares {len(declared)}")
    for index, (size, expected) in enumerate(zip(sizes, declared, strict=True)):
        if size != expected:
            raise Unverified("attachments", f"attachment {index} has {size} bytes, but the message declares {expected}")
    if header.att_root is None:
        if declared:
            raise Unverified("attachments", "the header has no att_root")
    elif root(coids) != header.att_root:
        raise Unverified("attachments", "att_root does not match the supplied attachments")


def check_sizes(sizes: Sequence[int], limits: Limits) -> None:
    """Check count and sizes against the limits, before any root is computed. Spec §14.2."""
    if len(sizes) > limits.max_attachments_per_msg:
        raise _too_large(f"{len(sizes)} attachments, above {limits.max_attachments_per_msg}")
    if any(size > limits.max_attachment_bytes for size in sizes):
        raise _too_large(f"an attachment has {max(sizes)} bytes, above {limits.max_attachment_bytes}")


def _key_and_nonce(message: Sealer | Opened, index: int) -> tuple[bytes, bytes]:
    place = message.place
    key = message.context.export(b"veen/att-k" + u64be(index), hpke.KEY_BYTES)
    message_id = leaf_hash(place.label, place.profile_id, h(message.enc), place.client_id, place.client_seq)
    return key, ht("veen/att-nonce", message_id + u64be(index))[:XCHACHA_NONCE_BYTES]


def _too_large(reason: str) -> Malformed:
    return Malformed("attachments", reason, Fault.SIZE)


SCHEME = "veen-upload"  # of the HTTP header `Authorization`


@int_map("upload proof", VersionField())
class UploadProof(Wire):
    """The subject of a capability uploads an attachment of `size` sealed bytes at the time `made_at`.

    The signature also covers the label that the request names, if any.
    """

    auth_ref: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint()]
    made_at: Annotated[int, Uint()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, hub_id: bytes, coid: bytes, subject_pk: bytes, label: bytes | None = None) -> None:
        """Raise `Unverified` unless the capability's subject signed it for this attachment, hub and label."""
        signing.verify(subject_pk, self._digest(hub_id, coid, label), self.sig, "upload proof")

    def check_time(self, hub_ts: int) -> None:
        """Raise `Unverified` unless `made_at` is within `MAX_UPLOAD_SKEW_SEC` of the hub's time."""
        if abs(self.made_at - hub_ts) > MAX_UPLOAD_SKEW_SEC:
            raise Unverified("upload proof", f"made at {self.made_at}, more than {MAX_UPLOAD_SKEW_SEC} s from {hub_ts}")

    def header(self) -> str:
        """The value of the `Authorization` header."""
        return write_header(SCHEME, self)

    @classmethod
    def from_header(cls, text: str) -> Self:
        return read_header(SCHEME, cls, text)

    def _digest(self, hub_id: bytes, coid: bytes, label: bytes | None) -> bytes:
        signed = hub_id + coid + self.auth_ref + u64be(self.size) + u64be(self.made_at)
        return ht("veen/att-put", signed + (label or b""))


def sign_upload(
    key: SigningKey, *, hub_id: bytes, coid: bytes, auth_ref: bytes, size: int, made_at: int, label: bytes | None = None
) -> UploadProof:
    """Sign the proof for one attachment. `key` is the capability's subject."""
    unsigned = UploadProof(auth_ref, size, made_at, bytes(SIGNATURE_BYTES))
    return replace(unsigned, sig=key.sign(unsigned._digest(hub_id, coid, label)))
