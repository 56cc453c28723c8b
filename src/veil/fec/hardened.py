"""The hardened transform: an all-or-nothing package, so fewer than k shards reveal nothing of the object. Spec §8.

    key      = keyed(derive("veil hardened key v1", root), object)
    masked   = object XOR ChaCha20(key)
    wrapped  = key XOR keyed(derive("veil hardened wrap v1", root), masked)
    package  = masked || wrapped

The key is a keyed hash of the whole object, so the package is a function of the object, and the root in the shards
does not reveal the key. Unwrapping the key needs all of `masked`, which fewer than k shards do not have.
`keyed` and `derive` are BLAKE3's keyed hash and key derivation; `root` is the object root.
"""

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from veil.hashing import HASH_BYTES, derive, keyed
from veil.veil_errors import Unverified

WRAPPED_BYTES = HASH_BYTES

_KEY = "veil hardened key v1"
_WRAP = "veil hardened wrap v1"
# Each key encrypts one object, so counter and nonce are zero.
_START = bytes(16)


def harden(root: bytes, data: bytes) -> bytes:
    """The package of an object, `WRAPPED_BYTES` longer than the object."""
    key = keyed(derive(_KEY, root), data)
    masked = _stream(key, data)
    return masked + _xor(key, keyed(derive(_WRAP, root), masked))


def unharden(root: bytes, package: bytes) -> bytes:
    """The object in a package. Raise `Unverified` unless this is the only valid package of the object."""
    masked, wrapped = package[:-WRAPPED_BYTES], package[-WRAPPED_BYTES:]
    key = _xor(wrapped, keyed(derive(_WRAP, root), masked))
    data = _stream(key, masked)
    if keyed(derive(_KEY, root), data) != key:
        raise Unverified("object", "the shards are inconsistent")
    return data


def _stream(key: bytes, data: bytes) -> bytes:
    return Cipher(ChaCha20(key, _START), None).encryptor().update(data)


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(HASH_BYTES, "big")
