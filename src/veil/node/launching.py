"""The waves in which an object of ours leaves. Spec §9.1.

The first gives `k + 2` shards to each of two fast peers, not the same ones, and two to a fallback peer. Some are kept
back from every peer, so that there is something to escalate with: with a profile of two in three shards too.
"""

from veil.hashing import h
from veil.node.config import LaneClass, Tier
from veil.node.desk import Desk
from veil.node.frames import Want
from veil.node.ledger import Tracked
from veil.node.passing import Passing
from veil.node.peers import Link
from veil.shards import ShardSet

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

    def _push(self, link: Link, indices: list[int], shards: tuple[bytes, ...], sent: Sent) -> None:
        for index in indices:
            if self._desk.send_shard(link, shards[index]):
                sent[link.peer.name] = sent.get(link.peer.name, 0) | 1 << index
                self._desk.counters["shards_pushed"] += 1
