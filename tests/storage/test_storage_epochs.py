"""With epochs every stream, also the control stream, has a label per epoch; the log says when a label ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.disk import Died
from plumbing.durable import Disk
from tests.storage.disks import DyingDisk, Last
from tests.storage.hubs import (
    NOW,
    SMALL,
    Client,
    Clock,
    Hub,
    create,
    index_rows,
    label_of,
    log_files,
    node_files,
    receipts,
)
from veen.core import Limits, Profile, Rate, Refused, mmr, naming
from veen.core.control_stream import EndedLabel, EpochEnd
from veen.storage import fsck
from veen.storage.paths import ChunkName

EPOCH_SEC = 3600
STREAMS = ("stream 0", "stream 1", "stream 2")


def test_a_hub_with_epochs_is_clean_and_comes_back_without_its_index(place: Path) -> None:
    root = create(place / "hub", profile=Profile(epoch_sec=EPOCH_SEC))
    hub = Hub(root)
    client = Client("ann", hub.rules)
    for number in range(6):
        hub.clock.now = NOW + number * EPOCH_SEC // 2
        stream = naming.stream_id(f"stream {number}")
        token = client.cap([stream, naming.stream_id("stream 0")], Rate(1, 9))
        receipts(hub.submit([token, stream]))
        epoch = hub.hub_metadata.profile.epoch(hub.clock.now)
        for name in {f"stream {number}", "stream 0"}:
            label = label_of(hub.rules, name, epoch)
            receipts(hub.submit([client.message(label, auth_ref=token.auth_ref()) for _ in range(4)]))
        hub.catch_up()
    rows, nodes = index_rows(hub), node_files(root)
    assert len(rows["caps"]) == 6
    assert len(rows["streams"]) == 6
    hub.close()
    assert fsck.check(root, isolated=False).findings == []
    shutil.rmtree(root / "index")
    again = Hub(root)
    assert index_rows(again) == rows
    assert node_files(root) == nodes
    again.close()


def ended(hub: Hub, *labels: bytes) -> EpochEnd:
    """The event that ends labels of which the hub has entries."""
    found = []
    for label in sorted(labels):
        tree = hub.state.tree(label)
        stream = hub.state.streams.find(label, hub.clock.now - EPOCH_SEC)
        assert stream is not None
        found.append(EndedLabel(label, stream[1], tree.size, mmr.root_of(tree.peaks)))
    return EpochEnd(tuple(found))


def live(root: Path, disk: Disk | None = None, epochs: int = 3) -> Hub:
    """A hub that ran for some epochs, and ended every label of the epoch before at the start of the next."""
    hub = Hub(root, disk, Clock())
    try:
        client = Client("ann", hub.rules)
        receipts(hub.submit([naming.stream_id(name) for name in STREAMS]))
        before: set[bytes] = set()
        for number in range(epochs):
            hub.clock.now = NOW + number * EPOCH_SEC
            if before:
                receipts(hub.submit([ended(hub, *before)]))
            epoch = hub.hub_metadata.profile.epoch(hub.clock.now)
            labels = [label_of(hub.rules, name, epoch) for name in STREAMS]
            for count, label in enumerate(labels):
                receipts(hub.submit([client.message(label) for _ in range(count * 4 + 1)]))
            control = naming.label(hub.rules.routing_key, hub.rules.control_stream, epoch)
            before = {*labels, *([control] if hub.state.tree(control).size else [])}
            if number % 2:
                hub.catch_up()
        hub.catch_up()
    except Died:
        hub.abandon()
        raise
    return hub


def open_labels(root: Path) -> set[bytes]:
    """The labels with an open chunk."""
    names = [ChunkName.parse(path.name) for path in (root / "log").iterdir()]
    return {name.label for name in names if name and name.end_seq is None}


def make(root: Path, limits: Limits = SMALL) -> Path:
    return create(root, limits, Profile(epoch_sec=EPOCH_SEC))


def test_the_end_of_an_epoch_closes_chunks_and_a_rebuild_and_a_replay_close_the_same(place: Path) -> None:
    hub = live(make(place / "hub"))
    root, last = hub.folders.root, hub.hub_metadata.profile.epoch(hub.clock.now)
    current = {label_of(hub.rules, name, last) for name in STREAMS}
    control = naming.label(hub.rules.routing_key, hub.rules.control_stream, last)
    assert open_labels(root) == {*current, control}
    rows, nodes, files = index_rows(hub), node_files(root), log_files(root)
    hub.close()
    assert fsck.check(root, isolated=False).findings == []
    shutil.rmtree(root / "index")
    again = Hub(root)
    assert (index_rows(again), node_files(root), log_files(root)) == (rows, nodes, files)
    again.close()


def test_a_chunk_that_no_event_closes_is_damage(place: Path) -> None:
    """As is one that stays open although an event closed it."""
    hub = live(make(place / "hub"))
    root, label = hub.folders.root, label_of(hub.rules, STREAMS[0], hub.hub_metadata.profile.epoch(hub.clock.now))
    hub.close()
    opened = root / "log" / ChunkName(label, 1, None).file_name()
    opened.rename(opened.with_name(ChunkName(label, 1, 1).file_name()))
    assert fsck.check(root, isolated=False).verdict is fsck.FsckVerdict.DAMAGED


def test_an_event_with_another_size_or_of_a_current_epoch_is_rejected(place: Path) -> None:
    hub = live(make(place / "hub"), epochs=1)
    hub.clock.now += EPOCH_SEC
    label = label_of(hub.rules, STREAMS[2], hub.hub_metadata.profile.epoch(NOW))
    (row,) = ended(hub, label).labels
    for wrong in (
        EndedLabel(label, row.epoch, row.size - 1, row.mmr_root),
        EndedLabel(label, row.epoch, row.size, bytes(32)),
        EndedLabel(label, row.epoch + 1, row.size, row.mmr_root),
    ):
        (outcome,) = hub.submit([EpochEnd((wrong,))])
        assert isinstance(outcome, Refused)
        assert outcome.code == "E.CONFLICT"
    receipts(hub.submit([EpochEnd((row,))]))
    hub.close()


def deaths(root: Path, last: Last, step: int) -> Iterator[int]:
    """Die at every `step`th call in turn, until a run survives."""
    n = 1
    while True:
        shutil.rmtree(root, ignore_errors=True)
        hub: Hub | None = None
        try:
            hub = live(make(root), DyingDisk(n, last))
            hub.close()
        except Died:
            if hub:
                hub.abandon()
            yield n
            n += step
            continue
        return


@pytest.mark.parametrize("last", [Last.LOST, Last.HALF, Last.DONE])
def test_a_crash_at_any_call_leaves_chunks_that_the_next_start_closes(place: Path, last: Last) -> None:
    root, count = place / "hub", 0
    for n in deaths(root, last, 5):
        count += 1
        report = fsck.check(root, isolated=False)
        assert report.verdict is fsck.FsckVerdict.CLEAN, (n, report.findings)
        if n % 2:
            shutil.rmtree(root / "index", ignore_errors=True)
        hub = Hub(root)
        hub.catch_up()
        rows, files = index_rows(hub), log_files(root)
        hub.close()
        report = fsck.check(root, isolated=False)
        assert report.findings == [], (n, report.findings)
        shutil.rmtree(root / "index")
        again = Hub(root)
        assert (index_rows(again), log_files(root)) == (rows, files), n
        again.close()
    assert count > 20
