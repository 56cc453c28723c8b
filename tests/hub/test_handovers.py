"""A hub after a change of its key: which key signs checkpoints, and the hand-over that it serves and logs."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread

import pytest

from plumbing.durable import PLAIN_FILE, Disk
from tests.hub.client import START, TOKEN, Clock, Hub, Reply, hub_key, make_dir, running, until
from tests.hub.disks import QuickDisk
from tests.hub.test_running import broken
from veen.core import (
    Checkpoint,
    HubIdentity,
    Limits,
    Profile,
    Receipt,
    SigningKey,
    Unverified,
    control_stream,
    naming,
    signing,
)
from veen.core.control_stream import RegisteredStream
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    KeyRelease,
    ReleasedKeys,
    RotationRequest,
    StreamRequest,
    StreamResponse,
)
from veen.core.handover import HandOver, HandOverList, LabelHandOver
from veen.core.hub_identity import endorsement_digest
from veen.storage import fsck, metadata, recovery, rotation
from veen.storage.paths import Folders

EPOCH_SEC = 1000
DAILY = Profile(epoch_sec=EPOCH_SEC)


def rotate(data_dir: Path, at: int, overlap_sec: int = 0, *, destroy: bool = True) -> HubIdentity:
    record = rotation.rotate_key(Disk(), Folders(data_dir), at, overlap_sec)
    if destroy:
        rotation.destroy_retired(Disk(), Folders(data_dir), record)
    return record


def checkpoint_of(hub: Hub, label: bytes, upto_seq: int) -> Checkpoint:
    return hub.post("/v1/checkpoint", CheckpointRequest(label, upto_seq)).read(CheckpointResponse).checkpoint


def check_cosigned(made: Checkpoint, *public_keys: bytes) -> None:
    """The witness signatures must be of exactly these keys, in this order."""
    for public_key, sig in zip(public_keys, made.witness_sigs or (), strict=True):
        signing.verify(public_key, made.signing_digest(), sig, "cosignature")


def events(hub: Hub) -> list[control_stream.Event]:
    """The events of the control stream."""
    rules = hub.service.rules
    label = naming.label(rules.routing_key, rules.control_stream, rules.profile.epoch(int(hub.clock())))
    reply = hub.post("/v1/stream", StreamRequest(label, 1, with_mmr_proof=False))
    items = reply.read(StreamResponse).items if reply.status == 200 else ()
    return [control_stream.event_of(rules.hub_id, item.msg, rules.limits) for item in items]


def test_checkpoints_of_old_prefixes_are_signed_by_the_current_key(tmp_path: Path) -> None:
    """The retired key is destroyed: nothing needs it any more."""
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        before = [writer.send() for _ in range(3)]
        old_pk = hub.hub_pk
    rotate(data_dir, START + 5)
    clock.now = START + 10
    with running(data_dir, clock) as hub:
        assert hub.hub_pk != old_pk
        for receipt in before:
            made = checkpoint_of(hub, writer.label, receipt.stream_seq)
            assert made.mmr_root == receipt.mmr_root
            made.verify_signature(hub.hub_pk)
        assert hub.status()["bad_states"] == []


def test_a_hand_over_is_served_with_the_row_of_a_label(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        one, other = hub.writer("one"), hub.writer("other")
        last = [one.send(), one.send()][-1]
        other.send()
        assert hub.get("/tooling/handovers").read(HandOverList) == HandOverList(())
    record = rotate(data_dir, START + 5)
    clock.now = START + 10
    with running(data_dir, clock) as hub:
        found = hub.get(f"/tooling/handovers?label={one.label.hex()}").read(HandOverList)
        ((made, place),) = ((one.handover, one.proved) for one in found.handovers)
        assert place is not None
        made.verify(record)
        place.verify(made.labels, made.rows_root)
        assert (place.row.size, place.row.mmr_root) == (last.stream_seq, last.mmr_root)
        assert hub.get("/tooling/handovers").read(HandOverList).handovers == (LabelHandOver(made),)
        unknown = hub.get(f"/tooling/handovers?label={bytes(32).hex()}").read(HandOverList)
        assert unknown.handovers == (LabelHandOver(made),)
        assert hub.get("/tooling/handovers?label=ff").status == 400


def test_a_hand_over_is_logged_once_on_the_control_stream(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
    record = rotate(data_dir, START + 5)
    clock.now = START + 10
    (made,) = rotation.read_handovers(Folders(data_dir), record)
    for _ in range(2):
        with running(data_dir, clock) as hub:
            until(lambda: not rotation.unlogged_handovers(Folders(data_dir), record))
            assert events(hub) == [RegisteredStream(naming.stream_id("s")), made]
    assert isinstance(made, HandOver)


def test_the_statement_of_a_recovery_is_the_first_event_of_the_new_key_and_logged_once(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        hub.writer().send()
    made = recovery.recover(Disk(), data_dir, START + 5).log.statement
    clock.now = START + 10
    for _ in range(2):
        with running(data_dir, clock) as hub:
            until(lambda: not recovery.unlogged(Folders(data_dir), recovery.read_recoveries(Folders(data_dir))))
            assert events(hub) == [RegisteredStream(naming.stream_id("s")), made]
            hub.writer().send()
    assert fsck.check(data_dir).findings == []
    folders = Folders(data_dir)
    shutil.rmtree(folders.index)  # a rebuild reads the event too
    with running(data_dir, clock) as hub:
        assert events(hub)[-1] == made


def test_a_hand_over_whose_entry_may_be_lost_is_logged_again_after_a_recovery(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        hub.writer().send()
    record = rotate(data_dir, START + 5, destroy=False)
    (handed_over,) = rotation.read_handovers(Folders(data_dir), record)
    shutil.copytree(data_dir, tmp_path / "before")
    clock.now = START + 10
    with running(data_dir, clock) as hub:
        until(lambda: not rotation.unlogged_handovers(Folders(data_dir), record))
    mark = Folders(data_dir).handover_logged(record.signing_keys[0].key_id)
    backup = tmp_path / "before"
    shutil.copy(mark, Folders(backup).handover_logged(record.signing_keys[0].key_id))  # it is newer than the log
    made = recovery.restore(Disk(), backup, tmp_path / "restored", START + 20).log.statement
    clock.now = START + 30
    with running(tmp_path / "restored", clock) as hub:
        until(lambda: len(events(hub)) == 2)
        assert events(hub) == [made, handed_over]


def test_the_retired_key_signs_nothing_more_while_the_clock_is_behind(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        hub.writer().send()
    rotate(data_dir, START + 50)
    with running(data_dir, clock) as hub:
        receipt = hub.writer().send()
        assert receipt.hub_ts == START + 50
        receipt.verify_signature(hub.hub_pk)


def test_with_epochs_old_prefixes_have_the_checkpoints_that_were_stored(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, DAILY), Clock()
    stream = naming.stream_id("s")
    with running(data_dir, clock) as hub:
        hub.register(stream)
        old = hub.writer()
        sent = [old.send() for _ in range(3)]
        first_epoch = hub.service.rules.profile.epoch(START)
        clock.now = START + 2 * EPOCH_SEC
        current = hub.writer()
        current.send()
    record = rotate(data_dir, START + 2 * EPOCH_SEC + 5)
    clock.now = START + 2 * EPOCH_SEC + 10
    with running(data_dir, clock) as hub:
        last = checkpoint_of(hub, old.label, 3)
        assert (last.mmr_root, last.epoch) == (sent[-1].mmr_root, first_epoch)
        last.verify_signature(record.signing_keys[0].hub_pk)
        assert record.verify_checkpoint(last, DAILY) == record.signing_keys[0]
        missing = hub.post("/v1/checkpoint", CheckpointRequest(old.label, 2)).error()
        assert (missing.code, "no checkpoint of this prefix was stored" in missing.message) == ("E.NOT_FOUND", True)
        now = checkpoint_of(hub, current.label, 1)
        assert record.verify_checkpoint(now, DAILY) == record.newest
    assert metadata.read_metadata(Folders(data_dir)).identity == record


def test_a_hand_over_is_between_successive_keys_and_within_their_time(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    first = metadata.read_metadata(Folders(data_dir)).identity
    record = rotate(data_dir, START + 5, 10, destroy=False)
    (made,) = rotation.read_handovers(Folders(data_dir), record)
    made.verify(record)
    with pytest.raises(Unverified, match="successive"):
        made.verify(first)
    with pytest.raises(Unverified):
        HandOver.decode(made.encode().replace(made.rows_root, b"\x01" * 32)).verify(record)


# While the hub runs


def prepare(data_dir: Path) -> bytes:
    """Make the next key, as the operator's command does."""
    folders = Folders(data_dir)
    new = metadata.next_key(folders, metadata.read_metadata(folders).identity)
    metadata.add_signing_key(Disk(), folders, new)
    return new.signer.public_key


def change(hub: Hub, asked: RotationRequest, token: str = TOKEN) -> Reply:
    return hub.post("/tooling/rotate-key", asked, authorization=f"Bearer {token}")


def test_a_running_hub_changes_its_key_between_groups_and_loses_nothing(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        stop, receipts = Event(), dict[bytes, list[Receipt]]()

        def write(name: str) -> None:
            writer = hub.writer(name)
            receipts[writer.label] = []
            while not stop.is_set():
                receipts[writer.label].append(writer.send())

        threads = [Thread(target=write, args=(f"stream {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(receipts) == 4 and all(len(one) > 3 for one in receipts.values()))
        made = change(hub, RotationRequest(prepare(data_dir), START + 1, 0)).read(HandOver)
        before = {label: len(one) for label, one in receipts.items()}
        until(lambda: all(len(receipts[label]) > before[label] + 3 for label in receipts))
        stop.set()
        for thread in threads:
            thread.join()
        identity = hub.service.hub_metadata.identity
        made.verify(identity)
        assert hub.status()["hub_pk"] == made.new_pk.hex()
        for label, signed in receipts.items():
            (shown,) = hub.get(f"/tooling/handovers?label={label.hex()}").read(HandOverList).handovers
            place = shown.proved
            assert place is not None
            place.verify(made.labels, made.rows_root)
            keys = [identity.verify_receipt(receipt) for receipt in signed]
            split = place.row.size
            assert {key.hub_pk for key in keys[:split]} == {made.old_pk}
            assert {key.hub_pk for key in keys[split:]} == {made.new_pk}
            assert signed[split - 1].mmr_root == place.row.mmr_root
            assert signed[split - 1].hub_ts < made.hub_ts <= signed[split].hub_ts
        until(lambda: made in events(hub))
    assert fsck.check(data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN
    with running(data_dir, clock) as hub:
        assert hub.hub_pk == made.new_pk


def release(hub: Hub, token: str = TOKEN) -> Reply:
    asked = KeyRelease(hub.service.hub_metadata.identity.hub_id)
    return hub.post("/tooling/release-keys", asked, authorization=f"Bearer {token}")


@pytest.mark.parametrize("profile", [Profile(), DAILY], ids=["without epochs", "with epochs"])
def test_a_running_hub_stops_using_retired_keys_so_that_they_can_be_destroyed(tmp_path: Path, profile: Profile) -> None:
    data_dir, clock = make_dir(tmp_path, profile, Limits(max_epoch_skew_sec=0, max_checkpoint_interval=2)), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        writer = hub.writer()
        for _ in range(5):
            writer.send()
        made = change(hub, RotationRequest(prepare(data_dir), START + 1, 0)).read(HandOver)
        signer = hub.service.signer.pid
        assert release(hub, "another").status == 401
        until(lambda: release(hub).status == 200)  # the log catches up
        until(lambda: hub.service.signer.pid != signer)
        rotation.destroy_retired(Disk(), Folders(data_dir), hub.service.hub_metadata.identity)
        for _ in range(3):
            assert hub.service.hub_metadata.identity.verify_receipt(writer.send()).hub_pk == made.new_pk
        assert release(hub).read(ReleasedKeys).key_ids == (naming.key_id(made.old_pk),)
    assert fsck.check(data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN


def test_a_key_of_epochs_that_still_get_entries_is_not_released(tmp_path: Path) -> None:
    limits = Limits(max_epoch_skew_sec=EPOCH_SEC, max_checkpoint_interval=2)
    data_dir, clock = make_dir(tmp_path, DAILY, limits), Clock()
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        earlier = hub.writer()
        earlier.send()
        clock.now = START + EPOCH_SEC
        change(hub, RotationRequest(prepare(data_dir), START + EPOCH_SEC, 0)).read(HandOver)
        refused = release(hub).error()
        assert refused.code == "E.CONFLICT"
        assert "get entries until" in refused.message
        for _ in range(4):  # of the epoch before: its checkpoints are those of the old key
            earlier.send()
        clock.now = START + 2 * EPOCH_SEC
        until(lambda: release(hub).status == 200)
    assert fsck.check(data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN


class StuckIdentity(QuickDisk):
    """A disk that fails at one file of the identity, after it is there, and cannot remove the new identity."""

    def __init__(self, failing: str) -> None:
        self._failing = failing
        self.failed = False

    def write_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = PLAIN_FILE) -> None:
        super().write_file(path, data, mode)  # the name may be durable although the call fails
        if path.name == self._failing:
            self.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def unlink(self, path: Path) -> None:
        if self.failed and path.name == "hub-identity.next":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(path)


@pytest.mark.parametrize("failing", ["hub-identity.next", "hub-key-map.json", "hub-identity.json"])
def test_a_hub_whose_new_identity_may_be_on_disk_signs_nothing_more_with_the_old_key(
    tmp_path: Path, failing: str
) -> None:
    data_dir, disk = make_dir(tmp_path), StuckIdentity(failing)
    with running(data_dir, disk=disk) as hub:
        hub.writer().send()
        interrupted = change(hub, RotationRequest(prepare(data_dir), START + 1, 0))
        assert (interrupted.error().code, disk.failed) == ("E.UNAVAILABLE", True)
        assert isinstance(broken(hub), rotation.InterruptedRotation)
        assert hub.submit(hub.writer("other").message()).error().code == "E.UNAVAILABLE"
    with running(data_dir) as hub:  # the start completes the rotation
        assert len(hub.service.hub_metadata.identity.hub_keys) == 2


def test_only_the_operator_changes_the_key_and_a_refusal_changes_nothing(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        before = hub.status()["identity"]
        good = RotationRequest(prepare(data_dir), START + 1, 0)
        assert change(hub, good, "another").status == 401
        assert hub.post("/tooling/rotate-key", good).status == 401
        unknown = change(hub, RotationRequest(SigningKey.generate().public_key, START + 1, 0))
        assert unknown.error().code == "E.CONFLICT"
        early = change(hub, RotationRequest(good.hub_pk, 1, 0))
        assert early.error().code == "E.CONFLICT"
        assert hub.status()["identity"] == before
        hub.writer().send()
        assert change(hub, good).status == 200


def test_a_running_hub_with_a_root_needs_its_endorsement(tmp_path: Path) -> None:
    data_dir, root = tmp_path / "hub", SigningKey.generate()
    metadata.create(Disk(), data_dir, Profile(), Limits(), START, root_key=root)
    with running(data_dir) as hub:
        hub_pk = prepare(data_dir)
        digest = endorsement_digest(hub.service.hub_metadata.identity.hub_id, hub_pk, START + 1)
        for sig in (None, SigningKey.generate().sign(digest), hub_key(hub).sign(digest)):
            assert change(hub, RotationRequest(hub_pk, START + 1, 0, sig)).error().code == "E.CONFLICT"
        made = change(hub, RotationRequest(hub_pk, START + 1, 0, root.sign(digest))).read(HandOver)
        made.verify(hub.service.hub_metadata.identity)


def test_both_keys_sign_checkpoints_in_the_overlap(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        writer.send()
        assert checkpoint_of(hub, writer.label, 1).witness_sigs is None
        made = change(hub, RotationRequest(prepare(data_dir), START + 1, 60)).read(HandOver)
        writer.send()
        for size in (1, 2):
            both = checkpoint_of(hub, writer.label, size)
            both.verify_signature(made.new_pk)
            check_cosigned(both, made.old_pk, made.new_pk)
        clock.now = made.hub_ts + 60
        assert checkpoint_of(hub, writer.label, 2).witness_sigs is None


@pytest.mark.parametrize("step", [-86_400, 86_400])
def test_the_overlap_ends_by_the_time_of_the_hub_if_its_clock_is_set(tmp_path: Path, step: int) -> None:
    """Set back, the old key must not go on signing. Set forward, both keys still sign."""
    data_dir, clock = make_dir(tmp_path), Clock()
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        writer.send()
        made = change(hub, RotationRequest(prepare(data_dir), START + 1, 60)).read(HandOver)
        clock.step(step)
        clock.now += 50
        check_cosigned(checkpoint_of(hub, writer.label, 1), made.old_pk, made.new_pk)
        clock.now += 11
        assert writer.send().hub_ts >= made.hub_ts + 60
        assert checkpoint_of(hub, writer.label, 1).witness_sigs is None
