"""The CBOR reader, and the native form of objects and shards. RFC 8949 §4.2.1."""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import NoReturn, Protocol

from plumbing.cbor_heads import (
    ARRAY,
    BSTR,
    UINT,
    InvalidHead,
    head_bytes,
    head_width,
    read_head,
    write_array,
    write_head,
    write_items,
)
from veil import erasure_code
from veil.erasure_code import WRAPPED_BYTES, harden, unharden
from veil.hashing import HASH_BYTES, h
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
    ObjectV1,
    ShardSet,
    ShardV1,
)
from veil.profiles import Shape, is_known
from veil.veil_errors import Malformed, Unverified
from veil.veil_limits import BUCKET_SIZES, MAX_GROUP_BYTES, MAX_SHARDS, MAX_UINT16, MAX_UINT32

_fixed_head = lru_cache(maxsize=64)(partial(write_head, BSTR))


class Reader:
    """Reads values in order and raises `Malformed` at the first invalid one. `what` names the input in errors."""

    __slots__ = ("at", "data", "what")

    def __init__(self, data: bytes, what: str, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.what = what

    def fail(self, reason: str) -> NoReturn:
        raise Malformed(self.what, f"{reason} (at byte {self.at})")

    def head(self, major: int, most: int) -> int:
        """The value of a head of one major type, at most `most`."""
        try:
            found, value, end = read_head(self.data, self.at)
        except InvalidHead as error:
            raise Malformed(self.what, str(error)) from None
        if found != major:
            self.fail(f"CBOR major type {found}, not {major}")
        if value > most:
            self.fail(f"{value} is more than {most}")
        self.at = end
        return value

    def uint(self, most: int) -> int:
        return self.head(UINT, most)

    def exactly(self, major: int, value: int) -> None:
        found = self.head(major, value)
        if found != value:
            self.fail(f"{found}, not {value}")

    def byte_string(self, most: int) -> bytes:
        return self.take(self.head(BSTR, most))

    def fixed(self, length: int) -> bytes:
        """A byte string of one length. Its head has one encoding, so comparing is enough."""
        head = _fixed_head(length)
        if not self.data.startswith(head, self.at):
            self.exactly(BSTR, length)  # fails and says why
        self.at += len(head)
        return self.take(length)

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            self.fail("truncated")
        data = self.data[self.at : end]
        self.at = end
        return data

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail("trailing bytes")


class Form(Protocol):
    """An encoding of objects and shards. Every `decode_*` raises only `Malformed`."""

    @property
    def name(self) -> str: ...

    def encode_object(self, obj: ObjectV1) -> bytes: ...

    def decode_object(self, data: bytes) -> ObjectV1: ...

    def encode_shard(self, shard: ShardV1) -> bytes: ...

    def decode_shard(self, data: bytes) -> ShardV1: ...

    def shard_id(self, data: bytes) -> bytes:
        """The id for deduplication and caching; the same for all encodings of a shard."""
        ...

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        """The payloads of all n shards of an encoded object."""
        ...

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        """The encoded object from exactly k payloads. Raise `Unverified` unless its hash is the root in the shards."""
        ...


UNSIGNED_FIELDS, SIGNED_FIELDS, SHARD_FIELDS = 8, 10, 12
_INDEX_BYTES = 1
_NAMED_BYTES = 2 * len(write_items(bytes(HASH_BYTES)))  # tag and object_root


class NativeForm:
    """The native form of objects and shards."""

    name = "native"

    def encode_object(self, obj: ObjectV1) -> bytes:
        obj.check()
        if obj.payload_root is not None or obj.padding:
            raise ValueError("an object in native form has no payload_root and no padding outside the seal")
        fields = *_named_fields(obj.address, obj.flags, obj.nonce), obj.ciphertext, b""
        if obj.sender_pubkey is not None and obj.signature is not None:
            return write_array(*fields, obj.sender_pubkey, obj.signature)
        return write_array(*fields)

    def decode_object(self, data: bytes) -> ObjectV1:
        reader = Reader(data, "object")
        count = reader.head(ARRAY, SIGNED_FIELDS)
        if count not in (UNSIGNED_FIELDS, SIGNED_FIELDS):
            reader.fail(f"{count} fields, not {UNSIGNED_FIELDS} or {SIGNED_FIELDS}")
        reader.exactly(UINT, OBJECT_VERSION)
        namespace, epoch, flags = reader.uint(MAX_UINT16), reader.uint(MAX_UINT32), reader.uint(int(ALL_FLAGS))
        address = Address(reader.fixed(HASH_BYTES), namespace, epoch)
        nonce, ciphertext = reader.fixed(NONCE_BYTES), reader.byte_string(MAX_GROUP_BYTES)
        padding = reader.fixed(0)
        sender_pubkey = signature = None
        if count == SIGNED_FIELDS:
            sender_pubkey, signature = reader.fixed(PUBKEY_BYTES), reader.fixed(SIGNATURE_BYTES)
        reader.end()
        obj = ObjectV1(address, Flags(flags), nonce, ciphertext, padding, sender_pubkey, signature)
        obj.check()
        return obj

    def encode_shard(self, shard: ShardV1) -> bytes:
        shard.check()
        check_shape(shard.of.shape)
        if len(shard.payload) != payload_bytes(shard.of):
            raise ValueError(f"the payload has {len(shard.payload)} bytes, not {payload_bytes(shard.of)}")
        return _shard_head(shard.of) + write_items(shard.index, shard.payload)

    def encode_shards(self, of: ShardSet, encoded: bytes) -> tuple[bytes, ...]:
        of.check()
        check_shape(of.shape)
        rows = self._rows(of, encoded)
        head, tail = _shard_head(of), write_head(BSTR, len(rows[0]))
        return tuple(b"".join((head, write_head(UINT, index), tail, row)) for index, row in enumerate(rows))

    def decode_shard(self, data: bytes) -> ShardV1:
        if len(data) not in BUCKET_SIZES:
            raise Malformed("shard", f"{len(data)} bytes is not a bucket size")
        end = _head_end(data)
        of = _decode_set(data[:end])
        if of.shape.bucket_size != len(data):
            raise Malformed("shard", f"{len(data)} bytes, but bucket_size is {of.shape.bucket_size}")
        reader = Reader(data, "shard", end)
        index = reader.uint(of.shape.n - 1)
        payload = reader.byte_string(len(data))
        reader.end()
        return ShardV1(of, index, payload)

    def shard_id(self, data: bytes) -> bytes:
        return h(data)

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        return [bytes(row) for row in self._rows(of, encoded)]

    def _rows(self, of: ShardSet, encoded: bytes) -> list[memoryview]:
        if len(encoded) != object_bytes(of.address, of.shape, of.erasure_mode):
            raise ValueError(f"an object of {len(encoded)} bytes does not fill its shards")
        hardened = of.erasure_mode is ErasureMode.HARDENED
        package = harden(of.object_root, encoded) if hardened else encoded
        return erasure_code.encode(package, of.shape.k, of.shape.n)

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        package = erasure_code.decode(payloads, of.shape.k)
        hardened = of.erasure_mode is ErasureMode.HARDENED
        encoded = unharden(of.object_root, package) if hardened else package
        if h(encoded) != of.object_root:
            raise Unverified("object", "its hash is not the root in its shards")
        return encoded


NATIVE = NativeForm()


def check_shape(shape: Shape) -> None:
    if not is_known(shape):
        raise Malformed("shard", f"no profile has k = {shape.k}, n = {shape.n}, bucket_size = {shape.bucket_size}")


def object_head(address: Address, flags: Flags, nonce: bytes) -> bytes:
    """The encoded fields that all objects have and all signatures cover."""
    return write_items(*_named_fields(address, flags, nonce))


def _named_fields(address: Address, flags: Flags, nonce: bytes) -> tuple[int | bytes, ...]:
    return OBJECT_VERSION, address.namespace, address.epoch, int(flags), address.tag, nonce


def _shard_head(of: ShardSet) -> bytes:
    """An encoded shard up to its index."""
    address, shape = of.address, of.shape
    named = SHARD_VERSION, address.namespace, address.epoch, address.tag, of.object_root
    shaped = shape.profile_id, int(of.erasure_mode), shape.bucket_size, shape.k, shape.n
    return write_head(ARRAY, SHARD_FIELDS) + write_items(*named, *shaped)


def _head_end(data: bytes) -> int:
    """The offset of the index. Only three numbers before it have variable width."""
    epoch = 2 + head_width(data[2])
    bucket_size = epoch + head_width(data[epoch]) + _NAMED_BYTES + 2
    return bucket_size + head_width(data[bucket_size]) + 2


@lru_cache(maxsize=1024)
def _decode_set(head: bytes) -> ShardSet:
    """Decode the shard set. The cache helps because all shards of an object start with the same bytes."""
    reader = Reader(head, "shard")
    reader.exactly(ARRAY, SHARD_FIELDS)
    reader.exactly(UINT, SHARD_VERSION)
    namespace, epoch = reader.uint(MAX_UINT16), reader.uint(MAX_UINT32)
    address, object_root = Address(reader.fixed(HASH_BYTES), namespace, epoch), reader.fixed(HASH_BYTES)
    profile_id, mode = reader.uint(MAX_UINT16), reader.uint(max(ErasureMode))
    bucket_size, k, n = reader.uint(BUCKET_SIZES[-1]), reader.uint(MAX_SHARDS), reader.uint(MAX_SHARDS)
    reader.end()
    shape = Shape(profile_id, k, n, bucket_size)
    check_shape(shape)
    return ShardSet(address, object_root, shape, ErasureMode(mode))


def payload_bytes(of: ShardSet) -> int:
    """The payload size of a shard. The head has the same length for every index."""
    return _payload_bytes(of.address.namespace, of.address.epoch, of.shape)


@lru_cache(maxsize=1024)
def _payload_bytes(namespace: int, epoch: int, shape: Shape) -> int:
    # All other head fields have a fixed length.
    of = ShardSet(Address(bytes(HASH_BYTES), namespace, epoch), bytes(HASH_BYTES), shape, ErasureMode.HARDENED)
    room = shape.bucket_size - len(_shard_head(of)) - _INDEX_BYTES
    return room - head_bytes(room)


def object_bytes(address: Address, shape: Shape, mode: ErasureMode) -> int:
    """The object size that exactly fills the shards."""
    room = shape.k * _payload_bytes(address.namespace, address.epoch, shape)
    return room - (WRAPPED_BYTES if mode is ErasureMode.HARDENED else 0)


def fixed_bytes(address: Address, signed: bool) -> int:
    """The size of an object without the ciphertext and its CBOR head."""
    return _fixed_bytes(address.namespace, address.epoch, signed)


@lru_cache(maxsize=1024)
def _fixed_bytes(namespace: int, epoch: int, signed: bool) -> int:
    array_head, no_padding = 1, 1
    named = object_head(Address(bytes(HASH_BYTES), namespace, epoch), Flags.NONE, bytes(NONCE_BYTES))
    signature = write_items(bytes(PUBKEY_BYTES), bytes(SIGNATURE_BYTES)) if signed else b""
    return array_head + len(named) + no_padding + len(signature)


def ciphertext_bytes(address: Address, shape: Shape, mode: ErasureMode, signed: bool) -> int:
    """The ciphertext size with which the object exactly fills its shards."""
    room = object_bytes(address, shape, mode) - fixed_bytes(address, signed)
    length = room - head_bytes(room)
    assert head_bytes(length) + length == room, "no ciphertext length gives this object size"
    return length
