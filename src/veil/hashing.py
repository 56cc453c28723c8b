"""BLAKE3: the hash of tags, roots and ids, and keys derived under a context that says what they are for. Spec §3."""

from blake3 import blake3

HASH_BYTES = 32


def h(data: bytes) -> bytes:
    return blake3(data).digest()


def derive(context: str, material: bytes) -> bytes:
    """32 bytes for one purpose: BLAKE3 in its key derivation mode, with a context that is used for nothing else."""
    return blake3(material, derive_key_context=context).digest()


def keyed(key: bytes, data: bytes) -> bytes:
    return blake3(data, key=key).digest()


def u16be(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32be(value: int) -> bytes:
    return value.to_bytes(4, "big")
