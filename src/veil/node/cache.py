"""Tracked objects, and the cache of their shards. Both are bounded; expired shards go first. Spec §11.

Tracked objects are bounded in number and time, and per peer: a peer that starts too many loses its own oldest ones.

Cached shards are bounded in bytes and entries. They are grouped by tier and number of known replicas, oldest first in
each group (rank). The victim is the first entry of one of the groups, so eviction cost does not depend on the number of
entries. Order of eviction: tiers above their share, then shards with most replicas, then the oldest.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from veil.node.config import Bounds, Counters, Tier, TierPolicy
from veil.node.frames import all_indices, decode_set, encode_set
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet
from veil.store import Store, Table

# Known holders per object.
MAX_HOLDERS = 64


@dataclass(slots=True)
class Trial:
    """Shards of a single peer, collected because shards of several peers were inconsistent."""

    source: str
    payloads: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TrackedObject:
    """One object: from its first shard or announcement until it expires."""

    of: ShardSet
    expiry: float
    tier: Tier
    last_new: float
    all: int = field(init=False)
    is_kept: bool = True
    whole: bool = False
    refused: bool = False
    # Shard ids by index: the first that arrived, or the verified ones once the object is whole.
    held: dict[int, bytes] = field(default_factory=dict)
    # Bits of the shards that peers have, from received shards, inventories and summaries.
    holders: dict[str, int] = field(default_factory=dict)
    first_peer: Peer | None = None
    # Links that get its shards, chosen once. The first `full_push_links` get all shards, the others a few.
    push_links: tuple[PeerLink, ...] | None = None
    full_push_links: int = 0
    forwarded: int = 0
    forwarded_count: int = 0
    spent: dict[Peer, int] = field(default_factory=dict)
    requested: int = 0
    pull_due: bool = False
    idle_pulls: int = 0
    pull_requests: dict[str, int] = field(default_factory=dict)
    pull_peer: str | None = None
    pull_link: PeerLink | None = None
    pulled_at: float = 0.0
    pull_outstanding: int = 0
    trial: Trial | None = None

    def __post_init__(self) -> None:
        self.all = all_indices(self.of)

    @property
    def bits(self) -> int:
        """Bits of the indices that this node can serve: all of them once the object is whole."""
        return self.all if self.whole else sum(1 << index for index in self.held)

    def add_holder(self, peer: str, bits: int) -> bool:
        """Record that a peer has shards. Return whether that is new information."""
        known = self.holders.get(peer)
        if known is None:
            if len(self.holders) >= MAX_HOLDERS:
                return False
            known = 0
        if known | bits == known:
            return False
        self.holders[peer] = known | bits
        return True

    def replicas(self, index: int) -> int:
        """The number of known copies of a shard, including the one here."""
        bit = 1 << index
        return 1 + sum(1 for bits in self.holders.values() if bits & bit)

    def peer_is_whole(self, peer: str) -> bool:
        return self.holders.get(peer, 0) == self.all

    def settle(self) -> None:
        """Drop the data that is needed only until the object is whole."""
        self.trial = None
        self.push_links = None
        self.spent = {}
        self.pull_requests = {}
        self.pull_link = None
        if self.first_peer is not None:
            self.first_peer.open_objects.pop(self.of, None)
            self.first_peer = None


class TrackedObjects:
    """All tracked objects, oldest first, with an index by root."""

    def __init__(self, bounds: Bounds, on_drop: Callable[[TrackedObject], None]) -> None:
        self._bounds = bounds
        self._on_drop = on_drop
        self._objects: OrderedDict[ShardSet, TrackedObject] = OrderedDict()
        self._by_root: dict[bytes, TrackedObject] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[TrackedObject]:
        return iter(self._objects.values())

    def newest(self) -> Iterator[TrackedObject]:
        return reversed(self._objects.values())

    def get(self, of: ShardSet) -> TrackedObject | None:
        return self._objects.get(of)

    def by_root(self, root: bytes) -> TrackedObject | None:
        """Find an object by root. If several shard sets claim the root: the whole one, else the first."""
        return self._by_root.get(root)

    def open(self, of: ShardSet, tier: Tier, now: float, peer: Peer | None) -> TrackedObject:
        tracked = TrackedObject(of, now + self._bounds.cache_ttl_s, tier, now)
        if peer is not None:
            while len(peer.open_objects) >= self._bounds.open_per_peer:
                self.drop(next(iter(peer.open_objects)))
            peer.open_objects[of] = None
            tracked.first_peer = peer
        self._objects[of] = tracked
        self._by_root.setdefault(of.object_root, tracked)
        while len(self._objects) > self._bounds.objects:
            self.drop(next(iter(self._objects)))
        return tracked

    def whole(self, tracked: TrackedObject) -> None:
        self._by_root[tracked.of.object_root] = tracked

    def drop(self, of: object) -> None:
        tracked = self._objects.pop(of, None) if isinstance(of, ShardSet) else None
        if tracked is None:
            return
        if self._by_root.get(tracked.of.object_root) is tracked:
            del self._by_root[tracked.of.object_root]
        tracked.settle()
        # Shard ids may be remembered for longer. Shards of an object that was not whole count as new again.
        tracked.is_kept = tracked.whole
        self._on_drop(tracked)
        tracked.holders = {}

    def expire(self, now: float) -> None:
        while self._objects and next(iter(self._objects.values())).expiry <= now:
            self.drop(next(iter(self._objects)))


MAX_RANK = 12
_RECORD = struct.Struct(">dBB")
# Added to the replicas of a shard, so shards of trusted tiers stay longer.
_TIER_WEIGHT = {Tier.TRUSTED: 0, Tier.KNOWN: 3, Tier.UNKNOWN: 6, Tier.MUTED: 12, Tier.BLOCKED: 24}


@dataclass(slots=True)
class CacheEntry:
    """One cached shard. `tracked` is None for a stray, a shard of a tag without subscription."""

    shard_id: bytes
    of: ShardSet
    index: int
    expiry: float
    last_seen: float
    tier: Tier
    rank: int
    tracked: TrackedObject | None

    @property
    def size(self) -> int:
        return self.of.shape.bucket_size


Rank = OrderedDict[bytes, None]


class Cache:
    """Encoded shards by shard id. Strays are kept apart, in memory only."""

    def __init__(self, store: Store, bounds: Bounds, tiers: dict[Tier, TierPolicy], counters: Counters) -> None:
        self._store = store
        self._bounds = bounds
        self._tiers = tiers
        self._counters = counters
        # Ordered by expiry: all entries have the same lifetime, so this is the order of arrival.
        self._entries: OrderedDict[bytes, CacheEntry] = OrderedDict()
        self._strays: OrderedDict[bytes, CacheEntry] = OrderedDict()
        self._stray_frames: dict[bytes, bytes] = {}
        self._ranks: dict[tuple[Tier, int], Rank] = {}
        self._bytes: dict[Tier, int] = dict.fromkeys(Tier, 0)
        self._stray_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._strays)

    def __iter__(self) -> Iterator[CacheEntry]:
        yield from self._entries.values()
        yield from self._strays.values()

    @property
    def held_bytes(self) -> int:
        return sum(self._bytes.values()) + self._stray_bytes

    def get(self, shard_id: bytes) -> bytes | None:
        return self._store.get(Table.SHARDS, shard_id)

    def put(self, shard_id: bytes, frame: bytes, tracked: TrackedObject, index: int, now: float) -> None:
        if shard_id in self._entries:
            return
        rank = self._rank(tracked, index)
        entry = CacheEntry(shard_id, tracked.of, index, tracked.expiry, now, tracked.tier, rank, tracked)
        self._insert(entry, frame)
        self._make_room(now, shard_id)

    def put_stray(self, shard_id: bytes, frame: bytes, of: ShardSet, index: int, now: float) -> None:
        """Keep a stray for a short time, in memory. Strays evict only other strays."""
        entry = CacheEntry(shard_id, of, index, now + self._bounds.stray_ttl_s, now, Tier.UNKNOWN, 0, None)
        self._strays[shard_id] = entry
        self._stray_frames[shard_id] = frame
        self._stray_bytes += entry.size
        while self._stray_bytes > self._bounds.stray_bytes:
            self._remove_stray(next(iter(self._strays)))
            self._counters["cache_evicted"] += 1

    def has_stray(self, shard_id: bytes) -> bool:
        return shard_id in self._strays

    def strays_of(self, tags: frozenset[bytes]) -> list[CacheEntry]:
        """The strays of newly subscribed tags."""
        return [entry for entry in self._strays.values() if entry.of.address.tag in tags]

    def take_stray(self, entry: CacheEntry) -> bytes:
        frame = self._stray_frames[entry.shard_id]
        self._remove_stray(entry.shard_id)
        return frame

    def touch(self, shard_id: bytes, now: float) -> None:
        entry = self._entries.get(shard_id)
        if entry is not None:
            entry.last_seen = now

    def rank(self, tracked: TrackedObject) -> None:
        """Update the ranks of the shards of an object after its replica counts changed."""
        for index, shard_id in tracked.held.items():
            entry = self._entries.get(shard_id)
            if entry is None:
                continue
            rank = self._rank(tracked, index)
            if rank != entry.rank:
                self._leave_rank(entry)
                entry.rank = rank
                self._ranks.setdefault((entry.tier, rank), OrderedDict())[shard_id] = None

    def remove(self, shard_id: bytes) -> None:
        entry = self._entries.pop(shard_id, None)
        if entry is None:
            return
        self._leave_rank(entry)
        self._bytes[entry.tier] -= entry.size
        self._store.delete(Table.SHARDS, shard_id)
        self._store.delete(Table.INDEX, shard_id)
        if entry.tracked is not None and entry.tracked.held.get(entry.index) == shard_id:
            del entry.tracked.held[entry.index]

    def expire(self, now: float) -> None:
        while self._entries and next(iter(self._entries.values())).expiry <= now:
            self.remove(next(iter(self._entries)))
            self._counters["cache_expired"] += 1
        while self._strays and next(iter(self._strays.values())).expiry <= now:
            self._remove_stray(next(iter(self._strays)))
            self._counters["cache_expired"] += 1

    def stored(self) -> Iterator[tuple[bytes, ShardSet, int, float, Tier]]:
        """The shards in the store, without their frames."""
        for shard_id, record in self._store.items(Table.INDEX):
            expiry, tier, index = _RECORD.unpack_from(record)
            yield shard_id, decode_set(record[_RECORD.size :]), index, expiry, Tier(tier)

    def adopt(self, shard_id: bytes, tracked: TrackedObject, index: int) -> None:
        """Add an entry for a shard that is already in the store."""
        entry = CacheEntry(shard_id, tracked.of, index, tracked.expiry, tracked.expiry, tracked.tier, 1, tracked)
        self._insert(entry, None)

    def _insert(self, entry: CacheEntry, frame: bytes | None) -> None:
        self._entries[entry.shard_id] = entry
        self._ranks.setdefault((entry.tier, entry.rank), OrderedDict())[entry.shard_id] = None
        self._bytes[entry.tier] += entry.size
        if frame is not None:
            record = _RECORD.pack(entry.expiry, entry.tier, entry.index) + encode_set(entry.of)
            self._store.put(Table.SHARDS, entry.shard_id, frame)
            self._store.put(Table.INDEX, entry.shard_id, record)

    def _make_room(self, now: float, newest: bytes) -> None:
        if not self._is_over():
            return
        self.expire(now)
        while self._is_over():
            victim = self._victim()
            self.remove(victim)
            self._counters["cache_evicted"] += 1
            if victim == newest:
                return

    def _is_over(self) -> bool:
        bounds = self._bounds
        return sum(self._bytes.values()) > bounds.cache_bytes or len(self._entries) > bounds.cache_shards

    def _victim(self) -> bytes:
        def priority(place: tuple[Tier, int]) -> tuple[bool, int, float]:
            tier, rank = place
            over = self._bytes[tier] > self._tiers[tier].storage_share * self._bounds.cache_bytes
            first = self._entries[next(iter(self._ranks[place]))]
            return over, rank + _TIER_WEIGHT[tier], -first.expiry

        return next(iter(self._ranks[max(self._ranks, key=priority)]))

    def _rank(self, tracked: TrackedObject, index: int) -> int:
        """Known replicas minus recent requests: shards that others request are kept longer."""
        return max(min(tracked.replicas(index), MAX_RANK) - min(tracked.requested, MAX_RANK // 2), 0)

    def _leave_rank(self, entry: CacheEntry) -> None:
        place = entry.tier, entry.rank
        del self._ranks[place][entry.shard_id]
        if not self._ranks[place]:
            del self._ranks[place]

    def _remove_stray(self, shard_id: bytes) -> None:
        entry = self._strays.pop(shard_id)
        del self._stray_frames[shard_id]
        self._stray_bytes -= entry.size
