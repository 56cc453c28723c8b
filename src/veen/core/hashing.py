"""H, Ht and the fixed-width integers that all other definitions use. Spec §3.3."""

import struct
from collections.abc import Callable
from hashlib import sha256

HASH_BYTES = 32
U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


def h(data: bytes) -> bytes:
    """SHA-256."""
    return sha256(data).digest()


def tag_prefix(tag: str) -> bytes:
    """The bytes that `ht` hashes before its data, for loops that hash many inputs under one tag."""
    return tag.encode() + b"\x00"


def ht(tag: str, data: bytes) -> bytes:
    """SHA-256 with a domain tag, so that equal data under different tags has different hashes."""
    return sha256(tag.encode() + b"\x00" + data).digest()


# Both raise `struct.error` for a number that does not fit.
u64be: Callable[[int], bytes] = struct.Struct(">Q").pack
u32be: Callable[[int], bytes] = struct.Struct(">I").pack
