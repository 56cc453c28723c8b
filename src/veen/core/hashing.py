"""H, Ht and the fixed-width integers that all other definitions use. Spec §3.3."""

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


def u64be(n: int) -> bytes:
    return n.to_bytes(8, "big")


def u32be(n: int) -> bytes:
    return n.to_bytes(4, "big")
