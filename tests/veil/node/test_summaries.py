"""Bloom filter summaries: nodes find and exchange missing objects."""

from random import Random

import pytest

from tests.veil.node.net import Net, drained, feed_object, payload_of, reader_node
from veil.node import Destination, NodeConfig, Subscription, Summaries
from veil.node.frames import MAX_FILTER_BYTES, Inventory, Summary, decode, encode
from veil.node.pull import Filter, summarise
from veil.tags import feed_tag

SALT = b"\x01" * 16


def elements(count: int, seed: int = 1) -> list[bytes]:
    rng = Random(seed)
    return [rng.randbytes(32) for _ in range(count)]


@pytest.mark.parametrize("count", [0, 1, 10, 1_000, 4_096, 20_000])
def test_a_filter_has_no_false_negatives_and_a_bounded_size(count: int) -> None:
    held = elements(count)
    summary = summarise(held, 7, SALT, 0.02)
    found = Filter(summary)
    assert all(one in found for one in held)
    assert len(summary.bits) <= MAX_FILTER_BYTES
    assert decode(encode(summary)) == summary


def test_a_filter_has_few_false_positives() -> None:
    found = Filter(summarise(elements(1_000), 7, SALT, 0.02))
    assert sum(one in found for one in elements(5_000, seed=2)) < 5_000 * 0.03


def test_filters_with_different_salts_have_different_false_positives() -> None:
    held, others = elements(1_000), elements(5_000, seed=2)
    one, two = (Filter(summarise(held, 7, salt, 0.05)) for salt in (SALT, b"\x02" * 16))
    both = sum(other in one and other in two for other in others)
    assert both < sum(other in one for other in others) / 4


def test_a_summary_is_answered_with_exactly_the_missing_objects() -> None:
    net, node = reader_node()
    made = [feed_object(payload_of(100, number)) for number in range(6)]
    for one in made:
        for shard in one.shards:
            node.receive("fast", "p", shard)
    net.advance(0.2)
    drained(node)
    summary = summarise([one.object_root for one in made[:4]], 20_000, SALT, 0.0001)
    node.receive("fast", "q", encode(summary))
    frames = [decode(frame) for peer, frame in drained(node) if peer == "q"]
    (inventory,) = [frame for frame in frames if isinstance(frame, Inventory)]
    assert {entry.of.object_root for entry in inventory.entries} == {one.object_root for one in made[4:]}


def test_answers_to_summaries_are_rate_limited_per_peer() -> None:
    net, node = reader_node()
    for shard in feed_object().shards:
        node.receive("fast", "p", shard)
    net.advance(0.2)
    drained(node)
    for _ in range(50):
        node.receive("fast", "q", encode(summarise([], 20_000, SALT, 0.01)))
    assert len([peer for peer, _ in drained(node) if peer == "q"]) == 1


def test_two_partitioned_nodes_exchange_missing_objects_after_the_partition() -> None:
    net = Net()
    for name in ("a", "b"):
        net.add(name, NodeConfig(summaries=Summaries(interval_s=5)))
    tags = {name: feed_tag(net.identities[name].signing.public_key, 1) for name in ("a", "b")}
    net.nodes["a"].subscribe(Subscription.feed(tags["b"], 1))
    net.nodes["b"].subscribe(Subscription.feed(tags["a"], 1))
    net.connect("a", "b")
    net.lose = lambda source, to, lane, frame: True
    for number in range(20):
        net.nodes["a"].publish(Destination.feed(1), b"a%d" % number)
        net.nodes["b"].publish(Destination.feed(1), b"b%d" % number)
    net.advance(20)
    assert net.delivered("a") == net.delivered("b") == []
    net.lose = lambda source, to, lane, frame: False
    net.advance(60)
    assert sorted(net.delivered("a")) == sorted(b"b%d" % number for number in range(20))
    assert sorted(net.delivered("b")) == sorted(b"a%d" % number for number in range(20))


def test_a_late_node_gets_cached_objects_from_others() -> None:
    net = Net()
    for name in ("a", "b", "late"):
        net.add(name)
    tag = feed_tag(net.identities["a"].signing.public_key, 1)
    for name in ("b", "late"):
        net.nodes[name].subscribe(Subscription.feed(tag, 1))
    net.connect("a", "b")
    net.nodes["a"].publish(Destination.feed(1), payload_of(30_000))
    net.advance(5)
    net.disconnect("a", "b")
    net.connect("b", "late")
    net.advance(5)
    assert net.delivered("late") == [payload_of(30_000)]


def test_a_summary_removes_holders_of_objects_it_lacks() -> None:
    net, node = reader_node()
    made = feed_object()
    for name in ("p", "q"):
        for shard in made.shards:
            node.receive("fast", name, shard)
    net.advance(0.2)
    drained(node)
    before = node.cache_entries()[0].replicas
    node.receive("fast", "q", encode(Summary(20_000, SALT, 3, bytes(32))))
    assert node.cache_entries()[0].replicas == before - 1
