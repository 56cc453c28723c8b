"""Ed25519 and XChaCha20-Poly1305 of libsodium. libsodium reads fixed lengths from pointers: they are checked here.

Ed25519 uses libsodium's acceptance rule, so that every implementation admits the same signatures: A, R and S are
canonical, A and R are not of small order, and R equals [S]B - [k]A exactly, without the cofactor. OpenSSL accepts more
signatures, so no other module verifies Ed25519. A libsodium that uses the cofactor would admit messages that others
reject, so importing this module fails with such a library.
"""

import os
from collections.abc import Sequence
from typing import NoReturn, Protocol, Self

from nacl import bindings
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # what `bindings` calls, for `sign_many`
from nacl.exceptions import BadSignatureError, CryptoError

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_BYTES = 32
AEAD_KEY_BYTES = 32
AEAD_NONCE_BYTES = 24
AEAD_TAG_BYTES = 16


class DigestSigner(Protocol):
    """Something that signs with one key. The secret half may be in another process or in a hardware token."""

    @property
    def public_key(self) -> bytes: ...

    def sign(self, message: bytes, /) -> bytes: ...

    def sign_many(self, digests: Sequence[bytes], /) -> list[bytes]: ...


class SigningKey:
    """An Ed25519 key pair. `repr` does not show the secret half, and keys are not compared by it."""

    __slots__ = ("_secret", "public_key")

    public_key: bytes

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed of a signing key has {len(seed)} bytes, not {SEED_BYTES}")
        self.public_key, self._secret = bindings.crypto_sign_seed_keypair(seed)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(SEED_BYTES))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes from which the key pair is derived. Only keystores need them."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def sign_many(self, digests: Sequence[bytes]) -> list[bytes]:
        # `bindings` allocates and copies for each signature. libsodium writes each with the message behind it, and the
        # next signature overwrites the message.
        signed = ffi.new("unsigned char[]", len(digests) * SIGNATURE_BYTES + max(map(len, digests), default=0))
        for number, digest in enumerate(digests):
            lib.crypto_sign(signed + number * SIGNATURE_BYTES, ffi.NULL, digest, len(digest), self._secret)
        every = ffi.buffer(signed)
        ends = range(SIGNATURE_BYTES, (len(digests) + 1) * SIGNATURE_BYTES, SIGNATURE_BYTES)
        return [every[end - SIGNATURE_BYTES : end] for end in ends]

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secret keys cannot be pickled")


def is_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature verifies. For choosing among keys; use a `verify` where the result must not be ignored."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


class CannotOpen(Exception):
    """The ciphertext was altered, or sealed with another key, nonce or associated data."""


def aead_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """XChaCha20-Poly1305. The result is `AEAD_TAG_BYTES` longer than the plaintext."""
    return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, aad, nonce, key)


def aead_open(key: bytes, nonce: bytes, aad: bytes, sealed: bytes) -> bytes:
    if len(key) != AEAD_KEY_BYTES or len(nonce) != AEAD_NONCE_BYTES:
        raise ValueError("an XChaCha20-Poly1305 key has 32 bytes and its nonce 24")
    if len(sealed) < AEAD_TAG_BYTES:
        raise CannotOpen("shorter than its authentication tag")
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, aad, nonce, key)
    except CryptoError:
        raise CannotOpen("decryption failed: wrong key, or altered data") from None


# Valid with the cofactor and invalid without: the key and R each have a component of order 8.
_PROBE = (
    bytes.fromhex("2624e942216e9ab01bdb288080586b3aff8b1fdf18119f732271c50ada61a4ff"),
    bytes(4),
    bytes.fromhex(
        "f07c9320643bdc58041b6c9eee4825b6d5b06af7c0dbb08174d05ddf50acac3f"
        "ef54376f3981f6a8868a5fa9da232b396e44342144d8fb86d6b927094eb9a605"
    ),
)


def check_rule() -> None:
    """Raise `ImportError` if the library behind PyNaCl verifies signatures with the cofactor."""
    if is_valid(*_PROBE):
        raise ImportError("this libsodium verifies Ed25519 with the cofactor; veen needs one that does not")


check_rule()
