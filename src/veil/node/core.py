"""The node, without any I/O of its own.

Frames arrive through `receive` and leave through `take`. The caller supplies the clock and calls `tick` at
`next_due`. The same code runs over sockets, over files, and by the thousand in a simulation.

    receive → budget → id → header → epoch, tag → forward → restore → verify → announce, open, deliver, acknowledge
    publish → queue → seal → first wave → escalate → sent, acknowledged
"""

import random
from collections.abc import Callable
from contextlib import suppress

from veil.assembly import Published
from veil.node import status_views
from veil.node.addressing import Destination, DestinationKind, Identity
from veil.node.config import Counters, NodeConfig, Tier
from veil.node.delivery import Delivery
from veil.node.forwarding import Dispersal, Forwarder
from veil.node.intake import Intake
from veil.node.node_context import NodeContext
from veil.node.node_events import Event
from veil.node.outbox import Outbound, Outbox, Publication
from veil.node.peers import PeerLink, Peers
from veil.node.pull import ShardPull, SummaryExchange
from veil.node.subscriptions import Subscription
from veil.node.trust import Explanation, encode_endorsement
from veil.objects import Namespace
from veil.store import Store, StoreFailed, Table
from veil.veil_errors import Unavailable
from veil.veil_limits import KIB

_HOUSEKEEPING_S = 30.0


class State:
    """Everything a node holds in memory, loaded from its store. Peers and counters outlive it: they are not stored.

    `State(…)` only reads, so a node whose store cannot write still answers from the last commit. `begin` resumes stored
    work and writes to the store. A node loads its state at the start and after a store failure. Both loads give the
    state that a crash would leave.
    """

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        forwarder = Forwarder(context)
        dispersal = Dispersal(context, forwarder)
        self.summary_exchange = SummaryExchange(context, forwarder)
        self.outbox = Outbox(context, dispersal)
        self.delivery = Delivery(context, forwarder, dispersal, self.outbox)
        self.intake = Intake(context, forwarder, ShardPull(context), self.summary_exchange, self.delivery, self.outbox)
        self._load_cache()
        self.update_peer_tiers()

    def begin(self) -> None:
        """Resume stored objects: restore, verify and announce them as if they arrived now."""
        context = self.context
        now = context.clock()
        for entry in list(context.cache):
            if entry.tracked is None or entry.tracked.whole:
                continue
            frame = context.cache.get(entry.shard_id)
            if frame is not None and entry.expiry > now:
                self.intake.resume(entry.tracked, entry.shard_id, frame)
        self.clean()
        self._run_housekeeping()
        for link in context.peers.links():
            self.greet(link)

    def greet(self, link: PeerLink) -> None:
        """A peer connected: send it a summary and the waiting messages."""
        self.summary_exchange.send(link)
        self.summary_exchange.start()
        self.outbox.send_now()

    def update_peer_tiers(self) -> None:
        """Set the current tier of every peer."""
        for peer in self.context.peers:
            peer.tier = self.context.trust.tier(peer.pubkey, self.context.clock())

    def request_new_tags(self, before: frozenset[bytes]) -> None:
        """Process strays of new tags, and send summaries, so peers announce objects that are missing here."""
        new = self.context.subscriptions.tags() - before
        if new:
            self.intake.adopt_strays(new)
            for link in self.context.choose(2, None, lambda peer: False):
                self.summary_exchange.send(link)

    def clean(self) -> None:
        """Drop expired data."""
        now = self.context.clock()
        self.context.objects.expire(now)
        self.context.cache.expire(now)
        self.context.inbox.expire(now)

    def _load_cache(self) -> None:
        context = self.context
        stored = sorted(context.cache.stored(), key=lambda one: one[3])
        for shard_id, of, index, expiry, tier in stored:
            tracked = context.objects.get(of) or context.objects.open(
                of, tier, expiry - context.config.bounds.cache_ttl_s, None
            )
            context.cache.adopt(shard_id, tracked, index)
            tracked.held[index] = shard_id
            if of.object_root in self.delivery.done:
                tracked.whole = True
                context.objects.whole(tracked)
                context.remember(shard_id, tracked, index)

    def _run_housekeeping(self) -> None:
        context = self.context
        before = context.subscriptions.tags()
        if context.subscriptions.refresh(context.clock()):
            self.request_new_tags(before)
        self.clean()
        context.commit_soon()
        context.timers.after(_HOUSEKEEPING_S, self._run_housekeeping)


_TAKE_BYTES = 256 * KIB
_PROBE_KEY, _PROBE_BYTES = b"probe", 64 * KIB
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0


class _Change:
    """Wraps every call that may write. Raise `Unavailable` if the store rejects the changes.

    Listeners may call the node from within a call. After a failure the state is replaced when the outermost call
    returns; until then the store rejects all changes, so no call can continue with a discarded state.
    """

    __slots__ = ("_node",)

    def __init__(self, node: "Node") -> None:
        self._node = node

    def __enter__(self) -> None:
        self._node._enter_change()

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        self._node._leave_change(raised)


class Node:
    """One node. Use it from one thread.

    If the store cannot write, for example because the disk is full, the node discards its memory and loads the last
    commit again, as after a crash. Until the store recovers, queries work, frames are dropped, nothing is sent, and
    calls that change something raise `Unavailable`. The node retries after 1 s, then less often, up to every 30 s.
    `on_store` is called with the fault, and with None when the store works again.
    """

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        identity: Identity,
        *,
        clock: Callable[[], float],
        random: random.Random,
        on_ready: Callable[[str, str], None] | None = None,
        on_store: Callable[[status_views.StoreFault | None], None] | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._identity = identity
        self._clock = clock
        self._random = random
        self._on_store = on_store
        self._peers = Peers(config, on_ready)
        self._counters = Counters()
        self._listener: Callable[[Event], None] | None = None
        self._calls = 0
        self._fault: status_views.StoreFault | None = None
        self._retry_s, self._retry_at, self._resumed_at = _FIRST_RETRY_S, 0.0, clock()
        self._changing = _Change(self)
        self._state = self._loaded()
        with suppress(Unavailable), self._changing:
            self._state.begin()

    @property
    def _context(self) -> NodeContext:
        return self._state.context

    # The store

    def _loaded(self) -> State:
        """The state as of the last commit."""
        context = NodeContext(
            self._config,
            self._store,
            self._identity,
            self._clock,
            self._random,
            self._counters,
            self._peers,
            self._listener,
        )
        return State(context)

    def _enter_change(self) -> None:
        if self._fault is not None:
            raise self._unavailable(self._fault.reason)
        self._calls += 1

    def _leave_change(self, raised: BaseException | None) -> None:
        self._calls -= 1
        if self._store.failed is not None and not self._calls:
            self._stop_writing(self._store.failed)
        if isinstance(raised, StoreFailed):
            raise self._unavailable(str(raised)) from None

    def _unavailable(self, reason: str) -> Unavailable:
        error = Unavailable("store", f"the node cannot write: {reason}")
        error.add_note("free space on the disk of the node; the node resumes by itself")
        return error

    def _stop_writing(self, failed: StoreFailed) -> None:
        """Return to the last commit and schedule a retry."""
        now, before = self._clock(), self._fault
        if before is None and now - self._resumed_at > _LAST_RETRY_S:
            self._retry_s = _FIRST_RETRY_S
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
        self._fault = status_views.StoreFault(before.since if before else now, str(failed))
        self._store.rollback()
        self._peers.forget_traffic()
        self._state = self._loaded()
        if before is None and self._on_store is not None:
            self._on_store(self._fault)

    def _try_writing(self) -> None:
        """Drop expired data and write a probe. If both succeed, resume as after a start."""
        try:
            self._state.clean()
            self._store.commit()
            self._store.put(Table.META, _PROBE_KEY, bytes(_PROBE_BYTES))
            self._store.commit()
            self._store.delete(Table.META, _PROBE_KEY)
            self._store.commit()
            self._state = self._loaded()
            self._state.begin()
        except StoreFailed as failed:
            self._stop_writing(failed)
            return
        self._fault, self._resumed_at = None, self._clock()
        if self._on_store is not None:
            self._on_store(None)

    # Links

    def connected(self, lane: str, peer: str, pubkey: bytes | None = None) -> bool:
        """Register a link. `peer` is the same name on every lane. Return False if there are too many peers."""
        context = self._context
        link = context.peers.connect(lane, peer, pubkey, context.trust.tier(pubkey, context.clock()))
        if link is None:
            return False
        with suppress(Unavailable), self._changing:
            context.emit("peer_up", lane=lane, peer=peer)
            self._state.greet(link)
        return True

    def disconnected(self, lane: str, peer: str) -> None:
        if self._context.peers.link(lane, peer) is None:
            return
        with suppress(Unavailable), self._changing:
            self._context.emit("peer_down", lane=lane, peer=peer)
        gone = self._context.peers.disconnect(lane, peer)
        if gone is not None:
            self._state.summary_exchange.forget(peer)

    def receive(self, lane: str, peer: str, frame: bytes) -> None:
        """Process a frame. This never raises; invalid frames count against the peer.

        While the store cannot write, the frame is dropped. The peer gets no confirmation, so it sends it again.
        """
        link = self._context.peers.link(lane, peer)
        if link is not None and frame:
            with suppress(Unavailable), self._changing:
                self._state.intake.receive(link, frame)

    def note_sent(self, lane: str, peer: str, ok: bool, seconds: float | None = None) -> None:
        """Record a delivery result that the transport measured."""
        link = self._context.peers.link(lane, peer)
        if link is not None:
            link.note(1.0 if ok else 0.0, seconds)

    def take(self, lane: str, peer: str, max_bytes: int = _TAKE_BYTES) -> tuple[bytes, ...]:
        """Frames to send now. Data that these frames promise to keep is committed before this returns."""
        link = self._context.peers.link(lane, peer)
        if link is None or not link.queued_bytes:
            return ()
        with suppress(Unavailable), self._changing:
            # The commit calls listeners, which may add promises or find that the store has failed.
            while self._context.promised or self._store.failed is not None:
                self._context.commit()
            taken = self._context.peers.take(link, max_bytes)
            self._context.counters["bytes_out"] += sum(map(len, taken))
            return tuple(taken)
        return ()

    def ready(self) -> tuple[tuple[str, str], ...]:
        """The links with queued frames."""
        return tuple(link.key for link in self._context.peers.links() if link.queued_bytes)

    # Time

    def next_due(self) -> float | None:
        """When to `tick` next."""
        return self._context.timers.next_due() if self._fault is None else self._retry_at

    def tick(self) -> None:
        """Do all that is due."""
        if self._fault is not None and self._clock() >= self._retry_at:
            self._try_writing()
        with suppress(Unavailable), self._changing:
            self._context.timers.run()

    # Publishing

    def publish(
        self, destination: Destination, payload: bytes, *, ack: bool | None = None, interactive: bool = True
    ) -> Publication:
        """Queue a message. It is on disk when this returns, and stays there until peers have it.

        By default only private messages request an acknowledgement. A message that is not `interactive` may wait a
        moment to share an object with others. Raise `Refused` if it is too large or the queue is full, and
        `Unavailable` if the store cannot write; then the message is not accepted.
        """
        wanted = destination.kind is DestinationKind.PRIVATE if ack is None else ack
        with self._changing:
            return self._state.outbox.publish(destination, payload, ack=wanted, interactive=interactive)

    def publish_sealed(self, published: Published) -> Publication:
        """Send an object that is already sealed."""
        with self._changing:
            return self._state.outbox.publish_sealed(published)

    def outbound(self) -> tuple[Outbound, ...]:
        return self._state.outbox.outbound()

    def cancel(self, message_id: int) -> bool:
        with self._changing:
            cancelled = self._state.outbox.cancel(message_id)
            self._context.commit()
            return cancelled

    # Receiving

    def subscribe(self, subscription: Subscription) -> bool:
        """Add a subscription. Return False if it exists."""
        context = self._context
        if subscription in context.subscriptions:
            return False
        with self._changing:
            before = context.subscriptions.tags()
            context.subscriptions.add(subscription, context.clock())
            self._state.request_new_tags(before)
            context.commit()
            return True

    def unsubscribe(self, subscription: Subscription) -> bool:
        with self._changing:
            removed = self._context.subscriptions.remove(subscription, self._context.clock())
            self._context.commit()
            return removed

    def subscriptions(self) -> tuple[Subscription, ...]:
        return self._context.subscriptions.all()

    def set_identity(self, identity: Identity) -> None:
        """Replace keys and groups."""
        context = self._context
        before = context.subscriptions.tags()
        self._identity = context.identity = identity
        context.subscriptions.set_identity(identity, context.clock())
        self._state.outbox.set_identity(identity)
        with suppress(Unavailable), self._changing:
            self._state.request_new_tags(before)

    @property
    def on_event(self) -> Callable[[Event], None] | None:
        """Called with every event once it is committed."""
        return self._listener

    @on_event.setter
    def on_event(self, listener: Callable[[Event], None] | None) -> None:
        self._listener = self._context.events.listener = listener

    @property
    def first_seq(self) -> int:
        return self._context.events.first_seq

    @property
    def last_seq(self) -> int:
        """The number of the last event that is on disk."""
        return self._context.events.committed_seq

    def events(self, since: int = 0, limit: int = 256) -> tuple[Event, ...]:
        """Committed events after a number."""
        with suppress(Unavailable):
            self.settle()
        return self._context.events.since(since, limit)

    def settle(self) -> None:
        """Commit all received data. Raise `Unavailable` if the store cannot write; then some of it may be lost."""
        with self._changing:
            self._context.commit()

    # Trust

    def set_tier(self, pubkey: bytes, tier: Tier | None) -> None:
        """Set the tier of a key, or None to derive it from endorsements."""
        context = self._context
        with self._changing:
            context.trust.set_tier(pubkey, tier)
            self._state.update_peer_tiers()
            context.emit("policy", pubkey=pubkey, tier=tier.name.lower() if tier is not None else None)
            context.commit()

    def tiers(self) -> dict[bytes, Tier]:
        return self._context.trust.by_hand()

    def endorse(self, pubkey: bytes) -> Publication:
        """Publish an endorsement of a key in the feed of this node."""
        return self.publish(Destination.feed(Namespace.TRUST), encode_endorsement(pubkey, self._context.clock()))

    def explain(self, pubkey: bytes) -> Explanation:
        """The tier of a key, with reasons."""
        return self._context.trust.explain(pubkey, self._context.clock())

    def explain_tag(self, tag: bytes, namespace: int) -> Explanation:
        """The tier of a tag, with the reasons why its shards are forwarded or not."""
        return status_views.explain_tag(self._context, tag, namespace)

    # Views

    def status(self) -> status_views.Status:
        context = self._context
        whole = sum(1 for tracked in context.objects if tracked.whole)
        return status_views.Status(
            now=context.clock(),
            peers=len(context.peers),
            links=sum(1 for _ in context.peers.links()),
            subscriptions=len(context.subscriptions),
            objects_open=len(context.objects) - whole,
            objects_whole=whole,
            cache_shards=len(context.cache),
            cache_bytes=context.cache.held_bytes,
            inbox_bytes=context.inbox.held_bytes,
            outbound=len(self._state.outbox),
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            store_fault=self._fault,
        )

    def peers(self) -> tuple[status_views.PeerInfo, ...]:
        return status_views.peers_of(self._context)

    def lanes(self) -> tuple[status_views.LaneInfo, ...]:
        return status_views.lanes_of(self._context)

    def cache_entries(self, limit: int = 256) -> tuple[status_views.CacheInfo, ...]:
        return status_views.cache_of(self._context, limit)

    def metrics(self) -> dict[str, int | float]:
        """Counters, and the fill levels of bounded containers."""
        context = self._context
        held = {
            "seen_ids": len(context.seen),
            "done_roots": len(self._state.delivery.done),
            "agenda": len(context.timers),
        }
        shown = status_views.gauges(self.status())
        return {**context.counters, **held, **shown}

    def forget(self, object_root: bytes) -> int:
        """Drop an object. Return the number of removed shards."""
        with self._changing:
            tracked = self._context.objects.by_root(object_root)
            count = len(tracked.held) if tracked else 0
            if tracked is not None:
                self._context.objects.drop(tracked.of)
            return count

    def close(self) -> None:
        """Commit and close the store. If the commit fails, only data that was not promised is lost."""
        with suppress(Unavailable):
            self.settle()
        self._store.close()
