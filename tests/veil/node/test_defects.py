"""Defects that another node has been seen to have: each claim fails there. `tests.veil.test_defects` lists them all."""

import gc
import os
from pathlib import Path
from random import Random

import pytest

from tests.veil.builders import spoiled
from tests.veil.node.net import Net, drained, feed_object, listening, payload_of
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
    """Objects with k to n shards each, some poisoned, some never whole, garbage in between."""
    chance = Random(seed)
    for number in range(count):
        made = feed_object(payload_of(500, number + seed * count))
        shards = chance.sample(made.shards, chance.randint(1, made.of.shape.n))
        for shard in shards:
            node.receive("fast", chance.choice("pqrs"), shard)
        if not number % 7:
            node.receive("fast", "p", spoiled(made.shards[0]))
        if not number % 50:
            node.receive("fast", "q", chance.randbytes(300))
        net.now += 0.02
        if not number % 20:
            node.tick()
            drained(node)


def test_nothing_a_node_holds_grows_beyond_its_bound_whatever_comes() -> None:
    net, node = listening(NodeConfig(bounds=TIGHT))
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
    net, node = listening()
    for number in range(50):
        for shard in feed_object(payload_of(500, number)).shards:
            node.receive("fast", "p", shard)
    assert node.status().inbox_bytes == 0
    assert node.metrics()["shards_late"] == 50
    net.advance(6_000, step=60.0)
    status = node.status()
    assert (status.objects_open, status.objects_whole, status.cache_shards) == (0, 0, 0)


def resident_bytes() -> int:
    """What the process has for itself; pages of the store's file that happen to be mapped are not counted."""
    gc.collect()
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def deliver(net: Net, node: Node, numbers: range) -> None:
    """Objects of all profiles with k to n shards each from honest peers, lies and garbage of others in between."""
    for number in numbers:
        chance = Random(number)
        size = SIZES[sum(not number % every for every in (10, 100, 500))]
        made = feed_object(chance.randbytes(size))
        for shard in chance.sample(made.shards, chance.randint(made.of.shape.k, made.of.shape.n)):
            node.receive("fast", chance.choice("rs"), shard)
            if not number % 7:
                node.receive("fast", "p", spoiled(shard))
        if not number % 50:
            node.receive("fast", "q", chance.randbytes(300))
        net.now += 0.02
        if not number % 20:
            node.tick()
            drained(node)


@pytest.mark.slow
def test_memory_is_flat_over_a_hundred_thousand_objects_of_k_to_n_shards(tmp_path: Path) -> None:
    net, node = listening(NodeConfig(bounds=TIGHT), store=DiskStore(tmp_path / "n"))
    curve = []
    for start in range(0, 100_000, 10_000):
        deliver(net, node, range(start, start + 10_000))
        curve.append(round(resident_bytes() / KIB / KIB, 1))
    assert node.metrics()["objects_delivered"] == 100_000
    assert max(curve[2:]) - curve[1] < 8, f"MiB after each ten thousand objects: {curve}"
    node.close()


def test_every_frame_is_dealt_with_when_it_comes_and_not_one_a_tick() -> None:
    net, node = listening()
    for number in range(200):
        for shard in feed_object(payload_of(500, number)).shards:
            node.receive("fast", "p", shard)
    assert len(net.delivered("n")) == 200


def test_a_peer_that_is_not_there_is_not_sent_everything() -> None:
    """Shards go by how links do: one that never answers is given less and less, and soon next to nothing."""
    net = Net()
    lanes = (LaneSpec("fast"), LaneSpec("ws", LaneClass.FALLBACK))
    node = net.add("a", NodeConfig(lanes=lanes))
    net.add("b", NodeConfig(lanes=lanes))
    net.nodes["b"].subscribe(Subscription.feed(feed_tag(net.identities["a"].signing.public_key, 1), 1))
    node.connected("ws", "nobody")
    net.connect("a", "b", "ws")
    for number in range(60):
        node.publish(Destination.feed(1), payload_of(500, number))
        net.advance(2, step=1.0)
    assert len(net.delivered("b")) == 60
    late = [
        to for source, to, _, frame in net.sent[len(net.sent) // 2 :] if source == "a" and len(frame) in BUCKET_SIZES
    ]
    assert late.count("nobody") < late.count("b") / 2
    assert node.outbound() == () or len(node.outbound()) < 10


def test_a_peer_that_is_gone_is_sent_nothing_and_is_not_remembered() -> None:
    net, node = listening()
    node.disconnected("fast", "p")
    node.disconnected("fast", "p")
    for shard in feed_object().shards:
        node.receive("fast", "q", shard)
        node.receive("fast", "p", shard)
    net.advance(0.2)
    assert "p" not in {to for _, to, _, _ in net.sent}
    assert "p" not in {peer.peer for peer in node.peers()}
    assert node.take("fast", "p") == ()


def test_a_lane_that_swallows_everything_is_given_up_for_one_that_does_not() -> None:
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


def test_what_one_node_says_another_identity_reads() -> None:
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
