"""The node: everything VEIL does, without any I/O of its own.

Frames come in through `receive` and leave through `take`; time is the clock it is given, and `next_due` says when to
`tick`. So one node runs over sockets, over files and, by the thousand, in a simulation, and is the same node.

    receive → budget → id → header → epoch, tag → pass on → put together → judge → announce, open, deliver, acknowledge
    publish → queue → seal → first wave → escalate → sent, acknowledged
"""

import random
from collections.abc import Callable

from veil.assembly import Published
from veil.codec.native import NATIVE
from veil.fec.inbox import Inbox
from veil.limits import KIB
from veil.namespaces import Namespace
from veil.node import views
from veil.node.agenda import Agenda
from veil.node.cache import Cache
from veil.node.config import NodeConfig, Tier
from veil.node.counters import Counters
from veil.node.desk import Desk
from veil.node.destinations import Destination, Kind
from veil.node.events import Event, Events
from veil.node.identity import Identity
from veil.node.intake import Intake
from veil.node.launching import Launching
from veil.node.ledger import Ledger, Tracked
from veil.node.outbox import Outbound, Outbox, Publication
from veil.node.passing import Passing
from veil.node.peers import Peers
from veil.node.pulling import Pulling
from veil.node.subscriptions import Subscription, Subscriptions
from veil.node.summarising import Summarising
from veil.node.trust import Explanation, Trust, encode_endorsement
from veil.node.wholes import Wholes
from veil.objects import Address
from veil.store.tables import Store

_HOUSEKEEPING_S = 30.0
_TAKE_BYTES = 256 * KIB


class Node:
    """One node. Use it from one thread."""

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        identity: Identity,
        *,
        clock: Callable[[], float],
        random: random.Random,
        on_ready: Callable[[str, str], None] | None = None,
    ) -> None:
        counters, now = Counters(), clock()
        tiers = dict(config.tiers)
        self._desk = desk = Desk(
            config=config,
            store=store,
            identity=identity,
            clock=clock,
            random=random,
            counters=counters,
            agenda=Agenda(clock),
            peers=Peers(config, on_ready),
            ledger=Ledger(config.bounds, self._dropped),
            cache=Cache(store, config.bounds, tiers, counters),
            trust=Trust(store, config.bounds, tiers),
            subscriptions=Subscriptions(store, config, identity, now),
            events=Events(store, config.bounds),
            # The ledger knows longer than the inbox what was whole.
            inbox=Inbox(
                NATIVE,
                max_bytes=config.bounds.inbox_bytes,
                max_done=config.bounds.objects,
                ttl_seconds=config.bounds.cache_ttl_s,
            ),
        )
        self._passing = Passing(desk)
        self._launching = Launching(desk, self._passing)
        self._summarising = Summarising(desk, self._passing)
        self._outbox = Outbox(desk, self._launching)
        self._wholes = Wholes(desk, self._passing, self._launching, self._outbox)
        pulling = Pulling(desk)
        self._intake = Intake(desk, self._passing, pulling, self._summarising, self._wholes, self._outbox)
        self._resume(now)
        self._keep_house()

    # Links

    def connected(self, lane: str, peer: str, pubkey: bytes | None = None) -> bool:
        """A link is up. `peer` is the same on every lane where it is the same peer; False where there is no room."""
        desk = self._desk
        link = desk.peers.connect(lane, peer, pubkey, desk.trust.tier(pubkey, desk.clock()))
        if link is None:
            return False
        desk.tell("peer_up", lane=lane, peer=peer)
        self._summarising.send(link)
        self._summarising.start()
        self._outbox.kick()
        return True

    def disconnected(self, lane: str, peer: str) -> None:
        if self._desk.peers.link(lane, peer) is None:
            return
        self._desk.tell("peer_down", lane=lane, peer=peer)
        gone = self._desk.peers.disconnect(lane, peer)
        if gone is not None:
            self._summarising.forget(peer)

    def receive(self, lane: str, peer: str, frame: bytes) -> None:
        """Take a frame. Whatever is in it, this does not raise: what is wrong with it costs the peer."""
        link = self._desk.peers.link(lane, peer)
        if link is not None and frame:
            self._intake.receive(link, frame)

    def note_sent(self, lane: str, peer: str, ok: bool, seconds: float | None = None) -> None:
        """What a transport knows of a link by itself."""
        link = self._desk.peers.link(lane, peer)
        if link is not None:
            link.note(1.0 if ok else 0.0, seconds)

    def take(self, lane: str, peer: str, max_bytes: int = _TAKE_BYTES) -> tuple[bytes, ...]:
        """Frames to send now. What they promise is on disk before they are given out."""
        link = self._desk.peers.link(lane, peer)
        if link is None or not link.queued_bytes:
            return ()
        if self._desk.promised:
            self._desk.commit()
        taken = self._desk.peers.take(link, max_bytes)
        self._desk.counters["bytes_out"] += sum(map(len, taken))
        return tuple(taken)

    def ready(self) -> tuple[tuple[str, str], ...]:
        """The links that have something to send."""
        return tuple(link.key for link in self._desk.peers.links() if link.queued_bytes)

    # Time

    def next_due(self) -> float | None:
        """When to `tick` next."""
        return self._desk.agenda.next_due()

    def tick(self) -> None:
        """Do all that is due."""
        self._desk.agenda.run()

    # Saying

    def publish(
        self, destination: Destination, payload: bytes, *, ack: bool | None = None, interactive: bool = True
    ) -> Publication:
        """Say something. It is on disk when this returns, and stays there until somebody has it.

        Acknowledgements are asked of one recipient unless told otherwise. What is not interactive may wait a moment
        to share its object. Raise `Refused` where it can never be sent, or the queue is full.
        """
        wanted = destination.kind is Kind.PRIVATE if ack is None else ack
        return self._outbox.publish(destination, payload, ack=wanted, interactive=interactive)

    def publish_sealed(self, published: Published) -> Publication:
        """Send an object that is made already."""
        return self._outbox.publish_sealed(published)

    def outbound(self) -> tuple[Outbound, ...]:
        return self._outbox.outbound()

    def cancel(self, message_id: int) -> bool:
        cancelled = self._outbox.cancel(message_id)
        self._desk.commit()
        return cancelled

    # Listening

    def subscribe(self, subscription: Subscription) -> bool:
        """Ask for something; False where it is asked for already."""
        desk = self._desk
        before = desk.subscriptions.tags()
        if not desk.subscriptions.add(subscription, desk.clock()):
            return False
        self._ask_anew(before)
        desk.commit()
        return True

    def unsubscribe(self, subscription: Subscription) -> bool:
        removed = self._desk.subscriptions.remove(subscription, self._desk.clock())
        self._desk.commit()
        return removed

    def subscriptions(self) -> tuple[Subscription, ...]:
        return self._desk.subscriptions.all()

    def set_identity(self, identity: Identity) -> None:
        """Other keys or groups from now on."""
        desk = self._desk
        before = desk.subscriptions.tags()
        desk.identity = identity
        desk.subscriptions.set_identity(identity, desk.clock())
        self._outbox.set_identity(identity)
        self._ask_anew(before)

    @property
    def on_event(self) -> Callable[[Event], None] | None:
        """Called with every event once it is committed."""
        return self._desk.events.listener

    @on_event.setter
    def on_event(self, listener: Callable[[Event], None] | None) -> None:
        self._desk.events.listener = listener

    @property
    def first_seq(self) -> int:
        return self._desk.events.first_seq

    @property
    def last_seq(self) -> int:
        return self._desk.events.last_seq

    def events(self, since: int = 0, limit: int = 256) -> tuple[Event, ...]:
        """What happened after a number. It is on disk before it is told."""
        self._desk.commit()
        return self._desk.events.since(since, limit)

    # Trust

    def set_tier(self, pubkey: bytes, tier: Tier | None) -> None:
        """Set how far a key is trusted, or leave it to endorsements."""
        desk = self._desk
        desk.trust.set_tier(pubkey, tier)
        for peer in desk.peers:
            peer.tier = desk.trust.tier(peer.pubkey, desk.clock())
        desk.tell("policy", pubkey=pubkey, tier=tier.name.lower() if tier is not None else None)
        desk.commit()

    def tiers(self) -> dict[bytes, Tier]:
        return self._desk.trust.by_hand()

    def endorse(self, pubkey: bytes) -> Publication:
        """Vouch for a key, in this node's own feed."""
        return self.publish(Destination.feed(Namespace.TRUST), encode_endorsement(pubkey, self._desk.clock()))

    def explain(self, pubkey: bytes) -> Explanation:
        """Why a key is treated as it is."""
        return self._desk.trust.explain(pubkey, self._desk.clock())

    def explain_tag(self, tag: bytes, namespace: int) -> Explanation:
        """Why shards under a tag are passed on, or are not."""
        desk = self._desk
        tier, reasons = desk.tier_of(Address(tag, namespace, 0), None), []
        if desk.subscriptions.subscribed(tag):
            reasons.append("subscribed: passed on, and kept for the time of the cache")
        elif desk.config.relay_all:
            tier = Tier.UNKNOWN if desk.trust.feed_tier(tag, namespace) is None else tier
            reasons.append("not subscribed, and this node relays every tag, as far as who brings it may")
        else:
            tier = Tier.UNKNOWN if desk.trust.feed_tier(tag, namespace) is None else tier
            reasons.append("not subscribed: kept for a short while and not passed on")
        if desk.trust.feed_tier(tag, namespace) is not None:
            reasons.append("the feed of a key whose tier was set by hand")
        return desk.trust.explanation(tag, tier, 0.0, tuple(reasons))

    # Looking

    def status(self) -> views.Status:
        desk = self._desk
        whole = sum(1 for tracked in desk.ledger if tracked.whole)
        return views.Status(
            now=desk.clock(),
            peers=len(desk.peers),
            links=sum(1 for _ in desk.peers.links()),
            subscriptions=len(desk.subscriptions),
            objects_open=len(desk.ledger) - whole,
            objects_whole=whole,
            cache_shards=len(desk.cache),
            cache_bytes=desk.cache.held_bytes,
            inbox_bytes=desk.inbox.held_bytes,
            outbound=len(self._outbox),
            first_seq=self.first_seq,
            last_seq=self.last_seq,
        )

    def peers(self) -> tuple[views.PeerInfo, ...]:
        return views.peers_of(self._desk)

    def lanes(self) -> tuple[views.LaneInfo, ...]:
        return views.lanes_of(self._desk)

    def cache_entries(self, limit: int = 256) -> tuple[views.CacheInfo, ...]:
        return views.cache_of(self._desk, limit)

    def metrics(self) -> dict[str, int | float]:
        """Counters, and how much of each bounded thing there is."""
        desk = self._desk
        held = {"seen_ids": len(desk.seen), "done_roots": len(self._wholes.done), "agenda": len(desk.agenda)}
        shown = views.gauges(self.status())
        return {**desk.counters, **held, **shown}

    def forget(self, object_root: bytes) -> int:
        """Let go of an object; how many shards that were."""
        tracked = self._desk.ledger.by_root(object_root)
        count = len(tracked.held) if tracked else 0
        if tracked is not None:
            self._desk.ledger.drop(tracked.of)
        return count

    def close(self) -> None:
        self._desk.commit()
        self._desk.store.close()

    def _ask_anew(self, before: frozenset[bytes]) -> None:
        """Tags are asked for that were not: take what is here of them, and tell peers what is not."""
        new = self._desk.subscriptions.tags() - before
        if new:
            self._intake.adopt_strays(new)
            for link in self._desk.choose(2, None, lambda peer: False):
                self._summarising.send(link)

    def _dropped(self, tracked: Tracked) -> None:
        self._desk.counters["objects_dropped"] += not tracked.whole
        for shard_id in list(tracked.held.values()):
            self._desk.cache.remove(shard_id)

    def _resume(self, now: float) -> None:
        """Take up what the store has of an earlier run. It is put together, judged and announced as if it came now."""
        desk = self._desk
        stored = sorted(desk.cache.stored(), key=lambda one: one[3])
        for shard_id, of, index, expiry, tier in stored:
            tracked = desk.ledger.get(of) or desk.ledger.open(of, tier, expiry - desk.config.bounds.cache_ttl_s, None)
            desk.cache.adopt(shard_id, tracked, index)
            tracked.held[index] = shard_id
            if of.object_root in self._wholes.done:
                tracked.whole = True
                desk.ledger.whole(tracked)
                desk.remember(shard_id, tracked, index)
                continue
            frame = desk.cache.get(shard_id)
            if frame is not None and expiry > now:
                self._intake.resume(tracked, shard_id, frame)
        self._clean(now)

    def _keep_house(self) -> None:
        now = self._desk.clock()
        before = self._desk.subscriptions.tags()
        if self._desk.subscriptions.refresh(now):
            self._ask_anew(before)
        self._clean(now)
        self._desk.commit_soon()
        self._desk.agenda.after(_HOUSEKEEPING_S, self._keep_house)

    def _clean(self, now: float) -> None:
        self._desk.ledger.expire(now)
        self._desk.cache.expire(now)
        self._desk.inbox.expire(now)
