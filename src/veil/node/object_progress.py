"""Tracked objects: held shards, known holders and the state of requests.

The table is bounded in number and time, and per peer: a peer that starts too many objects loses its own oldest ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from veil.node.config import Bounds, Tier
from veil.node.frames import all_indices
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet

# Known holders per object.
MAX_HOLDERS = 64


class Trial:
    """Shards of a single peer, collected because shards of several peers were inconsistent."""

    __slots__ = ("payloads", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.payloads: dict[int, bytes] = {}


class TrackedObject:
    """One object: from its first shard or announcement until it expires."""

    __slots__ = (
        "all", "expiry", "first_peer", "forwarded", "forwarded_count", "full_push_links", "held", "holders",
        "idle_pulls", "is_kept", "last_new", "of", "pull_due", "pull_link", "pull_outstanding", "pull_peer",
        "pull_requests", "pulled_at", "push_links", "refused", "requested", "spent", "tier", "trial", "whole",
    )  # fmt: skip

    def __init__(self, of: ShardSet, expiry: float, tier: Tier, now: float) -> None:
        self.of = of
        self.all = all_indices(of)
        self.expiry = expiry
        self.tier = tier
        self.is_kept = True
        self.whole = False
        self.refused = False
        # Shard ids by index: the first that arrived, or the verified ones once the object is whole.
        self.held: dict[int, bytes] = {}
        # Bits of the shards that peers have, from received shards, inventories and summaries.
        self.holders: dict[str, int] = {}
        self.first_peer: Peer | None = None
        # Links that get its shards, chosen once. The first `full_push_links` get all shards, the others a few.
        self.push_links: tuple[PeerLink, ...] | None = None
        self.full_push_links = 0
        self.forwarded = 0
        self.forwarded_count = 0
        self.spent: dict[Peer, int] = {}
        self.requested = 0
        self.last_new = now
        self.pull_due = False
        self.idle_pulls = 0
        self.pull_requests: dict[str, int] = {}
        self.pull_peer: str | None = None
        self.pull_link: PeerLink | None = None
        self.pulled_at = 0.0
        self.pull_outstanding = 0
        self.trial: Trial | None = None

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
