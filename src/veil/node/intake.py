"""Intake of frames from peers.

Checks run in the order of their cost: mute and rate of the peer, length, id, header, epoch, tag. The shard is
forwarded before reassembly, because forwarding needs no key (spec §1.1).
"""

from collections import OrderedDict

from veil.assembly import encode_shards
from veil.hashing import h
from veil.node import frames
from veil.node.cache import TrackedObject
from veil.node.delivery import Delivery
from veil.node.forwarding import Forwarder
from veil.node.frames import MAX_CONTROL_BYTES, SHARD_START, Inventory, Summary, Want
from veil.node.node_context import NodeContext
from veil.node.outbox import Outbox
from veil.node.peers import Peer, PeerLink
from veil.node.pull import ShardPull, SummaryExchange
from veil.objects import ShardSet, ShardV1
from veil.veil_errors import Malformed, Unverified
from veil.veil_limits import BUCKET_SIZES

_BUCKETS = frozenset(BUCKET_SIZES)
_MAX_REENCODED = 4


class Intake:
    """Processes frames from peers."""

    def __init__(
        self,
        context: NodeContext,
        forwarder: Forwarder,
        pull: ShardPull,
        summary_exchange: SummaryExchange,
        delivery: Delivery,
        outbox: Outbox,
    ) -> None:
        self._context = context
        self._forwarder = forwarder
        self._pull = pull
        self._summary_exchange = summary_exchange
        self._delivery = delivery
        self._outbox = outbox
        self._reencoded: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def receive(self, link: PeerLink, frame: bytes) -> None:
        context, peer, size = self._context, link.peer, len(frame)
        context.counters["frames_in"] += 1
        if not peer.admit(size, context.clock(), context.config.tiers[peer.tier]):
            context.counters["frames_refused"] += 1
            return
        context.counters["bytes_in"] += size
        if size in _BUCKETS and frame[0] == SHARD_START:
            context.peers.note_received(link, size)
            self._shard(peer, frame)
        elif size <= MAX_CONTROL_BYTES:
            self._control(link, frame)
        else:
            context.counters["frames_oversized"] += 1
            context.penalise(peer, context.config.penalties.oversized, f"oversized frame of {size} bytes")

    def _control(self, link: PeerLink, data: bytes) -> None:
        try:
            frame = frames.decode(data)
        except Malformed as error:
            self._garbage(link.peer, error)
            return
        self._context.peers.note_received(link, len(data))
        match frame:
            case Inventory():
                self._inventory(link, frame)
            case Want():
                self._want(link, frame)
            case Summary():
                self._summary_exchange.received(frame, link)

    def _garbage(self, peer: Peer, error: Malformed) -> None:
        self._context.counters["frames_garbage"] += 1
        self._context.penalise(peer, self._context.config.penalties.garbage, str(error))

    def _shard(self, peer: Peer, frame: bytes) -> None:
        context = self._context
        shard_id = h(frame)
        known = context.seen.get(shard_id)
        if known is not None and known[0].is_kept:
            self._duplicate(peer, frame, shard_id, *known)
            return
        if context.cache.has_stray(shard_id):
            context.counters["shards_duplicate"] += 1
            return
        try:
            shard = context.form.decode_shard(frame)
        except Malformed as error:
            self._garbage(peer, error)
            return
        tracked = context.objects.get(shard.of)
        if tracked is None:
            tracked = self._start_tracking(peer, shard.of)
            if tracked is None:
                self._stray(shard, frame, shard_id)
                return
        context.remember(shard_id, tracked, shard.index)
        self._accept(peer, tracked, shard, frame, shard_id)

    def _accept(self, peer: Peer, tracked: TrackedObject, shard: ShardV1, frame: bytes, shard_id: bytes) -> None:
        context, now = self._context, self._context.clock()
        self._pull.answered(tracked, peer)
        if tracked.whole or tracked.refused:
            context.counters["shards_late"] += 1
            return
        context.counters["shards_new"] += 1
        tracked.last_new = now
        tracked.add_holder(peer.name, 1 << shard.index)
        if shard.index in tracked.held:
            context.counters["shards_rival"] += 1
        else:
            tracked.held[shard.index] = shard_id
            context.cache.put(shard_id, frame, tracked, shard.index, now)
            self._forwarder.forward(tracked, shard, frame, peer)
        if self._try_single_source(peer, tracked, shard):
            return
        found = context.inbox.add(shard, now, peer.name, int(peer.tier))
        if found is not None:
            self._delivery.reassembled(tracked, found)
        else:
            self._pull.expect(tracked)

    def _duplicate(self, peer: Peer, frame: bytes, shard_id: bytes, tracked: TrackedObject, index: int) -> None:
        """Record one more holder of a known shard."""
        context = self._context
        context.counters["shards_duplicate"] += 1
        self._pull.answered(tracked, peer)
        if tracked.add_holder(peer.name, 1 << index):
            context.cache.rank(tracked)
        context.cache.touch(shard_id, context.clock())
        if tracked.trial is not None and tracked.trial.source == peer.name:
            self._try_single_source(peer, tracked, context.form.decode_shard(frame))

    def _start_tracking(self, peer: Peer, of: ShardSet) -> TrackedObject | None:
        """Start tracking an object: its tag is subscribed, it was not whole before, and its epoch is plausible."""
        context, now = self._context, self._context.clock()
        if not context.subscriptions.wanted(of.address.tag):
            return None
        if of.object_root in self._delivery.done:
            context.counters["objects_replayed"] += 1
            return None
        if not context.config.epochs.plausible(of.address.epoch, now):
            context.counters["shards_implausible"] += 1
            context.penalise(peer, context.config.penalties.implausible, "implausible epoch")
            return None
        return context.objects.open(of, context.tier_of(of.address, peer), now, peer)

    def _stray(self, shard: ShardV1, frame: bytes, shard_id: bytes) -> None:
        """Keep a shard of an unsubscribed tag for a short time, in case a subscription follows. It is not forwarded."""
        context = self._context
        plausible = context.config.epochs.plausible(shard.of.address.epoch, context.clock())
        if plausible and not context.subscriptions.wanted(shard.of.address.tag):
            context.counters["shards_stray"] += 1
            context.cache.put_stray(shard_id, frame, shard.of, shard.index, context.clock())

    def adopt_strays(self, tags: frozenset[bytes]) -> None:
        """Process the strays of newly subscribed tags."""
        context = self._context
        for entry in context.cache.strays_of(tags):
            frame = context.cache.take_stray(entry)
            tracked = context.objects.get(entry.of)
            if tracked is None and entry.of.object_root not in self._delivery.done:
                tracked = context.objects.open(entry.of, context.tier_of(entry.of.address, None), context.clock(), None)
            if tracked is not None:
                self.resume(tracked, entry.shard_id, frame)

    def resume(self, tracked: TrackedObject, shard_id: bytes, frame: bytes) -> None:
        """Add a shard from the store or a stray to the reassembly, without forwarding it."""
        context, shard = self._context, self._context.form.decode_shard(frame)
        context.remember(shard_id, tracked, shard.index)
        if tracked.whole or tracked.held.get(shard.index, shard_id) != shard_id:
            return
        tracked.held[shard.index] = shard_id
        context.cache.put(shard_id, frame, tracked, shard.index, context.clock())
        found = context.inbox.add(shard, context.clock(), None, 0)
        if found is not None:
            self._delivery.reassembled(tracked, found)

    def _try_single_source(self, peer: Peer, tracked: TrackedObject, shard: ShardV1) -> bool:
        """Try to restore the object from shards of one peer only. If that fails, the peer sent false shards."""
        trial = tracked.trial
        if trial is None or trial.source != peer.name:
            return False
        trial.payloads[shard.index] = shard.payload
        if len(trial.payloads) < tracked.of.shape.k:
            return False
        tracked.trial = None
        try:
            encoded = self._context.form.restore(tracked.of, dict(list(trial.payloads.items())[: tracked.of.shape.k]))
        except Unverified:
            self._context.counters["lies_found"] += 1
            tracked.holders.pop(peer.name, None)
            self._delivery.penalise_liar(peer.name)
            return False
        self._delivery.whole(tracked, encoded, doubtful=True)
        return True

    def _inventory(self, link: PeerLink, inventory: Inventory) -> None:
        context, peer = self._context, link.peer
        for entry in inventory.entries:
            context.counters["entries_received"] += 1
            tracked = context.objects.get(entry.of)
            if tracked is None:
                tracked = self._start_tracking(peer, entry.of) if entry.indices else None
            if tracked is None or not entry.indices:
                continue
            if tracked.add_holder(peer.name, entry.indices):
                context.cache.rank(tracked)
            if tracked.whole and entry.whole:
                self._outbox.peer_is_whole(entry.of.object_root, peer.name)
            self._pull.expect(tracked)

    def _want(self, link: PeerLink, want: Want) -> None:
        """Serve shards of an object: cached ones first, and any others if the object is whole."""
        context = self._context
        tracked = context.objects.by_root(want.object_root)
        if tracked is None or tracked.refused:
            return
        if not want.indices:
            self._forwarder.announce_to(link, [tracked])
            return
        tracked.requested += 1
        context.cache.rank(tracked)
        indices = [index for index in range(tracked.of.shape.n) if want.indices >> index & 1]
        indices.sort(key=lambda index: index not in tracked.held)
        count = min(want.count, tracked.of.shape.n)
        for index in indices[:count]:
            frame = self._frame(tracked, index)
            if frame is not None and context.send_shard(link, frame):
                context.counters["shards_served"] += 1
                link.peer.served += 1

    def _frame(self, tracked: TrackedObject, index: int) -> bytes | None:
        """The shard of an index, from the cache or encoded again from k others."""
        context, k = self._context, tracked.of.shape.k
        if index in tracked.held:
            return context.cache.get(tracked.held[index])
        if not tracked.whole:
            return None
        root = tracked.of.object_root
        if root not in self._reencoded:
            frames = [frame for shard_id in list(tracked.held.values())[:k] if (frame := context.cache.get(shard_id))]
            if len(frames) < k:
                return None
            payloads = {shard.index: shard.payload for shard in map(context.form.decode_shard, frames)}
            self._reencoded[root] = encode_shards(tracked.of, context.form.restore(tracked.of, payloads))
            if len(self._reencoded) > _MAX_REENCODED:
                self._reencoded.popitem(last=False)
        return self._reencoded[root][index]
