"""What a wire form has to know: how objects and shards are written, and how the one is cut into the other.

There are two: `native`, ours, and `dialect`, which existing nodes speak. Everything else is the same for both.
"""

from collections.abc import Mapping
from typing import Protocol

from veil.objects import ObjectV1
from veil.shards import ShardSet, ShardV1


class Form(Protocol):
    """One way of writing objects and shards. Every `decode_*` raises `Malformed` and nothing else."""

    @property
    def name(self) -> str: ...

    def encode_object(self, obj: ObjectV1) -> bytes: ...

    def decode_object(self, data: bytes) -> ObjectV1: ...

    def encode_shard(self, shard: ShardV1) -> bytes: ...

    def decode_shard(self, data: bytes) -> ShardV1: ...

    def shard_id(self, data: bytes) -> bytes:
        """The id by which an encoded shard is deduped and cached; the same for all encodings of a shard."""
        ...

    def cut(self, of: ShardSet, encoded: bytes) -> list[bytes]:
        """The payloads of all n shards of an encoded object."""
        ...

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        """The encoded object of exactly k payloads. Raise `Unverified` unless it has the root that the shards name."""
        ...
