"""What a node shows of itself: plain values, taken at one moment."""

from dataclasses import dataclass

from veil.node.config import LaneClass, Tier
from veil.node.desk import Desk


@dataclass(frozen=True, slots=True)
class Status:
    """A node at a glance."""

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


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One peer."""

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
    """One lane: `score` is the mean over its links, from 0 for a lane on which nothing is heard to 1."""

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


def peers_of(desk: Desk) -> tuple[PeerInfo, ...]:
    now = desk.clock()
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
        for peer in desk.peers
    )


def lanes_of(desk: Desk) -> tuple[LaneInfo, ...]:
    found = []
    for spec in desk.config.lanes:
        links = [link for link in desk.peers.links() if link.lane == spec.name]
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


def cache_of(desk: Desk, limit: int) -> tuple[CacheInfo, ...]:
    found: list[CacheInfo] = []
    for entry in desk.cache:
        if len(found) >= limit:
            break
        replicas = entry.tracked.replicas(entry.index) if entry.tracked else 1
        where = entry.of.object_root, entry.of.address.tag, entry.index, entry.size
        found.append(CacheInfo(entry.shard_id, *where, entry.expiry, entry.last_seen, replicas, entry.tier))
    return tuple(found)


def gauges(status: Status) -> dict[str, int | float]:
    """The numbers of a status that go up and down."""
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
    return {name: getattr(status, name) for name in names}
