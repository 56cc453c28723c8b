"""The checkpoint binding lists every regular checkpoint with its key, and is rebuilt if it does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Call, Died, Fault, Platter, SimulatedDisk, Survival
from tests.storage.disks import DyingDisk, Last, RefusingDisk
from tests.storage.hubs import NOW, Client, Clock, History, Hub, QuickDisk, key, label_of, receipts
from veen.core import Checkpoint, Unavailable, checkpoint
from veen.storage import checkpoint_files, fsck, metadata, rotation
from veen.storage.artifacts import BoundCheckpoint, CheckpointBinding
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders


def filled(root: Path, history: History) -> Path:
    hub = Hub(history.fresh(root))
    for group in history.groups:
        receipts(hub.submit(group))
        hub.catch_up()
    hub.close()
    return root


def checkpoints(root: Path) -> list[Checkpoint]:
    return [Checkpoint.decode(path.read_bytes()) for path in (root / "log").glob("checkpoint-[0-9a-f]*-*.cbor")]


def found(root: Path) -> CheckpointBinding:
    return CheckpointBinding.decode((root / "checkpoint-binding.cbor").read_bytes())


def test_a_new_hub_has_a_binding_of_no_checkpoints(history: History) -> None:
    hub_metadata = metadata.read_metadata(Folders(history.template))
    assert found(history.template) == CheckpointBinding(hub_metadata.identity.hub_id, ())


def test_it_names_every_regular_checkpoint_with_the_key_that_signed_it(place: Path, history: History) -> None:
    root = filled(place / "hub", history)
    identity = metadata.read_metadata(Folders(root)).identity
    rows = [
        BoundCheckpoint(one.label_curr, one.upto_seq, one.epoch, one.mmr_root, identity.newest.key_id)
        for one in sorted(checkpoints(root), key=lambda one: (one.label_curr, one.upto_seq))
    ]
    assert len(rows) > 3
    assert found(root) == CheckpointBinding(identity.hub_id, tuple(rows))


def test_after_a_rotation_each_checkpoint_keeps_its_key(place: Path, history: History) -> None:
    root = filled(place / "hub", history)
    before = found(root)
    rotation.rotate_key(QuickDisk(), Folders(root), NOW + 100, 0)
    hub = Hub(root, clock=Clock(NOW + 200))
    label = label_of(hub.rules, "stream 0")
    client = Client("dot", hub.rules)
    receipts(hub.submit([client.message(label) for _ in range(20)]))
    hub.catch_up()
    hub.close()
    rows = {row.place: row for row in found(root).checkpoints}
    assert all(rows.pop(row.place) == row for row in before.checkpoints)
    keys = metadata.read_metadata(Folders(root)).identity.hub_keys
    assert {row.key_id for row in rows.values()} == {keys[1].key_id}
    assert {row.key_id for row in before.checkpoints} == {keys[0].key_id}
    assert fsck.check(root, isolated=False).findings == []


def test_a_witness_does_not_change_it(place: Path, history: History) -> None:
    root = filled(place / "hub", history)
    path = next((root / "log").glob("checkpoint-[0-9a-f]*-*.cbor"))
    path.write_bytes(Checkpoint.decode(path.read_bytes()).witnessed(key("witness")).encode())
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN
    hub_metadata = metadata.read_metadata(Folders(root))
    assert checkpoint_files.derived_binding(Folders(root), hub_metadata) == found(root)


def _row(change: Callable[[BoundCheckpoint], BoundCheckpoint]) -> Callable[[CheckpointBinding], bytes]:
    return lambda one: replace(one, checkpoints=(change(one.checkpoints[0]), *one.checkpoints[1:])).encode()


FAULTS: dict[str, Callable[[CheckpointBinding], bytes]] = {
    "empty": lambda one: b"",
    "cut short": lambda one: one.encode()[:-1],
    "bytes after it": lambda one: one.encode() + b"\0",
    "another hub's": lambda one: replace(one, hub_id=bytes(32)).encode(),
    "no rows": lambda one: replace(one, checkpoints=()).encode(),
    "the first missing": lambda one: replace(one, checkpoints=one.checkpoints[1:]).encode(),
    "the last missing": lambda one: replace(one, checkpoints=one.checkpoints[:-1]).encode(),
    "another key": _row(lambda row: replace(row, key_id=bytes(32))),
    "another root": _row(lambda row: replace(row, mmr_root=bytes(32))),
    "another epoch": _row(lambda row: replace(row, epoch=1)),
    "another place": _row(lambda row: replace(row, upto_seq=row.upto_seq - 1)),
    "a checkpoint that is not there": lambda one: replace(
        one, checkpoints=(*one.checkpoints, replace(one.checkpoints[-1], label=b"\xff" * 32))
    ).encode(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_one_is_named_and_healed(place: Path, history: History, fault: str) -> None:
    root = filled(place / "hub", history)
    sound = (root / "checkpoint-binding.cbor").read_bytes()
    index = (root / "index" / "data.mdb").stat().st_ino
    wrong = FAULTS[fault](found(root))
    assert wrong != sound
    (root / "checkpoint-binding.cbor").write_bytes(wrong)
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.REPAIRABLE
    assert [finding.artifact for finding in report.findings] == ["checkpoint-binding.cbor"]
    assert fsck.repair(root, isolated=False).findings == []
    assert (root / "checkpoint-binding.cbor").read_bytes() == sound
    assert (root / "index" / "data.mdb").stat().st_ino == index  # no other file changed


def test_a_missing_one_is_named_and_healed(place: Path, history: History) -> None:
    root = filled(place / "hub", history)
    sound = (root / "checkpoint-binding.cbor").read_bytes()
    (root / "checkpoint-binding.cbor").unlink()
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.REPAIRABLE
    assert fsck.repair(root, isolated=False).findings == []
    assert (root / "checkpoint-binding.cbor").read_bytes() == sound


@pytest.mark.parametrize("fault", ["empty", "another hub's"])
def test_a_hub_goes_on_with_one_it_made_itself(place: Path, history: History, fault: str) -> None:
    root = filled(place / "hub", history)
    before = found(root).checkpoints
    (root / "checkpoint-binding.cbor").write_bytes(FAULTS[fault](found(root)))
    hub = Hub(root)
    label = label_of(hub.rules, "stream 0")
    client = Client("dot", hub.rules)
    receipts(hub.submit([client.message(label) for _ in range(9)]))
    hub.catch_up()
    hub.close()
    assert set(before) < set(found(root).checkpoints)
    assert fsck.check(root, isolated=False).findings == []


def test_a_checkpoint_that_no_key_of_the_hub_signed_has_no_row(place: Path, history: History) -> None:
    root = filled(place / "hub", history)
    path = next((root / "log").glob("checkpoint-[0-9a-f]*-*.cbor"))
    one = Checkpoint.decode(path.read_bytes())
    forged = checkpoint.sign(
        key("stranger"),
        label_prev=one.label_prev,
        label_curr=one.label_curr,
        upto_seq=one.upto_seq,
        mmr_root=one.mmr_root,
        epoch=one.epoch,
    )
    path.write_bytes(forged.encode())
    rows = checkpoint_files.derived_binding(Folders(root), metadata.read_metadata(Folders(root))).checkpoints
    assert len(rows) == len(found(root).checkpoints) - 1
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.DAMAGED


def test_it_is_there_before_the_index_says_that_the_chunk_is_closed(place: Path, history: History) -> None:
    """After a crash at any call, the checkpoint of every chunk that the index lists as closed is bound."""
    root, seen = place / "hub", set()
    for n in range(9, 400, 2):  # the first calls write the mark and create the index
        history.fresh(root)
        hub = Hub(root, DyingDisk(n, Last.DONE))
        try:
            for group in history.groups:
                hub.submit(group)
                hub.catch_up()
        except Died:
            with hub.store.index.read() as rows:
                closed = {(label, head.chunk_start - 1) for label, head in rows.labels() if head.chunk_start > 1}
            hub.abandon()
            assert closed <= {row.place for row in found(root).checkpoints}, n
            seen.add(len(closed))
            continue
        hub.abandon()
        break
    assert len(seen) > 2


def test_no_room_for_it_is_unavailable_and_the_next_attempt_writes_it(place: Path, history: History) -> None:
    class NoRoom(RefusingDisk):
        """Has no space for the binding."""

        def replace(self, source: Path, target: Path) -> None:
            if target.name == "checkpoint-binding.cbor":
                self._check("binding")
            super().replace(source, target)

    disk, root = NoRoom(), history.fresh(place / "hub")
    hub = Hub(root, disk)
    for group in history.groups:
        hub.submit(group)
    tail = hub.store.begin_catching_up()
    assert tail
    disk.fail("binding")
    with pytest.raises(Unavailable, match="No space left"):
        hub.store.catch_up(tail)
    disk.heal()
    hub.store.catch_up(tail)
    hub.store.end_catching_up()
    hub.close()
    assert found(root).checkpoints
    assert fsck.check(root, isolated=False).findings == []


def test_a_retry_makes_the_name_durable_that_a_failed_attempt_left(place: Path, history: History) -> None:
    """Found by the lab: the second attempt found the rows in the file, and did not sync the folder."""
    root = history.fresh(place / "hub")
    failing: list[Path] = []

    def plan(call: Call) -> Fault | None:
        return Fault.EIO if call.name == "sync_folder" and call.path in failing else None

    disk = SimulatedDisk(Platter(place), plan)
    hub = Hub(root, disk)
    for group in history.groups:
        hub.submit(group)
    tail = hub.store.begin_catching_up()
    assert tail
    failing.append(root)
    with pytest.raises(Unavailable, match="Input/output error"):
        hub.store.catch_up(tail)
    failing.clear()
    hub.store.catch_up(tail)
    hub.store.end_catching_up()
    hub.close()
    bound = found(root)
    disk.cut_power(Survival())
    assert found(root) == bound


class NewestKeyHub(Hub):
    """Signs checkpoints with the newest key, as a running hub does."""

    def sign(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        signer = metadata.read_signing_key(self.folders, self.hub_metadata.identity.newest.key_id)
        return checkpoint.sign(
            signer, label_prev=label, label_curr=label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0
        )


def test_a_checkpoint_from_before_a_rotation_is_bound_to_the_key_that_signed_it(place: Path, history: History) -> None:
    """Found by the lab: the retry kept the stored checkpoint, and bound the key that would sign it now."""
    root = history.fresh(place / "hub")
    disk = SimulatedDisk(Platter(place), lambda call: Fault.DIE_BEFORE if call.artifact == "checkpoint index" else None)
    hub = NewestKeyHub(root, disk)
    for group in history.groups:
        hub.submit(group)
    with pytest.raises(Died):
        hub.catch_up()
    hub.abandon()
    (stored,) = checkpoints(root)
    rotation.rotate_key(QuickDisk(), Folders(root), NOW + 1000, 0)
    hub = NewestKeyHub(root, clock=Clock(NOW + 2000))
    hub.catch_up()
    hub.close()
    bound = {row.place: row for row in found(root).checkpoints}
    old = metadata.read_metadata(Folders(root)).identity.signing_keys[0]
    assert bound[stored.label_curr, stored.upto_seq].key_id == old.key_id
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN
