"""A hub after a change of its key: which key signs checkpoints, and the hand-over that it serves and logs."""

from pathlib import Path
from threading import Event, Thread

import pytest

from plumbing.durable import Disk
from tests.hub.client import START, TOKEN, Clock, Hub, Reply, hub_key, make_dir, running, until
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
)
from veen.core.control_stream import RegisteredStream
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    RotationRequest,
    StreamRequest,
    StreamResponse,
)
from veen.core.handover import HandOver, HandOverList
from veen.core.hub_identity import endorsement_digest
from veen.storage import fsck, metadata, rotation
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
        (made,), (place,) = found.handovers, found.places
        made.verify(record)
        place.verify(made)
        assert (place.row.size, place.row.mmr_root) == (last.stream_seq, last.mmr_root)
        assert hub.get("/tooling/handovers").read(HandOverList).handovers == (made,)
        unknown = hub.get(f"/tooling/handovers?label={bytes(32).hex()}").read(HandOverList)
        assert (unknown.handovers, unknown.places) == ((made,), ())
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
            (place,) = hub.get(f"/tooling/handovers?label={label.hex()}").read(HandOverList).places
            place.verify(made)
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
            both.verify_witnesses((made.old_pk, made.new_pk), 2)
        clock.now = made.hub_ts + 60
        assert checkpoint_of(hub, writer.label, 2).witness_sigs is None
