"""What is simulated: how many nodes, how they are linked, what is said, and what goes wrong."""

from dataclasses import dataclass

from veil.node.config import NodeConfig
from veil.veil_limits import KIB

FAST, FALLBACK = "fast", "fallback"


@dataclass(frozen=True, slots=True)
class Split:
    """For a time, a part of the nodes hears nothing of the others."""

    start_s: float
    end_s: float
    part: float = 0.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """One network and what happens in it. Everything random in it follows from the seed it is run with.

    Each lane is a graph of its own, made of random rings, so every node has `degree` links on it. Everyone asks for
    every publisher's feed; `relays` of the nodes pass it on without reading it.
    """

    nodes: int = 200
    fast_degree: int = 8
    fallback_degree: int = 6
    objects: int = 10
    publishers: int = 5
    payload_bytes: int = 94 * KIB
    interval_s: float = 2.0
    settle_s: float = 60.0
    loss: float = 0.0
    delay_s: tuple[float, float] = (0.02, 0.15)
    fallback_delay_s: tuple[float, float] = (0.1, 0.6)
    relays: float = 0.0
    # Sybils are nodes that hold their links and lie: half of them swallow what they get, half of them spoil it.
    sybils: float = 0.0
    poison: float = 0.5
    # A lane on which nothing arrives any more, whoever is on it.
    eclipsed: str | None = None
    # How often a minute a node goes, and for how long.
    churn_per_minute: float = 0.0
    away_s: float = 20.0
    split: Split | None = None
    config: NodeConfig | None = None

    def __post_init__(self) -> None:
        if self.nodes < 3 or self.publishers < 1 or self.objects < 1:
            raise ValueError("a network has at least three nodes, and somebody says something")
        if not (0 <= self.loss < 1 and 0 <= self.sybils < 1 and 0 <= self.relays <= 1):
            raise ValueError("loss, Sybils and relays are parts of one")
