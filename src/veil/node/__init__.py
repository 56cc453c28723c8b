"""The node: subscriptions, forwarding, cache, reassembly, delivery. It does no I/O of its own.

An object is *whole* once k shards restored it and its root matched.
"""

from veil.node.addressing import Destination, Identity
from veil.node.config import (
    Bounds,
    Escalation,
    LaneClass,
    LaneSpec,
    NodeConfig,
    Penalties,
    PullSettings,
    Spread,
    Summaries,
    Tier,
    TierPolicy,
)
from veil.node.core import Node
from veil.node.node_events import Event
from veil.node.outbox import Outbound, Publication
from veil.node.status_views import CacheInfo, LaneInfo, PeerInfo, Status, StoreFault
from veil.node.subscriptions import Subscription
from veil.node.trust import Explanation

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
    "PullSettings",
    "Spread",
    "Status",
    "StoreFault",
    "Subscription",
    "Summaries",
    "Tier",
    "TierPolicy",
]
