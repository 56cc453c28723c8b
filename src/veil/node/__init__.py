"""The node: subscriptions, forwarding, cache, reconstruction, delivery. It does no I/O of its own."""

from veil.node.config import (
    Bounds,
    Escalation,
    LaneClass,
    LaneSpec,
    NodeConfig,
    Penalties,
    Pulling,
    Spread,
    Summaries,
    Tier,
    TierPolicy,
)
from veil.node.core import Node
from veil.node.destinations import Destination
from veil.node.events import Event
from veil.node.identity import Identity
from veil.node.outbox import Outbound, Publication
from veil.node.subscriptions import Subscription
from veil.node.trust import Explanation
from veil.node.views import CacheInfo, LaneInfo, PeerInfo, Status, StoreFault

__all__ = [
    "Bounds",
    "CacheInfo",
    "Destination",
    "Escalation",
    "Event",
    "Explanation",
    "Identity",
    "LaneClass",
    "LaneInfo",
    "LaneSpec",
    "Node",
    "NodeConfig",
    "Outbound",
    "PeerInfo",
    "Penalties",
    "Publication",
    "Pulling",
    "Spread",
    "Status",
    "StoreFault",
    "Subscription",
    "Summaries",
    "Tier",
    "TierPolicy",
]
