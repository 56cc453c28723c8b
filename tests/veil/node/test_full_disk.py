"""A node on a full disk keeps all promises, makes no new ones, and resumes when there is space."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.full_disk import no_file_longer_than
from tests.mounts import tmpfs
from tests.veil.node.net import FEED, Net, drained, feed_object, payload_of, reader_node
from tests.veil.node.test_restart import reopened
from veil import Unavailable
from veil.node import Destination, Event, Node, StoreFault, Subscription, Tier
from veil.store import DiskStore, MemoryStore, Store, StoreFailed, Table

PAYLOAD_BYTES = 3_000
MESSAGES = 40
RETRY_S = 31.0


def length(folder: Path) -> int:
    return (folder / "data.mdb").stat().st_size


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def by_limit(folder: Path) -> Iterator[None]:
    """Limit the file size to the current size of the store and a little more."""
    with no_file_longer_than(length(folder) + 150_000):
        yield


@contextmanager
def by_ballast(folder: Path) -> Iterator[None]:
    """Fill the disk almost completely with a file."""
    ballast = folder.parent / "ballast"
    ballast.write_bytes(bytes(free(folder) - 150_000))
    try:
        yield
    finally:
        ballast.unlink()


Filling = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture(params=["limit", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Filling]]:
    """A directory for a store, and a context manager that fills its disk."""
    if request.param == "limit":
        yield tmp_path / "n", by_limit
        return
    with tmpfs(tmp_path / "disk", 4 << 20) as place:
        yield place / "n", by_ballast


def mailbox(net: Net, path: Path, faults: list[StoreFault | None] | None = None) -> Node:
    """A node `n` with a mailbox and its store on disk, linked to a writer `a`."""
    reported = faults if faults is not None else []
    node = net.add("n", store=DiskStore(path), on_store=reported.append)
    node.subscribe(Subscription.mailbox(2))
    net.add("a")
    net.connect("a", "n")
    net.advance(1)
    return node


def letter(net: Net) -> Destination:
    return Destination.private(net.identities["n"].delivery.public_key, 2)


def message_body(number: int) -> bytes:
    return b"%04d" % number + payload_of(PAYLOAD_BYTES - 4, number)


def publish_until_full(net: Net) -> dict[int, bytes]:
    """Messages from `a` to `n`, more than the disk of `n` takes, by number."""
    published = {}
    for number in range(MESSAGES):
        published[net.nodes["a"].publish(letter(net), message_body(number)).message_id] = message_body(number)
        net.advance(0.5)
    return published


def acknowledged(net: Net) -> set[object]:
    return {event.data["message_id"] for event in net.events("a", "acked")}


def test_a_message_dropped_by_a_full_disk_is_not_acknowledged(disk: tuple[Path, Filling]) -> None:
    path, filled = disk
    net = Net()
    faults: list[StoreFault | None] = []
    node = mailbox(net, path, faults)
    with filled(path):
        published = publish_until_full(net)
        assert faults, "the disk did not fill"
        acked = acknowledged(net)
        assert 0 < len(acked) < MESSAGES
        assert {published[number] for number in acked if isinstance(number, int)} <= set(net.delivered("n"))
        delivered = net.delivered("n")
    crashed = reopened(net, "n", path)
    assert net.delivered("n") == delivered, "what was delivered is what is on disk"
    crashed.close()
    node.close()


def test_a_node_resumes_by_itself_when_there_is_space_again(disk: tuple[Path, Filling]) -> None:
    path, filled = disk
    net = Net()
    faults: list[StoreFault | None] = []
    node = mailbox(net, path, faults)
    with filled(path):
        published = publish_until_full(net)
        assert node.status().store_fault is not None
    net.advance(120)
    assert node.status().store_fault is None
    assert sorted(net.delivered("n")) == sorted(published.values())
    assert acknowledged(net) == set(published)
    assert [fault is None for fault in faults] == [False, True] * (len(faults) // 2), "each fault has an end"
    node.close()


def test_on_a_full_disk_every_change_is_rejected_and_every_query_works(disk: tuple[Path, Filling]) -> None:
    path, filled = disk
    net = Net()
    node = mailbox(net, path)
    kept = node.publish(Destination.feed(1), b"kept").message_id
    node.set_tier(b"\x01" * 32, Tier.KNOWN)
    net.advance(1)
    with filled(path):
        publish_until_full(net)
        fault = node.status().store_fault
        assert fault is not None
        assert "bytes are free" in fault.reason
        outbound, seq, metrics = node.outbound(), node.last_seq, node.metrics()
        for change in (
            lambda: node.publish(Destination.feed(1), b"no"),
            lambda: node.publish_sealed(feed_object()),
            lambda: node.cancel(kept),
            lambda: node.subscribe(Subscription.feed(FEED, 1)),
            lambda: node.unsubscribe(Subscription.mailbox(2)),
            lambda: node.set_tier(b"\x01" * 32, Tier.BLOCKED),
            lambda: node.endorse(b"\x01" * 32),
            lambda: node.forget(b"\x02" * 32),
            node.settle,
        ):
            with pytest.raises(Unavailable, match="cannot write"):
                change()
        assert not node.subscribe(Subscription.mailbox(2)), "already subscribed: nothing to write"
        assert (node.outbound(), node.last_seq) == (outbound, seq)
        assert (node.tiers(), node.subscriptions()) == ({b"\x01" * 32: Tier.KNOWN}, (Subscription.mailbox(2),))
        assert node.events(0, 10_000)[-1].seq == seq
        assert metrics["store_failed"] == 1
        assert not node.ready()
        assert node.cache_entries()
    node.close()


def test_a_message_rejected_for_lack_of_space_leaves_no_trace(tmp_path: Path) -> None:
    """It is not in the outbox, the events or a send queue, now and after a restart."""
    net = Net()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    net.add("a")
    net.connect("n", "a")
    net.advance(1)
    notified: list[Event] = []
    node.on_event = notified.append
    before = node.events(0, 1_000), node.outbound(), node.status().cache_shards
    with no_file_longer_than(length(tmp_path / "n")), pytest.raises(Unavailable):
        node.publish(Destination.feed(1), payload_of(100_000))
    assert (node.events(0, 1_000), node.outbound(), node.status().cache_shards) == before
    assert not drained(node)
    assert not notified
    net.advance(RETRY_S)
    assert node.publish(Destination.feed(1), b"fits").message_id == 1
    node.close()


def test_a_node_starts_on_a_full_disk_and_answers_queries(tmp_path: Path) -> None:
    net = Net()
    node = mailbox(net, tmp_path / "n")
    net.nodes["a"].publish(letter(net), b"before")
    net.advance(2)
    node.close()
    with no_file_longer_than(4_096):
        node = net.add("n", store=DiskStore(tmp_path / "n"))
        node.connected("fast", "a")
        assert net.delivered("n") == [b"before"]
        with pytest.raises(Unavailable):
            node.publish(Destination.feed(1), payload_of(100_000))
    net.advance(RETRY_S)
    node.publish(Destination.feed(1), b"after")
    node.close()


def test_a_store_at_its_size_limit_drops_expired_data_and_resumes(tmp_path: Path) -> None:
    net, node = reader_node(store=DiskStore(tmp_path / "n", max_bytes=1 << 20))
    for number in range(80):
        for shard in feed_object(payload_of(20_000, number)).shards:
            node.receive("fast", "p", shard)
        net.now += 0.1
        node.tick()
    assert node.status().store_fault is not None
    net.now += 6_000
    node.tick()
    assert node.status().store_fault is None
    node.publish(Destination.feed(1), b"room")
    node.close()


def test_a_store_failure_in_a_listener_does_not_undo_a_committed_message(tmp_path: Path) -> None:
    """The message was committed before its listener was called, so it is accepted."""
    net = Net()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    failures: list[str] = []

    def greedy(event: Event) -> None:
        if event.kind == "queued" and not failures:
            with no_file_longer_than(4_096):
                try:
                    node.publish(Destination.feed(1), payload_of(200_000))
                except Unavailable as error:
                    failures.append(str(error))

    node.on_event = greedy
    accepted = node.publish(Destination.feed(1), b"first")
    assert failures
    assert node.status().store_fault is not None
    assert [one.message_id for one in node.outbound()] == [accepted.message_id]
    net.advance(RETRY_S)
    assert node.publish(Destination.feed(1), b"second").message_id == accepted.message_id + 1
    node.close()


def test_timers_after_a_store_failure_in_the_same_tick_write_nothing(tmp_path: Path) -> None:
    net = Net()
    node = net.add("n", store=DiskStore(tmp_path / "n"))
    net.add("a")
    net.connect("n", "a")
    parcel = node.publish(Destination.feed(1), b"given up after a week").message_id
    node.on_event = lambda event: greedy()
    node.disconnected("fast", "a")

    def greedy() -> None:
        with no_file_longer_than(4_096), pytest.raises(Unavailable):
            node.publish(Destination.feed(1), payload_of(200_000))

    net.now += 8 * 86_400
    node.tick()  # commits, which calls the listener, and then ends the message
    assert node.status().store_fault is not None
    assert not net.stores["n"].uncommitted
    assert [one.message_id for one in node.outbound()] == [parcel]
    node.on_event = None
    net.advance(RETRY_S)
    net.connect("n", "a")
    net.advance(RETRY_S)
    assert node.outbound() == ()
    assert net.events("n", "failed")
    node.close()


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path / "store")


def test_a_rollback_returns_to_the_last_commit(store: Store) -> None:
    store.put(Table.META, b"changed", b"old")
    store.put(Table.META, b"deleted", b"old")
    store.commit()
    store.put(Table.META, b"changed", b"new")
    store.put(Table.META, b"added", b"new")
    store.delete(Table.META, b"deleted")
    store.delete(Table.META, b"added")
    store.rollback()
    assert not store.uncommitted
    found = [pair for pair in store.items(Table.META) if pair[0] != b"format"]
    assert found == [(b"changed", b"old"), (b"deleted", b"old")]
    store.close()


def test_a_failed_store_rejects_changes_until_rollback(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "s")
    store.put(Table.META, b"a", b"kept")
    store.commit()
    with no_file_longer_than(length(tmp_path / "s")):
        store.put(Table.META, b"a", bytes(500_000))
        with pytest.raises(StoreFailed):
            store.commit()
    assert store.uncommitted
    assert store.failed is not None
    for change in (store.commit, lambda: store.put(Table.META, b"b", b""), lambda: store.delete(Table.META, b"a")):
        with pytest.raises(StoreFailed):
            change()
    assert store.get(Table.META, b"a") == b"kept"
    store.rollback()
    store.put(Table.META, b"b", b"after")
    store.close()
    store = DiskStore(tmp_path / "s")
    assert (store.get(Table.META, b"a"), store.get(Table.META, b"b")) == (b"kept", b"after")
    store.close()


def test_a_store_recovers_after_a_failed_meta_page_write(tmp_path: Path) -> None:
    """LMDB then rejects everything (MDB_PANIC). The test makes the file handle for meta pages read-only."""
    store = DiskStore(tmp_path / "s")
    store.put(Table.META, b"a", b"kept")
    store.commit()
    data = os.path.realpath(tmp_path / "s" / "data.mdb")
    unwritable = os.open(data, os.O_RDONLY)
    handles = [int(name) for name in os.listdir("/proc/self/fd")]
    for handle in handles:
        if handle != unwritable and _is_open_for_meta(handle, data):
            os.dup2(unwritable, handle)
    os.close(unwritable)
    store.put(Table.META, b"a", b"lost")
    with pytest.raises(StoreFailed):
        store.commit()
    store.rollback()
    assert store.get(Table.META, b"a") == b"kept"
    store.put(Table.META, b"b", b"after")
    store.commit()
    store.close()


def _is_open_for_meta(handle: int, data: str) -> bool:
    """LMDB has the file open twice: for data, and with O_DSYNC for meta pages."""
    try:
        if os.readlink(f"/proc/self/fd/{handle}") != data:
            return False
        flags = Path(f"/proc/self/fdinfo/{handle}").read_text("ascii").split("flags:")[1].split()[0]
    except FileNotFoundError:
        return False
    return bool(int(flags, 8) & os.O_DSYNC)


def test_a_new_store_on_a_full_disk_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Without preallocation LMDB's lock file would cause a SIGBUS."""
    with tmpfs(tmp_path / "disk", 64 << 10) as place:
        (place / "s").mkdir()
        (place / "ballast").write_bytes(bytes(free(place)))
        with pytest.raises(Unavailable, match="No space left"):
            DiskStore(place / "s")
