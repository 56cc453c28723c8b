"""Ed25519 signatures of objects, over the header and the hash of the ciphertext. Spec §7.2 and §9.3.

digest   = derive("veil object signature v1", CBOR(header))
header   = [1, namespace, epoch, flags, tag, nonce, sender_pubkey, H(ciphertext)]
"""

from dataclasses import replace

from plumbing.cbor_heads import ARRAY, write_head, write_items
from plumbing.sodium import SigningKey, is_valid
from veil.codec.native import object_head
from veil.hashing import derive, h
from veil.namespaces import NamespacePolicy
from veil.objects import SIGNATURE_BYTES, Flags, ObjectV1
from veil.veil_errors import Refused, Unverified

_CONTEXT = "veil object signature v1"
_SIGNED_FIELDS = 8


def verify(public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise `Unverified` unless the signature verifies."""
    if not is_valid(public_key, message, signature):
        raise Unverified(what, "the signature does not verify under the key")


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    head = write_head(ARRAY, _SIGNED_FIELDS) + object_head(obj.address, obj.flags, obj.nonce)
    return derive(_CONTEXT, head + write_items(sender_pubkey, h(obj.ciphertext)))


def sign_object(obj: ObjectV1, key: SigningKey) -> ObjectV1:
    """The object with sender, signature and the flag `signed`."""
    named = replace(obj, flags=obj.flags | Flags.SIGNED, sender_pubkey=key.public_key, signature=bytes(SIGNATURE_BYTES))
    return replace(named, signature=key.sign(signing_digest(named, key.public_key)))


def verify_object(obj: ObjectV1) -> None:
    """Raise `Unverified` if an object is signed and the signature fails."""
    if obj.sender_pubkey is not None and obj.signature is not None:
        verify(obj.sender_pubkey, signing_digest(obj, obj.sender_pubkey), obj.signature, "object")


def check_policy(obj: ObjectV1, policy: NamespacePolicy) -> None:
    """Verify a signature if there is one, and raise `Refused` if the namespace requires one and it is missing.

    This needs no key, so a node can reject invalid objects that it cannot open.
    """
    if not obj.signed and policy.requires_signature(obj.address.namespace):
        raise Refused("object", f"objects of namespace {obj.address.namespace} must be signed")
    verify_object(obj)
