"""Attachments are kept like the payloads of the label that their upload named. Each deletion is logged before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import TOKEN, Clock, Hub, Reply, make_dir, running
from tests.hub.disks import QuickDisk
from tests.hub.test_attachments import SEALED, code_of, path_of, proof, put
from veen.core import Malformed, control_stream
from veen.core.hashing import h
from veen.core.limits import ATTACHMENT_GRACE_SEC
from veen.core.naming import stream_id
from veen.core.retention import (
    PRUNED,
    AttachmentPrune,
    AttachmentTombstone,
    Hold,
    RetentionPolicy,
    RetentionReport,
    RetentionRequest,
    UploadRecord,
)
from veen.hub.admission_rules import Admission
from veen.storage import attachment_store, backup, fsck
from veen.storage.attachment_store import AttachmentStore
from veen.storage.paths import Folders

DAY = 86_400
OTHER = b"other sealed bytes"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path), disk=QuickDisk()) as found:
        yield found


def operator(hub: Hub, path: str, request: RetentionPolicy | Hold | RetentionRequest) -> Reply:
    return hub.post(path, request, authorization=f"Bearer {TOKEN}")


def keep(hub: Hub, policy: RetentionPolicy) -> None:
    assert operator(hub, "/tooling/retention/policy", policy).status == 200


def hold(hub: Hub, event: Hold) -> None:
    assert operator(hub, "/tooling/retention/hold", event).status == 200


def run(hub: Hub, *, dry: bool = False) -> RetentionReport:
    return operator(hub, "/tooling/retention/run", RetentionRequest(dry)).read(RetentionReport)


def erase(hub: Hub, sealed: bytes) -> Reply:
    return operator(hub, "/tooling/retention/run", RetentionRequest(False, reason="request 3", coid=h(sealed)))


def put_for(hub: Hub, sealed: bytes, label: bytes) -> Reply:
    return hub.ask("PUT", f"{path_of(sealed)}?label={label.hex()}", sealed)


def passes(hub: Hub, seconds: int) -> None:
    assert isinstance(hub.clock, Clock)
    hub.clock.now += seconds


def events(hub: Hub) -> list[AttachmentPrune]:
    """The deletions of attachments on the control stream."""
    control, limits = hub.label(hub.service.rules.control_stream), hub.service.rules.limits
    size = hub.service.app.reads._lookup.size(control)
    found = [
        control_stream.event_of(hub.service.rules.hub_id, entry.open()[0], limits)
        for entry in hub.service.app.reads._lookup.entries(control, 1, size)
    ]
    return [event for event in found if isinstance(event, AttachmentPrune)]


def test_an_attachment_is_deleted_after_the_payloads_of_its_label(hub: Hub) -> None:
    label = hub.label("s")
    assert put_for(hub, SEALED, label).status == 201
    keep(hub, RetentionPolicy(DAY))
    passes(hub, DAY + ATTACHMENT_GRACE_SEC - 1)
    assert run(hub).attachments == 0
    passes(hub, 1)
    assert (run(hub, dry=True).attachments, hub.get(path_of(SEALED)).status) == (1, 200)
    done = run(hub)
    assert (done.attachments, done.attachment_bytes, done.freed_bytes) == (1, len(SEALED), len(SEALED))
    assert events(hub) == [AttachmentPrune((h(SEALED),), label)]
    refused = hub.get(path_of(SEALED)).error().refused()
    assert (refused.code, refused.detail_enum) == ("E.NOT_FOUND", PRUNED)
    tombstone = AttachmentTombstone.decode(bytes.fromhex(str(refused.detail["tombstone"])))
    tombstone.verify(hub.service.hub_metadata.identity, h(SEALED))
    assert run(hub).attachments == 0


def test_an_upload_renews_an_attachment_of_its_label_only(hub: Hub) -> None:
    keep(hub, RetentionPolicy(DAY))
    put_for(hub, SEALED, hub.label("s"))
    put_for(hub, OTHER, hub.label("s"))
    passes(hub, 20 * DAY)
    assert put_for(hub, SEALED, hub.label("s")).status == 200
    assert put_for(hub, OTHER, hub.label("another")).status == 200
    passes(hub, 20 * DAY)
    assert run(hub).attachments == 1
    assert (hub.get(path_of(SEALED)).status, hub.get(path_of(OTHER)).status) == (200, 404)


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("bit", [8 * at + at % 8 for at in range(3, 111, 9)])
def test_a_flipped_bit_in_the_record_of_an_upload_is_named_and_deletes_nothing(hub: Hub, bit: int) -> None:
    put_for(hub, SEALED, hub.label("s"))
    put_for(hub, OTHER, hub.label("s"))
    keep(hub, RetentionPolicy(DAY))
    record = Folders(hub.data_dir).upload(h(SEALED))
    flipped(record, bit)
    passes(hub, 1000 * DAY)
    assert run(hub).attachments == 1
    assert (hub.get(path_of(SEALED)).status, hub.get(path_of(OTHER)).status) == (200, 404)
    assert "damage" in hub.get("/readyz").json()["bad_states"]
    hub.stop()
    report = fsck.check(hub.data_dir, isolated=False)
    assert [one.artifact for one in report.findings] == [f"uploads/{record.name}"]
    assert report.verdict is fsck.FsckVerdict.DAMAGED
    hub.start()


@pytest.mark.parametrize("damage", ["a flipped bit", "another attachment's", "garbage", "a link"])
def test_an_upload_replaces_a_damaged_record_and_names_the_label_again(hub: Hub, damage: str) -> None:
    folders = Folders(hub.data_dir)
    record = folders.upload(h(SEALED))
    for sealed in (SEALED, OTHER):
        put_for(hub, sealed, hub.label("s"))
    if damage == "a flipped bit":
        flipped(record, 500)
    elif damage == "a link":
        record.unlink()
        record.symlink_to(folders.upload(h(OTHER)))
    else:
        record.write_bytes(folders.upload(h(OTHER)).read_bytes() if "another" in damage else b"garbage")
    assert put(hub, SEALED).status == 200, "without a label it says nothing, and changes nothing"
    with pytest.raises(Malformed):
        attachment_store.read_upload(folders, h(SEALED))
    assert put_for(hub, SEALED, hub.label("another")).status == 200
    assert hub.get("/readyz").json()["bad_states"] == []
    found = attachment_store.read_upload(folders, h(SEALED))
    assert found is not None
    assert found.label == hub.label("another")
    assert put_for(hub, SEALED, hub.label("s")).status == 200
    assert attachment_store.read_upload(folders, h(SEALED)) == found, "the label of a sound record stays"
    hub.stop()
    assert fsck.check(hub.data_dir, isolated=False).verdict is fsck.FsckVerdict.CLEAN
    hub.start()


def test_a_tombstone_deletes_only_the_attachment_that_it_names(hub: Hub) -> None:
    for sealed in (SEALED, OTHER):
        put(hub, sealed)
    assert erase(hub, SEALED).status == 200
    folders = Folders(hub.data_dir)
    gone, other = folders.attachment_tombstone(h(SEALED)), folders.attachment_tombstone(h(OTHER))
    other.write_bytes(gone.read_bytes())
    assert run(hub).freed_bytes == 0
    other.unlink()
    AttachmentStore(Disk(), folders).put(h(SEALED), SEALED)  # as after a crash before the attachment was removed
    sound = gone.read_bytes()
    flipped(gone, 8 * (len(sound) - 3))
    assert run(hub).freed_bytes == 0, "the hub did not sign it"
    assert "damage" in hub.get("/readyz").json()["bad_states"]
    gone.write_bytes(sound)
    assert run(hub).freed_bytes == len(SEALED)


def test_a_record_of_an_earlier_version_is_still_followed_and_bound_when_it_is_renewed(hub: Hub) -> None:
    label = hub.label("s")
    put_for(hub, SEALED, label)
    record = Folders(hub.data_dir).upload(h(SEALED))
    bound = UploadRecord.decode(record.read_bytes())
    record.write_bytes(UploadRecord(label, bound.uploaded_at).encode())
    passes(hub, DAY)
    assert put_for(hub, SEALED, label).status == 200
    renewed = UploadRecord.decode(record.read_bytes())
    assert renewed == UploadRecord.of(h(SEALED), label, renewed.uploaded_at)
    record.write_bytes(UploadRecord(label, bound.uploaded_at).encode())
    hub.stop()
    assert fsck.check(hub.data_dir, isolated=False).findings == []
    hub.start()
    keep(hub, RetentionPolicy(DAY))
    passes(hub, DAY + ATTACHMENT_GRACE_SEC)
    assert run(hub).attachments == 1


def test_an_attachment_without_a_label_is_kept_until_it_is_erased(hub: Hub) -> None:
    put(hub, SEALED)
    keep(hub, RetentionPolicy(DAY))
    passes(hub, 1000 * DAY)
    assert run(hub).attachments == 0
    assert erase(hub, SEALED).read(RetentionReport).attachments == 1
    assert events(hub) == [AttachmentPrune((h(SEALED),), reason="request 3")]
    assert code_of(hub.get(path_of(SEALED))) == (404, "E.NOT_FOUND")
    assert code_of(erase(hub, SEALED)) == (404, "E.NOT_FOUND")


@pytest.mark.parametrize("scope", ["hub", "label"])
def test_a_hold_beats_policy_and_erasure_of_attachments(hub: Hub, scope: str) -> None:
    label = hub.label("s")
    put_for(hub, SEALED, label)
    put(hub, OTHER)
    keep(hub, RetentionPolicy(DAY))
    hold(hub, Hold(1, "case 17", label if scope == "label" else None))
    passes(hub, 100 * DAY)
    done = run(hub)
    assert (done.attachments, done.held_attachments) == (0, 1)
    for sealed in (SEALED, OTHER):  # of the second one, nobody knows the label
        assert code_of(erase(hub, sealed)) == (403, "E.FORBIDDEN")
    assert events(hub) == []
    hold(hub, Hold(0, "closed", label if scope == "label" else None))
    assert run(hub).attachments == 1
    assert erase(hub, OTHER).status == 200


@pytest.mark.parametrize("scope", ["hub", "label", "stream"])
def test_a_hold_that_is_logged_during_a_run_prevents_the_rest_of_it(hub: Hub, scope: str) -> None:
    label = hub.label("s")
    put_for(hub, SEALED, label)
    keep(hub, RetentionPolicy(DAY))
    passes(hub, 100 * DAY)
    retention, pipeline = hub.service.app.retention, hub.service.pipeline
    log_event = retention.log_event
    begins = Hold(1, "case 17", *{"hub": (None, None), "label": (label, None), "stream": (None, stream_id("s"))}[scope])

    def hold_first(*prune: Any) -> None:
        hub.loop.call_soon_threadsafe(pipeline.log_event, begins, lambda _: None)
        log_event(*prune)

    retention.log_event = hold_first
    refused = operator(hub, "/tooling/retention/run", RetentionRequest(False))
    assert code_of(refused) == (403, "E.FORBIDDEN")
    assert "case 17" in refused.error().refused().message
    assert events(hub) == []
    assert hub.get(path_of(SEALED)).status == 200


def test_a_pruned_attachment_can_be_uploaded_again(hub: Hub) -> None:
    put_for(hub, SEALED, hub.label("s"))
    assert erase(hub, SEALED).status == 200
    assert put_for(hub, SEALED, hub.label("another")).status == 201
    assert hub.get(path_of(SEALED)).body == SEALED
    keep(hub, RetentionPolicy(DAY))
    assert run(hub).attachments == 0
    assert hub.get(path_of(SEALED)).status == 200


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_run(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        put_for(hub, SEALED, hub.label("s"))
        attachment = data_dir / "attachments" / h(SEALED).hex()[:2] / h(SEALED).hex()
        erase(hub, SEALED)
        attachment.write_bytes(SEALED)  # as after a crash between the tombstone and the removal
        assert run(hub).freed_bytes == len(SEALED)
        assert not attachment.exists()
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


def test_the_label_of_an_upload_is_signed_and_within_the_capability(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), disk=QuickDisk(), admission=Admission.CAPABILITY) as hub:
        writer, label, other = hub.granted("s"), hub.label("s"), hub.label("another")
        path = f"{path_of(SEALED)}?label={label.hex()}"
        for made, asked, wanted in (
            (proof(hub, writer, SEALED), path, (401, "E.UNAUTHORIZED")),
            (proof(hub, writer, SEALED, label=other), path, (401, "E.UNAUTHORIZED")),
            (proof(hub, writer, SEALED, label=label), path_of(SEALED), (401, "E.UNAUTHORIZED")),
            (proof(hub, writer, SEALED, label=other), path.replace(label.hex(), other.hex()), (403, "E.FORBIDDEN")),
        ):
            assert code_of(hub.ask("PUT", asked, SEALED, authorization=made.header())) == wanted
        made = proof(hub, writer, SEALED, label=label)
        assert hub.ask("PUT", path, SEALED, authorization=made.header()).status == 201


@pytest.mark.parametrize("query", ["label=", "label=00", "label=" + "Z" * 64, "other=" + "0" * 64, "label", "&"])
def test_an_upload_with_another_query_is_rejected(hub: Hub, query: str) -> None:
    assert code_of(hub.ask("PUT", f"{path_of(SEALED)}?{query}", SEALED)) == (400, "E.BAD_REQUEST")
    assert hub.get(path_of(SEALED)).status == 404


def test_an_attachment_that_was_pruned_is_erased_from_older_backups(tmp_path: Path) -> None:
    data_dir, to = make_dir(tmp_path), tmp_path / "backups"
    with running(data_dir) as hub:
        for sealed in (SEALED, OTHER):
            put_for(hub, sealed, hub.label("s"))
    before, _ = backup.backup(Disk(), data_dir, to, 1, keep=2)
    with running(data_dir) as hub:
        erase(hub, SEALED)
    after, counts = backup.backup(Disk(), data_dir, to, 2, keep=2, prune=True)
    assert counts.pruned == [before.path.name]
    for made in (before, after):
        store = AttachmentStore(Disk(), Folders(made.path))
        assert [store.exists(h(sealed)) for sealed in (SEALED, OTHER)] == [False, True]
        assert attachment_store.read_upload(store.folders, h(OTHER)) is not None
        assert store.tombstone(h(SEALED)) is not None
