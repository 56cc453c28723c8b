"""A simulated network with virtual time and lossy links between real nodes, the results of its runs, and SVG charts."""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from xml.sax.saxutils import escape

from plumbing.sodium import SigningKey
from veil.codec import NATIVE
from veil.encryption import DeliveryKey
from veil.node import Bounds, Destination, Event, Identity, LaneClass, LaneSpec, Node, NodeConfig, Subscription, frames
from veil.node.frames import SHARD_START, Inventory, InventoryEntry, Want, all_indices
from veil.objects import Namespace, ShardSet
from veil.store import MemoryStore, Store
from veil.tags import feed_tag
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


@dataclass(slots=True, eq=False)
class Participant:
    """A node or Sybil in the network, and whether it is online."""

    name: str
    identity: Identity | None = None
    node: Node | None = None
    sybil: Sybil | None = None
    store: Store = field(default_factory=MemoryStore)
    links: list[tuple[str, str]] = field(default_factory=list)
    is_here: bool = True
    tick_at: float = float("inf")


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


MIB = KIB * KIB
# Small bounds, because one process holds the data of a thousand nodes.
_BOUNDS = Bounds(
    cache_bytes=64 * MIB,
    inbox_bytes=16 * MIB,
    events=4,
    event_bytes=MIB,
    seen_ids=8_192,
    objects=1_024,
    stray_bytes=MIB,
)
LANES = (LaneSpec(FAST, LaneClass.FAST), LaneSpec(FALLBACK, LaneClass.FALLBACK))
DEFAULT_CONFIG = NodeConfig(lanes=LANES, bounds=_BOUNDS)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run.

    `cost` is the number of bytes that honest nodes sent per delivered byte and hop; every node with an object got it
    over one hop. `far` counts readers at least three hops from the publisher.
    """

    seed: int
    wanted: int
    delivered: int
    far_wanted: int
    far_delivered: int
    # Deliveries for which a path of honest nodes exists.
    reachable: int
    max_hops: int
    bytes_sent: int
    bytes_delivered: int
    latencies_s: tuple[float, ...]
    counters: dict[str, int]

    @property
    def rate(self) -> float:
        return self.delivered / self.wanted

    @property
    def far_rate(self) -> float:
        return self.far_delivered / self.far_wanted if self.far_wanted else 1.0

    @property
    def cost(self) -> float:
        return self.bytes_sent / self.bytes_delivered if self.bytes_delivered else float("inf")

    def latency(self, part: float) -> float:
        """The time within which this fraction of the deliveries happened."""
        if not self.latencies_s:
            return float("inf")
        ordered = sorted(self.latencies_s)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, slots=True)
class Point:
    """All runs with one loss rate."""

    loss: float
    results: tuple[Result, ...]

    @property
    def rate(self) -> float:
        return sum(one.delivered for one in self.results) / sum(one.wanted for one in self.results)

    @property
    def worst_rate(self) -> float:
        return min(one.rate for one in self.results)

    @property
    def far_rate(self) -> float:
        return sum(one.far_delivered for one in self.results) / max(sum(one.far_wanted for one in self.results), 1)

    @property
    def cost(self) -> float:
        delivered = sum(one.bytes_delivered for one in self.results)
        return sum(one.bytes_sent for one in self.results) / delivered if delivered else float("inf")

    def latency(self, part: float) -> float:
        return statistics.median(one.latency(part) for one in self.results)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A scenario for several loss rates and seeds."""

    scenario: Scenario
    points: tuple[Point, ...]


def run(scenario: Scenario, seed: int) -> Result:
    """Simulate one network. The same scenario and seed give exactly the same result."""
    config = scenario.config or DEFAULT_CONFIG
    world = World(scenario, config, seed)
    rng = Random(world.rng.randbytes(16))
    publishers = rng.sample(world.honest, min(scenario.publishers, len(world.honest)))
    others = [one for one in world.honest if one not in publishers]
    relays = set(rng.sample(others, round(len(others) * scenario.relays)))
    record = _Record(world)
    for one in world.honest:
        _subscribe(one, publishers, one in relays, record)
    world.connect()
    _schedule_publications(world, publishers, rng, record)
    if scenario.churn_per_minute:
        _schedule_churn(world, others, publishers, rng, record)
    world.run(START_S + scenario.objects * scenario.interval_s + scenario.settle_s)
    readers = [one for one in world.honest if one not in relays]
    return record.result(seed, readers, publishers)


def sweep(
    scenario: Scenario,
    losses: Iterable[float],
    seeds: Iterable[int],
    progress: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Run a scenario with every loss rate and seed."""
    points = []
    for loss in losses:
        results = []
        for seed in seeds:
            progress(f"loss {loss:.0%}, seed {seed}")
            results.append(run(replace(scenario, loss=loss), seed))
        points.append(Point(loss, tuple(results)))
    return Sweep(scenario, tuple(points))


class _Record:
    """Publications and deliveries of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.published: dict[bytes, tuple[Participant, float]] = {}
        self.deliveries: dict[tuple[bytes, str], float] = {}

    def on_event(self, name: str, event: Event) -> None:
        root = event.data.get("object_root")
        if event.kind == "delivered" and isinstance(root, bytes):
            self.deliveries.setdefault((root, name), event.at)

    def result(self, seed: int, readers: list[Participant], publishers: list[Participant]) -> Result:
        world = self._world
        lanes = [edges for lane, edges in world.edges.items() if lane != world.scenario.eclipsed]
        edges = set().union(*lanes)
        away = {one: hops(world.participants.index(one), edges, world.sybils) for one in publishers}
        number = {one.name: world.participants.index(one) for one in world.participants}
        wanted = far = far_got = reachable = 0
        for root, (publisher, _) in self.published.items():
            for one in readers:
                if one is publisher:
                    continue
                is_far = away[publisher].get(number[one.name], len(number)) >= 3
                wanted += 1
                reachable += number[one.name] in away[publisher]
                far += is_far
                far_got += is_far and (root, one.name) in self.deliveries
        counters: dict[str, int] = {}
        for one in world.honest:
            assert one.node is not None
            for name, value in one.node.metrics().items():
                counters[name] = counters.get(name, 0) + int(value)
        whole = counters["done_roots"]
        return Result(
            seed,
            wanted,
            len(self.deliveries),
            far,
            far_got,
            reachable,
            max(max(far_away.values()) for far_away in away.values()),
            world.bytes_sent,
            whole * world.scenario.payload_bytes,
            tuple(
                when - self.published[root][1] for (root, _), when in self.deliveries.items() if root in self.published
            ),
            counters,
        )


def _subscribe(one: Participant, publishers: list[Participant], is_relay: bool, record: _Record) -> None:
    assert one.node is not None
    one.node.on_event = partial(record.on_event, one.name)
    for publisher in publishers:
        assert publisher.identity is not None
        if publisher is not one:
            tag = feed_tag(publisher.identity.signing.public_key, Namespace.PUBLIC_FEED)
            subscription = Subscription.relay(tag) if is_relay else Subscription.feed(tag, Namespace.PUBLIC_FEED)
            one.node.subscribe(subscription)


def _schedule_publications(world: World, publishers: list[Participant], rng: Random, record: _Record) -> None:
    scenario = world.scenario

    def publish_one(one: Participant) -> None:
        assert one.node is not None
        published = one.node.publish(Destination.feed(Namespace.PUBLIC_FEED), rng.randbytes(scenario.payload_bytes))
        assert published.object_root is not None, "the publisher has no peers"
        record.published[published.object_root] = one, world.now
        world.reschedule(one)

    for number in range(scenario.objects):
        one = publishers[number % len(publishers)]
        world.at(START_S + 1.0 + number * scenario.interval_s, partial(publish_one, one))


def _schedule_churn(
    world: World, others: list[Participant], publishers: list[Participant], rng: Random, record: _Record
) -> None:
    """Schedule departures. A node comes back as a new process over the same store."""
    scenario = world.scenario
    lasts_s = scenario.objects * scenario.interval_s + scenario.settle_s / 2

    def rejoin_one(one: Participant) -> None:
        assert one.node is not None
        one.node.close()
        world.start_node(one)
        one.node.on_event = partial(record.on_event, one.name)
        one.tick_at = float("inf")
        world.rejoin(one)
        world.reschedule(one)

    def leave_one(one: Participant) -> None:
        if one.is_here:
            world.leave(one)
            world.at(world.now + scenario.away_s * (0.5 + rng.random()), partial(rejoin_one, one))

    for one in others:
        when = rng.expovariate(scenario.churn_per_minute / 60.0)
        while when < lasts_s:
            world.at(START_S + when, partial(leave_one, one))
            when += scenario.away_s * 1.5 + rng.expovariate(scenario.churn_per_minute / 60.0)


WIDTH, PANEL_HEIGHT = 720, 190
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 64, 24, 44, 56, 44
_TICKS = 5
_INK, _GRID, _BLUE, _GREEN, _BROWN = "#333333", "#dddddd", "#1b6ca8", "#3d7d3a", "#b5541c"


@dataclass(frozen=True, slots=True)
class _Series:
    """One value per x position. Values that are not finite are not drawn."""

    values: Sequence[float]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Panel:
    """One chart with its scale."""

    heading: str
    colour: str
    low: float
    high: float
    format_value: Callable[[float], str]
    series: tuple[_Series, ...]


def plot_svg(sweep: Sweep, title: str = "Delivery over loss") -> str:
    """Delivery rate, latency, and bytes sent per delivered byte and hop, by loss rate."""
    points = sweep.points
    costs = [point.cost for point in points]
    half, most = ([point.latency(part) for point in points] for part in (0.5, 0.99))
    slowest, dearest = (max(filter(math.isfinite, values), default=1.0) for values in (most, costs))
    least = min(0.95, math.floor(20 * min(point.worst_rate for point in points)) / 20)
    panels = (
        _Panel(
            "delivered, all seeds; dashed: the worst seed", _BLUE, least, 1.0, "{:.1%}".format,
            (_Series([point.worst_rate for point in points], True), _Series([point.rate for point in points])),
        ),
        _Panel(
            "median latency; dashed: 99th percentile", _GREEN, 0.0, 5.0 * math.ceil(slowest / 5), "{:.0f} s".format,
            (_Series(most, True), _Series(half)),
        ),
        _Panel(
            "bytes sent per delivered byte and hop", _BROWN, 0.0, float(math.ceil(dearest)), "{:.1f}".format,
            (_Series(costs),),
        ),
    )  # fmt: skip
    seeds = len(points[0].results)
    below = f"frames lost; {_describe(sweep.scenario)}, {seeds} seed{'s' if seeds != 1 else ''}"
    losses = [point.loss for point in points]
    return _draw(title, below, losses, [(loss, f"{loss:.0%}") for loss in losses], panels)


def plot_run_svg(scenario: Scenario, result: Result, title: str = "Delivery over time") -> str:
    """Fraction delivered by time since publication."""
    times = [0.0, *sorted(result.latencies_s)]
    parts = [number / max(result.wanted, 1) for number in range(len(times))]
    last = max(times[-1], 1.0)
    ticks = [(last * step / 6, f"{last * step / 6:.1f}") for step in range(7)]
    below = f"seconds after publication; {_describe(scenario)}, {scenario.loss:.0%} of frames lost, seed {result.seed}"
    panel = _Panel("delivered", _BLUE, 0.0, 1.0, "{:.0%}".format, (_Series(parts),))
    return _draw(title, below, times, ticks, (panel,), has_dots=False)


def _describe(scenario: Scenario) -> str:
    return f"{scenario.nodes} nodes, {scenario.objects} objects of {scenario.payload_bytes} bytes"


def _draw(
    title: str,
    below: str,
    places: Sequence[float],
    ticks: Sequence[tuple[float, str]],
    panels: Sequence[_Panel],
    *,
    has_dots: bool = True,
) -> str:
    height = _TOP + len(panels) * PANEL_HEIGHT + _BOTTOM
    last = max(places[-1], ticks[-1][0], 0.01)

    def x(place: float) -> float:
        return _LEFT + place / last * (WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 26, title, _INK, "middle", size=16),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, [x(place) for place in places], _TOP + number * PANEL_HEIGHT, has_dots)
    end = height - _BOTTOM
    parts += [_text(x(place), end + 18, text, _INK, "middle") for place, text in ticks]
    parts.append(_text(WIDTH / 2, height - 14, below, _INK, "middle"))
    return "\n".join((*parts, "</svg>\n"))


def _panel(panel: _Panel, xs: Sequence[float], top: float, has_dots: bool) -> list[str]:
    def y(value: float) -> float:
        part = (value - panel.low) / (panel.high - panel.low)
        return top + PANEL_HEIGHT - part * (PANEL_HEIGHT - _GAP)

    parts = [_text(_LEFT, top + _GAP - 14, panel.heading, panel.colour, "start", size=13)]
    for step in range(_TICKS + 1):
        value = panel.low + (panel.high - panel.low) * step / _TICKS
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, y(value) + 4, panel.format_value(value), panel.colour, "end"))
    for series in panel.series:
        found = [(at, y(value)) for at, value in zip(xs, series.values, strict=True) if math.isfinite(value)]
        parts.append(_line(found, panel.colour, series.is_dashed, has_dots))
    return parts


def _text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 12) -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _line(points: Sequence[tuple[float, float]], colour: str, is_dashed: bool, has_dots: bool) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4" stroke-opacity="0.6"' if is_dashed else ""
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    drawn = dots if has_dots and not is_dashed else []
    return "".join((f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>', *drawn))
