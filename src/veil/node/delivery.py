"""What happens once an object is whole: judged, kept, announced, opened by who can, delivered once, acknowledged.

Judging needs no key: the root has held, and the address, the signature and the policy of the namespace are asked here.
What fails is forgotten; what holds is passed on whether or not this node can read it.
"""

import struct
from collections import OrderedDict
from collections.abc import Hashable

from veil.assembly import Opened, Received, encode_shards, open_object, publish, receive
from veil.channels import Channel, Feed
from veil.encryption.aead import Key, SharedKey
from veil.encryption.private_delivery import write_letter
from veil.fec.reassembly import Gathered
from veil.hashing import h
from veil.namespaces import Namespace
from veil.node.addressing import ack_key
from veil.node.forwarding import Launching, Passing
from veil.node.node_context import Desk
from veil.node.object_progress import Tracked
from veil.node.outbox import Outbox
from veil.node.trust import decode_endorsement
from veil.objects import Flags
from veil.store.tables import Table
from veil.veil_errors import VeilError

_WHEN = struct.Struct(">d")


class Done:
    """Roots of objects that have been whole here, kept beyond the cache: none of them is begun again."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        found = [(_WHEN.unpack(value)[0], root) for root, value in desk.store.items(Table.DONE)]
        self._roots: OrderedDict[bytes, float] = OrderedDict((root, when) for when, root in sorted(found))

    def __contains__(self, root: bytes) -> bool:
        return root in self._roots

    def __len__(self) -> int:
        return len(self._roots)

    def add(self, root: bytes) -> None:
        now, bounds = self._desk.clock(), self._desk.config.bounds
        self._roots[root] = now
        self._desk.store.put(Table.DONE, root, _WHEN.pack(now))
        while len(self._roots) > bounds.done_roots or next(iter(self._roots.values())) < now - bounds.done_age_s:
            oldest, _ = self._roots.popitem(last=False)
            self._desk.store.delete(Table.DONE, oldest)


class Wholes:
    """Takes whole objects."""

    def __init__(self, desk: Desk, passing: Passing, launching: Launching, outbox: Outbox) -> None:
        self._desk = desk
        self._passing = passing
        self._launching = launching
        self._outbox = outbox
        self.done = Done(desk)

    def gathered(self, tracked: Tracked, found: Gathered) -> None:
        """An object was put together by the inbox, which also tells who sent shards that are not of it."""
        self._judge_sources(tracked, found.liars)
        self.whole(tracked, found.encoded, doubtful=bool(found.liars) or len(tracked.held) != tracked.of.shape.k)

    def whole(self, tracked: Tracked, encoded: bytes, *, doubtful: bool) -> None:
        desk = self._desk
        try:
            received = receive(tracked.of, encoded, desk.config.policy)
        except VeilError:
            self._refuse(tracked)
            return
        desk.counters["objects_whole"] += 1
        for peer, cost in tracked.spent.items():
            peer.refund(cost)
        if doubtful:
            self._replace(tracked, encoded)
        tracked.whole = True
        tracked.settle()
        desk.ledger.whole(tracked)
        self.done.add(tracked.of.object_root)
        self._deliver(received)
        self._passing.announce(tracked)
        desk.commit_soon()

    def _judge_sources(self, tracked: Tracked, liars: frozenset[Hashable]) -> None:
        """Who said it had the whole object answers for its shards; who only passed one on may have been lied to."""
        penalties = self._desk.config.penalties
        for name in liars:
            peer = self._desk.peers.get(name) if isinstance(name, str) else None
            if peer is None:
                continue
            self._desk.counters["lies_found"] += 1
            if tracked.peer_is_whole(peer.name):
                self.caught(peer.name)
            else:
                self._desk.blame(peer, penalties.passed_a_lie, "passed on a shard that is not of its object")

    def caught(self, name: str) -> None:
        peer = self._desk.peers.get(name)
        if peer is not None:
            peer.lies += 1
            self._desk.blame(peer, self._desk.config.penalties.lie, "said it had an object and sent another")

    def _refuse(self, tracked: Tracked) -> None:
        """The object may not stand where its shards say. It stays known, so that its shards are not taken again."""
        self._desk.counters["objects_refused"] += 1
        tracked.refused = True
        for shard_id in list(tracked.held.values()):
            self._desk.cache.remove(shard_id)
        brought_by = tracked.brought_by
        tracked.settle()
        if brought_by is not None:
            self._desk.blame(brought_by, self._desk.config.penalties.passed_a_lie, "brought an object that is refused")

    def _replace(self, tracked: Tracked, encoded: bytes) -> None:
        """Some of the shards held may be lies: have the true ones."""
        true = {index: (h(frame), frame) for index, frame in enumerate(encode_shards(tracked.of, encoded))}
        for index, shard_id in list(tracked.held.items()):
            if true[index][0] != shard_id:
                self._desk.cache.remove(shard_id)
        for index in list(true)[: tracked.of.shape.k]:
            if index not in tracked.held:
                tracked.held[index] = true[index][0]
                self._desk.cache.put(*true[index], tracked, index, self._desk.clock())

    def _deliver(self, received: Received) -> None:
        desk, tag = self._desk, received.of.address.tag
        if self._outbox.acknowledged(received):
            return
        readers = desk.subscriptions.readers(tag)
        for channel, key in readers:
            try:
                opened = channel.open(received, key)
                items = opened.items
            except VeilError:
                continue
            desk.counters["objects_delivered"] += 1
            for number, item in enumerate(items):
                self._tell(received, opened, number, item)
            self._acknowledge(received, opened, channel, key)
            return
        desk.counters["objects_unreadable"] += bool(readers)

    def _tell(self, received: Received, opened: Opened, number: int, item: bytes) -> None:
        desk, address = self._desk, opened.address
        desk.tell(
            "delivered",
            object_root=received.of.object_root,
            tag=address.tag,
            namespace=address.namespace,
            epoch=address.epoch,
            flags=int(opened.flags),
            sender=opened.sender_pubkey,
            item=number,
            payload=item,
        )
        if address.namespace == Namespace.TRUST and opened.sender_pubkey is not None:
            try:
                subject, at = decode_endorsement(item)
            except VeilError:
                return
            desk.trust.endorsed(opened.sender_pubkey, subject, at, desk.clock())

    def _acknowledge(self, received: Received, opened: Opened, channel: Channel, key: Key) -> None:
        """Say under the same tag that the object was read; only who wrote it can open that."""
        if not opened.flags & Flags.ACK_REQUESTED or isinstance(channel, Feed):
            return
        root, address = received.of.object_root, received.of.address
        lock = SharedKey(ack_key(root, open_object(received, key).payload))
        made = publish(write_letter(address, self._desk.identity.signing, root), address, lock)
        self._desk.promised = True
        self._launching.first_wave(made.of, made.shards, {})
        self.done.add(made.object_root)
        self._desk.counters["acks_sent"] += 1
