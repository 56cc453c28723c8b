"""Control frames between neighbours: inventory, want and summary.

    inventory   [1, [entry, …]]
        entry   [namespace, epoch, tag, object_root, profile_id, erasure_mode, bucket_size, indices]
    want        [2, object_root, indices, count]
    summary     [3, version, epoch, salt, hashes, bits]

Bit i of `indices` stands for the shard with index i. An inventory with all indices claims that the object is whole, so
its sender answers for every shard. A frame that starts like a shard is a shard.
"""

from dataclasses import dataclass
from functools import lru_cache

from plumbing.cbor_heads import ARRAY, BSTR, UINT, write_array, write_head, write_items
from veil.codec import SHARD_FIELDS, Reader
from veil.hashing import HASH_BYTES
from veil.objects import Address, ErasureMode, ShardSet
from veil.profiles import SHAPES
from veil.veil_errors import Malformed
from veil.veil_limits import BUCKET_SIZES, KIB, MAX_SHARDS, MAX_UINT16, MAX_UINT32

SHARD_START = write_head(ARRAY, SHARD_FIELDS)[0]
MAX_CONTROL_BYTES = 16 * KIB
MAX_FRAME_BYTES = BUCKET_SIZES[-1]
MAX_ENTRIES = 128
MAX_FILTER_BYTES = 8 * KIB
MAX_HASHES = 16
SALT_BYTES = 16
SUMMARY_VERSION = 1

_INVENTORY, _WANT, _SUMMARY = 1, 2, 3
_LENGTHS = {_INVENTORY: 2, _WANT: 4, _SUMMARY: 6}
_ENTRY_FIELDS = 8
_ALL_INDICES = (1 << MAX_SHARDS) - 1
_SHAPES = {(shape.profile_id, shape.bucket_size): shape for shape in SHAPES}


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """The shards of one object that a peer has."""

    of: ShardSet
    indices: int

    @property
    def whole(self) -> bool:
        return self.indices == all_indices(self.of)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects and shards that a peer has."""

    entries: tuple[InventoryEntry, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """Request for `count` of these shards. Without indices: a request for an inventory of the object."""

    object_root: bytes
    indices: int
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A salted Bloom filter of the objects and shards of a node. Spec §11.1."""

    epoch: int
    salt: bytes
    hashes: int
    bits: bytes


Control = Inventory | Want | Summary


def all_indices(of: ShardSet) -> int:
    return (1 << of.shape.n) - 1


def encode(frame: Control) -> bytes:
    match frame:
        case Inventory(entries):
            start = write_head(ARRAY, 2) + write_items(_INVENTORY) + write_head(ARRAY, len(entries))
            return start + b"".join(encode_set(entry.of) + write_items(entry.indices) for entry in entries)
        case Want(root, indices, count):
            return write_array(_WANT, root, indices, count)
        case Summary(epoch, salt, hashes, bits):
            return write_array(_SUMMARY, SUMMARY_VERSION, epoch, salt, hashes, bits)


def decode(data: bytes) -> Control:
    """Decode a control frame. Raise `Malformed` if that fails."""
    reader = Reader(data, "frame")
    length = reader.head(ARRAY, max(_LENGTHS.values()))
    kind = reader.uint(_SUMMARY)
    if _LENGTHS.get(kind) != length:
        reader.fail(f"frame kind {kind} with {length} fields")
    frame: Control
    if kind == _INVENTORY:
        frame = Inventory(tuple(_decode_entry(reader) for _ in range(reader.head(ARRAY, MAX_ENTRIES))))
    elif kind == _WANT:
        frame = Want(reader.fixed(HASH_BYTES), reader.uint(_ALL_INDICES), reader.uint(MAX_SHARDS))
    else:
        reader.exactly(UINT, SUMMARY_VERSION)
        epoch, salt = reader.uint(MAX_UINT32), reader.fixed(SALT_BYTES)
        hashes, bits = reader.uint(MAX_HASHES), reader.take(reader.head(BSTR, MAX_FILTER_BYTES))
        if not hashes or not bits:
            reader.fail("an empty filter")
        frame = Summary(epoch, salt, hashes, bits)
    reader.end()
    return frame


@lru_cache(maxsize=1024)
def encode_set(of: ShardSet) -> bytes:
    """The encoding of a shard set, used in inventory entries and in the store."""
    address, shape = of.address, of.shape
    named = address.namespace, address.epoch, address.tag, of.object_root
    shaped = shape.profile_id, int(of.erasure_mode), shape.bucket_size
    return write_head(ARRAY, _ENTRY_FIELDS) + write_items(*named, *shaped)


def _decode_entry(reader: Reader) -> InventoryEntry:
    of = _decode_set(reader)
    return InventoryEntry(of, reader.uint(all_indices(of)))


def decode_set(data: bytes) -> ShardSet:
    reader = Reader(data, "shard set")
    of = _decode_set(reader)
    reader.end()
    return of


def _decode_set(reader: Reader) -> ShardSet:
    reader.exactly(ARRAY, _ENTRY_FIELDS)
    namespace, epoch = reader.uint(MAX_UINT16), reader.uint(MAX_UINT32)
    address, root = Address(reader.fixed(HASH_BYTES), namespace, epoch), reader.fixed(HASH_BYTES)
    profile_id, mode = reader.uint(MAX_UINT16), ErasureMode(reader.uint(max(ErasureMode)))
    shape = _SHAPES.get((profile_id, reader.uint(BUCKET_SIZES[-1])))
    if shape is None:
        raise Malformed("frame", "unknown profile or bucket size")
    return ShardSet(address, root, shape, mode)
