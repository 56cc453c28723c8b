"""HPKE base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, with exporter. RFC 9180.

A thin context on our own primitives: the library that has the exporter costs well over one and a half times as much
a seal (`bench/seal.py` measures both; the tests check one against the other).
"""

from veen.core import aead
from veen.core.dh import DhKey
from veen.core.errors import Malformed
from veen.core.hashing import HASH_BYTES
from veen.core.hkdf import MAX_OUTPUT_BYTES, Hmac, expand, extract, hmac32

ENC_BYTES = 32

_VERSION = b"HPKE-v1"
_KEM_SUITE = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(n.to_bytes(2, "big") for n in (0x0020, 0x0001, 0x0003))
_MODE_BASE = b"\x00"
_SEQ_MAX = (1 << 8 * aead.CHACHA_NONCE_BYTES) - 1


def _labeled(suite: bytes, label: bytes) -> bytes:
    """What LabeledExtract puts before its input, RFC 9180 §4."""
    return _VERSION + suite + label


def _labeled_info(suite: bytes, label: bytes, length: int) -> bytes:
    """What LabeledExpand puts before its info, RFC 9180 §4."""
    return length.to_bytes(2, "big") + _VERSION + suite + label


_NO_SALT = Hmac(b"")
_EAE_PRK = _labeled(_KEM_SUITE, b"eae_prk")
_SHARED_SECRET = _labeled_info(_KEM_SUITE, b"shared_secret", HASH_BYTES)
_SECRET = _labeled(_SUITE, b"secret")
_EXPORTED_KEY = _labeled_info(_SUITE, b"sec", aead.KEY_BYTES)


class _Infos:
    """The three expand inputs of the key schedule: fixed for one `info`, and VEEN's is always empty."""

    __slots__ = ("base_nonce", "exporter", "key")

    def __init__(self, info: bytes) -> None:
        psk_id_hash = extract(b"", _labeled(_SUITE, b"psk_id_hash"))
        context = _MODE_BASE + psk_id_hash + extract(b"", _labeled(_SUITE, b"info_hash") + info)
        # One block each, so the counter that HKDF-Expand appends is always 1.
        self.key = _labeled_info(_SUITE, b"key", aead.KEY_BYTES) + context + b"\x01"
        self.base_nonce = _labeled_info(_SUITE, b"base_nonce", aead.CHACHA_NONCE_BYTES) + context + b"\x01"
        self.exporter = _labeled_info(_SUITE, b"exp", HASH_BYTES) + context + b"\x01"


_EMPTY_INFO = _Infos(b"")


class Context:
    """One HPKE context: seals or opens in sequence, and exports secrets bound to it."""

    __slots__ = ("_base_nonce", "_exporter", "_key", "_seq")

    def __init__(self, dh: bytes, kem_context: bytes, info: bytes) -> None:
        infos = _Infos(info) if info else _EMPTY_INFO
        shared_secret = hmac32(_NO_SALT.digest(_EAE_PRK + dh), _SHARED_SECRET + kem_context + b"\x01")
        secret = Hmac(hmac32(shared_secret, _SECRET))
        self._key = secret.digest(infos.key)
        self._base_nonce = secret.digest(infos.base_nonce)[: aead.CHACHA_NONCE_BYTES]
        self._exporter = secret.digest(infos.exporter)
        self._seq = 0

    def seal(self, aad: bytes, plaintext: bytes) -> bytes:
        sealed = aead.chacha_seal(self._key, self._nonce(), aad, plaintext)
        self._seq += 1
        return sealed

    def open(self, aad: bytes, sealed: bytes) -> bytes:
        plaintext = aead.chacha_open(self._key, self._nonce(), aad, sealed)
        self._seq += 1
        return plaintext

    def export(self, exporter_context: bytes, length: int) -> bytes:
        if length == aead.KEY_BYTES:
            return hmac32(self._exporter, _EXPORTED_KEY + exporter_context + b"\x01")
        if not 0 <= length <= MAX_OUTPUT_BYTES:
            raise ValueError(f"an export has at most {MAX_OUTPUT_BYTES} bytes, not {length}")
        return expand(self._exporter, _labeled_info(_SUITE, b"sec", length) + exporter_context, length)

    def _nonce(self) -> bytes:
        if self._seq == 0:
            return self._base_nonce
        if self._seq >= _SEQ_MAX:
            raise ValueError("this HPKE context has used every nonce it has")
        return (int.from_bytes(self._base_nonce, "big") ^ self._seq).to_bytes(aead.CHACHA_NONCE_BYTES, "big")


def setup_sender(public_key: bytes, info: bytes = b"", ephemeral: DhKey | None = None) -> tuple[bytes, Context]:
    """A context to seal for the holder of `public_key`. `ephemeral` is for test vectors: reuse breaks secrecy."""
    key = ephemeral or DhKey.generate()
    enc = key.public_key
    return enc, Context(key.exchange(public_key), enc + public_key, info)


def setup_receiver(enc: bytes, key: DhKey, info: bytes = b"") -> Context:
    """The context that the sender of `enc` had."""
    if len(enc) != ENC_BYTES:
        raise Malformed("hpke", f"an encapsulated key of {len(enc)} bytes, not {ENC_BYTES}")
    return Context(key.exchange(enc), enc + key.public_key, info)
