"""The store has everything that was promised, after any crash."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.veil.node.net import FEED, START, Net, drained, feed_object, payload_of, reader_node
from veil import Malformed, Refused
from veil.node import Bounds, Destination, Event, Node, NodeConfig, Subscription, Tier
from veil.node.node_events import Events
from veil.store import DiskStore, MemoryStore, Store, Table

DYING = """
import os, signal, sys
from pathlib import Path
from veil.store import DiskStore, Table

store = DiskStore(Path(sys.argv[1]))
for number in range(10_000):
    store.put(Table.META, b"%d" % number, b"x")
    store.put(Table.EVENTS, b"%d" % number, b"y")
    if number % 10 == 9:
        store.commit()
        print(number, flush=True)
    if number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path / "store")


def test_a_store_returns_rows_in_key_order(store: Store) -> None:
    for key in (b"c", b"a", b"b"):
        store.put(Table.META, key, key * 2)
    store.delete(Table.META, b"a")
    store.delete(Table.META, b"never there")
    assert store.get(Table.META, b"b") == b"bb"
    assert store.get(Table.META, b"a") is None
    assert store.get(Table.SHARDS, b"b") is None
    found = [pair for pair in store.items(Table.META) if pair[0] != b"format"]
    assert found == [(b"b", b"bb"), (b"c", b"cc")]
    states = [store.uncommitted]
    store.commit()
    states.append(store.uncommitted)
    assert states == [True, False]
    store.close()


@pytest.mark.parametrize("at", [0, 9, 10, 55, 99])
def test_a_killed_process_leaves_exactly_the_last_commit(tmp_path: Path, at: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path / "s"), str(at)], capture_output=True, env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL
    committed = [int(line) for line in done.stdout.split()]
    count = committed[-1] + 1 if committed else 0
    store = DiskStore(tmp_path / "s")
    meta = {key for key, _ in store.items(Table.META)} - {b"format"}
    assert meta == {key for key, _ in store.items(Table.EVENTS)}
    assert len(meta) == count
    store.close()


def test_only_the_owner_can_read_a_store(tmp_path: Path) -> None:
    """Even if the directory existed before with other permissions."""
    folder = tmp_path / "n"
    folder.mkdir()
    folder.chmod(0o777)
    store = DiskStore(folder)
    store.put(Table.QUEUE, b"1", b"not for others")
    store.commit()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    store.close()


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put(Table.META, b"format", b"something else")
    store.close()
    with pytest.raises(Refused):
        DiskStore(tmp_path)


def reopened(net: Net, name: str, path: Path) -> Node:
    """Start a node from a copy of the store, as after kill -9: uncommitted changes are lost."""
    copy = path.with_name(path.name + "-after")
    copy.mkdir()
    (copy / "data.mdb").write_bytes((path / "data.mdb").read_bytes())
    return net.add(name, store=DiskStore(copy))


def test_an_announced_object_survives_a_crash_and_is_not_delivered_again(tmp_path: Path) -> None:
    net, node = reader_node(store=DiskStore(tmp_path / "n"))
    made = feed_object(b"once")
    for shard in made.shards:
        node.receive("fast", "p", shard)
    net.now += 0.1
    node.tick()
    assert drained(node)
    node = reopened(net, "n", tmp_path / "n")
    assert net.delivered("n") == [b"once"]
    node.connected("fast", "p")
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [b"once"]
    node.close()


def test_an_uncommitted_delivery_is_not_announced_and_happens_again_after_a_crash(tmp_path: Path) -> None:
    """A crash between delivery and commit loses the delivery and its event; the object arrives again."""
    net, node = reader_node(store=DiskStore(tmp_path / "n"))
    made = feed_object(b"again")
    for shard in made.shards:
        node.receive("fast", "p", shard)
    node = reopened(net, "n", tmp_path / "n")
    assert net.delivered("n") == []
    node.connected("fast", "p")
    for shard in made.shards:
        node.receive("fast", "p", shard)
    assert net.delivered("n") == [b"again"]
    node.close()


def test_half_an_object_in_the_cache_is_completed_after_a_restart(tmp_path: Path) -> None:
    net, node = reader_node(store=DiskStore(tmp_path / "n"))
    made = feed_object(payload_of(50_000))
    for shard in made.shards[:4]:
        node.receive("fast", "p", shard)
    node.close()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    assert node.status().cache_shards == 4
    node.connected("fast", "q")
    for shard in made.shards[4:6]:
        node.receive("fast", "q", shard)
    assert net.delivered("n") == [payload_of(50_000)]
    node.close()


def test_data_that_expired_while_the_node_was_off_is_dropped(tmp_path: Path) -> None:
    net, node = reader_node(store=DiskStore(tmp_path / "n"))
    node.receive("fast", "p", feed_object().shards[0])
    node.close()
    net.now += 6_000
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    assert (node.status().cache_shards, node.status().objects_open) == (0, 0)
    assert list(net.stores["n"].items(Table.SHARDS)) == []
    node.close()


def test_subscriptions_and_tiers_survive(tmp_path: Path) -> None:
    net = Net()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    subscriptions = {Subscription.feed(FEED, 1), Subscription.mailbox(2), Subscription.relay(b"\x01" * 32)}
    for subscription in subscriptions:
        assert node.subscribe(subscription)
        assert not node.subscribe(subscription)
    node.set_tier(b"\x02" * 32, Tier.MUTED)
    node = reopened(net, "n", tmp_path / "n")
    assert set(node.subscriptions()) == subscriptions
    assert node.tiers() == {b"\x02" * 32: Tier.MUTED}
    assert node.unsubscribe(Subscription.mailbox(2))
    assert not node.unsubscribe(Subscription.mailbox(2))
    node.close()


def test_a_published_message_survives_a_crash(tmp_path: Path) -> None:
    net = Net()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    published = node.publish(Destination.feed(1), b"kept")
    node = reopened(net, "n", tmp_path / "n")
    assert [one.message_id for one in node.outbound()] == [published.message_id]
    assert node.publish(Destination.feed(1), b"next").message_id == published.message_id + 1
    node.close()


def test_events_are_numbered_without_gaps_and_replayed_from_any_number() -> None:
    net = Net()
    node = net.add("n")
    notified: list[Event] = []
    node.on_event = notified.append
    for number in range(20):
        node.publish(Destination.feed(1), b"%d" % number)
    every = node.events(0)
    assert [event.seq for event in every] == list(range(1, 21))
    assert node.events(15) == every[15:]
    assert node.events(3, limit=2) == every[3:5]
    assert node.events(20) == node.events(99) == ()
    assert tuple(notified) == every


def test_a_listener_gets_an_event_only_after_the_commit(tmp_path: Path) -> None:
    net, node = reader_node(store=DiskStore(tmp_path / "n"))
    notified: list[str] = []
    node.on_event = lambda event: notified.append(event.kind)
    for shard in feed_object().shards:
        node.receive("fast", "p", shard)
    assert "delivered" not in notified
    net.now += 1
    node.tick()
    assert "delivered" in notified
    assert not net.stores["n"].uncommitted
    node.close()


def test_old_events_are_dropped_by_number_and_bytes_and_their_numbers_are_not_reused() -> None:
    store = MemoryStore()
    events = Events(store, Bounds(events=5, event_bytes=1_000))
    for _ in range(20):
        events.add(START, "x")
    assert (events.first_seq, events.last_seq) == (16, 20)
    events.add(START, "big", payload=bytes(5_000))
    assert (events.first_seq, events.last_seq) == (21, 21)
    again = Events(store, Bounds())
    assert (again.first_seq, again.last_seq) == (21, 21)
    assert again.add(START, "y").seq == 22


def test_an_event_with_all_value_types_round_trips() -> None:
    data: dict[str, str | int | float | bytes | None] = {
        "a": b"\n\x00",
        "b": "text\n",
        "c": 3,
        "d": 1.5,
        "e": None,
        "f": b"",
        "g": b"more",
    }
    event = Event(7, START, "x", data)
    assert Event.decode(7, event.encode()) == event


@pytest.mark.parametrize(
    "subscription",
    [
        Subscription.feed(b"short", 1),
        Subscription.relay(b""),
        Subscription.mailbox(1 << 16),
        Subscription.feed(FEED, -1),
    ],
)
def test_an_invalid_subscription_is_rejected(subscription: Subscription) -> None:
    with pytest.raises(Malformed):
        Net().add("n").subscribe(subscription)


def test_the_number_of_subscriptions_is_bounded() -> None:
    node = Net().add("n", NodeConfig(bounds=Bounds(subscriptions=1)))
    node.subscribe(Subscription.mailbox(2))
    with pytest.raises(Refused):
        node.subscribe(Subscription.mailbox(3))
