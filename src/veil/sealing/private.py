"""Private delivery: sealed by HPKE to the recipient's key, under a tag that lasts one epoch. RFC 9180.

    content_key  = 32 random bytes
    ciphertext   = HPKE(recipient, info = "veil private v1" || aad, content_key) || XChaCha20-Poly1305(content_key, …)

HPKE is base mode with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20-Poly1305: 32 bytes of `enc`, 48 of
sealed key. Nothing in clear names the sender; see `letters` for a signature inside the seal.
"""

import os
from typing import NoReturn, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from veil.errors import Malformed, Unverified
from veil.objects import Address
from veil.sealing.aead import KEY_BYTES, TAG_BYTES, SharedKey
from veil.tags import rv_tag

WRAPPED_BYTES = 32 + KEY_BYTES + TAG_BYTES
_INFO = b"veil private v1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class Recipient:
    """Someone to seal for: the public half of a delivery key."""

    __slots__ = ("_key", "public_key")

    overhead = WRAPPED_BYTES + TAG_BYTES

    def __init__(self, public_key: bytes) -> None:
        if len(public_key) != KEY_BYTES:
            raise Malformed("delivery key", f"{len(public_key)} public bytes, not {KEY_BYTES}")
        self.public_key = public_key
        self._key = X25519PublicKey.from_public_bytes(public_key)

    def address(self, namespace: int, epoch: int) -> Address:
        """Where the recipient can be met during an epoch."""
        return Address(rv_tag(self.public_key, epoch, namespace), namespace, epoch)

    def seal(self, address: Address, nonce: bytes, plaintext: bytes) -> bytes:
        content_key = os.urandom(KEY_BYTES)
        try:
            wrapped = _SUITE.encrypt(content_key, self._key, _INFO + address.aad())
        except ValueError:
            raise Malformed("delivery key", "the public key has small order") from None
        return wrapped + SharedKey(content_key).seal(address, nonce, plaintext)


class DeliveryKey:
    """An X25519 key pair that opens what was sealed for it. The secret half never shows in `repr`."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed("delivery key", f"{len(secret)} secret bytes, not {KEY_BYTES}")
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self.public_key = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes: for keystores only."""
        return self._key.private_bytes_raw()

    def open(self, address: Address, nonce: bytes, ciphertext: bytes) -> bytes:
        wrapped, sealed = ciphertext[:WRAPPED_BYTES], ciphertext[WRAPPED_BYTES:]
        try:
            content_key = _SUITE.decrypt(wrapped, self._key, _INFO + address.aad())
        except (InvalidTag, ValueError):
            raise Unverified("object", "not sealed for this key, or altered") from None
        if len(content_key) != KEY_BYTES:
            raise Unverified("object", "a sealed key of another length")
        return SharedKey(content_key).open(address, nonce, sealed)

    def __repr__(self) -> str:
        return f"DeliveryKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled")
