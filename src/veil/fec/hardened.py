"""The hardened transform: an all-or-nothing package, so that a shard alone shows nothing of its object. Spec §8.

    key      = keyed(derive("veil hardened key v1", root), object)
    masked   = object XOR ChaCha20(key)
    wrapped  = key XOR keyed(derive("veil hardened wrap v1", root), masked)
    package  = masked || wrapped

The key is a hash of the whole object, so the package is a function of the object, and the root, which every shard
shows, does not give the key away. To get the key, all of `masked` is needed: who has fewer than k shards has neither.
`keyed` and `derive` are BLAKE3's keyed hash and key derivation; `root` is the root of the object.
"""

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from veil.hashing import HASH_BYTES, derive, keyed
from veil.veil_errors import Unverified

WRAPPED_BYTES = HASH_BYTES

_KEY = "veil hardened key v1"
_WRAP = "veil hardened wrap v1"
# A key is used for one object, so the counter and the nonce both start from nothing.
_START = bytes(16)


def harden(root: bytes, data: bytes) -> bytes:
    """The package of an object: longer than it by `WRAPPED_BYTES`."""
    key = keyed(derive(_KEY, root), data)
    masked = _stream(key, data)
    return masked + _xor(key, keyed(derive(_WRAP, root), masked))


def unharden(root: bytes, package: bytes) -> bytes:
    """The object in a package. Raise `Unverified` unless it is the one package of that object."""
    masked, wrapped = package[:-WRAPPED_BYTES], package[-WRAPPED_BYTES:]
    key = _xor(wrapped, keyed(derive(_WRAP, root), masked))
    data = _stream(key, masked)
    if keyed(derive(_KEY, root), data) != key:
        raise Unverified("object", "the shards do not fit together")
    return data


def _stream(key: bytes, data: bytes) -> bytes:
    return Cipher(ChaCha20(key, _START), None).encryptor().update(data)


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(HASH_BYTES, "big")
