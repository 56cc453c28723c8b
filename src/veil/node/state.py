"""Everything a node holds in memory, loaded from its store.

`State(…)` only reads, so a node whose store cannot write still answers from the last commit. `begin` resumes stored
work, and writes. A node loads its state at the start and after a store failure; both give the state after a crash.
"""

import random
from collections.abc import Callable

from veil.codec.native import NATIVE
from veil.fec.reassembly import Inbox
from veil.node.cache import Cache
from veil.node.config import NodeConfig
from veil.node.counters import Counters
from veil.node.delivery import Delivery
from veil.node.forwarding import Dispersal, Forwarder
from veil.node.intake import Intake
from veil.node.node_context import NodeContext, Timers
from veil.node.node_events import Event, Events
from veil.node.node_identity import Identity
from veil.node.object_progress import TrackedObject, TrackedObjects
from veil.node.outbox import Outbox
from veil.node.peers import PeerLink, Peers
from veil.node.pull import ShardPull
from veil.node.subscriptions import Subscriptions
from veil.node.summary_exchange import SummaryExchange
from veil.node.trust import Trust
from veil.store.tables import Store

_HOUSEKEEPING_S = 30.0


class State:
    """The context and the parts of a node. Peers and counters outlive it, because they are not in the store."""

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        identity: Identity,
        clock: Callable[[], float],
        random: random.Random,
        peers: Peers,
        counters: Counters,
        listener: Callable[[Event], None] | None,
    ) -> None:
        tiers = dict(config.tiers)
        self.context = context = NodeContext(
            config=config,
            store=store,
            identity=identity,
            clock=clock,
            random=random,
            counters=counters,
            timers=Timers(clock),
            peers=peers,
            objects=TrackedObjects(config.bounds, self._dropped),
            cache=Cache(store, config.bounds, tiers, counters),
            trust=Trust(store, config.bounds, tiers),
            subscriptions=Subscriptions(store, config, identity, clock()),
            events=Events(store, config.bounds, listener),
            # `Done` remembers whole objects for longer than the inbox.
            inbox=Inbox(
                NATIVE,
                max_bytes=config.bounds.inbox_bytes,
                max_done=config.bounds.objects,
                ttl_seconds=config.bounds.cache_ttl_s,
            ),
        )
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

    def _dropped(self, tracked: TrackedObject) -> None:
        self.context.counters["objects_dropped"] += not tracked.whole
        for shard_id in list(tracked.held.values()):
            self.context.cache.remove(shard_id)
