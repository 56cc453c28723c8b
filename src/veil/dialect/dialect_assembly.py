"""The dialect: shards, shapes, keys and signatures as existing nodes compute them.

Blocks are padded with zeros. The old hardened mode rotates the blocks by a number from the root and XORs each with its
neighbour. It has no key and hides nothing: the first block, and any block next to zeros, is in plain text. Use it only
to communicate with existing nodes.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from itertools import pairwise

from coincurve import PrivateKey, PublicKey, PublicKeyXOnly

from plumbing.sodium import SigningKey
from veil.assembly import Opened, Published, Received
from veil.codec.cbor_reader import Reader
from veil.dialect import dialect_wire
from veil.dialect.dialect_wire import HEADER_BYTES, signed_header
from veil.encryption import object_signature
from veil.encryption.aead import Key, Lock, SharedKey
from veil.fec import reed_solomon
from veil.hashing import h, u16be, u32be
from veil.namespaces import ErasureMode, NamespacePolicy
from veil.objects import NONCE_BYTES, SIGNATURE_BYTES, Address, Flags, ObjectV1, ShardSet, ShardV1
from veil.profiles import LARGE, MICRO, SMALL, Shape
from veil.veil_errors import Malformed, Refused, Unverified
from veil.veil_limits import KIB, MAX_OBJECT_BYTES, MAX_UINT16

# The key of objects with the flag PUBLIC.
PUBLIC_KEY = SharedKey(bytes(32))

_EVEN = b"\x02"


def node_key(secret: bytes) -> bytes:
    """The key of objects of a node, for holders of its secret."""
    return h(b"veil/encrypt-key/v1" + secret)


def object_nonce(address: Address, now_step: int, payload: bytes) -> bytes:
    place = address.tag + u16be(address.namespace) + u32be(address.epoch)
    return h(b"objnonce-v1" + place + now_step.to_bytes(8, "big") + h(payload))[:NONCE_BYTES]


def dm_key(secret: bytes, peer_pubkey: bytes) -> bytes:
    """The shared key of two nodes for direct messages, from the x coordinate of ECDH with the even peer point."""
    try:
        shared = PublicKey(_EVEN + peer_pubkey).multiply(secret)
    except ValueError:
        raise Malformed("dm key", "not a secp256k1 key") from None
    return h(b"veil-dm-v1:" + shared.format()[1:])


DISCOVERY_NAMESPACE = 4096
DEFAULT_CHANNEL = "general"
_FNV_OFFSET, _FNV_PRIME, _FNV_MASK = 0x811C9DC5, 0x01000193, (1 << 32) - 1


def channel_namespace(base: int, channel: str) -> int:
    """The namespace of a channel: `base` plus the 32-bit FNV-1a hash of the name."""
    value = _FNV_OFFSET
    for byte in (channel.strip().lower() or DEFAULT_CHANNEL).encode():
        value = (value ^ byte) * _FNV_PRIME & _FNV_MASK
    return (base + value) & MAX_UINT16


def discovery_tag(namespace: int = DISCOVERY_NAMESPACE) -> bytes:
    return h(b"veil-discovery" + u16be(namespace))


SECRET_BYTES = 32
_NO_RANDOMNESS = bytes(32)


class Scheme(Enum):
    """Signature schemes of the dialect."""

    BIP340 = "bip340"
    ED25519 = "ed25519"


class SchnorrKey:
    """A secp256k1 key pair with an x-only public key. The secret half never shows in `repr`."""

    __slots__ = ("_key", "public_key")

    public_key: bytes

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise Malformed("schnorr key", f"the secret has {len(secret)} bytes, not {SECRET_BYTES}")
        try:
            self._key = PrivateKey(secret)
        except ValueError:
            raise Malformed("schnorr key", "not a valid secp256k1 scalar") from None
        self.public_key = PublicKeyXOnly.from_secret(secret).format()

    def sign(self, digest: bytes) -> bytes:
        return self._key.sign_schnorr(sha256(digest).digest(), _NO_RANDOMNESS)

    def __repr__(self) -> str:
        return f"SchnorrKey({self.public_key.hex()[:8]}…)"


def signing_digest(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    return h(signed_header(obj, sender_pubkey) + h(obj.ciphertext))


def sign_object(obj: ObjectV1, key: SchnorrKey | SigningKey) -> ObjectV1:
    """The object with sender, signature and the flag `signed`."""
    named = replace(obj, flags=obj.flags | Flags.SIGNED, sender_pubkey=key.public_key, signature=bytes(SIGNATURE_BYTES))
    return replace(named, signature=key.sign(signing_digest(named, key.public_key)))


def verify_object(obj: ObjectV1) -> Scheme | None:
    """Verify the signature and return its scheme, or None for an unsigned object. Raise `Unverified` if it fails."""
    if obj.sender_pubkey is None or obj.signature is None:
        return None
    digest = signing_digest(obj, obj.sender_pubkey)
    if _schnorr_verifies(obj.sender_pubkey, digest, obj.signature):
        return Scheme.BIP340
    object_signature.verify(obj.sender_pubkey, digest, obj.signature, "object")
    return Scheme.ED25519


def _schnorr_verifies(public_key: bytes, digest: bytes, signature: bytes) -> bool:
    try:
        return PublicKeyXOnly(public_key).verify(signature, sha256(digest).digest())
    except ValueError:
        return False  # not an x coordinate of the curve, so not a key of this scheme


MICRO_BYTES, SMALL_BYTES = 8 * KIB, 128 * KIB


class DialectForm:
    """The form of objects and shards of existing nodes."""

    name = "dialect"

    def encode_object(self, obj: ObjectV1) -> bytes:
        return dialect_wire.encode_object(obj)

    def decode_object(self, data: bytes) -> ObjectV1:
        reader = Reader(data, "object")
        obj = dialect_wire.read_object(reader)
        reader.end()
        return obj

    def encode_shard(self, shard: ShardV1) -> bytes:
        return dialect_wire.encode_shard(shard)

    def decode_shard(self, data: bytes) -> ShardV1:
        return dialect_wire.decode_shard(data)

    def shard_id(self, data: bytes) -> bytes:
        """The hash of the integer-array encoding, whichever encoding arrived."""
        return h(dialect_wire.encode_shard(dialect_wire.decode_shard(data)))

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        k, size = of.shape.k, of.shape.bucket_size - HEADER_BYTES
        if not 0 < len(encoded) <= k * size:
            raise ValueError(f"an object of {len(encoded)} bytes does not fit {k} shards of {size}")
        data = encoded.ljust(k * size, b"\x00")
        if of.erasure_mode is ErasureMode.HARDENED:
            data = b"".join(rotate_and_add(of.object_root, [data[at : at + size] for at in range(0, len(data), size)]))
        return [bytes(row) for row in reed_solomon.encode(data, k, of.shape.n)]

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        data = reed_solomon.decode(payloads, of.shape.k)
        size = len(data) // of.shape.k
        if of.erasure_mode is ErasureMode.HARDENED:
            data = b"".join(
                subtract_and_rotate(of.object_root, [data[at : at + size] for at in range(0, len(data), size)])
            )
        reader = Reader(data, "object")
        try:
            dialect_wire.read_object(reader)
        except Malformed as error:
            raise Unverified("object", f"the shards are inconsistent: {error.reason}") from None
        encoded, rest = data[: reader.at], data[reader.at :]
        if h(encoded) != of.object_root or any(rest):
            raise Unverified("object", "its hash is not the root in its shards")
        return encoded


DIALECT = DialectForm()


def choose_shape(size: int, object_root: bytes, jitter: int = 0) -> Shape:
    """The shape that existing nodes choose for an encoded object. Raise `Refused` if there is none."""
    if not size:
        raise Refused("object", "the object is empty")
    profile = MICRO if size <= MICRO_BYTES else SMALL if size <= SMALL_BYTES else LARGE
    fitting = [shape for shape in profile.shapes if shape.k * (shape.bucket_size - HEADER_BYTES) >= size]
    if not fitting:
        raise Refused("object", f"{size} bytes are more than any shape holds")
    return fitting[object_root[0] % (min(jitter, len(fitting) - 1) + 1)]


def rotate_and_add(object_root: bytes, blocks: list[bytes]) -> list[bytes]:
    """The old hardened transform."""
    turn = _turn(object_root, len(blocks))
    turned = blocks[turn:] + blocks[:turn]
    return turned[:1] + [_xor(block, before) for before, block in pairwise(turned)]


def subtract_and_rotate(object_root: bytes, blocks: list[bytes]) -> list[bytes]:
    """The inverse of the old hardened transform."""
    turned = blocks[:1]
    for block in blocks[1:]:
        turned.append(_xor(block, turned[-1]))
    turn = len(blocks) - _turn(object_root, len(blocks))
    return turned[turn:] + turned[:turn]


def _turn(object_root: bytes, count: int) -> int:
    return (object_root[0] % count or 1) % count


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(len(a), "big")


_PADDING = bytes(8)


def publish(
    payload: bytes,
    address: Address,
    lock: Lock = PUBLIC_KEY,
    *,
    flags: Flags = Flags.PUBLIC,
    signer: SchnorrKey | SigningKey | None = None,
    mode: ErasureMode = ErasureMode.HARDENED,
    jitter: int = 0,
    now_step: int = 0,
    nonce: bytes | None = None,
) -> Published:
    """Seal a payload as existing nodes do. Raise `Refused` if the encoding exceeds their limit."""
    nonce = object_nonce(address, now_step, payload) if nonce is None else nonce
    sealed = lock.seal(address, nonce, payload)
    obj = ObjectV1(address, flags & ~Flags.SIGNED, nonce, sealed, _PADDING, payload_root=h(payload))
    encoded = DIALECT.encode_object(sign_object(obj, signer) if signer else obj)
    if len(encoded) > MAX_OBJECT_BYTES:
        raise Refused("object", f"{len(encoded)} bytes in the dialect encoding are more than {MAX_OBJECT_BYTES}")
    root = h(encoded)
    of = ShardSet(address, root, choose_shape(len(encoded), root, jitter), mode)
    shards = enumerate(DIALECT.cut(of, encoded))
    return Published(of, encoded, tuple(DIALECT.encode_shard(ShardV1(of, index, part)) for index, part in shards))


def receive(of: ShardSet, encoded: bytes, policy: NamespacePolicy) -> Received:
    """Decode and verify a restored object: address, signature and namespace policy. Needs no key."""
    obj = DIALECT.decode_object(encoded)
    if obj.address != of.address:
        raise Malformed("object", "its address differs from the address of its shards")
    if not obj.signed and policy.requires_signature(obj.address.namespace):
        raise Refused("object", f"objects of namespace {obj.address.namespace} must be signed")
    verify_object(obj)
    return Received(of, obj)


def open_object(received: Received, key: Key | None = None) -> Opened:
    """Decrypt the payload of an object. Public objects need no key."""
    obj = received.obj
    keys = [found for found in (key, PUBLIC_KEY if obj.flags & Flags.PUBLIC else None) if found is not None]
    for candidate in keys:
        try:
            payload = candidate.open(obj.address, obj.nonce, obj.ciphertext)
        except Unverified:
            continue
        if h(payload) != obj.payload_root:
            raise Unverified("object", "the payload does not match its payload_root")
        return Opened(obj.address, obj.flags, payload, obj.sender_pubkey)
    raise Unverified("object", "decryption failed: wrong key or altered")
