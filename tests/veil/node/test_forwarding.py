"""Forwarding, decided by tag and policy alone."""

from dataclasses import replace

import pytest

from tests.veil.builders import corrupted
from tests.veil.node.net import EPOCH, FEED, SIGNER, Net, drained, feed_object, payload_of, reader_node
from veil import Address, DeliveryKey, Recipient, SigningKey, publish, publish_feed, send_private
from veil.channels import feed_key
from veil.node import Bounds, Destination, NodeConfig, Spread, Subscription, Tier
from veil.node.config import DEFAULT_TIERS, TierPolicy
from veil.node.frames import Inventory, InventoryEntry, encode
from veil.veil_limits import BUCKET_SIZES, CACHE_TTL_SECONDS

SHARD_SIZES = set(BUCKET_SIZES)
# Forwarding probability 1.
ALWAYS = NodeConfig(spread=Spread(forward_floor=1.0))


def shards_to(sent: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(peer, frame) for peer, frame in sent if len(frame) in SHARD_SIZES]


def test_a_relay_without_the_key_forwards_enough_shards_of_an_object() -> None:
    """The relay cannot open the object; this must not change what it forwards."""
    made = send_private(payload_of(20_000), SIGNER, Recipient(DeliveryKey.generate().public_key), 2, EPOCH)
    net = Net()
    node = net.add("n", ALWAYS)
    node.subscribe(Subscription.relay(made.of.address.tag))
    for name in ("p", "q"):
        node.connected("fast", name)
    drained(node)
    for shard in made.shards:
        node.receive("fast", "p", shard)
    passed = {frame for peer, frame in shards_to(drained(node)) if peer == "q"}
    assert len(passed) == made.of.shape.k
    net.advance(0.1)
    assert node.status().objects_whole == 1


def test_two_nodes_communicate_through_a_relay_without_keys() -> None:
    net = Net()
    for name in ("a", "relay", "b"):
        net.add(name)
    bob = net.identities["b"].delivery.public_key
    net.nodes["relay"].subscribe(Subscription.relay_mailbox(bob, 2))
    net.nodes["b"].subscribe(Subscription.mailbox(2))
    net.connect("a", "relay")
    net.connect("relay", "b")
    net.nodes["a"].publish(Destination.private(bob, 2), payload_of(50_000))
    net.advance(5)
    assert net.delivered("b") == [payload_of(50_000)]
    assert net.delivered("relay") == []
    assert [event.kind for event in net.events("a", "acked")] == ["acked"]


def test_shards_of_unsubscribed_tags_are_not_forwarded() -> None:
    _, node = reader_node(ALWAYS)
    other = feed_object(namespace=9)
    for shard in other.shards:
        node.receive("fast", "p", shard)
    assert drained(node) == []
    assert node.metrics()["shards_stray"] == len(other.shards)
    assert "not forwarded" in node.explain_tag(other.of.address.tag, 9).reasons[0]


def test_an_open_relay_forwards_unsubscribed_tags() -> None:
    net = Net()
    node = net.add("n", replace(ALWAYS, relay_all=True))
    for name in ("p", "q"):
        node.connected("fast", name)
    drained(node)
    node.receive("fast", "p", feed_object().shards[0])
    assert [peer for peer, _ in shards_to(drained(node))] == ["q"]


def test_a_shard_is_forwarded_neither_to_its_sender_nor_to_known_holders() -> None:
    _, node = reader_node(ALWAYS)
    made = feed_object(payload_of(20_000))
    for name in ("q", "r"):
        node.receive("fast", name, made.shards[0])
    first = {peer for peer, _ in shards_to(drained(node))}
    assert "q" not in first
    node.receive("fast", "p", made.shards[0])
    assert shards_to(drained(node)) == []


def test_a_shard_is_processed_once_however_often_it_arrives() -> None:
    _, node = reader_node(ALWAYS)
    made = feed_object()
    for _ in range(5):
        node.receive("fast", "p", made.shards[0])
    metrics = node.metrics()
    assert (metrics["shards_new"], metrics["shards_duplicate"]) == (1, 4)


def test_duplicates_raise_the_count_of_replicas_once_for_each_peer() -> None:
    _, node = reader_node()
    made = feed_object()
    for name in ("p", "q", "q", "r", "r", "r"):
        node.receive("fast", name, made.shards[0])
    (entry,) = node.cache_entries()
    assert entry.replicas == 4


def test_common_shards_are_forwarded_less_often_down_to_the_floor() -> None:
    def passed(replicas: int, floor: float) -> int:
        count = 0
        config = NodeConfig(spread=Spread(forward_floor=floor, forward_divisor=1.0))
        net = Net()
        node = net.add("n", config)
        node.subscribe(Subscription.feed(FEED, 1))
        peers = [f"p{number}" for number in range(replicas + 3)]
        for name in peers:
            node.connected("fast", name)
        drained(node)
        for number in range(150):
            made = feed_object(payload_of(2_000, number))
            for name in peers[:replicas]:
                node.receive("fast", name, encode(Inventory((InventoryEntry(made.of, 0b100),))))
            node.receive("fast", peers[0], made.shards[2])
            count += bool(shards_to(drained(node)))
        return count

    rare, common, floored = passed(1, 0.0), passed(20, 0.0), passed(20, 0.6)
    assert rare > 50
    assert common < 25 < rare
    assert floored > 65


@pytest.mark.parametrize(("tier", "expected"), [(Tier.BLOCKED, 0), (Tier.MUTED, 0), (Tier.TRUSTED, 2)])
def test_the_tier_of_a_feed_limits_the_number_of_receivers(tier: Tier, expected: int) -> None:
    _, node = reader_node(ALWAYS)
    node.set_tier(SIGNER.public_key, tier)
    node.receive("fast", "p", feed_object().shards[0])
    assert len(shards_to(drained(node))) == expected


def test_frames_of_a_blocked_peer_are_not_hashed() -> None:
    net = Net()
    node = net.add("n")
    node.subscribe(Subscription.feed(FEED, 1))
    node.set_tier(b"\x07" * 32, Tier.BLOCKED)
    node.connected("fast", "p", b"\x07" * 32)
    node.receive("fast", "p", feed_object().shards[0])
    assert (node.metrics()["frames_refused"], node.metrics()["seen_ids"]) == (1, 0)


def test_frames_above_the_rate_of_a_tier_are_dropped() -> None:
    tiers = {**DEFAULT_TIERS, Tier.UNKNOWN: TierPolicy(1.0, 0.5, 10_000)}
    net, node = reader_node(replace(ALWAYS, tiers=tiers))
    made = feed_object(payload_of(90_000))
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert node.metrics()["shards_new"] == 1
    net.now += 2
    node.receive("fast", "p", made.shards[5])
    assert node.metrics()["shards_new"] == 2


def test_an_object_with_an_implausible_epoch_is_neither_cached_nor_forwarded() -> None:
    _, node = reader_node(ALWAYS)
    for epoch in (EPOCH + 2, EPOCH - 30):
        node.receive("fast", "p", publish_feed(b"x", SIGNER, 1, epoch).shards[0])
    assert node.metrics()["shards_implausible"] == 2
    assert (drained(node), node.status().cache_shards) == ([], 0)


def test_shards_received_before_a_subscription_are_used_by_it() -> None:
    net = Net()
    node = net.add("n")
    node.connected("fast", "p")
    made = feed_object(b"early")
    for shard in made.shards[:2]:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == []
    node.subscribe(Subscription.feed(FEED, 1))
    assert net.delivered("n") == [b"early"]


def test_an_object_is_delivered_once_even_if_it_arrives_again_after_the_cache_expired() -> None:
    net, node = reader_node(NodeConfig(bounds=Bounds(seen_ids=1)))
    made = feed_object(b"once")
    for _ in range(2):
        for shard in made.shards:
            node.receive("fast", "p", shard)
        net.now += CACHE_TTL_SECONDS + 60
        node.tick()
    assert net.delivered("n") == [b"once"]
    assert node.metrics()["objects_replayed"] > 0


def test_an_unsigned_object_where_signatures_are_required_is_not_kept() -> None:
    _, node = reader_node()
    made = publish(b"forged", Address(FEED, 1, EPOCH), feed_key(FEED))
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert node.metrics()["objects_refused"] == 1
    assert node.status().cache_shards == 0
    assert node.events(0)[-1].kind != "delivered"


def test_a_feed_object_signed_by_another_key_is_not_delivered() -> None:
    net, node = reader_node()
    forged = publish(b"forged", Address(FEED, 1, EPOCH), feed_key(FEED), signer=SigningKey(b"\x55" * 32))
    for shard in forged.shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == []
    assert node.metrics()["objects_unreadable"] == 1


def test_a_false_shard_of_a_whole_object_is_not_forwarded() -> None:
    _, node = reader_node(ALWAYS)
    made = feed_object(payload_of(20_000))
    for shard in made.shards[: made.of.shape.k]:
        node.receive("fast", "p", shard)
    drained(node)
    node.receive("fast", "q", corrupted(made.shards[-1]))
    assert shards_to(drained(node)) == []
    assert node.metrics()["shards_late"] == 1
