"""The end of an epoch at a running hub: each label gets its last checkpoint, by an event on the control stream."""

import shutil
from pathlib import Path

from tests.hub.client import START, Clock, Hub, make_dir, running, until
from tests.hub.test_handovers import EPOCH_SEC, change, checkpoint_of, events, prepare, release
from veen.core import Limits, Profile, Receipt, naming
from veen.core.control_stream import EpochEnd
from veen.core.envelopes import CheckpointList, RotationRequest
from veen.core.handover import HandOver
from veen.core.limits import MAX_ENDED_LABELS
from veen.storage import fsck, rotation
from veen.storage.paths import ChunkName, Folders

DAILY = Profile(epoch_sec=EPOCH_SEC)
NO_SKEW = Limits(max_epoch_skew_sec=0)


def stored(hub: Hub, label: bytes) -> CheckpointList:
    return hub.get(f"/tooling/checkpoints?label={label.hex()}").read(CheckpointList)


def ended(hub: Hub) -> set[bytes]:
    """The labels that events on the control stream of this epoch end."""
    return {one.label for event in events(hub) if isinstance(event, EpochEnd) for one in event.labels}


def fill(hub: Hub, streams: int) -> dict[bytes, Receipt]:
    """Register streams and send to each. Returns the last receipt of each label."""
    last = {}
    for number in range(streams):
        hub.register(naming.stream_id(f"s{number}"))
        writer = hub.writer(f"s{number}")
        last[writer.label] = [writer.send() for _ in range(number % 3 + 1)][-1]
    return last


def test_each_label_gets_its_last_checkpoint_and_the_next_epoch_refers_to_it(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, NO_SKEW), Clock()
    with running(data_dir, clock) as hub:
        last = fill(hub, 3)
        epoch = DAILY.epoch(START)
        clock.now = START + EPOCH_SEC
        until(lambda: all(stored(hub, label).checkpoints for label in last))
        for number in range(3):
            label = hub.label(f"s{number}", epoch)
            (made,) = stored(hub, label).checkpoints
            assert (made.upto_seq, made.mmr_root) == (last[label].stream_seq, last[label].mmr_root)
            assert (made.epoch, made.label_prev) == (epoch, hub.label(f"s{number}", epoch - 1))
            made.check_labels(DAILY, hub.service.rules.routing_key, naming.stream_id(f"s{number}"))
            made.verify_signature(hub.hub_pk)
            writer = hub.writer(f"s{number}")
            writer.send()
            assert checkpoint_of(hub, writer.label, 1).label_prev == label
        control = hub.label(hub.service.rules.control_stream, epoch)
        assert ended(hub) == {*last, control}
    assert fsck.check(data_dir, isolated=False).findings == []
    bound = (data_dir / "checkpoint-binding.cbor").read_bytes()
    assert all(label in bound for label in last)
    log = {path.name: path.read_bytes() for path in (data_dir / "log").iterdir()}
    shutil.rmtree(data_dir / "index")
    with running(data_dir, clock) as hub:
        until(lambda: hub.service._epoch_ends.ended_before == epoch + 1)
    assert {path.name: path.read_bytes() for path in (data_dir / "log").iterdir()} == log


def test_a_hub_that_was_down_ends_all_older_epochs_at_its_start_and_an_idle_one_logs_nothing(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, NO_SKEW), Clock()
    labels: set[bytes] = set()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        labels.add(hub.writer().send().label)
    clock.now = START + 5 * EPOCH_SEC
    with running(data_dir, clock) as hub:
        until(lambda: labels <= ended(hub))
        before = hub.status()["entries"]
        for later in range(6, 9):
            clock.now = START + later * EPOCH_SEC
            until(lambda: hub.service._epoch_ends.ended_before == DAILY.epoch(int(clock.now)))
        assert hub.status()["entries"] == before
    assert fsck.check(data_dir, isolated=False).findings == []


def test_more_labels_than_an_event_holds_end_in_several_events(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, NO_SKEW), Clock()
    with running(data_dir, clock) as hub:
        last = fill(hub, MAX_ENDED_LABELS + 40)
        clock.now = START + EPOCH_SEC
        until(lambda: last.keys() <= ended(hub))
        assert sum(isinstance(event, EpochEnd) for event in events(hub)) == 2
        until(lambda: all(stored(hub, label).checkpoints for label in last))
    names = [ChunkName.parse(path.name) for path in (data_dir / "log").iterdir()]
    assert not {name.label for name in names if name and name.end_seq is None} & last.keys()


def test_a_label_that_still_gets_entries_does_not_end(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, Limits(max_epoch_skew_sec=EPOCH_SEC)), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        writer = hub.writer()
        writer.send()
        clock.now = START + EPOCH_SEC
        writer.send()
        assert not ended(hub)
        clock.now = START + 2 * EPOCH_SEC
        until(lambda: writer.label in ended(hub))
        until(lambda: [one.upto_seq for one in stored(hub, writer.label).checkpoints] == [2])
        refused = hub.submit(writer.message()).error().refused()
        assert refused.detail_enum == "EPOCH"


def test_after_a_rotation_the_old_key_signs_the_last_checkpoints_of_its_epochs_before_it_is_destroyed(
    tmp_path: Path,
) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, Limits(max_epoch_skew_sec=EPOCH_SEC)), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        writer, old_pk = hub.writer(), hub.hub_pk
        writer.send()
        clock.now = START + EPOCH_SEC
        change(hub, RotationRequest(prepare(data_dir), START + EPOCH_SEC, 0)).read(HandOver)
        writer.send()  # late, for an epoch in which the new key was not active
        clock.now = START + 2 * EPOCH_SEC
        until(lambda: release(hub).status == 200)
        (made,) = stored(hub, writer.label).checkpoints
        made.verify_signature(old_pk)
        assert made.upto_seq == 2
        rotation.destroy_retired(hub.service._disk, Folders(data_dir), hub.service.hub_metadata.identity)
    assert fsck.check(data_dir, isolated=False).findings == []


def test_a_last_checkpoint_that_the_rotation_stored_is_used_although_its_key_is_destroyed(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY, NO_SKEW), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        writer, old_pk = hub.writer(), hub.hub_pk
        writer.send()
    record = rotation.rotate_key(hub.service._disk, Folders(data_dir), START + EPOCH_SEC, 0)
    rotation.destroy_retired(hub.service._disk, Folders(data_dir), record)
    clock.now = START + EPOCH_SEC
    with running(data_dir, clock) as hub:
        assert hub.hub_pk != old_pk
        until(lambda: bool(stored(hub, writer.label).checkpoints))
        stored(hub, writer.label).checkpoints[0].verify_signature(old_pk)
    assert fsck.check(data_dir, isolated=False).findings == []
