"""The dialect of existing VEIL nodes: CBOR maps, shards, shapes, keys and signatures for the same objects.

Byte strings are arrays with one unsigned integer per byte: a byte below 24 takes one byte, any other takes two (0x18
and the byte), so a random payload takes 1.9 times its length. Blocks are padded with zeros. The old hardened mode
rotates the blocks by a number from the root and XORs each with its neighbour. It has no key and hides nothing: the
first block, and any block next to zeros, is in plain text. Use it only to communicate with existing nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from itertools import pairwise

import numpy as np
from coincurve import PrivateKey, PublicKey, PublicKeyXOnly

from plumbing.cbor_heads import ARRAY, BSTR, MAP, NULL_BYTE, TEXT, UINT, write_bstr, write_head, write_items, write_text
from plumbing.sodium import SigningKey
from veil import encryption, erasure_code
from veil.assembly import Opened, Published, Received
from veil.codec import Reader
from veil.encryption import Key, Lock, SharedKey
from veil.hashing import HASH_BYTES, h, u16be, u32be
from veil.objects import (
    ALL_FLAGS,
    NONCE_BYTES,
    OBJECT_VERSION,
    PUBKEY_BYTES,
    SHARD_VERSION,
    SIGNATURE_BYTES,
    Address,
    ErasureMode,
    Flags,
    NamespacePolicy,
    ObjectV1,
    ShardSet,
    ShardV1,
)
from veil.profiles import LARGE, MICRO, SMALL, Shape
from veil.veil_errors import Malformed, Refused, Unverified
from veil.veil_limits import KIB, MAX_BATCH_ITEMS, MAX_GROUP_BYTES, MAX_OBJECT_BYTES, MAX_SHARDS, MAX_UINT16, MAX_UINT32

_WIDE = 24
_MARK = 0x18


def encode_ints(data: bytes) -> bytes:
    values = np.frombuffer(data, dtype=np.uint8)
    places = np.arange(len(values)) + np.cumsum(values >= _WIDE)
    out = np.full(len(values) + np.count_nonzero(values >= _WIDE), _MARK, dtype=np.uint8)
    out[places] = values
    return write_head(ARRAY, len(data)) + out.tobytes()


def read_bytes(reader: Reader, most: int) -> bytes:
    """A byte field in either encoding: existing nodes write arrays, and also accept byte strings."""
    if reader.at < len(reader.data) and reader.data[reader.at] >> 5 == BSTR:
        return reader.byte_string(most)
    return _read_ints(reader, reader.head(ARRAY, most))


def read_fixed(reader: Reader, length: int) -> bytes:
    data = read_bytes(reader, length)
    if len(data) != length:
        reader.fail(f"{len(data)} bytes, not {length}")
    return data


def _read_ints(reader: Reader, count: int) -> bytes:
    if not count:
        return b""
    window = np.frombuffer(reader.data[reader.at : reader.at + 2 * count], dtype=np.uint8)
    places = np.arange(len(window))
    marks = window == _MARK
    # A byte 0x18 is a mark or the value 24. In a run of them every second one is a mark, starting with the first.
    starts = marks & ~np.concatenate(([False], marks[:-1]))
    marks &= (places - np.maximum.accumulate(np.where(starts, places, 0))) % 2 == 0
    values = np.flatnonzero(~marks)[:count]
    if len(values) < count:
        reader.fail("truncated")
    marked = np.concatenate(([False], marks))[values]
    if not np.array_equal(marked, window[values] >= _WIDE):
        reader.fail("not an array of bytes in shortest form")
    reader.at += int(values[-1]) + 1
    return window[values].tobytes()


HEADER_BYTES = 85
OBJECT_FIELDS, HEADER_FIELDS, SIGNED_FIELDS = 11, 11, 8
_MODES = {ErasureMode.SYSTEMATIC: "Systematic", ErasureMode.HARDENED: "HardenedNonSystematic"}


def encode_object(obj: ObjectV1) -> bytes:
    obj.check()
    signature = NULL_BYTE if obj.signature is None else write_bstr(obj.signature)
    return b"".join(
        (
            write_head(MAP, OBJECT_FIELDS),
            _object_head(obj),
            _fields(sender_pubkey=obj.sender_pubkey),
            write_text("signature") + signature,
            _fields(nonce=obj.nonce, ciphertext=obj.ciphertext, padding=obj.padding),
        )
    )


def signed_header(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    """The signed header."""
    return write_head(MAP, SIGNED_FIELDS) + _object_head(obj) + _fields(sender_pubkey=sender_pubkey, nonce=obj.nonce)


def _object_head(obj: ObjectV1) -> bytes:
    if obj.payload_root is None:
        raise ValueError("an object of the dialect needs a payload_root")
    return _fields(
        version=OBJECT_VERSION,
        namespace=obj.address.namespace,
        epoch=obj.address.epoch,
        flags=int(obj.flags),
        tag=obj.address.tag,
        object_root=obj.payload_root,
    )


def read_object(reader: Reader) -> ObjectV1:
    """Read one object. The caller checks for trailing bytes."""
    reader.exactly(MAP, OBJECT_FIELDS)
    _version(reader, OBJECT_VERSION)
    namespace, epoch = _uint(reader, "namespace", MAX_UINT16), _uint(reader, "epoch", MAX_UINT32)
    flags = _uint(reader, "flags", int(ALL_FLAGS))
    address = Address(_fixed(reader, "tag", HASH_BYTES), namespace, epoch)
    payload_root = _fixed(reader, "object_root", HASH_BYTES)
    read_key(reader, "sender_pubkey")
    sender_pubkey = None if _null(reader) else read_fixed(reader, PUBKEY_BYTES)
    read_key(reader, "signature")
    signature = None if _null(reader) else read_fixed(reader, SIGNATURE_BYTES)
    nonce = _fixed(reader, "nonce", NONCE_BYTES)
    ciphertext, padding = _bytes(reader, "ciphertext", MAX_GROUP_BYTES), _bytes(reader, "padding", MAX_GROUP_BYTES)
    obj = ObjectV1(address, Flags(flags), nonce, ciphertext, padding, sender_pubkey, signature, payload_root)
    obj.check()
    return obj


def encode_shard(shard: ShardV1) -> bytes:
    shard.check()
    of, shape = shard.of, shard.of.shape
    if len(shard.payload) != shape.bucket_size - HEADER_BYTES:
        raise ValueError(f"the payload has {len(shard.payload)} bytes, not {shape.bucket_size - HEADER_BYTES}")
    header = _fields(
        version=SHARD_VERSION,
        namespace=of.address.namespace,
        epoch=of.address.epoch,
        tag=of.address.tag,
        object_root=of.object_root,
        profile_id=shape.profile_id,
        erasure_mode=_MODES[of.erasure_mode],
        bucket_size=shape.bucket_size,
        k=shape.k,
        n=shape.n,
        index=shard.index,
    )
    start = write_head(MAP, 2) + write_text("header") + write_head(MAP, HEADER_FIELDS)
    return start + header + _fields(payload=shard.payload)


def decode_shard(data: bytes) -> ShardV1:
    reader = Reader(data, "shard")
    reader.exactly(MAP, 2)
    read_key(reader, "header")
    reader.exactly(MAP, HEADER_FIELDS)
    _version(reader, SHARD_VERSION)
    namespace, epoch = _uint(reader, "namespace", MAX_UINT16), _uint(reader, "epoch", MAX_UINT32)
    address = Address(_fixed(reader, "tag", HASH_BYTES), namespace, epoch)
    object_root = _fixed(reader, "object_root", HASH_BYTES)
    profile_id, mode = _uint(reader, "profile_id", MAX_UINT16), _mode(reader)
    bucket_size = _uint(reader, "bucket_size", MAX_UINT32)
    k, n = _uint(reader, "k", MAX_SHARDS), _uint(reader, "n", MAX_SHARDS)
    index, payload = _uint(reader, "index", MAX_SHARDS), _bytes(reader, "payload", MAX_GROUP_BYTES)
    reader.end()
    shard = ShardV1(ShardSet(address, object_root, Shape(profile_id, k, n, bucket_size), mode), index, payload)
    shard.check()
    if len(payload) != bucket_size - HEADER_BYTES:
        raise Malformed("shard", f"the payload has {len(payload)} bytes, not {bucket_size - HEADER_BYTES}")
    return shard


def _fields(**fields: int | bytes | str | None) -> bytes:
    """The keys and values of a map, in order. Bytes are written as an array of integers."""
    return b"".join(write_text(name) + _value(value) for name, value in fields.items())


def _value(value: int | bytes | str | None) -> bytes:
    if value is None:
        return NULL_BYTE
    return encode_ints(value) if isinstance(value, bytes) else write_items(value)


def read_key(reader: Reader, name: str) -> None:
    reader.exactly(TEXT, len(name))
    if reader.take(len(name)) != name.encode():
        reader.fail(f"expected the key {name}")


def _uint(reader: Reader, name: str, most: int) -> int:
    read_key(reader, name)
    return reader.uint(most)


def _fixed(reader: Reader, name: str, length: int) -> bytes:
    read_key(reader, name)
    return read_fixed(reader, length)


def _bytes(reader: Reader, name: str, most: int) -> bytes:
    read_key(reader, name)
    return read_bytes(reader, most)


def _version(reader: Reader, version: int) -> None:
    read_key(reader, "version")
    reader.exactly(UINT, version)


def _null(reader: Reader) -> bool:
    """Skip a null. Return whether there was one."""
    if reader.data[reader.at : reader.at + 1] != NULL_BYTE:
        return False
    reader.at += 1
    return True


def _mode(reader: Reader) -> ErasureMode:
    read_key(reader, "erasure_mode")
    found = reader.take(reader.head(TEXT, max(map(len, _MODES.values()))))
    for mode, name in _MODES.items():
        if found == name.encode():
            return mode
    reader.fail("unknown erasure mode")


ACK_MAGIC = b"VEIL_ACK_V1"
REQUEST_MAGIC = b"VEILREQ1"
MAX_WANTED = 8
MAX_HOP = 255
_REQUEST_VERSION = 1
_REQUEST_FIELDS = 7


def encode_batch(items: tuple[bytes, ...]) -> bytes:
    """The payload of any number of items."""
    return write_head(ARRAY, len(items)) + b"".join(map(encode_ints, items))


def decode_batch(payload: bytes) -> tuple[bytes, ...]:
    reader = Reader(payload, "batch")
    items = tuple(read_bytes(reader, MAX_OBJECT_BYTES) for _ in range(reader.head(ARRAY, MAX_BATCH_ITEMS)))
    reader.end()
    return items


def batch_length(sizes: list[int], target: int, limit: int) -> int:
    """The number of queued items in a batch: until the target is reached, never beyond the limit."""
    total, count = 0, 0
    for size in sizes:
        if total >= target or total + size > limit:
            break
        total, count = total + size, count + 1
    return count


def encode_ack(object_root: bytes) -> bytes:
    """The payload of an acknowledgement of the object with this root."""
    return ACK_MAGIC + object_root


def decode_ack(payload: bytes) -> bytes:
    if not payload.startswith(ACK_MAGIC) or len(payload) != len(ACK_MAGIC) + HASH_BYTES:
        raise Malformed("ack", "not an acknowledgement")
    return payload[len(ACK_MAGIC) :]


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """A request for shards of an object."""

    object_root: bytes
    tag: bytes
    k: int
    n: int
    want: tuple[int, ...]
    hop: int

    def encode(self) -> bytes:
        named = "v", _REQUEST_VERSION, "object_root", self.object_root, "tag", self.tag
        wanted = "k", self.k, "n", self.n, "want", self.want, "hop", self.hop
        return REQUEST_MAGIC + write_head(MAP, _REQUEST_FIELDS) + write_items(*named, *wanted)

    @classmethod
    def decode(cls, packet: bytes) -> "ShardRequest":
        if not packet.startswith(REQUEST_MAGIC):
            raise Malformed("shard request", "does not start with the magic bytes")
        reader = Reader(packet[len(REQUEST_MAGIC) :], "shard request")
        reader.exactly(MAP, _REQUEST_FIELDS)
        read_key(reader, "v")
        reader.exactly(UINT, _REQUEST_VERSION)
        read_key(reader, "object_root")
        object_root = reader.fixed(HASH_BYTES)
        read_key(reader, "tag")
        tag = reader.fixed(HASH_BYTES)
        k, n = _uint(reader, "k", MAX_SHARDS), _uint(reader, "n", MAX_SHARDS)
        read_key(reader, "want")
        want = tuple(reader.uint(MAX_SHARDS) for _ in range(reader.head(ARRAY, MAX_WANTED)))
        hop = _uint(reader, "hop", MAX_HOP)
        reader.end()
        if not 0 < k <= n or any(index >= n for index in want):
            raise Malformed("shard request", f"indices {want} with k = {k} and n = {n}")
        return cls(object_root, tag, k, n, want, hop)


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
    encryption.verify(obj.sender_pubkey, digest, obj.signature, "object")
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
        return encode_object(obj)

    def decode_object(self, data: bytes) -> ObjectV1:
        reader = Reader(data, "object")
        obj = read_object(reader)
        reader.end()
        return obj

    def encode_shard(self, shard: ShardV1) -> bytes:
        return encode_shard(shard)

    def decode_shard(self, data: bytes) -> ShardV1:
        return decode_shard(data)

    def shard_id(self, data: bytes) -> bytes:
        """The hash of the integer-array encoding, whichever encoding arrived."""
        return h(encode_shard(decode_shard(data)))

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        k, size = of.shape.k, of.shape.bucket_size - HEADER_BYTES
        if not 0 < len(encoded) <= k * size:
            raise ValueError(f"an object of {len(encoded)} bytes does not fit {k} shards of {size}")
        data = encoded.ljust(k * size, b"\x00")
        if of.erasure_mode is ErasureMode.HARDENED:
            data = b"".join(rotate_and_add(of.object_root, [data[at : at + size] for at in range(0, len(data), size)]))
        return [bytes(row) for row in erasure_code.encode(data, k, of.shape.n)]

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        data = erasure_code.decode(payloads, of.shape.k)
        size = len(data) // of.shape.k
        if of.erasure_mode is ErasureMode.HARDENED:
            data = b"".join(
                subtract_and_rotate(of.object_root, [data[at : at + size] for at in range(0, len(data), size)])
            )
        reader = Reader(data, "object")
        try:
            read_object(reader)
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
