"""The dialect as a wire form: how existing nodes cut objects into shards, and which shape they choose.

Blocks are filled up with zeros. The old hardened mode rotates the blocks by a number taken from the root and adds each
to its neighbour: it needs no key and hides nothing (its first block is always in plain, and so is any beside zeros).
It is here to talk to existing nodes, and nowhere else.
"""

from collections.abc import Mapping
from itertools import pairwise

from veil.codec.heads import Reader
from veil.dialect import wire
from veil.dialect.wire import HEADER_BYTES
from veil.errors import Malformed, Refused, Unverified
from veil.fec import reed_solomon
from veil.hashing import h
from veil.limits import KIB
from veil.namespaces import ErasureMode
from veil.objects import ObjectV1
from veil.profiles import LARGE, MICRO, SMALL, Shape
from veil.shards import ShardSet, ShardV1

MICRO_BYTES, SMALL_BYTES = 8 * KIB, 128 * KIB


class DialectForm:
    """The form of existing nodes."""

    name = "dialect"

    def encode_object(self, obj: ObjectV1) -> bytes:
        return wire.encode_object(obj)

    def decode_object(self, data: bytes) -> ObjectV1:
        reader = Reader(data, "object")
        obj = wire.read_object(reader)
        reader.end()
        return obj

    def encode_shard(self, shard: ShardV1) -> bytes:
        return wire.encode_shard(shard)

    def decode_shard(self, data: bytes) -> ShardV1:
        return wire.decode_shard(data)

    def shard_id(self, data: bytes) -> bytes:
        """Of the spelling that existing nodes write, whichever the shard came in."""
        return h(wire.encode_shard(wire.decode_shard(data)))

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
            wire.read_object(reader)
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
