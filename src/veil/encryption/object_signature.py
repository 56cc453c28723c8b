"""Ed25519 signatures of objects, over the header and the hash of the ciphertext. Spec §7.2 and §9.3.

    digest   = derive("veil object signature v1", CBOR(header))
    header   = [1, namespace, epoch, flags, tag, nonce, sender_pubkey, H(ciphertext)]

All nodes use the verification rule of libsodium, so they accept the same signatures.
"""

import os
from dataclasses import replace
from typing import NoReturn, Self

from nacl import bindings
from nacl.exceptions import BadSignatureError

from veil.codec import cbor_heads
from veil.codec.native import object_head
from veil.hashing import derive, h
from veil.namespaces import NamespacePolicy
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES, Flags, ObjectV1
from veil.veil_errors import Malformed, Refused, Unverified

SEED_BYTES = 32
_CONTEXT = "veil object signature v1"
_SIGNED_FIELDS = 8


class SigningKey:
    """An Ed25519 key pair. The secret half never shows in `repr` and is not pickled."""

    __slots__ = ("_secret", "public_key")

    public_key: bytes

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise Malformed("signing key", f"a seed of {len(seed)} bytes, not {SEED_BYTES}")
        self.public_key, self._secret = bindings.crypto_sign_seed_keypair(seed)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(SEED_BYTES))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for key storage only."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")


def verify(public_key: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise `Unverified` unless the signature verifies."""
    if len(public_key) != PUBKEY_BYTES or len(signature) != SIGNATURE_BYTES:
        raise Unverified(what, "the key or the signature has the wrong length")
    try:
        bindings.crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        raise Unverified(what, "the signature does not verify under the key") from None


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    fields = (
        cbor_heads.head(cbor_heads.ARRAY, _SIGNED_FIELDS),
        object_head(obj.address, obj.flags, obj.nonce),
        cbor_heads.byte_string(sender_pubkey),
        cbor_heads.byte_string(h(obj.ciphertext)),
    )
    return derive(_CONTEXT, b"".join(fields))


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
