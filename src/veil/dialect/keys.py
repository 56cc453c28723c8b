"""Keys and nonces of the dialect: what existing nodes derive, and from what."""

from coincurve import PublicKey

from veil.errors import Malformed
from veil.hashing import h, u16be, u32be
from veil.objects import NONCE_BYTES, Address
from veil.sealing.aead import SharedKey

# What an object flagged PUBLIC is sealed with.
PUBLIC_KEY = SharedKey(bytes(32))

_EVEN = b"\x02"


def node_key(secret: bytes) -> bytes:
    """The key a node seals with: its own, so that only holders of the same secret can read it."""
    return h(b"veil/encrypt-key/v1" + secret)


def object_nonce(address: Address, now_step: int, payload: bytes) -> bytes:
    place = address.tag + u16be(address.namespace) + u32be(address.epoch)
    return h(b"objnonce-v1" + place + now_step.to_bytes(8, "big") + h(payload))[:NONCE_BYTES]


def dm_key(secret: bytes, peer_pubkey: bytes) -> bytes:
    """The key two nodes share for direct messages: of the x of their exchange, with the peer's point taken even."""
    try:
        shared = PublicKey(_EVEN + peer_pubkey).multiply(secret)
    except ValueError:
        raise Malformed("dm key", "not a key of secp256k1") from None
    return h(b"veil-dm-v1:" + shared.format()[1:])
