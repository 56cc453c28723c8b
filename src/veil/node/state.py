"""Everything a node holds in memory, loaded from its store.

`State(…)` only reads, so a node whose store cannot write still answers from the last commit. `begin` takes up the work
that the store holds, and writes. A node loads its state when it is made, and again after its store has failed: both
leave exactly what a crash would have left.
"""

import random
from collections.abc import Callable

from veil.codec.native import NATIVE
from veil.fec.reassembly import Inbox
from veil.node.cache import Cache
from veil.node.config import NodeConfig
from veil.node.counters import Counters
from veil.node.delivery import Wholes
from veil.node.digest_exchange import Summarising
from veil.node.forwarding import Launching, Passing
from veil.node.intake import Intake
from veil.node.node_context import Agenda, Desk
from veil.node.node_events import Event, Events
from veil.node.node_identity import Identity
from veil.node.object_progress import Ledger, Tracked
from veil.node.outbox import Outbox
from veil.node.peers import PeerLink, Peers
from veil.node.pull import ShardPull
from veil.node.subscriptions import Subscriptions
from veil.node.trust import Trust
from veil.store.tables import Store

_HOUSEKEEPING_S = 30.0


class State:
    """A desk and the parts that work at it. Peers and counters outlive it; they are not in the store."""

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
        self.desk = desk = Desk(
            config=config,
            store=store,
            identity=identity,
            clock=clock,
            random=random,
            counters=counters,
            agenda=Agenda(clock),
            peers=peers,
            ledger=Ledger(config.bounds, self._dropped),
            cache=Cache(store, config.bounds, tiers, counters),
            trust=Trust(store, config.bounds, tiers),
            subscriptions=Subscriptions(store, config, identity, clock()),
            events=Events(store, config.bounds, listener),
            # The ledger knows longer than the inbox what was whole.
            inbox=Inbox(
                NATIVE,
                max_bytes=config.bounds.inbox_bytes,
                max_done=config.bounds.objects,
                ttl_seconds=config.bounds.cache_ttl_s,
            ),
        )
        passing = Passing(desk)
        launching = Launching(desk, passing)
        self.summarising = Summarising(desk, passing)
        self.outbox = Outbox(desk, launching)
        self.wholes = Wholes(desk, passing, launching, self.outbox)
        self.intake = Intake(desk, passing, ShardPull(desk), self.summarising, self.wholes, self.outbox)
        self._load_cache()
        self.judge_peers()

    def begin(self) -> None:
        """Take up what the store has: objects are put together, judged and announced as if they came now."""
        desk = self.desk
        now = desk.clock()
        for entry in list(desk.cache):
            if entry.tracked is None or entry.tracked.whole:
                continue
            frame = desk.cache.get(entry.shard_id)
            if frame is not None and entry.expiry > now:
                self.intake.resume(entry.tracked, entry.shard_id, frame)
        self.clean()
        self._keep_house()
        for link in desk.peers.links():
            self.greet(link)

    def greet(self, link: PeerLink) -> None:
        """A peer is there: tell it what is here, and send it what waits."""
        self.summarising.send(link)
        self.summarising.start()
        self.outbox.kick()

    def judge_peers(self) -> None:
        """Give every peer the tier that its key has now."""
        for peer in self.desk.peers:
            peer.tier = self.desk.trust.tier(peer.pubkey, self.desk.clock())

    def ask_anew(self, before: frozenset[bytes]) -> None:
        """Tags are asked for that were not: take what is here of them, and tell peers what is not."""
        new = self.desk.subscriptions.tags() - before
        if new:
            self.intake.adopt_strays(new)
            for link in self.desk.choose(2, None, lambda peer: False):
                self.summarising.send(link)

    def clean(self) -> None:
        """Drop what has expired."""
        now = self.desk.clock()
        self.desk.ledger.expire(now)
        self.desk.cache.expire(now)
        self.desk.inbox.expire(now)

    def _load_cache(self) -> None:
        desk = self.desk
        stored = sorted(desk.cache.stored(), key=lambda one: one[3])
        for shard_id, of, index, expiry, tier in stored:
            tracked = desk.ledger.get(of) or desk.ledger.open(of, tier, expiry - desk.config.bounds.cache_ttl_s, None)
            desk.cache.adopt(shard_id, tracked, index)
            tracked.held[index] = shard_id
            if of.object_root in self.wholes.done:
                tracked.whole = True
                desk.ledger.whole(tracked)
                desk.remember(shard_id, tracked, index)

    def _keep_house(self) -> None:
        desk = self.desk
        before = desk.subscriptions.tags()
        if desk.subscriptions.refresh(desk.clock()):
            self.ask_anew(before)
        self.clean()
        desk.commit_soon()
        desk.agenda.after(_HOUSEKEEPING_S, self._keep_house)

    def _dropped(self, tracked: Tracked) -> None:
        self.desk.counters["objects_dropped"] += not tracked.whole
        for shard_id in list(tracked.held.values()):
            self.desk.cache.remove(shard_id)
