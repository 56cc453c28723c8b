"""Views of a node for status commands and the API."""

from dataclasses import dataclass

from veil.node.config import LaneClass, Tier
from veil.node.node_context import NodeContext
from veil.node.trust import Explanation
from veil.objects import Address


@dataclass(frozen=True, slots=True)
class StoreFault:
    """The time since the store cannot write, and the reason."""

    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """Key figures of a node. With a `store_fault` they are those of the last commit."""

    now: float
    peers: int
    links: int
    subscriptions: int
    objects_open: int
    objects_whole: int
    cache_shards: int
    cache_bytes: int
    inbox_bytes: int
    outbound: int
    first_seq: int
    last_seq: int
    store_fault: StoreFault | None


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One connected peer."""

    peer: str
    pubkey: bytes | None
    tier: Tier
    lanes: tuple[str, ...]
    demerits: float
    muted_until: float
    lies: int
    bytes_in: int
    bytes_out: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """One lane. `score` is the mean over its links, from 0 (silent) to 1."""

    lane: str
    klass: LaneClass
    peers: int
    score: float
    answered: float
    rtt_s: float
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One shard in the cache."""

    shard_id: bytes
    object_root: bytes
    tag: bytes
    index: int
    size: int
    expiry: float
    last_seen: float
    replicas: int
    tier: Tier


def peers_of(context: NodeContext) -> tuple[PeerInfo, ...]:
    now = context.clock()
    return tuple(
        PeerInfo(
            peer.name,
            peer.pubkey,
            peer.tier,
            tuple(peer.links),
            round(peer.demerits(now), 3),
            peer.muted_until,
            peer.lies,
            peer.bytes_in,
            sum(link.bytes_out for link in peer.links.values()),
            sum(link.queued_bytes for link in peer.links.values()),
        )
        for peer in context.peers
    )


def lanes_of(context: NodeContext) -> tuple[LaneInfo, ...]:
    found = []
    for spec in context.config.lanes:
        links = [link for link in context.peers.links() if link.lane == spec.name]
        count = max(len(links), 1)
        found.append(
            LaneInfo(
                spec.name,
                spec.klass,
                len(links),
                sum(link.score for link in links) / count,
                sum(link.answered for link in links) / count,
                sum(link.rtt_s for link in links) / count,
                sum(link.bytes_in for link in links),
                sum(link.bytes_out for link in links),
            )
        )
    return tuple(found)


def cache_of(context: NodeContext, limit: int) -> tuple[CacheInfo, ...]:
    found: list[CacheInfo] = []
    for entry in context.cache:
        if len(found) >= limit:
            break
        replicas = entry.tracked.replicas(entry.index) if entry.tracked else 1
        where = entry.of.object_root, entry.of.address.tag, entry.index, entry.size
        found.append(CacheInfo(entry.shard_id, *where, entry.expiry, entry.last_seen, replicas, entry.tier))
    return tuple(found)


def explain_tag(context: NodeContext, tag: bytes, namespace: int) -> Explanation:
    by_hand = context.trust.feed_tier(tag, namespace)
    tier = Tier.UNKNOWN if by_hand is None else by_hand
    if context.subscriptions.subscribed(tag):
        tier = context.tier_of(Address(tag, namespace, 0), None)
        reason = "subscribed: forwarded and cached"
    elif context.config.relay_all:
        reason = "not subscribed; this node relays every tag, within the tier of the sending peer"
    else:
        reason = "not subscribed: kept for a short time, not forwarded"
    more = () if by_hand is None else ("feed of a key whose tier was set by hand",)
    return context.trust.explanation(tag, tier, 0.0, (reason, *more))


def gauges(status: Status) -> dict[str, int | float]:
    """The gauges among the figures of a status."""
    names = (
        "peers",
        "links",
        "subscriptions",
        "objects_open",
        "cache_shards",
        "cache_bytes",
        "inbox_bytes",
        "outbound",
    )
    return {**{name: getattr(status, name) for name in names}, "store_failed": int(status.store_fault is not None)}
