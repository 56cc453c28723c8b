"""The cache: bounds, order of eviction, and replica counts."""

from tests.veil.node.net import FEED, SIGNER, Net, drained, feed_object, payload_of, reader_node
from veil import SigningKey, publish_feed
from veil.node import Bounds, Node, NodeConfig, Subscription, Tier
from veil.node.frames import Inventory, InventoryEntry, Want, all_indices, encode
from veil.node.pull import summarise
from veil.veil_limits import CACHE_TTL_SECONDS

SALT = b"\x05" * 16


def roots(node: Node) -> set[bytes]:
    return {entry.object_root for entry in node.cache_entries()}


def test_expired_shards_are_evicted_first_however_rare() -> None:
    net, node = reader_node(NodeConfig(bounds=Bounds(cache_shards=2)))
    old, common, new = (feed_object(payload_of(2_000, number)) for number in range(3))
    node.receive("fast", "p", old.shards[0])
    net.now += CACHE_TTL_SECONDS - 10
    for name in ("p", "q", "r", "s"):
        node.receive("fast", name, common.shards[0])
    net.now += 20
    node.receive("fast", "p", new.shards[0])
    assert roots(node) == {common.object_root, new.object_root}
    assert (node.metrics()["cache_expired"], node.metrics()["cache_evicted"]) == (1, 0)


def test_among_live_shards_the_most_common_is_evicted_first() -> None:
    _, node = reader_node(NodeConfig(bounds=Bounds(cache_shards=3)))
    made = [feed_object(payload_of(2_000, number)) for number in range(4)]
    for one, names in zip(made, ("p", "pqrs", "pq", "p"), strict=True):
        for name in names:
            node.receive("fast", name, one.shards[0])
    assert roots(node) == {made[0].object_root, made[2].object_root, made[3].object_root}


def test_inventories_and_summaries_raise_the_count_of_replicas_like_duplicates_do() -> None:
    _, node = reader_node(NodeConfig(bounds=Bounds(cache_shards=3)))
    made = [feed_object(payload_of(2_000, number)) for number in range(3)]
    for one in made:
        node.receive("fast", "p", one.shards[0])
    node.receive("fast", "q", encode(Inventory((InventoryEntry(made[1].of, all_indices(made[1].of)),))))
    shard_id = {entry.object_root: entry.shard_id for entry in node.cache_entries()}[made[2].object_root]
    node.receive("fast", "r", encode(summarise([shard_id], 20_000, SALT, 0.001)))
    node.receive("fast", "s", encode(summarise([made[2].object_root], 20_000, SALT, 0.001)))
    replicas = {entry.object_root: entry.replicas for entry in node.cache_entries()}
    assert [replicas[one.object_root] for one in made] == [2, 3, 4]
    node.receive("fast", "p", feed_object(b"new").shards[0])
    assert made[2].object_root not in roots(node)


def test_a_requested_shard_is_kept_longer() -> None:
    _, node = reader_node(NodeConfig(bounds=Bounds(cache_shards=2)))
    requested, other = (feed_object(payload_of(2_000, number)) for number in range(2))
    for one in (requested, other):
        for name in ("p", "q"):
            node.receive("fast", name, one.shards[0])
    node.receive("fast", "r", encode(Want(requested.object_root, 1, 1)))
    node.receive("fast", "p", feed_object(b"new").shards[0])
    assert requested.object_root in roots(node)
    assert other.object_root not in roots(node)


def test_a_tier_above_its_share_is_evicted_first() -> None:
    net = Net()
    node = net.add("n", NodeConfig(relay_all=True, bounds=Bounds(cache_bytes=20 * 2048)))
    node.set_tier(SIGNER.public_key, Tier.TRUSTED)
    node.connected("fast", "p")
    kept = [publish_feed(payload_of(2_000, number), SIGNER, 1, 20_000) for number in range(10)]
    stranger = SigningKey(b"\x44" * 32)
    for number, one in enumerate(kept):
        node.receive("fast", "p", one.shards[0])
        for more in range(4):
            unasked = publish_feed(payload_of(2_000, 100 + number * 4 + more), stranger, 1, 20_000)
            node.receive("fast", "p", unasked.shards[0])
    held = roots(node)
    assert {one.object_root for one in kept} <= held
    assert node.status().cache_bytes <= 20 * 2048


def test_the_cache_keeps_shards_for_ninety_minutes() -> None:
    net, node = reader_node()
    node.receive("fast", "p", feed_object().shards[0])
    net.advance(CACHE_TTL_SECONDS - 40, step=60.0)
    assert node.status().cache_shards == 1
    net.advance(120, step=30.0)
    assert node.status().cache_shards == 0
    assert node.status().objects_open == 0


def test_strays_have_separate_memory_and_a_shorter_lifetime() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(stray_bytes=3 * 2048, stray_ttl_s=60)))
    node.connected("fast", "p")
    for number in range(10):
        node.receive("fast", "p", feed_object(payload_of(100, number)).shards[0])
    assert node.status().cache_bytes == 3 * 2048
    net.advance(100, step=10.0)
    assert node.status().cache_shards == 0


def test_an_expired_stray_counts_as_new_when_it_arrives_again() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(stray_ttl_s=60)))
    node.connected("fast", "p")
    made = feed_object(b"again")
    for shard in made.shards:
        node.receive("fast", "p", shard)
    net.advance(100, step=10.0)
    node.subscribe(Subscription.feed(FEED, 1))
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [b"again"]


def test_an_object_evicted_before_it_was_whole_can_arrive_again() -> None:
    net, node = reader_node(NodeConfig(bounds=Bounds(objects=2)))
    made = [feed_object(payload_of(2_000, number)) for number in range(3)]
    for one in made:
        node.receive("fast", "p", one.shards[0])
    for shard in made[0].shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [payload_of(2_000, 0)]


def test_a_node_with_any_k_shards_serves_every_index() -> None:
    net, node = reader_node()
    made = feed_object(payload_of(50_000))
    for shard in made.shards[-made.of.shape.k :]:
        node.receive("fast", "p", shard)
    net.advance(0.2)
    drained(node)
    node.receive("fast", "q", encode(Want(made.object_root, 0b1111, 4)))
    assert [frame for _, frame in drained(node)] == list(made.shards[:4])
