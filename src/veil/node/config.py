"""All settings of a node with their defaults, and its counters. They are local: no two nodes need equal settings."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

from veil.objects import NamespacePolicy
from veil.tags import DEFAULT_EPOCHS, Epochs
from veil.veil_limits import CACHE_TTL_SECONDS, KIB

NAMES = (
    "frames_in",
    "frames_refused",
    "frames_garbage",
    "frames_oversized",
    "bytes_in",
    "bytes_out",
    "shards_new",
    "shards_duplicate",
    "shards_late",
    "shards_rival",
    "shards_stray",
    "shards_implausible",
    "shards_forwarded",
    "shards_held_back",
    "shards_served",
    "shards_pushed",
    "shards_escalated",
    "objects_whole",
    "objects_refused",
    "objects_delivered",
    "objects_unreadable",
    "objects_replayed",
    "objects_dropped",
    "lies_found",
    "pulls_sent",
    "pulls_answered",
    "pulls_failed",
    "summaries_sent",
    "summaries_received",
    "entries_announced",
    "entries_received",
    "acks_sent",
    "acks_received",
    "queue_overflows",
    "cache_evicted",
    "cache_expired",
)


class Counters(Counter[str]):
    """Counts by name. An unknown name raises `KeyError`."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, 0))

    def __missing__(self, key: str) -> int:
        raise KeyError(key)


MIB = KIB * KIB


class LaneClass(StrEnum):
    """Fast lanes carry most of the traffic. Fallback lanes carry little, in case the fast lanes fail."""

    FAST = "fast"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """Name and class of a lane."""

    name: str
    klass: LaneClass = LaneClass.FAST


class Tier(IntEnum):
    """How far a publisher or peer is trusted, ascending."""

    BLOCKED = 0
    MUTED = 1
    UNKNOWN = 2
    KNOWN = 3
    TRUSTED = 4


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """Limits of a tier: fraction of the fanout, fraction of the cache, and receive rate."""

    forward_quota: float
    storage_share: float
    rate_bytes_s: int


DEFAULT_TIERS: Mapping[Tier, TierPolicy] = MappingProxyType(
    {
        Tier.TRUSTED: TierPolicy(1.0, 0.70, 64 * MIB),
        Tier.KNOWN: TierPolicy(1.0, 0.50, 32 * MIB),
        Tier.UNKNOWN: TierPolicy(0.5, 0.25, 16 * MIB),
        Tier.MUTED: TierPolicy(0.0, 0.01, 64 * KIB),
        Tier.BLOCKED: TierPolicy(0.0, 0.0, 0),
    }
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Fanout of new objects. Spec §9.1: `k + extra` shards to two fast peers, two shards to one fallback peer."""

    fast_peers: int = 2
    fallback_peers: int = 1
    extra_shards: int = 2
    fallback_shards: int = 2
    relay_fast_peers: int = 2
    relay_fallback_peers: int = 1
    # Not sent to a peer in the first wave, but later if it does not confirm the object.
    reserve_shards: int = 1
    # Forwarding probability of a shard with r known holders: 1 / (1 + r / divisor), at least the floor.
    forward_floor: float = 0.10
    forward_divisor: float = 8.0
    announce_delay_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Escalation:
    """Further waves of an own object until enough peers confirm it."""

    copies: int = 2
    # After this many waves one confirmation is enough: other peers may never answer.
    attempts_for_copies: int = 4
    # Announce the object in this many waves, unless all responsive peers confirm it: a confirmation may be false.
    announcements: int = 6
    timeout_s: float = 2.0
    backoff: float = 2.0
    max_wait_s: float = 60.0
    batch_shards: int = 2
    give_up_s: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Timing of requests for missing shards."""

    quiet_s: float = 0.3
    timeout_s: float = 1.0
    backoff: float = 1.5
    max_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Summaries:
    """Frequency and size of Bloom filters of the objects here."""

    interval_s: float = 20.0
    false_positives: float = 0.02
    max_elements: int = 4_096
    max_announced: int = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of everything a node holds."""

    cache_ttl_s: float = CACHE_TTL_SECONDS
    cache_bytes: int = 512 * MIB
    cache_shards: int = 65_536
    stray_ttl_s: float = 600.0
    stray_bytes: int = 16 * MIB
    inbox_bytes: int = 64 * MIB
    seen_ids: int = 131_072
    objects: int = 16_384
    done_roots: int = 131_072
    done_age_s: float = 8 * 86_400.0
    open_per_peer: int = 512
    peers: int = 256
    peers_gone: int = 1_024
    link_queue_bytes: int = 8 * MIB
    events: int = 4_096
    event_bytes: int = 64 * MIB
    queue_items: int = 65_536
    queue_bytes: int = 256 * MIB
    parcels_under_way: int = 64
    subscriptions: int = 4_096
    endorsers: int = 1_024
    endorsements_per_endorser: int = 256


@dataclass(frozen=True, slots=True)
class Penalties:
    """Demerits for invalid frames. They decay with a half-life; at the limit the peer is muted."""

    garbage: float = 5.0
    oversized: float = 10.0
    lie: float = 25.0
    passed_a_lie: float = 1.0
    implausible: float = 1.0
    limit: float = 100.0
    half_life_s: float = 60.0
    mute_s: float = 300.0
    # Bytes of unverified shards that a peer can make this node forward. Verified objects refund their bytes.
    credit_bytes: int = 8 * MIB
    credit_bytes_s: int = 256 * KIB


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All settings of a node."""

    lanes: tuple[LaneSpec, ...] = (LaneSpec("fast", LaneClass.FAST), LaneSpec("fallback", LaneClass.FALLBACK))
    # An open relay forwards every tag within the quotas. Other nodes forward only subscribed tags (spec §9.2).
    relay_all: bool = False
    # Upward bucket jitter: the number of next larger buckets to choose from (spec §7.3).
    jitter: int = 0
    batch_linger_s: float = 0.25
    policy: NamespacePolicy = field(default_factory=NamespacePolicy)
    epochs: Epochs = DEFAULT_EPOCHS
    tiers: Mapping[Tier, TierPolicy] = field(default_factory=lambda: DEFAULT_TIERS)
    spread: Spread = Spread()
    escalation: Escalation = Escalation()
    pull: PullSettings = PullSettings()
    summaries: Summaries = Summaries()
    penalties: Penalties = Penalties()
    bounds: Bounds = Bounds()

    def lane_class(self, lane: str) -> LaneClass:
        return next((spec.klass for spec in self.lanes if spec.name == lane), LaneClass.FALLBACK)
