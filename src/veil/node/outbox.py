"""The outbox: own messages, on disk until peers have them. Spec §1.1 and §9.1.

    publish → queued          stored; waits until a peer is connected
            → sealed          an object of one or more messages, under the current epoch, stored as a parcel
            → first wave      k + 2 shards to two fast peers, two to a fallback peer, some held back from each
            → escalated       until enough peers confirm the object: held back shards, then other peers
            → sent | acked    two peers have the whole object, or its reader has acknowledged it

A restart continues every parcel. A sealed object is never sealed again, so readers get it once.
"""

import struct
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from plumbing.cbor_heads import ARRAY, write_array
from veil.assembly import Batcher, Published, Received, batch_payload, encode_shards, open_object
from veil.codec import Reader
from veil.encryption import SharedKey, read_letter
from veil.node.addressing import Destination, DestinationKind, Identity, Sealed, Sealer
from veil.node.forwarding import Dispersal
from veil.node.frames import decode_set, encode_set
from veil.node.node_context import NodeContext
from veil.objects import NONCE_BYTES, Flags, ShardSet
from veil.store import Table
from veil.veil_errors import Refused, VeilError
from veil.veil_limits import MAX_BATCH_ITEMS, MAX_GROUP_BYTES, MAX_OBJECT_BYTES, MAX_UINT16

MESSAGE_ID = struct.Struct(">Q")
_MAX_UINT64 = (1 << 64) - 1
_MAX_SET_BYTES = 256
_ITEM_FIELDS, _PARCEL_FIELDS = 6, 5
_MS = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """A queued message."""

    destination: Destination
    ack: bool
    interactive: bool
    queued_at: float
    payload: bytes

    def encode(self) -> bytes:
        where = self.destination
        flags, queued_ms = self.ack | self.interactive << 1, int(self.queued_at * _MS)
        return write_array(where.kind, where.key, where.namespace, flags, queued_ms, self.payload)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "queued item")
        reader.exactly(ARRAY, _ITEM_FIELDS)
        kind, key, namespace = (
            reader.uint(max(DestinationKind)),
            reader.byte_string(MAX_UINT16),
            reader.uint(MAX_UINT16),
        )
        bits, queued_ms, payload = reader.uint(3), reader.uint(_MAX_UINT64), reader.byte_string(MAX_OBJECT_BYTES)
        reader.end()
        if not kind:
            reader.fail("kind 0 does not exist")
        return cls(
            Destination(DestinationKind(kind), key, namespace), bool(bits & 1), bool(bits & 2), queued_ms / _MS, payload
        )


@dataclass(frozen=True, slots=True)
class ParcelRecord:
    """An own object that is being sent, with the ids of its messages."""

    of: ShardSet
    encoded: bytes
    ack_key: bytes
    queued_at: float
    message_ids: tuple[int, ...]

    def encode(self) -> bytes:
        queued_ms = int(self.queued_at * _MS)
        return write_array(encode_set(self.of), self.encoded, self.ack_key, queued_ms, self.message_ids)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        reader = Reader(data, "parcel")
        reader.exactly(ARRAY, _PARCEL_FIELDS)
        of, encoded = decode_set(reader.byte_string(_MAX_SET_BYTES)), reader.byte_string(MAX_GROUP_BYTES)
        key, queued_ms = reader.byte_string(_MAX_SET_BYTES), reader.uint(_MAX_UINT64)
        ids = tuple(reader.uint(_MAX_UINT64) for _ in range(reader.head(ARRAY, MAX_BATCH_ITEMS)))
        reader.end()
        return cls(of, encoded, key, queued_ms / _MS, ids)


_LAST = b"last_message"
# A new peer triggers parcels that have been waiting for longer than this many timeouts.
_SEND_NOW_AFTER_TIMEOUTS = 2


@dataclass(frozen=True, slots=True)
class Publication:
    """The id of a new message, and its object root if it is sealed already."""

    message_id: int
    object_root: bytes | None


@dataclass(frozen=True, slots=True)
class Outbound:
    """One unfinished message."""

    message_id: int
    state: str
    object_root: bytes | None
    queued_at: float
    attempts: int
    peers_whole: int


@dataclass(slots=True)
class QueuedMessage:
    """A queued message without its payload, which stays in the store."""

    message_id: int
    size: int
    ack: bool
    interactive: bool
    queued_at: float


@dataclass(slots=True)
class OutgoingParcel:
    """An object that is being sent. `sent` has the bits of the shards sent to each peer."""

    record: ParcelRecord
    wait_s: float
    attempts: int = 0
    # Identifies the scheduled wave. A timer with an older ticket does nothing.
    ticket: int = 0
    whole: set[str] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)
    is_sent: bool = False


class Outbox:
    """Queued messages and parcels."""

    def __init__(self, context: NodeContext, dispersal: Dispersal) -> None:
        self._context = context
        self._dispersal = dispersal
        self._sealer = Sealer(context.config, context.identity)
        self._queues: dict[Destination, deque[QueuedMessage]] = {}
        self._queued_bytes = self._queued_items = 0
        self._parcels: dict[bytes, OutgoingParcel] = {}
        self._seal_due = False
        last = context.store.get(Table.META, _LAST)
        self._last_id = MESSAGE_ID.unpack(last)[0] if last else 0
        for key, value in context.store.items(Table.QUEUE):
            self._wait(MESSAGE_ID.unpack(key)[0], Item.decode(value))
        for _, value in list(context.store.items(Table.PARCELS)):
            self._adopt(ParcelRecord.decode(value))

    def __len__(self) -> int:
        return self._queued_items + len(self._parcels)

    def set_identity(self, identity: Identity) -> None:
        self._sealer = Sealer(self._context.config, identity)

    def publish(self, destination: Destination, payload: bytes, *, ack: bool, interactive: bool) -> Publication:
        context, now = self._context, self._context.clock()
        self._sealer.capacity(destination, now).check(len(payload))
        if ack and destination.kind is DestinationKind.FEED:
            raise Refused("publish", "messages in a feed cannot be acknowledged, because its readers are unknown")
        bounds = context.config.bounds
        if self._queued_items >= bounds.queue_items or self._queued_bytes + len(payload) > bounds.queue_bytes:
            raise Refused("publish", f"the queue is full: {self._queued_items} messages, {self._queued_bytes} bytes")
        message_id, item = self._next_id(), Item(destination, ack, interactive, now, payload)
        context.store.put(Table.QUEUE, MESSAGE_ID.pack(message_id), item.encode())
        self._wait(message_id, item)
        context.emit("queued", message_id=message_id)
        self.seal()
        context.commit()
        return Publication(message_id, self._root_of(message_id))

    def publish_sealed(self, published: Published) -> Publication:
        message_id = self._next_id()
        self._sealed(Sealed(published, b""), (message_id,), self._context.clock())
        self._context.commit()
        return Publication(message_id, published.object_root)

    def cancel(self, message_id: int) -> bool:
        """Cancel a message. Return False if it is unknown or shares an object that is already sealed."""
        for destination, queue in self._queues.items():
            found = next((one for one in queue if one.message_id == message_id), None)
            if found is not None:
                queue.remove(found)
                self._unqueue(found)
                if not queue:
                    del self._queues[destination]
                return True
        parcel = next((one for one in self._parcels.values() if one.record.message_ids == (message_id,)), None)
        if parcel is None:
            return False
        self._end(parcel, "failed", reason="cancelled")
        return True

    def outbound(self) -> tuple[Outbound, ...]:
        found = [
            Outbound(one.message_id, "queued", None, one.queued_at, 0, 0)
            for queue in self._queues.values()
            for one in queue
        ]
        for parcel in self._parcels.values():
            record, state = parcel.record, "sent" if parcel.is_sent else "under way"
            at = record.of.object_root, record.queued_at, parcel.attempts, len(parcel.whole)
            found += [Outbound(message_id, state, *at) for message_id in record.message_ids]
        return tuple(sorted(found, key=lambda one: one.message_id))

    def send_now(self) -> None:
        """A peer connected: seal queued messages and send waiting parcels now."""
        self.seal()
        for parcel in list(self._parcels.values()):
            if not parcel.sent or parcel.wait_s > _SEND_NOW_AFTER_TIMEOUTS * self._context.config.escalation.timeout_s:
                parcel.wait_s = 0.0
                self._schedule(parcel, 0.0)

    def seal(self) -> None:
        """Seal queued messages, if a peer is connected and few parcels are being sent."""
        context, now = self._context, self._context.clock()
        if not len(context.peers):
            return
        for destination in list(self._queues):
            while destination in self._queues and len(self._parcels) < context.config.bounds.parcels_under_way:
                if not self._seal_one(destination, now):
                    break
        if self._queues and not self._seal_due:
            self._seal_due = True
            context.timers.after(max(context.config.batch_linger_s, 0.05), self._seal_again)

    def peer_is_whole(self, root: bytes, peer: str) -> None:
        """A peer announced that it has an own object."""
        parcel = self._parcels.get(root)
        if parcel is None:
            return
        parcel.whole.add(peer)
        self._check_sent(parcel)

    def _check_sent(self, parcel: OutgoingParcel) -> bool:
        """Emit `sent` once enough peers have the object. Return whether the parcel is finished.

        After several waves one peer is enough. Confirmations may be false, so the object is announced a few more
        times, until all responsive peers have it.
        """
        settings, note_received = self._context.config.escalation, self._context.responsive_peers()
        wanted = settings.copies if parcel.attempts < settings.attempts_for_copies else 1
        if len(parcel.whole) < max(min(wanted, note_received), 1):
            return False
        if not parcel.is_sent:
            parcel.is_sent = True
            for message_id in parcel.record.message_ids:
                self._context.emit("sent", message_id=message_id, object_root=parcel.record.of.object_root)
        if parcel.record.ack_key or (len(parcel.whole) < note_received and parcel.attempts < settings.announcements):
            return False
        self._end(parcel, None)
        return True

    def acknowledged(self, received: Received) -> bool:
        """Process an acknowledgement. Return whether the object was one. Only a reader of the letter can create it."""
        for parcel in list(self._parcels.values()):
            if not parcel.record.ack_key or parcel.record.of.address.tag != received.of.address.tag:
                continue
            try:
                letter = read_letter(
                    received.obj.address, open_object(received, SharedKey(parcel.record.ack_key)).payload
                )
            except VeilError:
                continue
            if letter.body == parcel.record.of.object_root:
                self._context.counters["acks_received"] += 1
                self._end(parcel, "acked", by=letter.sender_pubkey)
                return True
        return False

    def _seal_again(self) -> None:
        self._seal_due = False
        self.seal()

    def _seal_one(self, destination: Destination, now: float) -> bool:
        """Seal one object for a destination. Return False if the batch should wait for more messages."""
        context, queue = self._context, self._queues[destination]
        try:
            room = self._sealer.capacity(destination, now)
        except VeilError as error:
            self._fail(queue.popleft(), destination, str(error))
            return True
        batcher, taken = Batcher(room.overhead, room.target), list[QueuedMessage]()
        for one in queue:
            stored = context.store.get(Table.QUEUE, MESSAGE_ID.pack(one.message_id))
            assert stored is not None, "a queued message without its record"
            batcher.add(Item.decode(stored).payload)
            taken.append(one)
            if batcher.full:
                break
        is_old = now - queue[0].queued_at >= context.config.batch_linger_s
        if not (batcher.full or is_old or any(one.interactive for one in taken)):
            return False
        items = batcher.take()
        payload, flags = batch_payload(items)
        taken = taken[: len(items)]
        if any(one.ack for one in taken):
            flags |= Flags.ACK_REQUESTED
        sealed = self._sealer.seal(destination, payload, flags, context.random.randbytes(NONCE_BYTES), now)
        for one in taken:
            queue.popleft()
            self._unqueue(one)
        if not queue:
            del self._queues[destination]
        self._sealed(sealed, tuple(one.message_id for one in taken), taken[0].queued_at)
        return True

    def _sealed(self, sealed: Sealed, message_ids: tuple[int, ...], queued_at: float) -> None:
        """Store a sealed object. A crash before the commit leaves the queued messages, after it the parcel."""
        published = sealed.published
        record = ParcelRecord(published.of, published.encoded, sealed.ack_key, queued_at, message_ids)
        self._context.store.put(Table.PARCELS, published.object_root, record.encode())
        self._context.promised = True
        for message_id in message_ids:
            self._context.emit("sealed", message_id=message_id, object_root=published.object_root)
        self._launch(self._adopt(record), published.shards)

    def _adopt(self, record: ParcelRecord) -> OutgoingParcel:
        parcel = OutgoingParcel(record, self._context.config.escalation.timeout_s)
        self._parcels[record.of.object_root] = parcel
        if record.ack_key:
            self._context.subscriptions.await_tag(record.of.address.tag)
        return parcel

    def _launch(self, parcel: OutgoingParcel, shards: tuple[bytes, ...]) -> None:
        self._dispersal.first_wave(parcel.record.of, shards, parcel.sent)
        parcel.attempts += 1
        self._schedule(parcel, parcel.wait_s)

    def _schedule(self, parcel: OutgoingParcel, seconds: float) -> None:
        parcel.ticket += 1
        self._context.timers.after(seconds, partial(self._escalate, parcel.record.of.object_root, parcel.ticket))

    def _escalate(self, root: bytes, ticket: int) -> None:
        """Send more shards of a parcel that too few peers have confirmed."""
        parcel, settings = self._parcels.get(root), self._context.config.escalation
        if parcel is None or parcel.ticket != ticket:
            return
        if self._context.clock() - parcel.record.queued_at > settings.give_up_s:
            self._end(
                parcel,
                "failed",
                reason="no peer confirmed it in time" if not parcel.is_sent else "not acknowledged in time",
            )
            return
        if self._check_sent(parcel):
            return
        if not len(self._context.peers):
            self._schedule(parcel, settings.max_wait_s)
            return
        shards = encode_shards(parcel.record.of, parcel.record.encoded)
        if parcel.sent:
            batch = 0 if parcel.is_sent and not parcel.record.ack_key else settings.batch_shards
            self._dispersal.escalate(parcel.record.of, shards, parcel.sent, parcel.whole, batch)
        else:
            self._dispersal.first_wave(parcel.record.of, shards, parcel.sent)
        parcel.attempts += 1
        parcel.wait_s = min(max(parcel.wait_s * settings.backoff, settings.timeout_s), settings.max_wait_s)
        self._schedule(parcel, parcel.wait_s * (0.75 + 0.5 * self._context.random.random()))

    def _end(self, parcel: OutgoingParcel, kind: str | None, **data: str | bytes) -> None:
        """Remove a parcel, and emit its final event if there is one."""
        record = parcel.record
        del self._parcels[record.of.object_root]
        self._context.store.delete(Table.PARCELS, record.of.object_root)
        if record.ack_key:
            self._context.subscriptions.release_tag(record.of.address.tag)
        for message_id in record.message_ids if kind else ():
            self._context.emit(kind or "", message_id=message_id, object_root=record.of.object_root, **data)
        self.seal()

    def _fail(self, one: QueuedMessage, destination: Destination, reason: str) -> None:
        self._unqueue(one)
        if not self._queues[destination]:
            del self._queues[destination]
        self._context.emit("failed", message_id=one.message_id, object_root=None, reason=reason)

    def _wait(self, message_id: int, item: Item) -> None:
        waiting = QueuedMessage(message_id, len(item.payload), item.ack, item.interactive, item.queued_at)
        self._queues.setdefault(item.destination, deque()).append(waiting)
        self._queued_items += 1
        self._queued_bytes += waiting.size

    def _unqueue(self, one: QueuedMessage) -> None:
        self._context.store.delete(Table.QUEUE, MESSAGE_ID.pack(one.message_id))
        self._queued_items -= 1
        self._queued_bytes -= one.size

    def _next_id(self) -> int:
        self._last_id += 1
        self._context.store.put(Table.META, _LAST, MESSAGE_ID.pack(self._last_id))
        return self._last_id

    def _root_of(self, message_id: int) -> bytes | None:
        for root, parcel in reversed(self._parcels.items()):
            if message_id in parcel.record.message_ids:
                return root
        return None
