"""The whole cycle with the real sequencer: commit, look up, catch up, restart, with and without an index."""

import random
import resource
import shutil
from pathlib import Path

import pytest

from tests.storage.disks import RefusingDisk
from tests.storage.hubs import History, Hub, index_rows, log_files, node_files, place_of, receipts
from veen.core import Malformed, Receipt, Refused, Unavailable
from veen.storage import fsck
from veen.storage.lock import lock_directory


def run(hub: Hub, history: History, catch_up_after: int = 3) -> dict[tuple[bytes, int], bytes]:
    """Commit everything with occasional catch-ups; returns the receipts by place."""
    given: dict[tuple[bytes, int], bytes] = {}
    for number, group in enumerate(history.groups, 1):
        for receipt in receipts(hub.submit(group)):
            given[place_of(receipt)] = receipt
        if number % catch_up_after == 0:
            hub.catch_up()
    return given


def check_given(hub: Hub, given: dict[tuple[bytes, int], bytes]) -> None:
    for (label, seq), receipt in given.items():
        entry = hub.lookup.entry(label, seq)
        assert entry is not None
        assert entry.receipt == receipt


def test_what_was_acknowledged_is_found_before_and_after_the_log_has_it(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "hub"))
    given = run(hub, history, catch_up_after=100)
    check_given(hub, given)
    assert log_files(place / "hub") == {}
    hub.catch_up()
    check_given(hub, given)
    hub.close()


def test_a_restart_finds_everything_and_replays_only_what_the_log_lacks(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "hub"))
    given = run(hub, history, catch_up_after=9)
    lacking = len(hub.store.pending.records)
    assert lacking
    hub.abandon()
    again = Hub(place / "hub")
    assert again.replayed == lacking
    check_given(again, given)
    again.close()


@pytest.mark.parametrize("seed", range(6))
def test_without_its_index_a_hub_comes_back_the_same(place: Path, history: History, seed: int) -> None:
    rng = random.Random(seed)
    root = history.fresh(place / "hub")
    hub = Hub(root)
    given: dict[tuple[bytes, int], bytes] = {}
    for group in history.groups:
        for receipt in receipts(hub.submit(group)):
            given[place_of(receipt)] = receipt
        if rng.random() < 0.4:
            hub.catch_up()
        if rng.random() < 0.3:
            if rng.random() < 0.5:
                hub.abandon()
            else:
                hub.close()
            shutil.rmtree(root / "index")
            hub = Hub(root)
            check_given(hub, given)
    hub.catch_up()
    rows, nodes, files = index_rows(hub), node_files(root), log_files(root)
    hub.close()
    shutil.rmtree(root / "index")
    again = Hub(root)
    assert again.replayed == 0
    assert (index_rows(again), node_files(root), log_files(root)) == (rows, nodes, files)
    check_given(again, given)
    again.close()


def test_a_message_that_was_accepted_is_a_duplicate_after_the_index_was_lost(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    run(hub, history)
    hub.abandon()
    shutil.rmtree(root / "index")
    again = Hub(root)
    for group in history.groups[1:]:
        for outcome in again.submit(group):
            assert isinstance(outcome, Refused)
            assert outcome.detail_enum == "DUPLICATE"
            assert "stream_seq" in outcome.detail
    known = again.submit(history.groups[0])
    assert all(isinstance(outcome, bytes) for outcome in known)
    assert all(Receipt.decode(outcome).hub_ts == hub.clock.now for outcome in known if isinstance(outcome, bytes))
    again.close()


def test_a_second_hub_on_the_same_directory_is_refused(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "hub"))
    with pytest.raises(Unavailable) as refused:
        Hub(place / "hub")
    assert str(refused.value) == "a hub is already running on this data directory"
    hub.close()
    Hub(place / "hub").close()


def test_an_index_that_cannot_be_opened_is_made_again(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    given = run(hub, history)
    hub.close()
    (root / "index" / "data.mdb").write_bytes(b"not an index" * 1000)
    again = Hub(root)
    check_given(again, given)
    again.close()


def test_an_index_that_is_cut_short_is_made_again(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    given = run(hub, history)
    hub.close()
    data = (root / "index" / "data.mdb").read_bytes()
    (root / "index" / "data.mdb").write_bytes(data[: len(data) // 2])
    again = Hub(root)
    check_given(again, given)
    again.close()


def test_a_journal_that_skips_a_group_is_malformed(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    run(hub, history, catch_up_after=100)
    hub.abandon()
    path = next((root / "journal").iterdir())
    path.rename(path.with_name(f"{3:020d}.wal"))
    with pytest.raises(Malformed):
        Hub(root)
    lock_directory(root / "lock").close()  # a failed open releases the lock


def test_no_room_for_the_index_is_unavailable_and_the_next_attempt_works(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "hub"))
    given = run(hub, history, catch_up_after=100)
    tail = hub.store.begin_catching_up()
    assert tail
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (place / "hub" / "index" / "data.mdb").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(Unavailable, match="cannot be written"):
            hub.store.catch_up(tail)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check_given(hub, given)
    hub.store.catch_up(tail)
    hub.store.end_catching_up()
    check_given(hub, given)
    hub.close()
    assert fsck.check(place / "hub", isolated=False).findings == []


def test_a_full_disk_refuses_and_loses_nothing(place: Path, history: History) -> None:
    disk = RefusingDisk()
    hub = Hub(history.fresh(place / "hub"), disk)
    given: dict[tuple[bytes, int], bytes] = {}
    for number, group in enumerate(history.groups):
        if number % 3 == 1:
            disk.fail("write_at")
            for outcome in hub.submit(group):
                assert isinstance(outcome, Refused)
                assert outcome.code == "E.UNAVAILABLE"
            disk.heal()
        for receipt in receipts(hub.submit(group)):
            given[place_of(receipt)] = receipt
    hub.catch_up()
    check_given(hub, given)
    hub.close()
    assert fsck.check(place / "hub", isolated=False).findings == []
