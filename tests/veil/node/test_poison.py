"""Garbage, false shards and oversized frames, and their effect on the sending peer."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import corrupted
from tests.veil.node.net import FEED, Net, drained, feed_object, payload_of, reader_node
from veil.node import Bounds, NodeConfig, Penalties, Subscription
from veil.node.frames import MAX_CONTROL_BYTES, Inventory, InventoryEntry, Want, all_indices, decode, encode
from veil.veil_limits import BUCKET_SIZES


def wants(node_frames: list[tuple[str, bytes]]) -> list[tuple[str, Want]]:
    control = [(peer, frame) for peer, frame in node_frames if len(frame) not in BUCKET_SIZES]
    found = [(peer, decode(frame)) for peer, frame in control]
    return [(peer, frame) for peer, frame in found if isinstance(frame, Want)]


def test_one_poisoned_shard_does_not_block_an_object() -> None:
    net, node = reader_node()
    made = feed_object(payload_of(50_000))
    node.receive("fast", "q", corrupted(made.shards[0]))
    for shard in made.shards[1 : made.of.shape.k + 1]:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [payload_of(50_000)]


def test_poison_at_every_index_does_not_block_an_object() -> None:
    """The node requests all shards from one claiming peer after the other until one is honest."""
    net, node = reader_node()
    made = feed_object(payload_of(50_000))
    for shard in made.shards:
        node.receive("fast", "q", corrupted(shard))
    claim = encode(Inventory((InventoryEntry(made.of, all_indices(made.of)),)))
    for number in range(200):
        # The dishonest peer claims the object first and gets the first request.
        if number in (0, 20):
            node.receive("fast", "p" if number else "q", claim)
        net.now += 0.25
        node.tick()
        for peer, want in wants(drained(node)):
            indices = [index for index in range(made.of.shape.n) if want.indices >> index & 1][: want.count]
            for index in indices:
                node.receive("fast", peer, made.shards[index] if peer == "p" else corrupted(made.shards[index], -2))
    assert net.delivered("n") == [payload_of(50_000)]
    info = {peer.peer: peer for peer in node.peers()}
    assert info["p"].lies == 0
    assert info["q"].lies >= 1


def test_a_good_shard_among_false_ones_counts_for_a_peer_that_sends_it_again() -> None:
    """Most shards of the honest peer are here already, but among too many false ones to try all combinations."""
    net, node = reader_node()
    made = feed_object(payload_of(50_000))
    for at in (-1, -2, -3, -4, -5):
        for shard in made.shards:
            node.receive("fast", "q", corrupted(shard, at))
    for shard in made.shards[:5]:
        node.receive("fast", "r", shard)
    assert net.delivered("n") == []
    node.receive("fast", "p", encode(Inventory((InventoryEntry(made.of, all_indices(made.of)),))))
    for _ in range(20):
        net.now += 0.25
        node.tick()
        for peer, want in wants(drained(node)):
            indices = [index for index in range(made.of.shape.n) if want.indices >> index & 1][: want.count]
            for index in indices if peer == "p" else ():
                node.receive("fast", "p", made.shards[index])
    assert net.delivered("n") == [payload_of(50_000)]
    assert node.metrics()["pulls_sent"] == 1


def test_a_node_serves_only_verified_shards_of_a_poisoned_object() -> None:
    net, node = reader_node()
    made = feed_object(payload_of(50_000))
    for shard in made.shards[:3]:
        node.receive("fast", "q", corrupted(shard))
    for shard in made.shards[3 : 3 + made.of.shape.k]:
        node.receive("fast", "p", shard)
    net.advance(0.2)
    assert node.status().objects_whole == 1
    drained(node)
    node.receive("fast", "r", encode(Want(made.object_root, all_indices(made.of), made.of.shape.n)))
    given_out = [frame for peer, frame in drained(node) if peer == "r" and len(frame) in BUCKET_SIZES]
    assert sorted(given_out) == sorted(made.shards)


@pytest.mark.parametrize("kind", ["garbage", "oversized", "truncated"])
def test_invalid_frames_mute_only_the_peer_that_sends_them(kind: str) -> None:
    net, node = reader_node()
    made = feed_object()
    rng = Random(1)
    for _ in range(40):
        frame = {
            "garbage": b"\x8c" + rng.randbytes(2047),
            "oversized": rng.randbytes(MAX_CONTROL_BYTES + 1),
            "truncated": made.shards[0][:-1],
        }[kind]
        node.receive("fast", "p", frame)
    info = {peer.peer: peer for peer in node.peers()}
    assert info["p"].muted_until > net.now
    assert info["q"].muted_until == 0
    assert node.metrics()["frames_refused"] > 0
    assert len(net.events("n", "peer_muted")) == 1
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == []
    for shard in made.shards:
        node.receive("fast", "q", shard)
    assert net.delivered("n") == [b"hello"]


@pytest.mark.parametrize("claims", [True, False])
def test_false_shards_mute_a_peer_that_claimed_the_object_but_not_a_forwarder(claims: bool) -> None:
    net, node = reader_node()
    for number in range(5):
        made = feed_object(payload_of(50_000, number))
        if claims:
            node.receive("fast", "q", encode(Inventory((InventoryEntry(made.of, all_indices(made.of)),))))
        node.receive("fast", "q", corrupted(made.shards[0]))
        for shard in made.shards[1 : made.of.shape.k + 1]:
            node.receive("fast", "p", shard)
    assert len(net.delivered("n")) == 5
    muted = {peer.peer for peer in node.peers() if peer.muted_until > net.now}
    assert muted == ({"q"} if claims else set())
    assert node.metrics()["lies_found"] == (4 if claims else 5)


def test_a_reconnect_does_not_reset_demerits() -> None:
    net, node = reader_node()
    for _ in range(40):
        node.receive("fast", "p", b"\x00")
    node.disconnected("fast", "p")
    node.connected("fast", "p")
    for shard in feed_object().shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == []


def test_disconnected_peers_are_remembered_up_to_a_bound() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(peers_gone=4, peers=8)))
    for number in range(100):
        assert node.connected("fast", f"p{number}")
        node.disconnected("fast", f"p{number}")
    assert [node.connected("fast", f"q{number}") for number in range(9)] == [True] * 8 + [False]


def test_a_mute_ends_after_its_time() -> None:
    net, node = reader_node(NodeConfig(penalties=Penalties(limit=10, mute_s=60)))
    for _ in range(3):
        node.receive("fast", "p", b"\x00")
    assert node.peers()[0].muted_until == net.now + 60
    net.now += 61
    for shard in feed_object().shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [b"hello"]


@given(st.one_of(st.binary(max_size=300), st.binary(min_size=2048, max_size=2048)), st.booleans())
def test_no_frame_makes_receive_raise(data: bytes, like_a_shard: bool) -> None:
    _, node = reader_node()
    node.receive("fast", "p", b"\x8c\x02" + data[2:] if like_a_shard else data)
    node.tick()
    assert node.status().store_fault is None


def test_incomplete_objects_are_bounded_and_evicted_from_their_own_sender() -> None:
    bounds = Bounds(open_per_peer=8, cache_shards=64, inbox_bytes=200_000)
    net, node = reader_node(NodeConfig(bounds=bounds))
    honest = feed_object(payload_of(50_000))
    node.receive("fast", "q", honest.shards[0])
    for number in range(200):
        node.receive("fast", "p", feed_object(payload_of(2_000, number)).shards[0])
    status = node.status()
    assert status.objects_open == 9
    assert status.inbox_bytes <= 200_000
    for shard in honest.shards[1 : honest.of.shape.k]:
        node.receive("fast", "q", shard)
    assert net.delivered("n") == [payload_of(50_000)]


def test_unverified_shards_are_forwarded_only_up_to_the_credit_of_their_sender() -> None:
    config = NodeConfig(penalties=Penalties(credit_bytes=100_000, credit_bytes_s=0))
    _, node = reader_node(config)
    for number in range(200):
        node.receive("fast", "p", feed_object(payload_of(2_000, number)).shards[0])
    passed = sum(len(frame) for _, frame in drained(node) if len(frame) in BUCKET_SIZES)
    assert 0 < passed <= 100_000


def test_verified_objects_refund_the_credit_of_their_sender() -> None:
    config = NodeConfig(penalties=Penalties(credit_bytes=100_000, credit_bytes_s=0))
    net, node = reader_node(config)
    for number in range(100):
        for shard in feed_object(payload_of(2_000, number)).shards:
            node.receive("fast", "p", shard)
        drained(node)
    assert len(net.delivered("n")) == 100
    assert node.metrics()["shards_forwarded"] * 2048 > 100_000


def test_false_inventories_cause_a_bounded_number_of_requests() -> None:
    net = Net()
    node = net.add("n", NodeConfig(bounds=Bounds(open_per_peer=16)))
    node.subscribe(Subscription.feed(FEED, 1))
    node.connected("fast", "p")
    drained(node)
    for number in range(300):
        made = feed_object(payload_of(100, number))
        node.receive("fast", "p", encode(Inventory((InventoryEntry(made.of, all_indices(made.of)),))))
    requests = 0
    for _ in range(40):
        net.now += 0.25
        node.tick()
        requests += len(wants(drained(node)))
    assert node.status().objects_open == 16
    assert requests <= 16 * 8
