"""Keys and nonces of the dialect: what existing nodes derive, and from what."""

from dataclasses import replace
from enum import Enum
from hashlib import sha256

from coincurve import PrivateKey, PublicKey, PublicKeyXOnly

from veil.dialect.dialect_wire import signed_header
from veil.encryption import object_signature
from veil.encryption.aead import SharedKey
from veil.encryption.object_signature import SigningKey
from veil.hashing import h, u16be, u32be
from veil.objects import NONCE_BYTES, SIGNATURE_BYTES, Address, Flags, ObjectV1
from veil.veil_errors import Malformed
from veil.veil_limits import MAX_UINT16

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


SECRET_BYTES = 32
_NO_RANDOMNESS = bytes(32)


class Scheme(Enum):
    """By which rule a signature of the dialect holds."""

    BIP340 = "bip340"
    ED25519 = "ed25519"


class SchnorrKey:
    """A secp256k1 key pair with an x-only public key. The secret half never shows in `repr`."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise Malformed("schnorr key", f"{len(secret)} secret bytes, not {SECRET_BYTES}")
        try:
            self._key = PrivateKey(secret)
        except ValueError:
            raise Malformed("schnorr key", "not a number below the order of the curve") from None
        self.public_key = PublicKeyXOnly.from_secret(secret).format()

    def sign(self, digest: bytes) -> bytes:
        return self._key.sign_schnorr(sha256(digest).digest(), _NO_RANDOMNESS)

    def __repr__(self) -> str:
        return f"SchnorrKey({self.public_key.hex()[:8]}…)"


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    return h(signed_header(obj, sender_pubkey) + h(obj.ciphertext))


def sign_object(obj: ObjectV1, key: SchnorrKey | SigningKey) -> ObjectV1:
    """The object with its sender and signature, and the flag that says so."""
    named = replace(obj, flags=obj.flags | Flags.SIGNED, sender_pubkey=key.public_key, signature=bytes(SIGNATURE_BYTES))
    return replace(named, signature=key.sign(signing_digest(named, key.public_key)))


def verify_object(obj: ObjectV1) -> Scheme | None:
    """The scheme by which an object's signature holds, None where it has none. Raise `Unverified` where none does."""
    if obj.sender_pubkey is None or obj.signature is None:
        return None
    digest = signing_digest(obj, obj.sender_pubkey)
    if _schnorr_holds(obj.sender_pubkey, digest, obj.signature):
        return Scheme.BIP340
    object_signature.verify(obj.sender_pubkey, digest, obj.signature, "object")
    return Scheme.ED25519


def _schnorr_holds(public_key: bytes, digest: bytes, signature: bytes) -> bool:
    try:
        return PublicKeyXOnly(public_key).verify(signature, sha256(digest).digest())
    except ValueError:
        return False  # half of all 32 bytes are no x of the curve: then the key is not one of this scheme
