"""The outbox: messages stay until peers have them, across long offline times, restarts and losses."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.veil.node.net import EPOCH, FEED, SIGNER, Net, drained, feed_object, identity, payload_of, reader_node
from veil import NATIVE, Address, Group, GroupSecret, Refused, SharedKey, publish, publish_feed
from veil.channels import feed_key
from veil.encryption import write_letter
from veil.node import Bounds, Destination, Escalation, LaneClass, LaneSpec, NodeConfig, Subscription
from veil.node.frames import Inventory, InventoryEntry, all_indices, encode
from veil.profiles import SHAPES, Shape
from veil.store import DiskStore
from veil.tags import feed_tag
from veil.veil_limits import BUCKET_SIZES, MAX_OBJECT_BYTES

DAY = 86_400.0
LANES = (LaneSpec("fast"), LaneSpec("slow", LaneClass.FALLBACK))


def publisher_and_reader(net: Net, config: NodeConfig | None = None) -> Net:
    """A publisher `a` and a reader `b`, not connected yet."""
    net.add("a", config)
    net.add("b")
    tag = feed_tag(net.identities["a"].signing.public_key, 1)
    net.nodes["b"].subscribe(Subscription.feed(tag, 1))
    return net


def pushed(frames: list[tuple[str, bytes]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for peer, frame in frames:
        if len(frame) in BUCKET_SIZES:
            found.setdefault(peer, set()).add(NATIVE.decode_shard(frame).index)
    return found


def test_a_message_published_offline_is_delivered_days_later() -> None:
    net = publisher_and_reader(Net())
    published = net.nodes["a"].publish(Destination.feed(1), b"patience")
    assert published.object_root is None
    net.advance(5 * DAY, step=3600.0)
    assert [one.state for one in net.nodes["a"].outbound()] == ["queued"]
    net.connect("a", "b")
    net.advance(3)
    assert net.delivered("b") == [b"patience"]
    assert net.nodes["a"].outbound() == ()
    assert [event.data["message_id"] for event in net.events("a", "sent")] == [published.message_id]


def test_a_private_message_published_offline_is_sealed_for_the_epoch_of_sending() -> None:
    """A rendezvous tag of three days ago has no subscribers any more."""
    net = Net()
    for name in ("a", "b"):
        net.add(name)
    net.nodes["b"].subscribe(Subscription.mailbox(2))
    bob = net.identities["b"].delivery.public_key
    net.nodes["a"].publish(Destination.private(bob, 2), b"late")
    net.advance(3 * DAY, step=3600.0)
    net.connect("a", "b")
    net.advance(5)
    assert net.delivered("b") == [b"late"]
    assert len(net.events("a", "acked")) == 1


def test_queued_messages_and_parcels_survive_a_restart(tmp_path: Path) -> None:
    net = Net()
    net.add("a", store=DiskStore(tmp_path / "a"))
    net.add("b")
    net.nodes["b"].subscribe(Subscription.feed(feed_tag(net.identities["a"].signing.public_key, 1), 1))
    net.nodes["a"].publish(Destination.feed(1), b"first")
    net.connect("a", "b")
    net.lose = lambda source, to, lane, frame: True
    net.advance(3)
    root = net.nodes["a"].outbound()[0].object_root
    net.nodes["a"].publish(Destination.feed(1), b"second")
    net.disconnect("a", "b")
    net.nodes["a"].publish(Destination.feed(1), b"third")
    net.nodes["a"].close()
    net.lose = lambda source, to, lane, frame: False
    net.add("a", store=DiskStore(tmp_path / "a"))
    assert [one.state for one in net.nodes["a"].outbound()] == ["under way", "under way", "queued"]
    assert net.nodes["a"].outbound()[0].object_root == root
    net.connect("a", "b")
    net.advance(10)
    assert sorted(net.delivered("b")) == [b"first", b"second", b"third"]
    assert net.nodes["a"].outbound() == ()
    net.nodes["a"].close()


def test_the_root_that_publishing_returns_is_the_root_that_is_delivered() -> None:
    net = publisher_and_reader(Net())
    net.connect("a", "b")
    published = net.nodes["a"].publish(Destination.feed(1), b"now")
    net.advance(2)
    assert [event.data["object_root"] for event in net.events("b", "delivered")] == [published.object_root]


def test_sent_means_that_a_peer_has_it_and_not_that_it_was_written_to_a_socket() -> None:
    net = publisher_and_reader(Net())
    net.connect("a", "b")
    net.lose = lambda source, to, lane, frame: source == "a"
    net.nodes["a"].publish(Destination.feed(1), b"lost")
    net.advance(30)
    assert net.events("a", "sent") == []
    net.lose = lambda source, to, lane, frame: False
    net.advance(60)
    assert len(net.events("a", "sent")) == 1
    assert net.delivered("b") == [b"lost"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.k}of{shape.n}x{shape.bucket_size}")
def test_the_first_wave_holds_back_shards_from_every_peer_in_every_profile(shape: Shape) -> None:
    net = Net()
    node = net.add("n", NodeConfig(lanes=LANES))
    for lane, name in (("fast", "p"), ("fast", "q"), ("slow", "r")):
        node.connected(lane, name)
    drained(node)
    node.publish_sealed(publish(b"x", Address(FEED, 1, EPOCH), feed_key(FEED), signer=SIGNER, shape=shape))
    sent = pushed(drained(node))
    assert set(sent) == {"p", "q", "r"}
    assert all(shape.k <= len(sent[name]) < shape.n for name in ("p", "q"))
    assert len(sent["r"]) == 2
    assert len(sent["p"] | sent["q"] | sent["r"]) == shape.n


def test_an_unconfirmed_wave_is_followed_by_held_back_shards_and_then_by_other_peers() -> None:
    net = Net()
    node = net.add("n", NodeConfig(lanes=LANES))
    for name in ("p", "q", "r", "s"):
        node.connected("fast", name)
    drained(node)
    made = feed_object(payload_of(50_000))
    node.publish_sealed(made)
    first = pushed(drained(node))
    later: dict[str, set[int]] = {name: set(indices) for name, indices in first.items()}
    for _ in range(600):
        net.now += 1.0
        node.tick()
        for name, indices in pushed(drained(node)).items():
            later.setdefault(name, set()).update(indices)
    assert all(len(later[name]) == made.of.shape.n for name in first)
    assert set(later) == {"p", "q", "r", "s"}
    assert node.metrics()["shards_escalated"] > 0


def test_a_new_peer_gets_long_waiting_messages_at_once() -> None:
    net = publisher_and_reader(Net())
    net.nodes["a"].connected("fast", "silent")
    net.nodes["a"].publish(Destination.feed(1), b"waited")
    net.advance(200, step=1.0)
    net.connect("a", "b")
    net.advance(2)
    assert net.delivered("b") == [b"waited"]


def test_every_parcel_escalates_and_not_only_the_first() -> None:
    net = Net()
    node = net.add("n", NodeConfig(lanes=LANES))
    node.connected("fast", "p")
    drained(node)
    made = [feed_object(payload_of(50_000, number)) for number in range(3)]
    for one in made:
        node.publish_sealed(one)
    node.receive("fast", "p", encode(Inventory((InventoryEntry(made[0].of, all_indices(made[0].of)),))))
    drained(node)
    roots = set()
    for _ in range(20):
        net.now += 0.5
        node.tick()
        roots |= {NATIVE.decode_shard(frame).of.object_root for _, frame in drained(node) if len(frame) in BUCKET_SIZES}
    assert roots == {one.object_root for one in made[1:]}


def test_small_items_share_an_object_and_are_delivered_one_by_one() -> None:
    net = publisher_and_reader(Net(), NodeConfig(batch_linger_s=0.5))
    net.connect("a", "b")
    for number in range(50):
        net.nodes["a"].publish(Destination.feed(1), b"%d" % number, interactive=False)
    assert {one.state for one in net.nodes["a"].outbound()} == {"queued"}
    net.advance(3)
    assert net.delivered("b") == [b"%d" % number for number in range(50)]
    assert len({event.data["object_root"] for event in net.events("b", "delivered")}) == 1


def test_messages_queued_offline_are_sent_in_full_batches() -> None:
    net = publisher_and_reader(Net())
    for number in range(300):
        net.nodes["a"].publish(Destination.feed(1), payload_of(1_000, number))
    net.connect("a", "b")
    net.advance(5)
    assert len(net.delivered("b")) == 300
    roots = {event.data["object_root"] for event in net.events("b", "delivered")}
    assert len(roots) == 4


def test_the_largest_payload_is_sent_and_one_byte_more_is_rejected_by_publish() -> None:
    net = publisher_and_reader(Net())
    net.connect("a", "b")
    with pytest.raises(Refused) as refused:
        net.nodes["a"].publish(Destination.feed(1), bytes(MAX_OBJECT_BYTES))
    most = int(refused.value.reason.partition("more than the ")[2].split()[0])
    with pytest.raises(Refused):
        net.nodes["a"].publish(Destination.feed(1), bytes(most + 1))
    net.nodes["a"].publish(Destination.feed(1), payload_of(most))
    net.advance(5)
    assert net.delivered("b") == [payload_of(most)]


def test_a_full_queue_rejects_new_messages_and_drops_none() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(queue_items=3)))
    for _ in range(3):
        node.publish(Destination.feed(1), b"x")
    with pytest.raises(Refused):
        node.publish(Destination.feed(1), b"x")
    assert len(node.outbound()) == 3
    assert node.cancel(2)
    assert not node.cancel(2)
    node.publish(Destination.feed(1), b"x")


def test_a_feed_message_cannot_request_an_acknowledgement() -> None:
    node = Net().add("n")
    with pytest.raises(Refused, match="cannot be acknowledged"):
        node.publish(Destination.feed(1), b"x", ack=True)
    assert node.outbound() == ()


def test_a_forged_acknowledgement_is_ignored() -> None:
    """A relay knows root and tag of a letter, but not its content."""
    net = Net()
    net.add("a", NodeConfig(escalation=replace(Escalation(), timeout_s=1000)))
    bob = b"\x09" * 32
    net.nodes["a"].connected("fast", "p")
    published = net.nodes["a"].publish(Destination.private(bob, 2), b"for you")
    assert published.object_root is not None
    shard = next(frame for _, frame in drained(net.nodes["a"]) if len(frame) in BUCKET_SIZES)
    address = NATIVE.decode_shard(shard).of.address
    forged = publish(write_letter(address, SIGNER, published.object_root), address, SharedKey(published.object_root))
    for frame in forged.shards:
        net.nodes["a"].receive("fast", "p", frame)
    assert net.events("a", "acked") == []
    assert len(net.nodes["a"].outbound()) == 1


def test_a_message_without_confirmation_in_time_is_reported_as_failed() -> None:
    net = Net()
    node = net.add("n", NodeConfig(escalation=replace(Escalation(), give_up_s=60)))
    node.connected("fast", "p")
    published = node.publish(Destination.feed(1), b"x")
    net.advance(200, step=1.0)
    assert [event.data["message_id"] for event in net.events("n", "failed")] == [published.message_id]
    assert node.outbound() == ()


def test_a_message_to_a_group_that_was_left_fails_alone() -> None:
    net = Net()
    group = Group((GroupSecret.create(),))
    left = identity(77)
    net.identities["a"] = replace(left, groups=(group,))
    node = net.add("a")
    node.publish(Destination.group(group.newest.group_id, 40), b"x")
    node.publish(Destination.feed(1), b"y")
    node.set_identity(left)
    node.connected("fast", "p")
    assert len(net.events("a", "failed")) == 1
    assert [one.state for one in node.outbound()] == ["under way"]


def test_a_peer_pulls_shards_that_were_lost() -> None:
    net = publisher_and_reader(Net())
    net.connect("a", "b")
    lost: list[bytes] = []

    def lose(source: str, to: str, lane: str, frame: bytes) -> bool:
        if source == "a" and len(frame) in BUCKET_SIZES and len(lost) < 7:
            lost.append(frame)
            return True
        return False

    net.lose = lose
    net.nodes["a"].publish(Destination.feed(1), payload_of(90_000))
    net.advance(10)
    assert net.delivered("b") == [payload_of(90_000)]
    assert net.nodes["b"].metrics()["pulls_sent"] >= 1


def test_a_node_that_is_alone_with_its_own_feed_delivers_nothing_to_itself() -> None:
    net, node = reader_node()
    node.publish_sealed(publish_feed(b"echo", SIGNER, 1, 20_000))
    net.advance(2)
    assert net.delivered("n") == []
