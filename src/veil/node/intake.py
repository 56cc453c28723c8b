"""What comes in: frames of peers, each paid for by the peer it came from.

The order is that of cost: whether the peer is heard, the length, the id, the header, the epoch, the tag. Then the shard
is passed on, and only then put together with others: passing on needs no key and waits for none (spec §1.1).
"""

from collections import OrderedDict

from veil.assembly import encode_shards
from veil.hashing import h
from veil.node import frames
from veil.node.delivery import Wholes
from veil.node.digest_exchange import Summarising
from veil.node.forwarding import Passing
from veil.node.frames import MAX_CONTROL_BYTES, SHARD_START, Inventory, Summary, Want
from veil.node.node_context import Desk
from veil.node.object_progress import Tracked
from veil.node.outbox import Outbox
from veil.node.peers import Peer, PeerLink
from veil.node.pull import ShardPull
from veil.objects import ShardSet, ShardV1
from veil.veil_errors import Malformed, Unverified
from veil.veil_limits import BUCKET_SIZES

_BUCKETS = frozenset(BUCKET_SIZES)
_RECUT_OBJECTS = 4


class Intake:
    """Takes frames."""

    def __init__(
        self, desk: Desk, passing: Passing, pulling: ShardPull, summarising: Summarising, wholes: Wholes, outbox: Outbox
    ) -> None:
        self._desk = desk
        self._passing = passing
        self._pulling = pulling
        self._summarising = summarising
        self._wholes = wholes
        self._outbox = outbox
        self._recut: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def receive(self, link: PeerLink, frame: bytes) -> None:
        desk, peer, size = self._desk, link.peer, len(frame)
        desk.counters["frames_in"] += 1
        if not peer.admit(size, desk.clock(), desk.config.tiers[peer.tier]):
            desk.counters["frames_refused"] += 1
            return
        desk.counters["bytes_in"] += size
        if size in _BUCKETS and frame[0] == SHARD_START:
            desk.peers.heard(link, size)
            self._shard(peer, frame)
        elif size <= MAX_CONTROL_BYTES:
            self._control(link, frame)
        else:
            desk.counters["frames_oversized"] += 1
            desk.blame(peer, desk.config.penalties.oversized, f"a frame of {size} bytes")

    def _control(self, link: PeerLink, data: bytes) -> None:
        try:
            frame = frames.decode(data)
        except Malformed as error:
            self._garbage(link.peer, error)
            return
        self._desk.peers.heard(link, len(data))
        match frame:
            case Inventory():
                self._inventory(link, frame)
            case Want():
                self._want(link, frame)
            case Summary():
                self._summarising.received(frame, link)

    def _garbage(self, peer: Peer, error: Malformed) -> None:
        self._desk.counters["frames_garbage"] += 1
        self._desk.blame(peer, self._desk.config.penalties.garbage, str(error))

    def _shard(self, peer: Peer, frame: bytes) -> None:
        desk = self._desk
        shard_id = h(frame)
        known = desk.seen.get(shard_id)
        if known is not None and known[0].is_kept:
            self._duplicate(peer, frame, shard_id, *known)
            return
        if desk.cache.has_stray(shard_id):
            desk.counters["shards_duplicate"] += 1
            return
        try:
            shard = desk.form.decode_shard(frame)
        except Malformed as error:
            self._garbage(peer, error)
            return
        tracked = desk.ledger.get(shard.of)
        if tracked is None:
            tracked = self._begin(peer, shard.of)
            if tracked is None:
                self._stray(shard, frame, shard_id)
                return
        desk.remember(shard_id, tracked, shard.index)
        self._take(peer, tracked, shard, frame, shard_id)

    def _take(self, peer: Peer, tracked: Tracked, shard: ShardV1, frame: bytes, shard_id: bytes) -> None:
        desk, now = self._desk, self._desk.clock()
        self._pulling.answered(tracked, peer)
        if tracked.whole or tracked.refused:
            desk.counters["shards_late"] += 1
            return
        desk.counters["shards_new"] += 1
        tracked.last_new = now
        tracked.holds(peer.name, 1 << shard.index)
        if shard.index in tracked.held:
            desk.counters["shards_rival"] += 1
        else:
            tracked.held[shard.index] = shard_id
            desk.cache.put(shard_id, frame, tracked, shard.index, now)
            self._passing.forward(tracked, shard, frame, peer)
        if self._try_trial(peer, tracked, shard):
            return
        found = desk.inbox.add(shard, now, peer.name, int(peer.tier))
        if found is not None:
            self._wholes.gathered(tracked, found)
        else:
            self._pulling.expect(tracked)

    def _duplicate(self, peer: Peer, frame: bytes, shard_id: bytes, tracked: Tracked, index: int) -> None:
        """Nothing is done again; but one more peer has the shard."""
        desk = self._desk
        desk.counters["shards_duplicate"] += 1
        self._pulling.answered(tracked, peer)
        if tracked.holds(peer.name, 1 << index):
            desk.cache.rank(tracked)
        desk.cache.touch(shard_id, desk.clock())
        if tracked.trial is not None and tracked.trial.source == peer.name:
            self._try_trial(peer, tracked, desk.form.decode_shard(frame))

    def _begin(self, peer: Peer, of: ShardSet) -> Tracked | None:
        """Take up an object that is asked for here, was not whole before, and is of a time that can be."""
        desk, now = self._desk, self._desk.clock()
        if not desk.subscriptions.wanted(of.address.tag):
            return None
        if of.object_root in self._wholes.done:
            desk.counters["objects_replayed"] += 1
            return None
        if not desk.config.epochs.plausible(of.address.epoch, now):
            desk.counters["shards_implausible"] += 1
            desk.blame(peer, desk.config.penalties.implausible, "an epoch that cannot be")
            return None
        return desk.ledger.open(of, desk.tier_of(of.address, peer), now, peer)

    def _stray(self, shard: ShardV1, frame: bytes, shard_id: bytes) -> None:
        """A shard that is not passed on. Under a tag that nobody asked for it is kept for a while: somebody may."""
        desk = self._desk
        plausible = desk.config.epochs.plausible(shard.of.address.epoch, desk.clock())
        if plausible and not desk.subscriptions.wanted(shard.of.address.tag):
            desk.counters["shards_stray"] += 1
            desk.cache.put_stray(shard_id, frame, shard.of, shard.index, desk.clock())

    def adopt_strays(self, tags: frozenset[bytes]) -> None:
        """Tags are asked for now: take what came under them before."""
        desk = self._desk
        for entry in desk.cache.strays_of(tags):
            frame = desk.cache.take_stray(entry)
            tracked = desk.ledger.get(entry.of)
            if tracked is None and entry.of.object_root not in self._wholes.done:
                tracked = desk.ledger.open(entry.of, desk.tier_of(entry.of.address, None), desk.clock(), None)
            if tracked is not None:
                self.resume(tracked, entry.shard_id, frame)

    def resume(self, tracked: Tracked, shard_id: bytes, frame: bytes) -> None:
        """Take up a shard that was here before: put it with the others, without passing it on again."""
        desk, shard = self._desk, self._desk.form.decode_shard(frame)
        desk.remember(shard_id, tracked, shard.index)
        if tracked.whole or tracked.held.get(shard.index, shard_id) != shard_id:
            return
        tracked.held[shard.index] = shard_id
        desk.cache.put(shard_id, frame, tracked, shard.index, desk.clock())
        found = desk.inbox.add(shard, desk.clock(), None, 0)
        if found is not None:
            self._wholes.gathered(tracked, found)

    def _try_trial(self, peer: Peer, tracked: Tracked, shard: ShardV1) -> bool:
        """Shards of one source alone: they fit together and the object is settled, or the source lied."""
        trial = tracked.trial
        if trial is None or trial.source != peer.name:
            return False
        trial.payloads[shard.index] = shard.payload
        if len(trial.payloads) < tracked.of.shape.k:
            return False
        tracked.trial = None
        try:
            encoded = self._desk.form.restore(tracked.of, dict(list(trial.payloads.items())[: tracked.of.shape.k]))
        except Unverified:
            self._desk.counters["lies_found"] += 1
            tracked.holders.pop(peer.name, None)
            self._wholes.caught(peer.name)
            return False
        self._wholes.whole(tracked, encoded, doubtful=True)
        return True

    def _inventory(self, link: PeerLink, inventory: Inventory) -> None:
        desk, peer = self._desk, link.peer
        for entry in inventory.entries:
            desk.counters["entries_received"] += 1
            tracked = desk.ledger.get(entry.of)
            if tracked is None:
                tracked = self._begin(peer, entry.of) if entry.indices else None
            if tracked is None or not entry.indices:
                continue
            if tracked.holds(peer.name, entry.indices):
                desk.cache.rank(tracked)
            if tracked.whole and entry.whole:
                self._outbox.peer_is_whole(entry.of.object_root, peer.name)
            self._pulling.expect(tracked)

    def _want(self, link: PeerLink, want: Want) -> None:
        """Give shards of an object: those at hand first, and where it is whole, any."""
        desk = self._desk
        tracked = desk.ledger.by_root(want.object_root)
        if tracked is None or tracked.refused:
            return
        if not want.indices:
            self._passing.announce_to(link, [tracked])
            return
        tracked.requested += 1
        desk.cache.rank(tracked)
        indices = [index for index in range(tracked.of.shape.n) if want.indices >> index & 1]
        indices.sort(key=lambda index: index not in tracked.held)
        count = min(want.count, tracked.of.shape.n)
        for index in indices[:count]:
            frame = self._frame(tracked, index)
            if frame is not None and desk.send_shard(link, frame):
                desk.counters["shards_served"] += 1
                link.peer.served += 1

    def _frame(self, tracked: Tracked, index: int) -> bytes | None:
        """The shard of an index: as it came, or cut anew of k others."""
        desk, k = self._desk, tracked.of.shape.k
        if index in tracked.held:
            return desk.cache.get(tracked.held[index])
        if not tracked.whole:
            return None
        root = tracked.of.object_root
        if root not in self._recut:
            frames = [frame for shard_id in list(tracked.held.values())[:k] if (frame := desk.cache.get(shard_id))]
            if len(frames) < k:
                return None
            payloads = {shard.index: shard.payload for shard in map(desk.form.decode_shard, frames)}
            self._recut[root] = encode_shards(tracked.of, desk.form.restore(tracked.of, payloads))
            if len(self._recut) > _RECUT_OBJECTS:
                self._recut.popitem(last=False)
        return self._recut[root][index]
