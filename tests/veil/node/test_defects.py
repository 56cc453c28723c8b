"""Defects found in another node implementation; these tests fail there. `tests.veil.test_defects` lists them all."""

import gc
import os
from pathlib import Path
from random import Random

import pytest

from tests.veil.builders import corrupted
from tests.veil.node.net import Net, drained, feed_object, payload_of, reader_node
from veil.node import Bounds, Destination, LaneClass, LaneSpec, Node, NodeConfig, Subscription
from veil.store import DiskStore
from veil.tags import feed_tag
from veil.veil_limits import BUCKET_SIZES

KIB = 1024
SIZES = (500, 5_000, 60_000, 120_000)
TIGHT = Bounds(
    cache_bytes=4 * KIB * KIB, inbox_bytes=KIB * KIB, seen_ids=4_096, objects=512, done_roots=4_096, events=256,
    event_bytes=KIB * KIB, open_per_peer=64,
)  # fmt: skip


def feed_in(net: Net, node: Node, count: int, seed: int) -> None:
    """Receive objects with k to n shards each, some poisoned, some never whole, mixed with garbage."""
    rng = Random(seed)
    for number in range(count):
        made = feed_object(payload_of(500, number + seed * count))
        shards = rng.sample(made.shards, rng.randint(1, made.of.shape.n))
        for shard in shards:
            node.receive("fast", rng.choice("pqrs"), shard)
        if not number % 7:
            node.receive("fast", "p", corrupted(made.shards[0]))
        if not number % 50:
            node.receive("fast", "q", rng.randbytes(300))
        net.now += 0.02
        if not number % 20:
            node.tick()
            drained(node)


def test_all_memory_stays_within_its_bounds_for_any_input() -> None:
    net, node = reader_node(NodeConfig(bounds=TIGHT))
    feed_in(net, node, 3_000, seed=1)
    metrics, status = node.metrics(), node.status()
    assert metrics["objects_delivered"] > 1_000
    assert metrics["seen_ids"] <= TIGHT.seen_ids
    assert metrics["done_roots"] <= TIGHT.done_roots
    assert metrics["cache_bytes"] <= TIGHT.cache_bytes + TIGHT.stray_bytes
    assert metrics["inbox_bytes"] <= TIGHT.inbox_bytes
    assert status.objects_open + status.objects_whole <= TIGHT.objects
    assert status.last_seq - status.first_seq < TIGHT.events
    assert metrics["agenda"] < 1_000


def test_shards_that_come_after_delivery_leave_nothing_behind() -> None:
    net, node = reader_node()
    for number in range(50):
        for shard in feed_object(payload_of(500, number)).shards:
            node.receive("fast", "p", shard)
    assert node.status().inbox_bytes == 0
    assert node.metrics()["shards_late"] == 50
    net.advance(6_000, step=60.0)
    status = node.status()
    assert (status.objects_open, status.objects_whole, status.cache_shards) == (0, 0, 0)


def resident_bytes() -> int:
    """Resident memory of the process without shared pages, such as the mapped store file."""
    gc.collect()
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def deliver(net: Net, node: Node, numbers: range) -> None:
    """Receive objects of all profiles with k to n honest shards each, and false shards and garbage."""
    for number in numbers:
        rng = Random(number)
        size = SIZES[sum(not number % every for every in (10, 100, 500))]
        made = feed_object(rng.randbytes(size))
        for shard in rng.sample(made.shards, rng.randint(made.of.shape.k, made.of.shape.n)):
            node.receive("fast", rng.choice("rs"), shard)
            if not number % 7:
                node.receive("fast", "p", corrupted(shard))
        if not number % 50:
            node.receive("fast", "q", rng.randbytes(300))
        net.now += 0.02
        if not number % 20:
            node.tick()
            drained(node)


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_objects_of_k_to_n_shards(tmp_path: Path) -> None:
    net, node = reader_node(NodeConfig(bounds=TIGHT), store=DiskStore(tmp_path / "n"))
    curve = []
    for start in range(0, 100_000, 10_000):
        deliver(net, node, range(start, start + 10_000))
        curve.append(round(resident_bytes() / KIB / KIB, 1))
    assert node.metrics()["objects_delivered"] == 100_000
    assert max(curve[2:]) - curve[1] < 8, f"MiB after each ten thousand objects: {curve}"
    node.close()


def test_every_frame_is_processed_on_arrival_and_not_one_per_tick() -> None:
    net, node = reader_node()
    for number in range(200):
        for shard in feed_object(payload_of(500, number)).shards:
            node.receive("fast", "p", shard)
    assert len(net.delivered("n")) == 200


def test_a_silent_peer_gets_only_a_small_share_of_shards() -> None:
    """Links are chosen by score, so a link that never answers gets fewer and fewer shards."""
    net = Net()
    lanes = (LaneSpec("fast"), LaneSpec("ws", LaneClass.FALLBACK))
    node = net.add("a", NodeConfig(lanes=lanes))
    net.add("b", NodeConfig(lanes=lanes))
    net.nodes["b"].subscribe(Subscription.feed(feed_tag(net.identities["a"].signing.public_key, 1), 1))
    node.connected("ws", "silent")
    net.connect("a", "b", "ws")
    for number in range(60):
        node.publish(Destination.feed(1), payload_of(500, number))
        net.advance(2, step=1.0)
    assert len(net.delivered("b")) == 60
    late = [
        to for source, to, _, frame in net.sent[len(net.sent) // 2 :] if source == "a" and len(frame) in BUCKET_SIZES
    ]
    assert late.count("silent") < late.count("b") / 2
    assert node.outbound() == () or len(node.outbound()) < 10


def test_a_disconnected_peer_gets_nothing_and_is_not_listed() -> None:
    net, node = reader_node()
    node.disconnected("fast", "p")
    node.disconnected("fast", "p")
    for shard in feed_object().shards:
        node.receive("fast", "q", shard)
        node.receive("fast", "p", shard)
    net.advance(0.2)
    assert "p" not in {to for _, to, _, _ in net.sent}
    assert "p" not in {peer.peer for peer in node.peers()}
    assert node.take("fast", "p") == ()


def test_a_lane_that_drops_everything_is_replaced_by_a_working_one() -> None:
    net = Net()
    lanes = (LaneSpec("fast"), LaneSpec("ws", LaneClass.FALLBACK))
    for name in ("a", "b"):
        net.add(name, NodeConfig(lanes=lanes))
    net.nodes["b"].subscribe(Subscription.feed(feed_tag(net.identities["a"].signing.public_key, 1), 1))
    for lane in ("fast", "ws"):
        net.connect("a", "b", lane)
    net.lose = lambda source, to, lane, frame: lane == "fast"
    for number in range(30):
        net.nodes["a"].publish(Destination.feed(1), payload_of(500, number))
        net.advance(2, step=0.5)
    net.advance(60)
    assert len(net.delivered("b")) == 30
    health = {lane.lane: lane.score for lane in net.nodes["a"].lanes()}
    assert health["fast"] < 0.2 < health["ws"]
    late = [lane for source, _, lane, _ in net.sent[-100:] if source == "a"]
    assert late.count("ws") > late.count("fast")


def test_another_identity_reads_what_a_node_publishes() -> None:
    net = Net()
    for name in ("a", "b"):
        net.add(name)
    net.connect("a", "b")
    net.nodes["b"].subscribe(Subscription.mailbox(2))
    net.nodes["a"].publish(Destination.private(net.identities["b"].delivery.public_key, 2), b"to you")
    net.advance(3)
    (event,) = net.events("b", "delivered")
    assert event.data["payload"] == b"to you"
    assert event.data["sender"] == net.identities["a"].signing.public_key
