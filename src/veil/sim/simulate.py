"""Runs a scenario once, or for many loss rates and seeds, and collects the results."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from veil.namespaces import Namespace
from veil.node import Bounds, Destination, Event, LaneClass, LaneSpec, NodeConfig, Subscription
from veil.sim.world import FALLBACK, FAST, START_S, Participant, Scenario, World, hops
from veil.tags import feed_tag
from veil.veil_limits import KIB

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
