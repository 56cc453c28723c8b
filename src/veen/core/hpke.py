"""HPKE base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, with exporter. RFC 9180.

Implemented here because the only library with an exporter takes more than 1.5 times as long per seal
(`bench/seal.py` measures both; the tests compare the results of both).
"""

import os
from hashlib import sha256
from typing import NoReturn, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from plumbing import sodium
from plumbing.sodium import AEAD_NONCE_BYTES as XCHACHA_NONCE_BYTES
from plumbing.sodium import AEAD_TAG_BYTES as TAG_BYTES
from plumbing.sodium import aead_seal as xchacha_seal
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import HASH_BYTES

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


KEY_BYTES = 32


class DhKey:
    """An X25519 key pair. `repr` does not show the secret half."""

    __slots__ = ("_secret", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed("dh key", f"{len(secret)} secret bytes, not {KEY_BYTES}")
        self._secret = secret
        self.public_key = bindings.crypto_scalarmult_base(secret)

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The 32 secret bytes, for keystores and for `dleq`."""
        return self._secret

    def exchange(self, peer: bytes) -> bytes:
        """The shared secret with a peer's public key. Rejects peers of small order (RFC 7748 §6.1)."""
        if len(peer) != KEY_BYTES:
            raise Malformed("dh key", f"{len(peer)} public bytes, not {KEY_BYTES}")
        try:
            return bindings.crypto_scalarmult(self._secret, peer)
        except SodiumError:
            raise Malformed("dh key", "the public key has small order") from None

    def __repr__(self) -> str:
        return f"DhKey({self.public_key.hex()[:8]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secret keys cannot be pickled")


MAX_OUTPUT_BYTES = 255 * HASH_BYTES

_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
_INNER_FILL = b"\x36" * (_BLOCK_BYTES - HASH_BYTES)
_OUTER_FILL = b"\x5c" * (_BLOCK_BYTES - HASH_BYTES)


def hmac32(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256 with a 32-byte key."""
    inner = sha256(key.translate(_INNER_PAD) + _INNER_FILL + data).digest()
    return sha256(key.translate(_OUTER_PAD) + _OUTER_FILL + inner).digest()


class Hmac:
    """HMAC-SHA256 with one key of any length. RFC 2104."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK_BYTES else sha256(key).digest()).ljust(_BLOCK_BYTES, b"\0")
        self._inner = block.translate(_INNER_PAD)
        self._outer = block.translate(_OUTER_PAD)

    def digest(self, data: bytes) -> bytes:
        return sha256(self._outer + sha256(self._inner + data).digest()).digest()

    def expand(self, info: bytes, length: int) -> bytes:
        """HKDF-Expand (RFC 5869 §2.3) with this key as the pseudorandom key."""
        if not 0 <= length <= MAX_OUTPUT_BYTES:
            raise ValueError(f"HKDF output is limited to {MAX_OUTPUT_BYTES} bytes, got {length}")
        block = self.digest(info + b"\x01")
        blocks = [block]
        for counter in range(2, -(-length // HASH_BYTES) + 1):
            block = self.digest(block + info + bytes((counter,)))
            blocks.append(block)
        return b"".join(blocks)[:length]


def extract(salt: bytes, ikm: bytes) -> bytes:
    """RFC 5869 §2.2. An empty salt equals 32 zero bytes, because HMAC pads its key with zeros."""
    return Hmac(salt).digest(ikm)


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 §2.3."""
    return Hmac(prk).expand(info, length)


def hkdf(ikm: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Extract, then expand."""
    return expand(extract(salt, ikm), info, length)


ENC_BYTES = 32

_VERSION = b"HPKE-v1"
_KEM_SUITE = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(n.to_bytes(2, "big") for n in (0x0020, 0x0001, 0x0003))
_MODE_BASE = b"\x00"
_SEQ_MAX = (1 << 8 * CHACHA_NONCE_BYTES) - 1


def _labeled(suite: bytes, label: bytes) -> bytes:
    """The prefix that LabeledExtract adds to its input. RFC 9180 §4."""
    return _VERSION + suite + label


def _labeled_info(suite: bytes, label: bytes, length: int) -> bytes:
    """The prefix that LabeledExpand adds to its info. RFC 9180 §4."""
    return length.to_bytes(2, "big") + _VERSION + suite + label


_NO_SALT = Hmac(b"")
_EAE_PRK = _labeled(_KEM_SUITE, b"eae_prk")
_SHARED_SECRET = _labeled_info(_KEM_SUITE, b"shared_secret", HASH_BYTES)
_SECRET = _labeled(_SUITE, b"secret")
_EXPORTED_KEY = _labeled_info(_SUITE, b"sec", KEY_BYTES)


class _Infos:
    """The three expand inputs of the key schedule. They depend on `info` only, which is always empty in VEEN."""

    __slots__ = ("base_nonce", "exporter", "key")

    def __init__(self, info: bytes) -> None:
        psk_id_hash = extract(b"", _labeled(_SUITE, b"psk_id_hash"))
        context = _MODE_BASE + psk_id_hash + extract(b"", _labeled(_SUITE, b"info_hash") + info)
        # Each output is one block, so the counter that HKDF-Expand appends is always 1.
        self.key = _labeled_info(_SUITE, b"key", KEY_BYTES) + context + b"\x01"
        self.base_nonce = _labeled_info(_SUITE, b"base_nonce", CHACHA_NONCE_BYTES) + context + b"\x01"
        self.exporter = _labeled_info(_SUITE, b"exp", HASH_BYTES) + context + b"\x01"


_EMPTY_INFO = _Infos(b"")


class HpkeContext:
    """One HPKE context: seals or opens in sequence, and exports secrets derived from it."""

    __slots__ = ("_base_nonce", "_exporter", "_key", "_seq")

    def __init__(self, dh: bytes, kem_context: bytes, info: bytes) -> None:
        infos = _Infos(info) if info else _EMPTY_INFO
        shared_secret = hmac32(_NO_SALT.digest(_EAE_PRK + dh), _SHARED_SECRET + kem_context + b"\x01")
        secret = hmac32(shared_secret, _SECRET)
        self._key = hmac32(secret, infos.key)
        self._base_nonce = hmac32(secret, infos.base_nonce)[:CHACHA_NONCE_BYTES]
        self._exporter = hmac32(secret, infos.exporter)
        self._seq = 0

    def seal(self, aad: bytes, plaintext: bytes) -> bytes:
        sealed = chacha_seal(self._key, self._nonce(), aad, plaintext)
        self._seq += 1
        return sealed

    def open(self, aad: bytes, sealed: bytes) -> bytes:
        plaintext = chacha_open(self._key, self._nonce(), aad, sealed)
        self._seq += 1
        return plaintext

    def export(self, exporter_context: bytes, length: int) -> bytes:
        if length == KEY_BYTES:
            return hmac32(self._exporter, _EXPORTED_KEY + exporter_context + b"\x01")
        if not 0 <= length <= MAX_OUTPUT_BYTES:
            raise ValueError(f"an export is limited to {MAX_OUTPUT_BYTES} bytes, got {length}")
        return expand(self._exporter, _labeled_info(_SUITE, b"sec", length) + exporter_context, length)

    def _nonce(self) -> bytes:
        if self._seq == 0:
            return self._base_nonce
        if self._seq >= _SEQ_MAX:
            raise ValueError("this HPKE context has no unused nonce left")
        return (int.from_bytes(self._base_nonce, "big") ^ self._seq).to_bytes(CHACHA_NONCE_BYTES, "big")


def setup_sender(public_key: bytes, info: bytes = b"", ephemeral: DhKey | None = None) -> tuple[bytes, HpkeContext]:
    """A context that seals for the holder of `public_key`. `ephemeral` is for test vectors: reuse breaks secrecy."""
    key = ephemeral or DhKey.generate()
    enc = key.public_key
    return enc, HpkeContext(key.exchange(public_key), enc + public_key, info)


def setup_receiver(enc: bytes, key: DhKey, info: bytes = b"") -> HpkeContext:
    """The context that matches the sender's `enc`."""
    if len(enc) != ENC_BYTES:
        raise Malformed("hpke", f"an encapsulated key of {len(enc)} bytes, not {ENC_BYTES}")
    return HpkeContext(key.exchange(enc), enc + key.public_key, info)
