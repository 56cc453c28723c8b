"""ShardV1: one of n pieces of an object, the unit of forwarding, dedupe and cache. Spec §5.

A shard says in clear all that a node needs to pass it on: the address it is under, and what it is a piece of. Nothing
here needs a key.
"""

from dataclasses import dataclass

from veil.hashing import HASH_BYTES
from veil.namespaces import ErasureMode
from veil.objects import Address
from veil.profiles import Shape
from veil.veil_errors import Malformed
from veil.veil_limits import BUCKET_SIZES, MAX_SHARDS

SHARD_VERSION = 2


@dataclass(frozen=True, slots=True)
class ShardSet:
    """What all shards of one object say alike: the whole header but for the index. Shards are grouped by it."""

    address: Address
    object_root: bytes
    shape: Shape
    erasure_mode: ErasureMode

    def __hash__(self) -> int:
        """Of what tells objects apart; what else there is to differ in has few values, and equality asks for all."""
        return hash((self.object_root, self.address.namespace, self.address.epoch))

    def check(self) -> None:
        self.address.check("shard")
        if len(self.object_root) != HASH_BYTES:
            raise Malformed("shard", f"an object_root of {len(self.object_root)} bytes, not {HASH_BYTES}")
        if self.shape.bucket_size not in BUCKET_SIZES:
            raise Malformed("shard", f"no bucket has {self.shape.bucket_size} bytes")
        if not 0 < self.shape.k <= self.shape.n <= MAX_SHARDS:
            raise Malformed("shard", f"{self.shape.k} of {self.shape.n} shards")


@dataclass(frozen=True, slots=True)
class ShardV1:
    """One shard."""

    of: ShardSet
    index: int
    payload: bytes

    def check(self) -> None:
        self.of.check()
        if not 0 <= self.index < self.of.shape.n:
            raise Malformed("shard", f"index {self.index} of {self.of.shape.n}")
