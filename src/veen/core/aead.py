"""The two AEADs of the profile: XChaCha20-Poly1305 for bodies and attachments, ChaCha20-Poly1305 inside HPKE."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from plumbing import sodium
from plumbing.sodium import AEAD_KEY_BYTES as KEY_BYTES
from plumbing.sodium import AEAD_NONCE_BYTES as XCHACHA_NONCE_BYTES
from plumbing.sodium import AEAD_TAG_BYTES as TAG_BYTES
from plumbing.sodium import aead_seal as xchacha_seal
from veen.core.errors import Unverified

__all__ = [
    "CHACHA_NONCE_BYTES",
    "KEY_BYTES",
    "TAG_BYTES",
    "XCHACHA_NONCE_BYTES",
    "chacha_open",
    "chacha_seal",
    "xchacha_open",
    "xchacha_seal",
]

CHACHA_NONCE_BYTES = 12


def xchacha_open(key: bytes, nonce: bytes, aad: bytes, sealed: bytes, what: str = "body") -> bytes:
    try:
        return sodium.aead_open(key, nonce, aad, sealed)
    except sodium.CannotOpen as error:
        raise Unverified(what, str(error)) from None


def chacha_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(nonce, plaintext, aad)


def chacha_open(key: bytes, nonce: bytes, aad: bytes, sealed: bytes, what: str = "header") -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, aad)
    except InvalidTag:
        raise Unverified(what, "decryption failed: wrong key, or altered data") from None
