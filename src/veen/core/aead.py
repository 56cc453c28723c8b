"""The two AEADs of the profile: XChaCha20-Poly1305 for bodies and attachments, ChaCha20-Poly1305 inside HPKE."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl import bindings
from nacl.exceptions import CryptoError

from veen.core.errors import Unverified

KEY_BYTES = 32
TAG_BYTES = 16
XCHACHA_NONCE_BYTES = 24
CHACHA_NONCE_BYTES = 12


def xchacha_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, aad, nonce, key)


def xchacha_open(key: bytes, nonce: bytes, aad: bytes, sealed: bytes, what: str = "body") -> bytes:
    if len(sealed) < TAG_BYTES:
        raise Unverified(what, "shorter than its authentication tag")
    if len(key) != KEY_BYTES or len(nonce) != XCHACHA_NONCE_BYTES:
        raise ValueError("an XChaCha20-Poly1305 key has 32 bytes and its nonce 24")
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, aad, nonce, key)
    except CryptoError:
        raise Unverified(what, "decryption failed: wrong key, or altered data") from None


def chacha_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(nonce, plaintext, aad)


def chacha_open(key: bytes, nonce: bytes, aad: bytes, sealed: bytes, what: str = "header") -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, aad)
    except InvalidTag:
        raise Unverified(what, "decryption failed: wrong key, or altered data") from None
