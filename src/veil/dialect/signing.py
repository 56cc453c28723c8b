"""Signatures in the dialect: one digest, two schemes, and nothing on the wire that says which.

Existing nodes sign by BIP-340 over the SHA-256 of the digest, with x-only secp256k1 keys; their libraries by Ed25519
over the digest itself. A verifier that cannot tell tries both.
"""

from dataclasses import replace
from enum import Enum
from hashlib import sha256

from coincurve import PrivateKey, PublicKeyXOnly

from veil.dialect.wire import signed_header
from veil.errors import Malformed
from veil.hashing import h
from veil.objects import SIGNATURE_BYTES, Flags, ObjectV1
from veil.sealing import signing
from veil.sealing.signing import SigningKey

SECRET_BYTES = 32
_NO_RANDOMNESS = bytes(32)


class Scheme(Enum):
    """By which rule a signature of the dialect holds."""

    BIP340 = "bip340"
    ED25519 = "ed25519"


class SchnorrKey:
    """A secp256k1 key pair with an x-only public key. The secret half never shows in `repr`."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise Malformed("schnorr key", f"{len(secret)} secret bytes, not {SECRET_BYTES}")
        try:
            self._key = PrivateKey(secret)
        except ValueError:
            raise Malformed("schnorr key", "not a number below the order of the curve") from None
        self.public_key = PublicKeyXOnly.from_secret(secret).format()

    def sign(self, digest: bytes) -> bytes:
        return self._key.sign_schnorr(sha256(digest).digest(), _NO_RANDOMNESS)

    def __repr__(self) -> str:
        return f"SchnorrKey({self.public_key.hex()[:8]}…)"


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    return h(signed_header(obj, sender_pubkey) + h(obj.ciphertext))


def sign_object(obj: ObjectV1, key: SchnorrKey | SigningKey) -> ObjectV1:
    """The object with its sender and signature, and the flag that says so."""
    named = replace(obj, flags=obj.flags | Flags.SIGNED, sender_pubkey=key.public_key, signature=bytes(SIGNATURE_BYTES))
    return replace(named, signature=key.sign(signing_digest(named, key.public_key)))


def verify_object(obj: ObjectV1) -> Scheme | None:
    """The scheme by which an object's signature holds, None where it has none. Raise `Unverified` where none does."""
    if obj.sender_pubkey is None or obj.signature is None:
        return None
    digest = signing_digest(obj, obj.sender_pubkey)
    if _schnorr_holds(obj.sender_pubkey, digest, obj.signature):
        return Scheme.BIP340
    signing.verify(obj.sender_pubkey, digest, obj.signature, "object")
    return Scheme.ED25519


def _schnorr_holds(public_key: bytes, digest: bytes, signature: bytes) -> bool:
    try:
        return PublicKeyXOnly(public_key).verify(signature, sha256(digest).digest())
    except ValueError:
        return False  # half of all 32 bytes are no x of the curve: then the key is not one of this scheme
