"""Virtual time and a network in it: frames of real nodes, lost, late or in time."""

import heapq
from collections.abc import Callable
from random import Random

from veil.node import Identity, Node, NodeConfig
from veil.sealing.private import DeliveryKey
from veil.sealing.signing import SigningKey
from veil.sim.scenario import FALLBACK, FAST, Scenario
from veil.sim.sybils import Sybil
from veil.sim.topology import Edges, rings
from veil.store import MemoryStore, Store

# The middle of an epoch, far from its turn.
START_S = 20_000 * 86_400.0 + 43_200.0
_TAKE_BYTES = 1 << 30


class Resident:
    """A place in the network: a node or a Sybil, and whether it is there now."""

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
    """All places, and the time."""

    def __init__(self, scenario: Scenario, config: NodeConfig, seed: int) -> None:
        self.scenario = scenario
        self.config = config
        self.now = START_S
        self.chance = Random(seed)
        self.bytes_sent = 0
        self.frames_sent = 0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._ready: list[tuple[Resident, str, str]] = []
        self.residents = [Resident(f"n{number}") for number in range(scenario.nodes)]
        self._by_name = {one.name: one for one in self.residents}
        order = list(range(scenario.nodes))
        self.chance.shuffle(order)
        self.sybils = frozenset(order[: round(scenario.nodes * scenario.sybils)])
        self.honest = [one for number, one in enumerate(self.residents) if number not in self.sybils]
        self.edges: dict[str, Edges] = {
            FAST: rings(scenario.nodes, scenario.fast_degree, self.chance),
            FALLBACK: rings(scenario.nodes, scenario.fallback_degree, self.chance),
        }
        self._delays = {FAST: scenario.delay_s, FALLBACK: scenario.fallback_delay_s}
        self._side = {one.name: self.chance.random() < (scenario.split.part if scenario.split else 0)
                      for one in self.residents}  # fmt: skip
        for number, one in enumerate(self.residents):
            if number in self.sybils:
                poisons = self.chance.random() < scenario.poison
                one.sybil = Sybil(poisons, Random(self.chance.randbytes(16)))
            else:
                one.identity = Identity(SigningKey(self.chance.randbytes(32)), DeliveryKey(self.chance.randbytes(32)))
                self.settle(one)

    def settle(self, one: Resident) -> None:
        """Start a node over what its store has."""
        assert one.identity is not None

        def on_ready(lane: str, peer: str) -> None:
            self._ready.append((one, lane, peer))

        chance = Random(self.chance.randbytes(16))
        one.node = Node(self.config, one.store, one.identity, clock=self.clock, random=chance, on_ready=on_ready)

    def clock(self) -> float:
        return self.now

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    def connect(self) -> None:
        for lane, edges in self.edges.items():
            for a, b in sorted(edges):
                one, other = self.residents[a], self.residents[b]
                one.links.append((lane, other.name))
                other.links.append((lane, one.name))
        for one in self.residents:
            for lane, peer in one.links:
                self._up(one, lane, peer)
        self._drain()

    def leave(self, one: Resident) -> None:
        one.is_here = False
        for lane, peer in one.links:
            self._down(one, lane, peer)
            self._down(self._by_name[peer], lane, one.name)

    def come_back(self, one: Resident) -> None:
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

    def touched(self, one: Resident) -> None:
        """Something was done with a node: see when it wants to be ticked next."""
        due = one.node.next_due() if one.node is not None else None
        if due is not None and due < one.tick_at:
            one.tick_at = due
            self.at(max(due, self.now), lambda: self._tick(one, due))

    def _tick(self, one: Resident, due: float) -> None:
        if one.tick_at != due or one.node is None:
            return
        one.tick_at = float("inf")
        one.node.tick()
        self.touched(one)

    def _up(self, one: Resident, lane: str, peer: str) -> None:
        if one.node is not None:
            one.node.connected(lane, peer)
            self.touched(one)
        elif one.sybil is not None:
            one.sybil.connected(lane, peer)

    def _down(self, one: Resident, lane: str, peer: str) -> None:
        if one.node is not None:
            one.node.disconnected(lane, peer)

    def _drain(self) -> None:
        """Send what waits. A link is named once however much waits on it."""
        while self._ready:
            one, lane, peer = self._ready.pop()
            assert one.node is not None
            for frame in one.node.take(lane, peer, _TAKE_BYTES):
                self._send(one, lane, peer, frame)

    def _send(self, one: Resident, lane: str, peer: str, frame: bytes) -> None:
        """Only what honest nodes send is counted: what liars send is not a cost of ours."""
        if one.node is not None:
            self.bytes_sent += len(frame)
            self.frames_sent += 1
        other = self._by_name[peer]
        lost = self.chance.random() < self.scenario.loss
        if lost or lane == self.scenario.eclipsed or self._is_split(one, other):
            return
        self.at(self.now + self.chance.uniform(*self._delays[lane]), lambda: self._arrive(other, lane, one.name, frame))

    def _arrive(self, one: Resident, lane: str, peer: str, frame: bytes) -> None:
        if not one.is_here or not self._by_name[peer].is_here:
            return
        if one.node is not None:
            one.node.receive(lane, peer, frame)
            self.touched(one)
        elif one.sybil is not None:
            for to_lane, to, lie in one.sybil.receive(lane, peer, frame):
                self._send(one, to_lane, to, lie)

    def _is_split(self, one: Resident, other: Resident) -> bool:
        split = self.scenario.split
        if split is None or not split.start_s <= self.now - START_S < split.end_s:
            return False
        return self._side[one.name] != self._side[other.name]
