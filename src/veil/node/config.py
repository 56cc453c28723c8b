"""Every setting of a node and its default. All of it is local: nothing here has to be the same at two nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

from veil.namespaces import NamespacePolicy
from veil.tags import DEFAULT_EPOCHS, Epochs
from veil.veil_limits import CACHE_TTL_SECONDS, KIB

MIB = KIB * KIB


class LaneClass(StrEnum):
    """A fast lane carries most of the traffic; a fallback lane carries enough to be heard of at all."""

    FAST = "fast"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane by its name, and what it is for."""

    name: str
    klass: LaneClass = LaneClass.FAST


class Tier(IntEnum):
    """How far a publisher or peer is trusted, from not at all."""

    BLOCKED = 0
    MUTED = 1
    UNKNOWN = 2
    KNOWN = 3
    TRUSTED = 4


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What a tier may use: a part of the fanout, a part of the cache, and how fast its peers may send."""

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
    """How what is new travels. Spec §9.1: `k + extra` shards to two peers of a fast lane, two to one of a fallback."""

    fast_peers: int = 2
    fallback_peers: int = 1
    extra_shards: int = 2
    fallback_shards: int = 2
    relay_fast_peers: int = 2
    relay_fallback_peers: int = 1
    # Kept back from each peer of the first wave, for when it does not say that it has the object.
    reserve_shards: int = 1
    # A shard that r peers are known to have is passed on with 1 / (1 + r / divisor), never below the floor.
    forward_floor: float = 0.10
    forward_divisor: float = 8.0
    announce_delay_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Escalation:
    """What a publisher does until enough peers have said that they have its object."""

    copies: int = 2
    # After so many waves one copy is enough: the others may never answer.
    attempts_for_copies: int = 4
    # Waves in which it is announced in any case, unless all who are heard have it: who says so may lie.
    announcements: int = 6
    timeout_s: float = 2.0
    backoff: float = 2.0
    max_wait_s: float = 60.0
    batch_shards: int = 2
    give_up_s: float = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class PullSettings:
    """When and how shards are asked for that did not come by themselves."""

    quiet_s: float = 0.3
    timeout_s: float = 1.0
    backoff: float = 1.5
    max_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Summaries:
    """How often a peer is told, in a Bloom filter, what is here."""

    interval_s: float = 20.0
    false_positives: float = 0.02
    max_elements: int = 4_096
    max_announced: int = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a node may hold at most, of each kind."""

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
    """What wrong frames cost the peer they came from. Demerits halve with time; at the limit the peer is not heard."""

    garbage: float = 5.0
    oversized: float = 10.0
    lie: float = 25.0
    passed_a_lie: float = 1.0
    implausible: float = 1.0
    limit: float = 100.0
    half_life_s: float = 60.0
    mute_s: float = 300.0
    # Bytes of shards not yet known to be true that a peer may make us pass on; what proves true is given back.
    credit_bytes: int = 8 * MIB
    credit_bytes_s: int = 256 * KIB


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node's settings."""

    lanes: tuple[LaneSpec, ...] = (LaneSpec("fast", LaneClass.FAST), LaneSpec("fallback", LaneClass.FALLBACK))
    # An open relay passes on every tag, within the quotas; other nodes only what they subscribe to (spec §9.2).
    relay_all: bool = False
    # Upward bucket jitter: how many of the next larger buckets an object may come in (spec §7.3).
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
