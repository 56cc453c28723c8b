"""The CBOR maps of the dialect. Byte strings are arrays with one unsigned integer per byte.

A byte below 24 takes one byte, any other takes two (0x18 and the byte). A random payload takes 1.9 times its length.
"""

import numpy as np

from plumbing import cbor_heads
from plumbing.cbor_heads import ARRAY, BSTR, MAP, NULL_BYTE, TEXT, UINT
from veil.codec.cbor_reader import Reader
from veil.hashing import HASH_BYTES
from veil.namespaces import ErasureMode
from veil.objects import (
    ALL_FLAGS,
    NONCE_BYTES,
    OBJECT_VERSION,
    PUBKEY_BYTES,
    SHARD_VERSION,
    SIGNATURE_BYTES,
    Address,
    Flags,
    ObjectV1,
    ShardSet,
    ShardV1,
)
from veil.profiles import Shape
from veil.veil_errors import Malformed
from veil.veil_limits import MAX_GROUP_BYTES, MAX_SHARDS, MAX_UINT16, MAX_UINT32

_WIDE = 24
_MARK = 0x18


def encode_ints(data: bytes) -> bytes:
    values = np.frombuffer(data, dtype=np.uint8)
    places = np.arange(len(values)) + np.cumsum(values >= _WIDE)
    out = np.full(len(values) + np.count_nonzero(values >= _WIDE), _MARK, dtype=np.uint8)
    out[places] = values
    return cbor_heads.write_head(ARRAY, len(data)) + out.tobytes()


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
    if obj.payload_root is None:
        raise ValueError("an object of the dialect needs a payload_root")
    return b"".join(
        (
            cbor_heads.write_head(MAP, OBJECT_FIELDS),
            _object_head(obj),
            _named("sender_pubkey", NULL_BYTE if obj.sender_pubkey is None else encode_ints(obj.sender_pubkey)),
            _named("signature", NULL_BYTE if obj.signature is None else cbor_heads.write_bstr(obj.signature)),
            _named("nonce", encode_ints(obj.nonce)),
            _named("ciphertext", encode_ints(obj.ciphertext)),
            _named("padding", encode_ints(obj.padding)),
        )
    )


def signed_header(obj: ObjectV1, sender_pubkey: bytes) -> bytes:
    """The signed header."""
    last = _named("sender_pubkey", encode_ints(sender_pubkey)) + _named("nonce", encode_ints(obj.nonce))
    return cbor_heads.write_head(MAP, SIGNED_FIELDS) + _object_head(obj) + last


def _object_head(obj: ObjectV1) -> bytes:
    if obj.payload_root is None:
        raise ValueError("an object of the dialect needs a payload_root")
    return b"".join(
        (
            _named("version", cbor_heads.write_uint(OBJECT_VERSION)),
            _named("namespace", cbor_heads.write_uint(obj.address.namespace)),
            _named("epoch", cbor_heads.write_uint(obj.address.epoch)),
            _named("flags", cbor_heads.write_uint(int(obj.flags))),
            _named("tag", encode_ints(obj.address.tag)),
            _named("object_root", encode_ints(obj.payload_root)),
        )
    )


def read_object(reader: Reader) -> ObjectV1:
    """Read one object. The caller checks for trailing bytes."""
    reader.exactly(MAP, OBJECT_FIELDS)
    _version(reader, OBJECT_VERSION)
    namespace, epoch = _uint(reader, "namespace", MAX_UINT16), _uint(reader, "epoch", MAX_UINT32)
    flags = _uint(reader, "flags", int(ALL_FLAGS))
    read_key(reader, "tag")
    address = Address(read_fixed(reader, HASH_BYTES), namespace, epoch)
    read_key(reader, "object_root")
    payload_root = read_fixed(reader, HASH_BYTES)
    read_key(reader, "sender_pubkey")
    sender_pubkey = None if _null(reader) else read_fixed(reader, PUBKEY_BYTES)
    read_key(reader, "signature")
    signature = None if _null(reader) else read_fixed(reader, SIGNATURE_BYTES)
    read_key(reader, "nonce")
    nonce = read_fixed(reader, NONCE_BYTES)
    read_key(reader, "ciphertext")
    ciphertext = read_bytes(reader, MAX_GROUP_BYTES)
    read_key(reader, "padding")
    padding = read_bytes(reader, MAX_GROUP_BYTES)
    obj = ObjectV1(address, Flags(flags), nonce, ciphertext, padding, sender_pubkey, signature, payload_root)
    obj.check()
    return obj


def encode_shard(shard: ShardV1) -> bytes:
    shard.check()
    of, shape = shard.of, shard.of.shape
    if len(shard.payload) != shape.bucket_size - HEADER_BYTES:
        raise ValueError(f"the payload has {len(shard.payload)} bytes, not {shape.bucket_size - HEADER_BYTES}")
    return b"".join(
        (
            cbor_heads.write_head(MAP, 2),
            _named("header", cbor_heads.write_head(MAP, HEADER_FIELDS)),
            _named("version", cbor_heads.write_uint(SHARD_VERSION)),
            _named("namespace", cbor_heads.write_uint(of.address.namespace)),
            _named("epoch", cbor_heads.write_uint(of.address.epoch)),
            _named("tag", encode_ints(of.address.tag)),
            _named("object_root", encode_ints(of.object_root)),
            _named("profile_id", cbor_heads.write_uint(shape.profile_id)),
            _named("erasure_mode", cbor_heads.write_text(_MODES[of.erasure_mode])),
            _named("bucket_size", cbor_heads.write_uint(shape.bucket_size)),
            _named("k", cbor_heads.write_uint(shape.k)),
            _named("n", cbor_heads.write_uint(shape.n)),
            _named("index", cbor_heads.write_uint(shard.index)),
            _named("payload", encode_ints(shard.payload)),
        )
    )


def decode_shard(data: bytes) -> ShardV1:
    reader = Reader(data, "shard")
    reader.exactly(MAP, 2)
    read_key(reader, "header")
    reader.exactly(MAP, HEADER_FIELDS)
    _version(reader, SHARD_VERSION)
    namespace, epoch = _uint(reader, "namespace", MAX_UINT16), _uint(reader, "epoch", MAX_UINT32)
    read_key(reader, "tag")
    address = Address(read_fixed(reader, HASH_BYTES), namespace, epoch)
    read_key(reader, "object_root")
    object_root = read_fixed(reader, HASH_BYTES)
    profile_id = _uint(reader, "profile_id", MAX_UINT16)
    read_key(reader, "erasure_mode")
    mode = _mode(reader)
    bucket_size = _uint(reader, "bucket_size", MAX_UINT32)
    k, n = _uint(reader, "k", MAX_SHARDS), _uint(reader, "n", MAX_SHARDS)
    index = _uint(reader, "index", MAX_SHARDS)
    read_key(reader, "payload")
    payload = read_bytes(reader, MAX_GROUP_BYTES)
    reader.end()
    shard = ShardV1(ShardSet(address, object_root, Shape(profile_id, k, n, bucket_size), mode), index, payload)
    shard.check()
    if len(payload) != bucket_size - HEADER_BYTES:
        raise Malformed("shard", f"the payload has {len(payload)} bytes, not {bucket_size - HEADER_BYTES}")
    return shard


def _named(name: str, value: bytes) -> bytes:
    return cbor_heads.write_text(name) + value


def read_key(reader: Reader, name: str) -> None:
    reader.exactly(TEXT, len(name))
    if reader.take(len(name)) != name.encode():
        reader.fail(f"expected the key {name}")


def _uint(reader: Reader, name: str, most: int) -> int:
    read_key(reader, name)
    return reader.uint(most)


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
    found = reader.take(reader.head(TEXT, max(map(len, _MODES.values()))))
    for mode, name in _MODES.items():
        if found == name.encode():
            return mode
    reader.fail("unknown erasure mode")
