"""Nodes that lie: they say that they have everything they hear of, and give nothing, or spoiled shards.

Those that spoil pass on what they get with one byte changed, under the same header, so nothing shows before the object
is put together.
"""

from random import Random

from veil.codec.native import NATIVE
from veil.errors import Malformed
from veil.limits import BUCKET_SIZES
from veil.node import frames
from veil.node.frames import SHARD_START, Entry, Inventory, Want, all_indices
from veil.shards import ShardSet

_BUCKETS = frozenset(BUCKET_SIZES)
_REMEMBERED = 64
_PASSED_TO = 3
Out = tuple[str, str, bytes]


class Sybil:
    """One liar."""

    def __init__(self, poisons: bool, chance: Random) -> None:
        self._poisons = poisons
        self._chance = chance
        self._links: list[tuple[str, str]] = []
        self._known: dict[bytes, dict[int, bytes]] = {}
        self._named: set[bytes] = set()

    def connected(self, lane: str, peer: str) -> None:
        self._links.append((lane, peer))

    def receive(self, lane: str, peer: str, data: bytes) -> list[Out]:
        if len(data) in _BUCKETS and data[0] == SHARD_START:
            return self._shard(data)
        try:
            frame = frames.decode(data)
        except Malformed:
            return []
        if isinstance(frame, Inventory):
            return [out for entry in frame.entries for out in self._name(entry.of)]
        if isinstance(frame, Want) and self._poisons:
            shards = self._known.get(frame.object_root, {})
            spoiled = [self._spoil(data) for index, data in shards.items() if frame.indices >> index & 1]
            return [(lane, peer, data) for data in spoiled[: frame.count]]
        return []

    def _shard(self, data: bytes) -> list[Out]:
        shard = NATIVE.decode_shard(data)
        shards = self._known.setdefault(shard.of.object_root, {})
        if len(self._known) > _REMEMBERED:
            self._known.pop(next(iter(self._known)))
        is_new = shard.index not in shards
        shards[shard.index] = data
        out = self._name(shard.of)
        if is_new and self._poisons:
            to = self._chance.sample(self._links, min(_PASSED_TO, len(self._links)))
            out += [(lane, peer, self._spoil(data)) for lane, peer in to]
        return out

    def _name(self, of: ShardSet) -> list[Out]:
        """Say to everyone that the object is here, once."""
        if of.object_root in self._named:
            return []
        self._named.add(of.object_root)
        claim = frames.encode(Inventory((Entry(of, all_indices(of)),)))
        return [(lane, peer, claim) for lane, peer in self._links]

    def _spoil(self, data: bytes) -> bytes:
        at = -1 - self._chance.randrange(len(data) // 2)
        return data[:at] + bytes((data[at] ^ self._chance.randrange(1, 256),)) + (data[at + 1 :] if at != -1 else b"")
