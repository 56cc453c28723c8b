"""How a node writes down what it has yet to send."""

import struct
from dataclasses import dataclass
from typing import Self

from veil.codec import heads
from veil.codec.heads import ARRAY, Reader
from veil.limits import MAX_BATCH_ITEMS, MAX_GROUP_BYTES, MAX_OBJECT_BYTES, MAX_UINT16
from veil.node.destinations import Destination, Kind
from veil.node.frames import decode_set, encode_set
from veil.shards import ShardSet

MESSAGE_ID = struct.Struct(">Q")
_MAX_UINT64 = (1 << 64) - 1
_MAX_SET_BYTES = 256
_ITEM_FIELDS, _PARCEL_FIELDS = 6, 5
_MS = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """A payload that waits for its object."""

    destination: Destination
    ack: bool
    interactive: bool
    queued_at: float
    payload: bytes

    def encode(self) -> bytes:
        where = self.destination
        return b"".join((
            heads.head(ARRAY, _ITEM_FIELDS),
            heads.uint(where.kind),
            heads.byte_string(where.key),
            heads.uint(where.namespace),
            heads.uint(self.ack | self.interactive << 1),
            heads.uint(int(self.queued_at * _MS)),
            heads.byte_string(self.payload),
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "queued item")
        reader.exactly(ARRAY, _ITEM_FIELDS)
        kind, key, namespace = reader.uint(max(Kind)), reader.byte_string(MAX_UINT16), reader.uint(MAX_UINT16)
        bits, queued_ms, payload = reader.uint(3), reader.uint(_MAX_UINT64), reader.byte_string(MAX_OBJECT_BYTES)
        reader.end()
        return cls(Destination(Kind(kind), key, namespace), bool(bits & 1), bool(bits & 2), queued_ms / _MS, payload)


@dataclass(frozen=True, slots=True)
class ParcelRecord:
    """An object of ours that is under way, with the messages it carries."""

    of: ShardSet
    encoded: bytes
    ack_key: bytes
    queued_at: float
    message_ids: tuple[int, ...]

    def encode(self) -> bytes:
        return b"".join((
            heads.head(ARRAY, _PARCEL_FIELDS),
            heads.byte_string(encode_set(self.of)),
            heads.byte_string(self.encoded),
            heads.byte_string(self.ack_key),
            heads.uint(int(self.queued_at * _MS)),
            heads.head(ARRAY, len(self.message_ids)) + b"".join(map(heads.uint, self.message_ids)),
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "parcel")
        reader.exactly(ARRAY, _PARCEL_FIELDS)
        of, encoded = decode_set(reader.byte_string(_MAX_SET_BYTES)), reader.byte_string(MAX_GROUP_BYTES)
        key, queued_ms = reader.byte_string(_MAX_SET_BYTES), reader.uint(_MAX_UINT64)
        ids = tuple(reader.uint(_MAX_UINT64) for _ in range(reader.head(ARRAY, MAX_BATCH_ITEMS)))
        reader.end()
        return cls(of, encoded, key, queued_ms / _MS, ids)
