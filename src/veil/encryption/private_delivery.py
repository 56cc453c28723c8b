"""Private delivery: a letter has sender and signature inside the seal, and HPKE seals it to one recipient.

    letter   = [sender_pubkey, signature, body]
    digest   = derive("veil letter v1", aad || body)

The signature covers the address, and a rendezvous tag depends on the recipient's key. A recipient therefore cannot
present a letter as if it had been written to someone else.
"""

import os
from dataclasses import dataclass
from typing import NoReturn, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from plumbing.cbor_heads import ARRAY, write_array
from plumbing.sodium import AEAD_KEY_BYTES as KEY_BYTES
from plumbing.sodium import AEAD_TAG_BYTES as TAG_BYTES
from plumbing.sodium import SigningKey
from veil.codec.cbor_reader import Reader
from veil.encryption.aead import SharedKey
from veil.encryption.object_signature import verify
from veil.hashing import derive
from veil.objects import PUBKEY_BYTES, SIGNATURE_BYTES, Address
from veil.tags import rv_tag
from veil.veil_errors import Malformed, Unverified
from veil.veil_limits import MAX_OBJECT_BYTES

_CONTEXT = "veil letter v1"
_FIELDS = 3
# Maximum size of a letter minus its body.
LETTER_BYTES = 1 + (2 + PUBKEY_BYTES) + (2 + SIGNATURE_BYTES) + 5


@dataclass(frozen=True, slots=True)
class Letter:
    """A verified letter."""

    sender_pubkey: bytes
    body: bytes


def write_letter(address: Address, key: SigningKey, body: bytes) -> bytes:
    """The payload with `body`, signed by a key."""
    signature = key.sign(_digest(address, body))
    return write_array(key.public_key, signature, body)


def read_letter(address: Address, payload: bytes) -> Letter:
    """Decode and verify a letter. Raise `Unverified` if the signature fails for this address."""
    reader = Reader(payload, "letter")
    reader.exactly(ARRAY, _FIELDS)
    sender_pubkey, signature = reader.fixed(PUBKEY_BYTES), reader.fixed(SIGNATURE_BYTES)
    body = reader.byte_string(MAX_OBJECT_BYTES)
    reader.end()
    verify(sender_pubkey, _digest(address, body), signature, "letter")
    return Letter(sender_pubkey, body)


def _digest(address: Address, body: bytes) -> bytes:
    return derive(_CONTEXT, address.aad() + body)


WRAPPED_BYTES = 32 + KEY_BYTES + TAG_BYTES
_INFO = b"veil private v1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class Recipient:
    """The public half of a delivery key."""

    __slots__ = ("_key", "public_key")

    overhead = WRAPPED_BYTES + TAG_BYTES

    def __init__(self, public_key: bytes) -> None:
        if len(public_key) != KEY_BYTES:
            raise Malformed("delivery key", f"the public key has {len(public_key)} bytes, not {KEY_BYTES}")
        self.public_key = public_key
        self._key = X25519PublicKey.from_public_bytes(public_key)

    def address(self, namespace: int, epoch: int) -> Address:
        """The address of objects for the recipient during an epoch."""
        return Address(rv_tag(self.public_key, epoch, namespace), namespace, epoch)

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes:
        content_key = os.urandom(KEY_BYTES)
        try:
            wrapped = _SUITE.encrypt(content_key, self._key, _INFO + address.aad())
        except ValueError:
            raise Malformed("delivery key", "the public key has small order") from None
        return wrapped + SharedKey(content_key).seal(address, nonce, plaintext)


class DeliveryKey:
    """An X25519 key pair that opens objects sealed to it. `repr` never shows the secret half."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed("delivery key", f"the secret key has {len(secret)} bytes, not {KEY_BYTES}")
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public_key = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes, for key storage only."""
        return self._key.private_bytes_raw()

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        wrapped, sealed = ciphertext[:WRAPPED_BYTES], ciphertext[WRAPPED_BYTES:]
        try:
            content_key = _SUITE.decrypt(wrapped, self._key, _INFO + address.aad())
        except (InvalidTag, ValueError):
            raise Unverified("object", "not sealed to this key, or altered") from None
        if len(content_key) != KEY_BYTES:
            raise Unverified("object", "the sealed content key has the wrong length")
        return SharedKey(content_key).open(address, nonce, sealed)

    def __repr__(self) -> str:
        return f"DeliveryKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")
