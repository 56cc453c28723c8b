"""The dialect as a wire form: how existing nodes cut objects into shards, and which shape they choose.

Blocks are filled up with zeros. The old hardened mode rotates the blocks by a number taken from the root and adds each
to its neighbour: it needs no key and hides nothing (its first block is always in plain, and so is any beside zeros).
It is here to talk to existing nodes, and nowhere else.
"""

from collections.abc import Mapping
from itertools import pairwise

from veil.assembly import Opened, Published, Received
from veil.codec.cbor_heads import Reader
from veil.dialect import dialect_wire
from veil.dialect.dialect_crypto import PUBLIC_KEY, SchnorrKey, object_nonce, sign_object, verify_object
from veil.dialect.dialect_wire import HEADER_BYTES
from veil.encryption.aead import Key, Lock
from veil.encryption.object_signature import SigningKey
from veil.fec import reed_solomon
from veil.hashing import h
from veil.namespaces import ErasureMode, NamespacePolicy
from veil.objects import Address, Flags, ObjectV1
from veil.profiles import LARGE, MICRO, SMALL, Shape
from veil.shards import ShardSet, ShardV1
from veil.veil_errors import Malformed, Refused, Unverified
from veil.veil_limits import KIB, MAX_OBJECT_BYTES

MICRO_BYTES, SMALL_BYTES = 8 * KIB, 128 * KIB


class DialectForm:
    """The form of existing nodes."""

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
        """Of the spelling that existing nodes write, whichever the shard came in."""
        return h(dialect_wire.encode_shard(dialect_wire.decode_shard(data)))

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        k, size = of.shape.k, of.shape.bucket_size - HEADER_BYTES
        if not 0 < len(encoded) <= k * size:
            raise ValueError(f"{len(encoded)} bytes of object are not for {k} shards of {size}")
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
            raise Unverified("object", f"the shards do not fit together: {error.reason}") from None
        encoded, rest = data[: reader.at], data[reader.at :]
        if h(encoded) != of.object_root or any(rest):
            raise Unverified("object", "it does not have the root that its shards name")
        return encoded


DIALECT = DialectForm()


def choose_shape(size: int, object_root: bytes, jitter: int = 0) -> Shape:
    """The shape existing nodes choose for an encoded object. Raise `Refused` where there is none."""
    if not size:
        raise Refused("object", "nothing to send")
    profile = MICRO if size <= MICRO_BYTES else SMALL if size <= SMALL_BYTES else LARGE
    fitting = [shape for shape in profile.shapes if shape.k * (shape.bucket_size - HEADER_BYTES) >= size]
    if not fitting:
        raise Refused("object", f"{size} bytes, more than any shape holds")
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
    """Seal a payload as existing nodes do. Raise `Refused` where its encoding is longer than they take."""
    nonce = object_nonce(address, now_step, payload) if nonce is None else nonce
    sealed = lock.seal(address, nonce, payload)
    obj = ObjectV1(address, flags & ~Flags.SIGNED, nonce, sealed, _PADDING, payload_root=h(payload))
    encoded = DIALECT.encode_object(sign_object(obj, signer) if signer else obj)
    if len(encoded) > MAX_OBJECT_BYTES:
        raise Refused("object", f"{len(encoded)} bytes as existing nodes write it, more than {MAX_OBJECT_BYTES}")
    root = h(encoded)
    of = ShardSet(address, root, choose_shape(len(encoded), root, jitter), mode)
    shards = enumerate(DIALECT.cut(of, encoded))
    return Published(of, encoded, tuple(DIALECT.encode_shard(ShardV1(of, index, part)) for index, part in shards))


def receive(of: ShardSet, encoded: bytes, policy: NamespacePolicy) -> Received:
    """The object that was put together from shards, if it may stand where they say. Needs no key."""
    obj = DIALECT.decode_object(encoded)
    if obj.address != of.address:
        raise Malformed("object", "it names another address than its shards")
    if not obj.signed and policy.requires_signature(obj.address.namespace):
        raise Refused("object", f"objects of namespace {obj.address.namespace} must be signed")
    verify_object(obj)
    return Received(of, obj)


def open_object(received: Received, key: Key | None = None) -> Opened:
    """What an object says, for who has its key; a public one opens without."""
    obj = received.obj
    keys = [found for found in (key, PUBLIC_KEY if obj.flags & Flags.PUBLIC else None) if found is not None]
    for candidate in keys:
        try:
            payload = candidate.open(obj.address, obj.nonce, obj.ciphertext)
        except Unverified:
            continue
        if h(payload) != obj.payload_root:
            raise Unverified("object", "it does not have the root of payload that it names")
        return Opened(obj.address, obj.flags, payload, obj.sender_pubkey)
    raise Unverified("object", "does not open: another key, or altered")
