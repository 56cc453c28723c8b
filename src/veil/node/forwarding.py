"""Forwarding of shards from peers, and dispersal of own objects in waves. Spec §9.1 and §9.2.

The first wave of an own object sends `k + 2` different shards to each of two fast peers, and two to a fallback peer.
At least one shard is held back from every peer for escalation, even with k = 2 and n = 3.
"""

import math

from veil.hashing import h
from veil.node.cache import TrackedObject
from veil.node.config import LaneClass, Tier
from veil.node.frames import MAX_ENTRIES, Inventory, InventoryEntry, Want
from veil.node.node_context import NodeContext
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet, ShardV1


class Forwarder:
    """Forwards shards and announces objects."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._unannounced: dict[TrackedObject, None] = {}

    def forward(self, tracked: TrackedObject, shard: ShardV1, frame: bytes, source: Peer) -> None:
        """Forward a new shard, subject to quota, credit of the source and forwarding probability."""
        context = self._context
        if tracked.push_links is None:
            tracked.push_links = self._choose_push_links(tracked, source)
        bit = 1 << shard.index
        count = tracked.forwarded_count
        chosen = (
            tracked.push_links
            if count < context.config.spread.fallback_shards
            else tracked.push_links[: tracked.full_push_links]
        )
        links = [link for link in chosen if self._lacks(link, tracked, bit)]
        if not links or tracked.forwarded & bit or count >= tracked.of.shape.k + context.config.spread.extra_shards:
            return
        cost = len(frame) * len(links)
        if not self._draw(tracked, shard.index) or not source.spend(cost, context.clock()):
            context.counters["shards_held_back"] += 1
            return
        tracked.spent[source] = tracked.spent.get(source, 0) + cost
        tracked.forwarded |= bit
        tracked.forwarded_count += 1
        for link in links:
            if context.send_shard(link, frame):
                context.counters["shards_forwarded"] += 1

    def announce(self, tracked: TrackedObject) -> None:
        """Announce a whole object to all peers, after a short delay that combines announcements."""
        if not self._unannounced:
            self._context.timers.after(self._context.config.spread.announce_delay_s, self._announce)
        self._unannounced[tracked] = None

    def announce_to(self, link: PeerLink, objects: list[TrackedObject]) -> None:
        """Announce objects to one peer. This is a promise, so the store commits before the frame leaves."""
        for start in range(0, len(objects), MAX_ENTRIES):
            entries = tuple(InventoryEntry(one.of, one.bits) for one in objects[start : start + MAX_ENTRIES])
            self._context.promised = True
            if self._context.send(link, Inventory(entries)):
                self._context.counters["entries_announced"] += len(entries)

    def _announce(self) -> None:
        announced = [tracked for tracked in self._unannounced if tracked.whole]
        self._unannounced = {}
        now = self._context.clock()
        for peer in self._context.peers:
            link = peer.best_link()
            news = [tracked for tracked in announced if not tracked.peer_is_whole(peer.name)]
            if link is not None and news and now >= peer.muted_until:
                self.announce_to(link, news)

    def _choose_push_links(self, tracked: TrackedObject, source: Peer) -> tuple[PeerLink, ...]:
        context, spread = self._context, self._context.config.spread
        quota = context.trust.policy(tracked.tier).forward_quota

        # A peer that already has shards of the object gets the rest from the source of those.
        def is_excluded(peer: Peer) -> bool:
            return peer is source or peer.name in tracked.holders

        fast = context.choose_for(LaneClass.FAST, math.ceil(spread.relay_fast_peers * quota), is_excluded)
        taken = {link.peer for link in fast}
        wanted = math.ceil(spread.relay_fallback_peers * quota)
        fallback = context.choose(wanted, LaneClass.FALLBACK, lambda peer: peer in taken or is_excluded(peer))
        tracked.full_push_links = len(fast)
        return (*fast, *fallback)

    def _lacks(self, link: PeerLink, tracked: TrackedObject, bit: int) -> bool:
        is_linked = self._context.peers.link(link.lane, link.peer.name) is link
        return is_linked and not tracked.holders.get(link.peer.name, 0) & bit

    def _draw(self, tracked: TrackedObject, index: int) -> bool:
        """Draw with a probability that falls with the number of known holders, down to the floor."""
        spread = self._context.config.spread
        others = tracked.replicas(index) - 1
        return self._context.random.random() < max(spread.forward_floor, 1.0 / (1.0 + others / spread.forward_divisor))


Sent = dict[str, int]


class Dispersal:
    """Sends shards of own objects."""

    def __init__(self, context: NodeContext, forwarder: Forwarder) -> None:
        self._context = context
        self._forwarder = forwarder

    def hold(self, of: ShardSet, shards: tuple[bytes, ...]) -> TrackedObject:
        """Put an own object into the cache, so peers can request it."""
        context, now = self._context, self._context.clock()
        tracked = context.objects.get(of)
        if tracked is None:
            tracked = context.objects.open(of, Tier.TRUSTED, now, None)
            tracked.whole = True
            context.objects.whole(tracked)
            for index, frame in enumerate(shards):
                shard_id = h(frame)
                tracked.held[index] = shard_id
                context.remember(shard_id, tracked, index)
                context.cache.put(shard_id, frame, tracked, index, now)
        return tracked

    def first_wave(self, of: ShardSet, shards: tuple[bytes, ...], sent: Sent) -> None:
        spread, shape = self._context.config.spread, of.shape
        tracked = self.hold(of, shards)
        fast = self._context.choose_for(LaneClass.FAST, spread.fast_peers, lambda peer: False)
        taken = {link.peer for link in fast}
        fallback = self._context.choose(spread.fallback_peers, LaneClass.FALLBACK, lambda peer: peer in taken)
        if not fast:
            fast, fallback = fallback, []
        each = max(min(shape.k + spread.extra_shards, shape.n - spread.reserve_shards), shape.k)
        for number, link in enumerate(fast):
            start = number * (shape.n - each)
            self._push(link, [(start + at) % shape.n for at in range(each)], shards, sent)
        for link in fallback:
            self._push(link, [shape.n - 1 - at for at in range(min(spread.fallback_shards, shape.n))], shards, sent)
        self._forwarder.announce(tracked)

    def escalate(self, of: ShardSet, shards: tuple[bytes, ...], sent: Sent, whole: set[str], batch: int) -> None:
        """Send a few more shards to peers without confirmation, or else to another peer, and announce the object."""
        tracked, spent = self.hold(of, shards), 0
        for name, bits in list(sent.items()) if batch else ():
            peer = self._context.peers.get(name)
            link = peer.best_link() if peer else None
            unsent = [index for index in range(of.shape.n) if not bits >> index & 1]
            if link is not None and name not in whole and unsent:
                self._push(link, unsent[:batch], shards, sent)
                self._context.counters["shards_escalated"] += len(unsent[:batch])
                spent += 1
        if batch and not spent:
            for link in self._context.choose(1, None, lambda peer: peer.name in whole or peer.name in sent):
                self._push(link, list(range(batch)), shards, sent)
                self._context.counters["shards_escalated"] += batch
        self._forwarder.announce(tracked)
        for peer in self._context.peers:
            link = peer.best_link()
            if link is not None and peer.name not in whole:
                self._context.send(link, Want(of.object_root, 0, 0))

    def _push(self, link: PeerLink, indices: list[int], shards: tuple[bytes, ...], sent: Sent) -> None:
        for index in indices:
            if self._context.send_shard(link, shards[index]):
                sent[link.peer.name] = sent.get(link.peer.name, 0) | 1 << index
                self._context.counters["shards_pushed"] += 1
