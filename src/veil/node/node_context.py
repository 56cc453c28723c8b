"""Timers, and the state that all parts of a node share."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

from veil.codec import NATIVE, Form
from veil.node.addressing import Identity
from veil.node.cache import Cache, TrackedObject, TrackedObjects
from veil.node.config import Counters, LaneClass, NodeConfig, Tier
from veil.node.frames import Control, encode
from veil.node.node_events import Event, Events
from veil.node.peers import Peer, PeerLink, Peers
from veil.node.subscriptions import Subscriptions
from veil.node.trust import Trust
from veil.objects import Address
from veil.reassembly import Inbox
from veil.store import Store

Action = Callable[[], None]


class Timers:
    """Scheduled actions in time order. There is no cancel: an action that is no longer needed does nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, seconds: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._clock() + seconds, self._count, action))

    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Run the actions due now, but none that they schedule, so a frozen clock cannot cause an endless loop."""
        now, last = self._clock(), self._count
        while self._heap and self._heap[0][0] <= now and self._heap[0][1] <= last:
            heapq.heappop(self._heap)[2]()


_MIN_SCORE = 0.02
_SILENT_SCORE = 0.1
_COMMIT_S = 0.5


@dataclass(slots=True)
class NodeContext:
    """The state that the parts of one node share."""

    config: NodeConfig
    store: Store
    identity: Identity
    clock: Callable[[], float]
    random: random.Random
    counters: Counters
    peers: Peers
    listener: InitVar[Callable[[Event], None] | None]
    timers: Timers = field(init=False)
    objects: TrackedObjects = field(init=False)
    cache: Cache = field(init=False)
    trust: Trust = field(init=False)
    subscriptions: Subscriptions = field(init=False)
    events: Events = field(init=False)
    inbox: Inbox = field(init=False)
    form: Form = NATIVE
    # Shard ids that were here, with object and index. Bounded; the oldest are dropped.
    seen: OrderedDict[bytes, tuple[TrackedObject, int]] = field(default_factory=OrderedDict)
    # A queued frame promises something that must survive a crash: commit before it leaves.
    promised: bool = False
    commit_due: bool = False

    def __post_init__(self, listener: Callable[[Event], None] | None) -> None:
        """Load the rest from the store. This only reads."""
        store, bounds, tiers = self.store, self.config.bounds, dict(self.config.tiers)
        self.timers = Timers(self.clock)
        self.objects = TrackedObjects(bounds, self._dropped)
        self.cache = Cache(store, bounds, tiers, self.counters)
        self.trust = Trust(store, bounds, tiers)
        self.subscriptions = Subscriptions(store, self.config, self.identity, self.clock())
        self.events = Events(store, bounds, listener)
        # `Done` remembers whole objects for longer than the inbox.
        self.inbox = Inbox(
            self.form, max_bytes=bounds.inbox_bytes, max_done=bounds.objects, ttl_seconds=bounds.cache_ttl_s
        )

    def _dropped(self, tracked: TrackedObject) -> None:
        self.counters["objects_dropped"] += not tracked.whole
        for shard_id in list(tracked.held.values()):
            self.cache.remove(shard_id)

    def commit(self) -> None:
        """Commit all changes and notify listeners. If that fails, `promised` stays set and the node reloads."""
        if self.store.uncommitted:
            self.store.commit()
        self.promised = False
        self.events.notify()

    def commit_soon(self) -> None:
        """Schedule a commit for changes that no frame promises, so several share one sync."""
        if not self.commit_due:
            self.commit_due = True
            self.timers.after(_COMMIT_S, self._commit_later)

    def _commit_later(self) -> None:
        self.commit_due = False
        self.commit()

    def emit(self, kind: str, **data: str | int | float | bytes | None) -> None:
        self.events.add(self.clock(), kind, **data)
        self.commit_soon()

    def remember(self, shard_id: bytes, tracked: TrackedObject, index: int) -> None:
        self.seen[shard_id] = tracked, index
        if len(self.seen) > self.config.bounds.seen_ids:
            self.seen.popitem(last=False)

    def send(self, link: PeerLink, frame: Control) -> bool:
        return self._sent(self.peers.send(link, encode(frame), control=True))

    def send_shard(self, link: PeerLink, frame: bytes) -> bool:
        return self._sent(self.peers.send(link, frame, control=False))

    def _sent(self, queued: bool) -> bool:
        if not queued:
            self.counters["queue_overflows"] += 1
        return queued

    def penalise(self, peer: Peer, points: float, reason: str) -> None:
        """Add demerits to a peer. If that mutes it, drop the unfinished objects it started."""
        now = self.clock()
        if peer.penalise(points, now):
            self.emit("peer_muted", peer=peer.name, reason=reason, until=peer.muted_until)
            for of in list(peer.open_objects):
                self.objects.drop(of)

    def tier_of(self, address: Address, peer: Peer | None) -> Tier:
        """The tier of an address: the tier of its feed if a user set one for the feed's key, else the sending peer's.

        Subscribed tags are at least KNOWN. Feed tags are recognised without opening the object.
        """
        tier = self.trust.feed_tier(address.tag, address.namespace)
        if tier is not None:
            return tier
        brought = peer.tier if peer else Tier.TRUSTED
        return max(Tier.KNOWN, brought) if self.subscriptions.subscribed(address.tag) else brought

    def responsive_peers(self) -> int:
        """The number of peers from which frames arrive."""
        return sum(any(link.score >= _SILENT_SCORE for link in peer.links.values()) for peer in self.peers)

    def choose_for(self, klass: LaneClass, count: int, without: Callable[[Peer], bool]) -> list[PeerLink]:
        """Choose links of a lane class, or of any class if its lanes are dead."""
        return self.choose(count, klass if self.peers.is_alive(klass) else None, without)

    def choose(self, count: int, klass: LaneClass | None, without: Callable[[Peer], bool]) -> list[PeerLink]:
        """Choose up to `count` links at random, weighted by score, at most one per peer."""
        now = self.clock()
        drawn, silent = list[tuple[float, PeerLink]](), list[tuple[float, PeerLink]]()
        for peer in self.peers:
            link = None if now < peer.muted_until or without(peer) else peer.best_link(klass)
            if link is None:
                continue
            # Try silent peers rarely, but always if all peers are silent.
            is_silent = link.score < _SILENT_SCORE and self.random.random() > _SILENT_SCORE
            draw = self.random.random() ** (1.0 / max(link.score, _MIN_SCORE))
            (silent if is_silent else drawn).append((draw, link))
        if silent and not self.responsive_peers():
            drawn += silent
        found = sorted(drawn, key=lambda pair: pair[0], reverse=True)
        return [link for _, link in found[:count]]
