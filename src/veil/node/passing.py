"""Passing on: what is new goes at once to a few peers, and what is whole is announced to all. Spec §9.

Whether a shard is passed on is decided by its tag, local quotas and how common it is, before anything is put together
and without any key. All shards of an object go to the same few peers, which so have soon enough of it to put it
together themselves; everyone else hears that it is here, and asks for as much as it lacks.
"""

import math

from veil.node.config import LaneClass
from veil.node.desk import Desk
from veil.node.frames import MAX_ENTRIES, Entry, Inventory
from veil.node.ledger import Tracked
from veil.node.peers import Link, Peer
from veil.shards import ShardV1


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

    def announce_to(self, link: Link, objects: list[Tracked]) -> None:
        """Tell one peer of objects that are here. It is said as a promise, so what it says is committed first."""
        for start in range(0, len(objects), MAX_ENTRIES):
            entries = tuple(Entry(one.of, one.bits) for one in objects[start : start + MAX_ENTRIES])
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

    def _eager(self, tracked: Tracked, source: Peer) -> tuple[Link, ...]:
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

    def _lacks(self, link: Link, tracked: Tracked, bit: int) -> bool:
        is_linked = self._desk.peers.link(link.lane, link.peer.name) is link
        return is_linked and not tracked.holders.get(link.peer.name, 0) & bit

    def _is_drawn(self, tracked: Tracked, index: int) -> bool:
        """The more peers are known to have a shard, the less often it is passed on, but never less than the floor."""
        spread = self._desk.config.spread
        others = tracked.replicas(index) - 1
        return self._desk.random.random() < max(spread.forward_floor, 1.0 / (1.0 + others / spread.forward_divisor))
