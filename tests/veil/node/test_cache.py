"""The cache: bounded; what has expired goes first, then what is common; replicas are counted from what peers show."""

from tests.veil.node.net import FEED, SIGNER, Net, drained, feed_object, listening, payload_of
from veil import SigningKey, publish_feed
from veil.node import Bounds, Node, NodeConfig, Subscription, Tier
from veil.node.frames import Inventory, InventoryEntry, Want, all_indices, encode
from veil.node.summary_exchange import summarise
from veil.veil_limits import CACHE_TTL_SECONDS

SALT = b"\x05" * 16


def roots(node: Node) -> set[bytes]:
    return {entry.object_root for entry in node.cache_entries()}


def test_what_has_expired_goes_first_however_rare_it_is() -> None:
    net, node = listening(NodeConfig(bounds=Bounds(cache_shards=2)))
    old, common, new = (feed_object(payload_of(2_000, number)) for number in range(3))
    node.receive("fast", "p", old.shards[0])
    net.now += CACHE_TTL_SECONDS - 10
    for name in ("p", "q", "r", "s"):
        node.receive("fast", name, common.shards[0])
    net.now += 20
    node.receive("fast", "p", new.shards[0])
    assert roots(node) == {common.object_root, new.object_root}
    assert (node.metrics()["cache_expired"], node.metrics()["cache_evicted"]) == (1, 0)


def test_of_what_has_not_expired_the_most_common_goes_first() -> None:
    _, node = listening(NodeConfig(bounds=Bounds(cache_shards=3)))
    made = [feed_object(payload_of(2_000, number)) for number in range(4)]
    for one, names in zip(made, ("p", "pqrs", "pq", "p"), strict=True):
        for name in names:
            node.receive("fast", name, one.shards[0])
    assert roots(node) == {made[0].object_root, made[2].object_root, made[3].object_root}


def test_inventories_and_summaries_raise_the_count_of_replicas_like_duplicates_do() -> None:
    _, node = listening(NodeConfig(bounds=Bounds(cache_shards=3)))
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


def test_a_shard_that_others_ask_for_is_kept_longer() -> None:
    _, node = listening(NodeConfig(bounds=Bounds(cache_shards=2)))
    asked, other = (feed_object(payload_of(2_000, number)) for number in range(2))
    for one in (asked, other):
        for name in ("p", "q"):
            node.receive("fast", name, one.shards[0])
    node.receive("fast", "r", encode(Want(asked.object_root, 1, 1)))
    node.receive("fast", "p", feed_object(b"new").shards[0])
    assert asked.object_root in roots(node)
    assert other.object_root not in roots(node)


def test_a_tier_over_its_share_gives_way_before_all_others() -> None:
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


def test_the_cache_keeps_for_ninety_minutes_and_no_longer() -> None:
    net, node = listening()
    node.receive("fast", "p", feed_object().shards[0])
    net.advance(CACHE_TTL_SECONDS - 40, step=60.0)
    assert node.status().cache_shards == 1
    net.advance(120, step=30.0)
    assert node.status().cache_shards == 0
    assert node.status().objects_open == 0


def test_strays_have_a_room_of_their_own_and_a_shorter_time() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(stray_bytes=3 * 2048, stray_ttl_s=60)))
    node.connected("fast", "p")
    for number in range(10):
        node.receive("fast", "p", feed_object(payload_of(100, number)).shards[0])
    assert node.status().cache_bytes == 3 * 2048
    net.advance(100, step=10.0)
    assert node.status().cache_shards == 0


def test_a_stray_that_was_forgotten_is_new_when_it_comes_again() -> None:
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


def test_an_object_that_gave_way_before_it_was_whole_can_come_again() -> None:
    net, node = listening(NodeConfig(bounds=Bounds(objects=2)))
    made = [feed_object(payload_of(2_000, number)) for number in range(3)]
    for one in made:
        node.receive("fast", "p", one.shards[0])
    for shard in made[0].shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [payload_of(2_000, 0)]


def test_every_index_can_be_asked_of_who_has_any_k() -> None:
    net, node = listening()
    made = feed_object(payload_of(50_000))
    for shard in made.shards[-made.of.shape.k :]:
        node.receive("fast", "p", shard)
    net.advance(0.2)
    drained(node)
    node.receive("fast", "q", encode(Want(made.object_root, 0b1111, 4)))
    assert [frame for _, frame in drained(node)] == list(made.shards[:4])
