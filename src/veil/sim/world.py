"""The simulated network: scenario, virtual time, lossy links between real nodes, and Sybils."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from plumbing.sodium import SigningKey
from veil.codec.native import NATIVE
from veil.encryption.private_delivery import DeliveryKey
from veil.node import Identity, Node, NodeConfig, frames
from veil.node.frames import SHARD_START, Inventory, InventoryEntry, Want, all_indices
from veil.objects import ShardSet
from veil.store import MemoryStore, Store
from veil.veil_errors import Malformed
from veil.veil_limits import BUCKET_SIZES, KIB

FAST, FALLBACK = "fast", "fallback"


@dataclass(frozen=True, slots=True)
class Split:
    """A partition: for some time, a fraction of the nodes is separated from the others."""

    start_s: float
    end_s: float
    part: float = 0.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """One network and its faults. All randomness follows from the seed of a run.

    Each lane is a graph of random rings with about `degree` links per node. All nodes subscribe to the feeds of all
    publishers; the fraction `relays` only forwards them.
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
    # Fraction of Sybils. They keep their links; the fraction `poison` corrupts shards, the others drop them.
    sybils: float = 0.0
    poison: float = 0.5
    # A lane that delivers nothing.
    eclipsed: str | None = None
    # Departures per node and minute, and the mean time offline.
    churn_per_minute: float = 0.0
    away_s: float = 20.0
    split: Split | None = None
    config: NodeConfig | None = None

    def __post_init__(self) -> None:
        if self.nodes < 3 or self.publishers < 1 or self.objects < 1:
            raise ValueError("a scenario needs at least three nodes, one publisher and one object")
        if not (0 <= self.loss < 1 and 0 <= self.sybils < 1 and 0 <= self.relays <= 1):
            raise ValueError("loss, sybils and relays must be fractions from 0 to 1")


_BUCKETS = frozenset(BUCKET_SIZES)
_MAX_KNOWN_OBJECTS = 64
_POISON_FANOUT = 3
Out = tuple[str, str, bytes]


class Sybil:
    """A dishonest node: it claims every object, and drops or corrupts shards."""

    def __init__(self, poisons: bool, rng: Random) -> None:
        self._poisons = poisons
        self._chance = rng
        self._links: list[tuple[str, str]] = []
        self._known: dict[bytes, dict[int, bytes]] = {}
        self._claimed: set[bytes] = set()

    def connected(self, lane: str, peer: str) -> None:
        self._links.append((lane, peer))

    def receive(self, lane: str, peer: str, data: bytes) -> list[Out]:
        if len(data) in _BUCKETS and data[0] == SHARD_START:
            return self._shard(data)
        try:
            frame = frames.decode(data)
        except Malformed:
            return []
        if isinstance(frame, Inventory):
            return [out for entry in frame.entries for out in self._claim(entry.of)]
        if isinstance(frame, Want) and self._poisons:
            shards = self._known.get(frame.object_root, {})
            corrupted = [self._corrupt(data) for index, data in shards.items() if frame.indices >> index & 1]
            return [(lane, peer, data) for data in corrupted[: frame.count]]
        return []

    def _shard(self, data: bytes) -> list[Out]:
        shard = NATIVE.decode_shard(data)
        shards = self._known.setdefault(shard.of.object_root, {})
        if len(self._known) > _MAX_KNOWN_OBJECTS:
            self._known.pop(next(iter(self._known)))
        is_new = shard.index not in shards
        shards[shard.index] = data
        out = self._claim(shard.of)
        if is_new and self._poisons:
            to = self._chance.sample(self._links, min(_POISON_FANOUT, len(self._links)))
            out += [(lane, peer, self._corrupt(data)) for lane, peer in to]
        return out

    def _claim(self, of: ShardSet) -> list[Out]:
        """Claim to all peers, once, that the object is here."""
        if of.object_root in self._claimed:
            return []
        self._claimed.add(of.object_root)
        claim = frames.encode(Inventory((InventoryEntry(of, all_indices(of)),)))
        return [(lane, peer, claim) for lane, peer in self._links]

    def _corrupt(self, data: bytes) -> bytes:
        at = -1 - self._chance.randrange(len(data) // 2)
        return data[:at] + bytes((data[at] ^ self._chance.randrange(1, 256),)) + (data[at + 1 :] if at != -1 else b"")


Edges = set[tuple[int, int]]


def rings(nodes: int, degree: int, rng: Random) -> Edges:
    """A union of random rings with about `degree` links per node; duplicate links collapse."""
    edges: Edges = set()
    for _ in range(max(degree // 2, 1)):
        order = list(range(nodes))
        rng.shuffle(order)
        for one, other in zip(order, [*order[1:], order[0]], strict=True):
            edges.add((min(one, other), max(one, other)))
    return edges


def hops(start: int, edges: Iterable[tuple[int, int]], without: frozenset[int] = frozenset()) -> dict[int, int]:
    """The distance of every reachable node from `start`."""
    near: dict[int, list[int]] = {}
    for one, other in edges:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    far, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there in near.get(here, ()):
            if there not in far and there not in without:
                far[there] = far[here] + 1
                waiting.append(there)
    return far


# The middle of an epoch, far from its boundary.
START_S = 20_000 * 86_400.0 + 43_200.0
_TAKE_BYTES = 1 << 30


class Participant:
    """A node or Sybil in the network, and whether it is online."""

    __slots__ = ("identity", "is_here", "links", "name", "node", "store", "sybil", "tick_at")

    def __init__(self, name: str) -> None:
        self.name = name
        self.identity: Identity | None = None
        self.node: Node | None = None
        self.sybil: Sybil | None = None
        self.store: Store = MemoryStore()
        self.links: list[tuple[str, str]] = []
        self.is_here = True
        self.tick_at = float("inf")


class World:
    """All participants, and the virtual clock."""

    def __init__(self, scenario: Scenario, config: NodeConfig, seed: int) -> None:
        self.scenario = scenario
        self.config = config
        self.now = START_S
        self.rng = Random(seed)
        self.bytes_sent = 0
        self.frames_sent = 0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._ready: list[tuple[Participant, str, str]] = []
        self.participants = [Participant(f"n{number}") for number in range(scenario.nodes)]
        self._by_name = {one.name: one for one in self.participants}
        order = list(range(scenario.nodes))
        self.rng.shuffle(order)
        self.sybils = frozenset(order[: round(scenario.nodes * scenario.sybils)])
        self.honest = [one for number, one in enumerate(self.participants) if number not in self.sybils]
        self.edges: dict[str, Edges] = {
            FAST: rings(scenario.nodes, scenario.fast_degree, self.rng),
            FALLBACK: rings(scenario.nodes, scenario.fallback_degree, self.rng),
        }
        self._delays = {FAST: scenario.delay_s, FALLBACK: scenario.fallback_delay_s}
        self._side = {one.name: self.rng.random() < (scenario.split.part if scenario.split else 0)
                      for one in self.participants}  # fmt: skip
        for number, one in enumerate(self.participants):
            if number in self.sybils:
                poisons = self.rng.random() < scenario.poison
                one.sybil = Sybil(poisons, Random(self.rng.randbytes(16)))
            else:
                one.identity = Identity(SigningKey(self.rng.randbytes(32)), DeliveryKey(self.rng.randbytes(32)))
                self.start_node(one)

    def start_node(self, one: Participant) -> None:
        """Start a node with its existing store."""
        assert one.identity is not None

        def on_ready(lane: str, peer: str) -> None:
            self._ready.append((one, lane, peer))

        rng = Random(self.rng.randbytes(16))
        one.node = Node(self.config, one.store, one.identity, clock=self.clock, random=rng, on_ready=on_ready)

    def clock(self) -> float:
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    def connect(self) -> None:
        for lane, edges in self.edges.items():
            for a, b in sorted(edges):
                one, other = self.participants[a], self.participants[b]
                one.links.append((lane, other.name))
                other.links.append((lane, one.name))
        for one in self.participants:
            for lane, peer in one.links:
                self._up(one, lane, peer)
        self._drain()

    def leave(self, one: Participant) -> None:
        one.is_here = False
        for lane, peer in one.links:
            self._down(one, lane, peer)
            self._down(self._by_name[peer], lane, one.name)

    def rejoin(self, one: Participant) -> None:
        one.is_here = True
        for lane, name in one.links:
            other = self._by_name[name]
            if other.is_here:
                self._up(one, lane, name)
                self._up(other, lane, one.name)

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            self.events += 1
            action()
            self._drain()
        self.now = until

    def reschedule(self, one: Participant) -> None:
        """Schedule the next tick of a node after a call to it."""
        due = one.node.next_due() if one.node is not None else None
        if due is not None and due < one.tick_at:
            one.tick_at = due
            self.at(max(due, self.now), lambda: self._tick(one, due))

    def _tick(self, one: Participant, due: float) -> None:
        if one.tick_at != due or one.node is None:
            return
        one.tick_at = float("inf")
        one.node.tick()
        self.reschedule(one)

    def _up(self, one: Participant, lane: str, peer: str) -> None:
        if one.node is not None:
            one.node.connected(lane, peer)
            self.reschedule(one)
        elif one.sybil is not None:
            one.sybil.connected(lane, peer)

    def _down(self, one: Participant, lane: str, peer: str) -> None:
        if one.node is not None:
            one.node.disconnected(lane, peer)

    def _drain(self) -> None:
        """Send all queued frames of the ready links."""
        while self._ready:
            one, lane, peer = self._ready.pop()
            assert one.node is not None
            for frame in one.node.take(lane, peer, _TAKE_BYTES):
                self._send(one, lane, peer, frame)

    def _send(self, one: Participant, lane: str, peer: str, frame: bytes) -> None:
        """Send a frame. Only frames of honest nodes count as cost."""
        if one.node is not None:
            self.bytes_sent += len(frame)
            self.frames_sent += 1
        other = self._by_name[peer]
        lost = self.rng.random() < self.scenario.loss
        if lost or lane == self.scenario.eclipsed or self._is_split(one, other):
            return
        self.at(self.now + self.rng.uniform(*self._delays[lane]), lambda: self._arrive(other, lane, one.name, frame))

    def _arrive(self, one: Participant, lane: str, peer: str, frame: bytes) -> None:
        if not one.is_here or not self._by_name[peer].is_here:
            return
        if one.node is not None:
            one.node.receive(lane, peer, frame)
            self.reschedule(one)
        elif one.sybil is not None:
            for to_lane, to, reply in one.sybil.receive(lane, peer, frame):
                self._send(one, to_lane, to, reply)

    def _is_split(self, one: Participant, other: Participant) -> bool:
        split = self.scenario.split
        if split is None or not split.start_s <= self.now - START_S < split.end_s:
            return False
        return self._side[one.name] != self._side[other.name]
