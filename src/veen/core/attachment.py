"""Attachments: large parts of a message, sealed separately and stored under the hash of their ciphertext. Spec §4.6.

The spec derives an attachment's nonce from `msg_id`, the hash of a ciphertext that contains `att_root`, which in turn
is the hash of the attachment. To break this cycle, the nonce applies the leaf_hash rule to `H(enc)`, the part of the
ciphertext that exists before the attachments. Keys are fresh for every message, so no key meets a nonce twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veen.core import aead, mmr
from veen.core.ciphertext import Opened, PayloadHdr, Sealer
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import h, ht, trunc24, u64be
from veen.core.hub_limits import Limits
from veen.core.naming import leaf_hash

EMPTY_ROOT = mmr.root((), mmr.ATTACHMENTS)


@dataclass(frozen=True, slots=True)
class SealedAttachment:
    """An attachment as stored. Its address is the hash of its bytes, so any copy can be checked."""

    coid: bytes
    sealed: bytes


def seal(message: Sealer, attachment: bytes) -> SealedAttachment:
    """Seal the next attachment of a message. The message itself must be sealed afterwards."""
    key, nonce = _key_and_nonce(message, message.next_attachment())
    sealed = aead.xchacha_seal(key, nonce, b"", attachment)
    return SealedAttachment(h(sealed), sealed)


def open_sealed(message: Opened, index: int, coid: bytes, sealed: bytes) -> bytes:
    """Decrypt attachment `index`. `coid` is the address to which the message commits."""
    if h(sealed) != coid:
        raise Unverified("attachment", f"attachment {index} does not match its coid")
    key, nonce = _key_and_nonce(message, index)
    return aead.xchacha_open(key, nonce, b"", sealed, "attachment")


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
    key = message.context.export(b"veen/att-k" + u64be(index), aead.KEY_BYTES)
    message_id = leaf_hash(place.label, place.profile_id, h(message.enc), place.client_id, place.client_seq)
    return key, trunc24(ht("veen/att-nonce", message_id + u64be(index)))


def _too_large(reason: str) -> Malformed:
    return Malformed("attachments", reason, Fault.SIZE)
