"""HKDF-SHA256. RFC 5869, spec §3.2.

HMAC is written out on `sha256` because a sealed message takes seven of them: `hmac.digest` looks its hash up by name
each time, which costs more than the hashing (`bench/seal.py` shows both).
"""

from hashlib import sha256

from veen.core.hashing import HASH_BYTES

MAX_OUTPUT_BYTES = 255 * HASH_BYTES

_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
_INNER_FILL = b"\x36" * (_BLOCK_BYTES - HASH_BYTES)
_OUTER_FILL = b"\x5c" * (_BLOCK_BYTES - HASH_BYTES)


def hmac32(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256 under a key of 32 bytes that is used once."""
    inner = sha256(key.translate(_INNER_PAD) + _INNER_FILL + data).digest()
    return sha256(key.translate(_OUTER_PAD) + _OUTER_FILL + inner).digest()


class Hmac:
    """HMAC-SHA256 under one key. RFC 2104."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= _BLOCK_BYTES else sha256(key).digest()).ljust(_BLOCK_BYTES, b"\0")
        self._inner = block.translate(_INNER_PAD)
        self._outer = block.translate(_OUTER_PAD)

    def digest(self, data: bytes) -> bytes:
        return sha256(self._outer + sha256(self._inner + data).digest()).digest()

    def expand(self, info: bytes, length: int) -> bytes:
        """RFC 5869 §2.3, with this key as the pseudorandom key."""
        if not 0 <= length <= MAX_OUTPUT_BYTES:
            raise ValueError(f"HKDF gives at most {MAX_OUTPUT_BYTES} bytes, not {length}")
        block = self.digest(info + b"\x01")
        blocks = [block]
        for counter in range(2, -(-length // HASH_BYTES) + 1):
            block = self.digest(block + info + bytes((counter,)))
            blocks.append(block)
        return b"".join(blocks)[:length]


def extract(salt: bytes, ikm: bytes) -> bytes:
    """RFC 5869 §2.2. An empty salt equals 32 zero bytes, since HMAC pads its key with zeros."""
    return Hmac(salt).digest(ikm)


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 §2.3."""
    return Hmac(prk).expand(info, length)


def hkdf(ikm: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Extract, then expand."""
    return expand(extract(salt, ikm), info, length)
