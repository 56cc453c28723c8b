"""Whole objects: verify, cache, announce, open, deliver once, acknowledge.

Verification needs no key: the root matched already; address, signature and namespace policy are checked here. Invalid
objects are dropped. Valid objects are announced whether or not this node can open them.
"""

import struct
from collections import OrderedDict
from collections.abc import Hashable

from veil.assembly import Opened, Received, encode_shards, open_object, publish, receive
from veil.channels import Channel, Feed
from veil.encryption import Key, SharedKey, write_letter
from veil.hashing import h
from veil.node.addressing import ack_key
from veil.node.cache import TrackedObject
from veil.node.forwarding import Dispersal, Forwarder
from veil.node.node_context import NodeContext
from veil.node.outbox import Outbox
from veil.node.trust import decode_endorsement
from veil.objects import Flags, Namespace
from veil.reassembly import Reassembled
from veil.store import Table
from veil.veil_errors import VeilError

_WHEN = struct.Struct(">d")


class Done:
    """Roots of objects that were whole here. They outlive the cache, so no object is delivered twice."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        found = [(_WHEN.unpack(value)[0], root) for root, value in context.store.items(Table.DONE)]
        self._roots: OrderedDict[bytes, float] = OrderedDict((root, when) for when, root in sorted(found))

    def __contains__(self, root: bytes) -> bool:
        return root in self._roots

    def __len__(self) -> int:
        return len(self._roots)

    def add(self, root: bytes) -> None:
        now, bounds = self._context.clock(), self._context.config.bounds
        self._roots[root] = now
        self._context.store.put(Table.DONE, root, _WHEN.pack(now))
        while len(self._roots) > bounds.done_roots or next(iter(self._roots.values())) < now - bounds.done_age_s:
            oldest, _ = self._roots.popitem(last=False)
            self._context.store.delete(Table.DONE, oldest)


class Delivery:
    """Processes whole objects."""

    def __init__(self, context: NodeContext, forwarder: Forwarder, dispersal: Dispersal, outbox: Outbox) -> None:
        self._context = context
        self._forwarder = forwarder
        self._dispersal = dispersal
        self._outbox = outbox
        self.done = Done(context)

    def reassembled(self, tracked: TrackedObject, found: Reassembled) -> None:
        """The inbox restored an object. `found.liars` are the sources of false shards."""
        self._penalise_sources(tracked, found.liars)
        self.whole(tracked, found.encoded, doubtful=bool(found.liars) or len(tracked.held) != tracked.of.shape.k)

    def whole(self, tracked: TrackedObject, encoded: bytes, *, doubtful: bool) -> None:
        context = self._context
        try:
            received = receive(tracked.of, encoded, context.config.policy)
        except VeilError:
            self._reject(tracked)
            return
        context.counters["objects_whole"] += 1
        for peer, cost in tracked.spent.items():
            peer.refund(cost)
        if doubtful:
            self._replace(tracked, encoded)
        tracked.whole = True
        tracked.settle()
        context.objects.whole(tracked)
        self.done.add(tracked.of.object_root)
        self._deliver(received)
        self._forwarder.announce(tracked)
        context.commit_soon()

    def _penalise_sources(self, tracked: TrackedObject, liars: frozenset[Hashable]) -> None:
        """A peer that announced the whole object answers for its shards. Others may only have forwarded one."""
        penalties = self._context.config.penalties
        for name in liars:
            peer = self._context.peers.get(name) if isinstance(name, str) else None
            if peer is None:
                continue
            self._context.counters["lies_found"] += 1
            if tracked.peer_is_whole(peer.name):
                self.penalise_liar(peer.name)
            else:
                self._context.penalise(peer, penalties.passed_a_lie, "forwarded a false shard")

    def penalise_liar(self, name: str) -> None:
        peer = self._context.peers.get(name)
        if peer is not None:
            peer.lies += 1
            self._context.penalise(peer, self._context.config.penalties.lie, "announced an object, sent false shards")

    def _reject(self, tracked: TrackedObject) -> None:
        """Drop an invalid object. It stays tracked, so its shards are not processed again."""
        self._context.counters["objects_refused"] += 1
        tracked.refused = True
        for shard_id in list(tracked.held.values()):
            self._context.cache.remove(shard_id)
        first_peer = tracked.first_peer
        tracked.settle()
        if first_peer is not None:
            self._context.penalise(
                first_peer, self._context.config.penalties.passed_a_lie, "was the first to send an invalid object"
            )

    def _replace(self, tracked: TrackedObject, encoded: bytes) -> None:
        """Replace held shards that may be false by the shards of the verified object."""
        true = {index: (h(frame), frame) for index, frame in enumerate(encode_shards(tracked.of, encoded))}
        for index, shard_id in list(tracked.held.items()):
            if true[index][0] != shard_id:
                self._context.cache.remove(shard_id)
        for index in list(true)[: tracked.of.shape.k]:
            if index not in tracked.held:
                tracked.held[index] = true[index][0]
                self._context.cache.put(*true[index], tracked, index, self._context.clock())

    def _deliver(self, received: Received) -> None:
        context, tag = self._context, received.of.address.tag
        if self._outbox.acknowledged(received):
            return
        readers = context.subscriptions.readers(tag)
        for channel, key in readers:
            try:
                opened = channel.open(received, key)
                items = opened.items
            except VeilError:
                continue
            context.counters["objects_delivered"] += 1
            for number, item in enumerate(items):
                self._emit_delivered(received, opened, number, item)
            self._acknowledge(received, opened, channel, key)
            return
        context.counters["objects_unreadable"] += bool(readers)

    def _emit_delivered(self, received: Received, opened: Opened, number: int, item: bytes) -> None:
        context, address = self._context, opened.address
        context.emit(
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
            context.trust.add_endorsement(opened.sender_pubkey, subject, at, context.clock())

    def _acknowledge(self, received: Received, opened: Opened, channel: Channel, key: Key) -> None:
        """Publish an acknowledgement under the same tag. Only the writer of the object can open it."""
        if not opened.flags & Flags.ACK_REQUESTED or isinstance(channel, Feed):
            return
        root, address = received.of.object_root, received.of.address
        lock = SharedKey(ack_key(root, open_object(received, key).payload))
        made = publish(write_letter(address, self._context.identity.signing, root), address, lock)
        self._context.promised = True
        self._dispersal.first_wave(made.of, made.shards, {})
        self.done.add(made.object_root)
        self._context.counters["acks_sent"] += 1
