"""Other packets of existing nodes: batches, acknowledgements and shard requests.

Packets are recognised by their first bytes. Anything else is a shard.
"""

from dataclasses import dataclass

from plumbing import cbor_heads
from plumbing.cbor_heads import ARRAY, MAP, UINT, write_head, write_items
from veil.codec.cbor_reader import Reader
from veil.dialect.dialect_wire import encode_ints, read_bytes, read_key
from veil.hashing import HASH_BYTES
from veil.veil_errors import Malformed
from veil.veil_limits import MAX_BATCH_ITEMS, MAX_OBJECT_BYTES, MAX_SHARDS

ACK_MAGIC = b"VEIL_ACK_V1"
REQUEST_MAGIC = b"VEILREQ1"
MAX_WANTED = 8
MAX_HOP = 255
_REQUEST_VERSION = 1
_REQUEST_FIELDS = 7


def encode_batch(items: tuple[bytes, ...]) -> bytes:
    """The payload of any number of items."""
    return cbor_heads.write_head(ARRAY, len(items)) + b"".join(map(encode_ints, items))


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
        read_key(reader, "k")
        k = reader.uint(MAX_SHARDS)
        read_key(reader, "n")
        n = reader.uint(MAX_SHARDS)
        read_key(reader, "want")
        want = tuple(reader.uint(MAX_SHARDS) for _ in range(reader.head(ARRAY, MAX_WANTED)))
        read_key(reader, "hop")
        hop = reader.uint(MAX_HOP)
        reader.end()
        if not 0 < k <= n or any(index >= n for index in want):
            raise Malformed("shard request", f"indices {want} with k = {k} and n = {n}")
        return cls(object_root, tag, k, n, want, hop)
