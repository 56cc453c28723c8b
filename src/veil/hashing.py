"""BLAKE3: plain, keyed and key derivation mode. Spec §3."""

from blake3 import blake3

HASH_BYTES = 32


def h(data: bytes) -> bytes:
    return blake3(data).digest()


def derive(context: str, material: bytes) -> bytes:
    """32 bytes for one purpose, in the key derivation mode. Each context string has exactly one use."""
    return blake3(material, derive_key_context=context).digest()


def keyed(key: bytes, data: bytes) -> bytes:
    return blake3(data, key=key).digest()


def u16be(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32be(value: int) -> bytes:
    return value.to_bytes(4, "big")
