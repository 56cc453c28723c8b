"""With epochs a checkpoint names two labels and an epoch: fsck checks them against the registered streams."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.hubs import NOW, Client, Hub, QuickDisk, create, label_of, receipts
from veen.core import Checkpoint, Malformed, Profile, checkpoint, naming
from veen.storage import checkpoint_files, fork, fsck, metadata
from veen.storage.artifacts import CheckpointBinding
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

EPOCH_SEC = 3600
STREAM = "doors"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream over three epochs, with a regular checkpoint in each."""
    root = create(tmp_path_factory.mktemp("epochs") / "hub", profile=Profile(epoch_sec=EPOCH_SEC))
    hub = Hub(root, QuickDisk())
    client = Client("ann", hub.rules)
    token = client.cap([naming.stream_id(STREAM), naming.stream_id("windows")])
    receipts(hub.submit([token]))
    for number in range(3):
        hub.clock.now = NOW + number * EPOCH_SEC
        label = label_of(hub.rules, STREAM, hub.hub_metadata.profile.epoch(hub.clock.now))
        receipts(hub.submit([client.message(label, auth_ref=token.auth_ref()) for _ in range(8)]))
        hub.catch_up()
    hub.close()
    return root


@pytest.fixture
def folders(written: Path, place: Path) -> Folders:
    return Folders(shutil.copytree(written, place / "hub"))


def name(folders: Folders, stream: str, epoch: int) -> bytes:
    return naming.label(metadata.read_metadata(folders).identity.routing_key, naming.stream_id(stream), epoch)


def latest(folders: Folders) -> tuple[Path, Checkpoint]:
    """The first checkpoint of the stream's newest label."""
    newest = name(folders, STREAM, Profile(epoch_sec=EPOCH_SEC).epoch(NOW + 2 * EPOCH_SEC))
    path = min(folders.log.glob(f"checkpoint-{newest.hex()}-*.cbor"))
    return path, Checkpoint.decode(path.read_bytes())


def sign_again(folders: Folders, changed: Checkpoint) -> bytes:
    """A checkpoint with any fields, signed with the hub's key."""
    signing_key = metadata.read_signing_key(folders, metadata.read_metadata(folders).identity.newest.key_id)
    return checkpoint.sign(
        signing_key,
        label_prev=changed.label_prev,
        label_curr=changed.label_curr,
        upto_seq=changed.upto_seq,
        mmr_root=changed.mmr_root,
        epoch=changed.epoch,
    ).encode()


def test_the_label_of_the_epoch_before_and_that_of_this_one_are_both_sound(folders: Folders) -> None:
    path, found = latest(folders)
    for label_prev in (name(folders, STREAM, found.epoch - 1), found.label_curr):
        path.write_bytes(sign_again(folders, replace(found, label_prev=label_prev)))
        assert fsck.check(folders.root, isolated=False).findings == []


@pytest.mark.parametrize(
    ("stream", "step", "epoch_step"),
    [
        (STREAM, 1, 0),  # the label of the next epoch
        (STREAM, -2, 0),  # two epochs earlier
        ("windows", -1, 0),  # of another stream
        ("unregistered", -1, 0),  # of an unregistered stream
        (STREAM, -1, 1),
        (STREAM, -1, -1),
        (STREAM, -1, 100_000),
        (STREAM, 0, 1),
    ],
)
def test_labels_and_epochs_that_are_not_the_streams_are_damage(
    folders: Folders, stream: str, step: int, epoch_step: int
) -> None:
    path, found = latest(folders)
    wrong = replace(found, label_prev=name(folders, stream, found.epoch + step), epoch=found.epoch + epoch_step)
    path.write_bytes(sign_again(folders, wrong))
    report = fsck.check(folders.root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert [one.artifact for one in report.findings] == [f"log/{path.name}"]
    before = folders.binding.read_bytes()
    with pytest.raises(Malformed):
        fsck.repair(folders.root, isolated=False)
    assert folders.binding.read_bytes() == before


def test_a_repair_binds_what_was_verified_and_nothing_else(folders: Folders) -> None:
    """A leftover of an interrupted write is signed by the hub, but not in the log until the journal is replayed."""
    before = folders.binding.read_bytes()
    hub = Hub(folders.root, QuickDisk())
    hub.clock.now = NOW + 2 * EPOCH_SEC
    found, bob = latest(folders)[1], Client("bob", hub.rules)
    receipts(hub.submit([bob.message(found.label_curr) for _ in range(2)]))
    hub.abandon()
    left = replace(found, upto_seq=14)
    folders.checkpoint(left.label_curr, left.upto_seq).write_bytes(sign_again(folders, left))
    folders.binding.unlink()
    assert len(checkpoint_files.derived_binding(folders, metadata.read_metadata(folders)).checkpoints) == 1 + len(
        _rows(before)
    )
    assert fsck.repair(folders.root, isolated=False).verdict is FsckVerdict.CLEAN
    assert folders.binding.read_bytes() == before


def _rows(data: bytes) -> tuple[object, ...]:
    return CheckpointBinding.decode(data).checkpoints


def test_the_prefix_of_a_fork_is_sound_although_its_streams_are_not_registered(folders: Folders, place: Path) -> None:
    fork.fork(QuickDisk(), folders.root, place / "fork", None, NOW + 9 * EPOCH_SEC)
    assert fsck.check(place / "fork", isolated=False).findings == []
