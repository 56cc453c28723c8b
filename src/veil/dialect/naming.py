"""Names in the dialect that the specification does not have: namespaces of channels, and the tag of discovery."""

from veil.hashing import h, u16be
from veil.limits import MAX_UINT16

DISCOVERY_NAMESPACE = 4096
DEFAULT_CHANNEL = "general"
_FNV_OFFSET, _FNV_PRIME, _FNV_MASK = 0x811C9DC5, 0x01000193, (1 << 32) - 1


def channel_namespace(base: int, channel: str) -> int:
    """The namespace of a channel: its base, moved by a 32-bit FNV-1a hash of the name."""
    value = _FNV_OFFSET
    for byte in (channel.strip().lower() or DEFAULT_CHANNEL).encode():
        value = (value ^ byte) * _FNV_PRIME & _FNV_MASK
    return (base + value) & MAX_UINT16


def discovery_tag(namespace: int = DISCOVERY_NAMESPACE) -> bytes:
    return h(b"veil-discovery" + u16be(namespace))
