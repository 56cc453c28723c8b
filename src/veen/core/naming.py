"""Derivation of the 32-byte identifiers. Spec §2."""

import re

from veen.core.hashing import HASH_BYTES, h, ht, u64be

_HEX_ID = re.compile(r"[0-9a-fA-F]{64}")


def stream_id(name: str) -> bytes:
    """The hash of the name; a name of 64 hex digits is the id itself."""
    return bytes.fromhex(name) if _HEX_ID.fullmatch(name) else h(name.encode())


def schema_id(name: str) -> bytes:
    return h(name.encode())


def realm_id(name: str) -> bytes:
    """The hash of the name; a name of 64 hex digits is the id itself. 001, id-spec §3.1."""
    return bytes.fromhex(name) if _HEX_ID.fullmatch(name) else ht("id/realm", name.encode())


def hub_id(first_hub_pk: bytes) -> bytes:
    """Derived from the hub's first key. It stays the same when keys are added."""
    return ht("veen/hub-id", first_hub_pk)


def key_id(hub_pk: bytes) -> bytes:
    return ht("veen/hub-key-id", hub_pk)


def routing_key(of_hub: bytes) -> bytes:
    return ht("veen/routing_key", of_hub)


def label(routing: bytes, stream: bytes, epoch: int) -> bytes:
    """The label of a stream's log during one epoch."""
    return ht("veen/label", routing + stream + u64be(epoch))


def control_stream(of_hub: bytes) -> bytes:
    """The stream on which a hub logs authorized capabilities, so that replaying the log restores them."""
    return ht("veen/control", of_hub)


ZERO_HASH = bytes(HASH_BYTES)
