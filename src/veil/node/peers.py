"""Peers and links: send queues, link quality, rate limits and demerits.

A peer may have links over several lanes. Frames use the budgets of their peer, and invalid frames add demerits. At the
limit the peer is muted for a while; a frame from a muted peer costs one comparison.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from veil.node.config import LaneClass, NodeConfig, Penalties, Tier, TierPolicy

_BURST_S = 2.0
_SMOOTHING = 0.25
# Unanswered frames that halve the score of a link.
_SILENCE_FRAMES = 8.0
# A lane is dead after this many frames without any answer on its links.
_DEAD_AFTER_FRAMES = 32
LinkKey = tuple[str, str]


@dataclass(slots=True)
class PeerLink:
    """One lane to one peer. Control frames go first. If the queue is full, new shards are dropped."""

    lane: str
    klass: LaneClass
    peer: "Peer"
    max_bytes: int
    control: deque[bytes] = field(default_factory=deque)
    shards: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    # Frames sent since the last one was received. It only grows if the lane drops everything.
    unanswered: int = 0
    answered: float = 1.0
    rtt_s: float = 0.0

    @property
    def key(self) -> LinkKey:
        return self.lane, self.peer.name

    @property
    def score(self) -> float:
        """From 0 to 1: the estimated probability that a frame arrives."""
        return self.answered / (1.0 + self.unanswered / _SILENCE_FRAMES)

    def push(self, frame: bytes, *, control: bool) -> bool:
        """Queue a frame. Control frames may use twice the space, so shards cannot block them."""
        if self.queued_bytes + len(frame) > self.max_bytes * (2 if control else 1):
            return False
        (self.control if control else self.shards).append(frame)
        self.queued_bytes += len(frame)
        return True

    def take(self, max_bytes: int) -> list[bytes]:
        """Frames to send now, at least one if there are any."""
        taken: list[bytes] = []
        room = max_bytes
        for queue in (self.control, self.shards):
            while queue and (room >= len(queue[0]) or not taken):
                frame = queue.popleft()
                room -= len(frame)
                taken.append(frame)
        size = max_bytes - room
        self.queued_bytes -= size
        self.bytes_out += size
        self.unanswered += len(taken)
        return taken

    def clear(self) -> None:
        """Drop all queued frames."""
        self.control.clear()
        self.shards.clear()
        self.queued_bytes = 0

    def note_received(self, size: int) -> None:
        self.bytes_in += size
        self.unanswered = 0

    def note(self, answered: float, seconds: float | None = None) -> None:
        """Update the fraction of answered requests and the round trip time."""
        self.answered += _SMOOTHING * (answered - self.answered)
        if seconds is not None:
            self.rtt_s = seconds if not self.rtt_s else self.rtt_s + _SMOOTHING * (seconds - self.rtt_s)


@dataclass(slots=True, eq=False)
class Peer:
    """A connected node, or one that left recently: budgets and demerits outlive its links."""

    name: str
    pubkey: bytes | None
    tier: Tier
    _penalties: Penalties
    links: dict[str, PeerLink] = field(default_factory=dict)
    muted_until: float = 0.0
    bytes_in: int = 0
    lies: int = 0
    served: int = 0
    # Unfinished objects that this peer started, oldest first.
    open_objects: dict[object, None] = field(default_factory=dict)
    _demerits: float = 0.0
    _demerits_at: float = 0.0
    _tokens: float = -1.0
    _tokens_at: float = 0.0
    _credit: float = field(init=False)
    _credit_at: float = 0.0

    def __post_init__(self) -> None:
        self._credit = float(self._penalties.credit_bytes)

    def admit(self, size: int, now: float, policy: TierPolicy) -> bool:
        """Whether to process a frame: the peer is not muted and within its rate."""
        if now < self.muted_until:
            return False
        burst = policy.rate_bytes_s * _BURST_S
        if self._tokens < 0:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + (now - self._tokens_at) * policy.rate_bytes_s)
        self._tokens_at = now
        if self._tokens < size:
            return False
        self._tokens -= size
        self.bytes_in += size
        return True

    def spend(self, size: int, now: float) -> bool:
        """Use credit for forwarding unverified shards. Return False if there is too little."""
        grown = self._credit + (now - self._credit_at) * self._penalties.credit_bytes_s
        self._credit, self._credit_at = min(grown, float(self._penalties.credit_bytes)), now
        if self._credit < size:
            return False
        self._credit -= size
        return True

    def refund(self, size: int) -> None:
        self._credit = min(self._credit + size, float(self._penalties.credit_bytes))

    def demerits(self, now: float) -> float:
        return float(self._demerits * 0.5 ** ((now - self._demerits_at) / self._penalties.half_life_s))

    def penalise(self, points: float, now: float) -> bool:
        """Add demerits. Return whether this mutes the peer."""
        self._demerits, self._demerits_at = self.demerits(now) + points, now
        if self._demerits < self._penalties.limit or now < self.muted_until:
            return False
        self._demerits = 0.0
        self.muted_until = now + self._penalties.mute_s
        return True

    def best_link(self, klass: LaneClass | None = None) -> PeerLink | None:
        """The link with the best score, of one class or any; fast links get a small bonus."""
        best, most = None, -1.0
        for link in self.links.values():
            if klass is None or link.klass is klass:
                score = link.score * (1.2 if link.klass is LaneClass.FAST else 1.0)
                if score > most:
                    best, most = link, score
        return best


class Peers:
    """All connected peers."""

    def __init__(self, config: NodeConfig, on_ready: Callable[[str, str], None] | None) -> None:
        self._config = config
        self._on_ready = on_ready
        self._peers: dict[str, Peer] = {}
        self._unanswered: dict[str, int] = {}
        # Disconnected peers. A reconnect does not reset demerits and budgets.
        self._gone: OrderedDict[str, Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def get(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def link(self, lane: str, name: str) -> PeerLink | None:
        peer = self._peers.get(name)
        return peer.links.get(lane) if peer else None

    def links(self) -> Iterator[PeerLink]:
        for peer in self._peers.values():
            yield from peer.links.values()

    def is_alive(self, klass: LaneClass) -> bool:
        """Whether frames arrive over any lane of a class."""
        return any(
            link.klass is klass and self._unanswered.get(link.lane, 0) < _DEAD_AFTER_FRAMES
            for peer in self._peers.values()
            for link in peer.links.values()
        )

    def take(self, link: PeerLink, max_bytes: int) -> list[bytes]:
        taken = link.take(max_bytes)
        self._unanswered[link.lane] = self._unanswered.get(link.lane, 0) + len(taken)
        return taken

    def note_received(self, link: PeerLink, size: int) -> None:
        link.note_received(size)
        self._unanswered[link.lane] = 0

    def connect(self, lane: str, name: str, pubkey: bytes | None, tier: Tier) -> PeerLink | None:
        """Add or find a link. Return None if there are too many peers."""
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= self._config.bounds.peers:
                return None
            peer = self._gone.pop(name, None) or Peer(name, pubkey, tier, self._config.penalties)
            self._peers[name] = peer
        if pubkey is not None:
            peer.pubkey, peer.tier = pubkey, tier
        klass = self._config.lane_class(lane)
        return peer.links.setdefault(lane, PeerLink(lane, klass, peer, self._config.bounds.link_queue_bytes))

    def disconnect(self, lane: str, name: str) -> Peer | None:
        """Remove a link. Return the peer if that was its last one."""
        peer = self._peers.get(name)
        if peer is None or peer.links.pop(lane, None) is None or peer.links:
            return None
        del self._peers[name]
        self._gone[name] = peer
        while len(self._gone) > self._config.bounds.peers_gone:
            self._gone.popitem(last=False)
        return peer

    def forget_traffic(self) -> None:
        """Drop queued frames and unfinished objects of all peers. Links and demerits stay."""
        for peer in (*self._peers.values(), *self._gone.values()):
            peer.open_objects.clear()
            for link in peer.links.values():
                link.clear()

    def send(self, link: PeerLink, frame: bytes, *, control: bool) -> bool:
        was_empty = not link.queued_bytes
        if not link.push(frame, control=control):
            return False
        if was_empty and self._on_ready is not None:
            self._on_ready(link.lane, link.peer.name)
        return True
