"""Attachments: large parts sealed one by one, stored by the hash of their ciphertext, tied to the message. §4.6.

The spec derives an attachment's nonce from `msg_id`, which is the hash of a ciphertext that holds `att_root`, which
is the hash of the attachment: a circle. Here the nonce takes the same leaf rule over `H(enc)`, the one part of the
ciphertext that exists before its attachments. Keys are fresh for every message, so no nonce meets its key twice.
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
    """An attachment as it is stored: anyone may keep it, its address checks it."""

    coid: bytes
    sealed: bytes


def seal(message: Sealer, attachment: bytes) -> SealedAttachment:
    """Seal the next attachment of a message whose own ciphertext is yet to be sealed."""
    key, nonce = _key_and_nonce(message, message.next_attachment())
    sealed = aead.xchacha_seal(key, nonce, b"", attachment)
    return SealedAttachment(h(sealed), sealed)


def open_sealed(message: Opened, index: int, coid: bytes, sealed: bytes) -> bytes:
    """The plaintext of attachment `index`, whose address the message committed to."""
    if h(sealed) != coid:
        raise Unverified("attachment", f"attachment {index} is not the one its coid names")
    key, nonce = _key_and_nonce(message, index)
    return aead.xchacha_open(key, nonce, b"", sealed, "attachment")


def root(coids: Sequence[bytes]) -> bytes:
    """att_root: the tree over the addresses, in order."""
    return mmr.root(coids, mmr.ATTACHMENTS)


def check(
    header: PayloadHdr, declared: Sequence[int], coids: Sequence[bytes], sizes: Sequence[int], limits: Limits
) -> None:
    """Raise unless what came is what the message declares.

    `declared` are the plaintext sizes the decrypted body names, `coids` and `sizes` the addresses and plaintext sizes
    of what was supplied.
    """
    check_sizes(declared, limits)
    if len(coids) != len(declared) or len(sizes) != len(declared):
        raise Unverified("attachments", f"{len(coids)} supplied where the message declares {len(declared)}")
    for index, (size, said) in enumerate(zip(sizes, declared, strict=True)):
        if size != said:
            raise Unverified("attachments", f"attachment {index} has {size} bytes where the message declares {said}")
    if header.att_root is None:
        if declared:
            raise Unverified("attachments", "the header commits to none")
    elif root(coids) != header.att_root:
        raise Unverified("attachments", "att_root is not the root of what was supplied")


def check_sizes(sizes: Sequence[int], limits: Limits) -> None:
    """Count and sizes within the limits: before any root is computed. Spec §14.2."""
    if len(sizes) > limits.max_attachments_per_msg:
        raise _too_large(f"{len(sizes)} attachments, above {limits.max_attachments_per_msg}")
    if any(size > limits.max_attachment_bytes for size in sizes):
        raise _too_large(f"one of {max(sizes)} bytes, above {limits.max_attachment_bytes}")


def _key_and_nonce(message: Sealer | Opened, index: int) -> tuple[bytes, bytes]:
    place = message.place
    key = message.context.export(b"veen/att-k" + u64be(index), aead.KEY_BYTES)
    message_id = leaf_hash(place.label, place.profile_id, h(message.enc), place.client_id, place.client_seq)
    return key, trunc24(ht("veen/att-nonce", message_id + u64be(index)))


def _too_large(reason: str) -> Malformed:
    return Malformed("attachments", reason, Fault.SIZE)
