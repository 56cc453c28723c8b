"""The waves in which an object of ours leaves. Spec §9.1.

The first gives `k + 2` shards to each of two fast peers, not the same ones, and two to a fallback peer. Some are kept
back from every peer, so that there is something to escalate with: with a profile of two in three shards too.
"""

import math

from veil.hashing import h
from veil.node.config import LaneClass, Tier
from veil.node.frames import MAX_ENTRIES, Inventory, InventoryEntry, Want
from veil.node.node_context import Desk
from veil.node.object_progress import Tracked
from veil.node.peers import Peer, PeerLink
from veil.objects import ShardSet, ShardV1


class Passing:
    """Forwards shards and announces objects."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._unannounced: dict[Tracked, None] = {}

    def forward(self, tracked: Tracked, shard: ShardV1, frame: bytes, source: Peer) -> None:
        """Pass a shard on that is new here, as far as quotas, budgets and chance allow."""
        desk = self._desk
        if tracked.eager is None:
            tracked.eager = self._eager(tracked, source)
        bit = 1 << shard.index
        count = tracked.forwarded_count
        chosen = tracked.eager if count < desk.config.spread.fallback_shards else tracked.eager[: tracked.fully]
        links = [link for link in chosen if self._lacks(link, tracked, bit)]
        if not links or tracked.forwarded & bit or count >= tracked.of.shape.k + desk.config.spread.extra_shards:
            return
        cost = len(frame) * len(links)
        if not self._is_drawn(tracked, shard.index) or not source.spend(cost, desk.clock()):
            desk.counters["shards_held_back"] += 1
            return
        tracked.spent[source] = tracked.spent.get(source, 0) + cost
        tracked.forwarded |= bit
        tracked.forwarded_count += 1
        for link in links:
            if desk.send_shard(link, frame):
                desk.counters["shards_forwarded"] += 1

    def announce(self, tracked: Tracked) -> None:
        """Tell all peers, a moment later and together with what else there is to tell, that an object is whole."""
        if not self._unannounced:
            self._desk.agenda.after(self._desk.config.spread.announce_delay_s, self._announce)
        self._unannounced[tracked] = None

    def announce_to(self, link: PeerLink, objects: list[Tracked]) -> None:
        """Tell one peer of objects that are here. It is said as a promise, so what it says is committed first."""
        for start in range(0, len(objects), MAX_ENTRIES):
            entries = tuple(InventoryEntry(one.of, one.bits) for one in objects[start : start + MAX_ENTRIES])
            self._desk.promised = True
            if self._desk.send(link, Inventory(entries)):
                self._desk.counters["entries_announced"] += len(entries)

    def _announce(self) -> None:
        told = [tracked for tracked in self._unannounced if tracked.whole]
        self._unannounced = {}
        now = self._desk.clock()
        for peer in self._desk.peers:
            link = peer.best_link()
            news = [tracked for tracked in told if not tracked.peer_is_whole(peer.name)]
            if link is not None and news and now >= peer.muted_until:
                self.announce_to(link, news)

    def _eager(self, tracked: Tracked, source: Peer) -> tuple[PeerLink, ...]:
        desk, spread = self._desk, self._desk.config.spread
        quota = desk.trust.policy(tracked.tier).forward_quota

        # Who has a part of it already gets the rest from where it got that.
        def is_out(peer: Peer) -> bool:
            return peer is source or peer.name in tracked.holders

        fast = desk.choose_for(LaneClass.FAST, math.ceil(spread.relay_fast_peers * quota), is_out)
        taken = {link.peer for link in fast}
        wanted = math.ceil(spread.relay_fallback_peers * quota)
        fallback = desk.choose(wanted, LaneClass.FALLBACK, lambda peer: peer in taken or is_out(peer))
        tracked.fully = len(fast)
        return (*fast, *fallback)

    def _lacks(self, link: PeerLink, tracked: Tracked, bit: int) -> bool:
        is_linked = self._desk.peers.link(link.lane, link.peer.name) is link
        return is_linked and not tracked.holders.get(link.peer.name, 0) & bit

    def _is_drawn(self, tracked: Tracked, index: int) -> bool:
        """The more peers are known to have a shard, the less often it is passed on, but never less than the floor."""
        spread = self._desk.config.spread
        others = tracked.replicas(index) - 1
        return self._desk.random.random() < max(spread.forward_floor, 1.0 / (1.0 + others / spread.forward_divisor))


Sent = dict[str, int]


class Launching:
    """Hands out shards of our own objects."""

    def __init__(self, desk: Desk, passing: Passing) -> None:
        self._desk = desk
        self._passing = passing

    def hold(self, of: ShardSet, shards: tuple[bytes, ...]) -> Tracked:
        """Have an object of ours in the cache, as if it had come from elsewhere: peers may ask for it."""
        desk, now = self._desk, self._desk.clock()
        tracked = desk.ledger.get(of)
        if tracked is None:
            tracked = desk.ledger.open(of, Tier.TRUSTED, now, None)
            tracked.whole = True
            desk.ledger.whole(tracked)
            for index, frame in enumerate(shards):
                shard_id = h(frame)
                tracked.held[index] = shard_id
                desk.remember(shard_id, tracked, index)
                desk.cache.put(shard_id, frame, tracked, index, now)
        return tracked

    def first_wave(self, of: ShardSet, shards: tuple[bytes, ...], sent: Sent) -> None:
        spread, shape = self._desk.config.spread, of.shape
        tracked = self.hold(of, shards)
        fast = self._desk.choose_for(LaneClass.FAST, spread.fast_peers, lambda peer: False)
        taken = {link.peer for link in fast}
        fallback = self._desk.choose(spread.fallback_peers, LaneClass.FALLBACK, lambda peer: peer in taken)
        if not fast:
            fast, fallback = fallback, []
        each = max(min(shape.k + spread.extra_shards, shape.n - spread.reserve_shards), shape.k)
        for number, link in enumerate(fast):
            start = number * (shape.n - each)
            self._push(link, [(start + at) % shape.n for at in range(each)], shards, sent)
        for link in fallback:
            self._push(link, [shape.n - 1 - at for at in range(min(spread.fallback_shards, shape.n))], shards, sent)
        self._passing.announce(tracked)

    def escalate(self, of: ShardSet, shards: tuple[bytes, ...], sent: Sent, whole: set[str], batch: int) -> None:
        """A small batch of what a peer was not sent yet, or, where that is all, to somebody else; and the news."""
        tracked, spent = self.hold(of, shards), 0
        for name, bits in list(sent.items()) if batch else ():
            peer = self._desk.peers.get(name)
            link = peer.best_link() if peer else None
            unsent = [index for index in range(of.shape.n) if not bits >> index & 1]
            if link is not None and name not in whole and unsent:
                self._push(link, unsent[:batch], shards, sent)
                self._desk.counters["shards_escalated"] += len(unsent[:batch])
                spent += 1
        if batch and not spent:
            for link in self._desk.choose(1, None, lambda peer: peer.name in whole or peer.name in sent):
                self._push(link, list(range(batch)), shards, sent)
                self._desk.counters["shards_escalated"] += batch
        self._passing.announce(tracked)
        for peer in self._desk.peers:
            link = peer.best_link()
            if link is not None and peer.name not in whole:
                self._desk.send(link, Want(of.object_root, 0, 0))

    def _push(self, link: PeerLink, indices: list[int], shards: tuple[bytes, ...], sent: Sent) -> None:
        for index in indices:
            if self._desk.send_shard(link, shards[index]):
                sent[link.peer.name] = sent.get(link.peer.name, 0) | 1 << index
                self._desk.counters["shards_pushed"] += 1
