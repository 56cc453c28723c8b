"""A fork: the prefix verifies as the origin's, the rest as the fork's."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, ForgetfulDisk, Last, RefusingDisk
from tests.storage.hubs import (
    NOW,
    Client,
    Clock,
    History,
    Hub,
    QuickDisk,
    create,
    index_rows,
    label_of,
    log_files,
    node_files,
    place_of,
    receipts,
)
from veen.core import (
    Checkpoint,
    HubIdentity,
    Malformed,
    Msg,
    Profile,
    Receipt,
    Refused,
    Unavailable,
    VeenError,
    hub_identity,
    naming,
    receipt,
    wire_json,
)
from veen.core.hub_identity import ForkOrigin
from veen.storage import fork, frame, fsck, metadata, rotation
from veen.storage.attachment_store import AttachmentStore
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

LATER = NOW + 1000
Given = dict[tuple[bytes, int], bytes]


def filled(root: Path, history: History) -> Given:
    """A hub that has accepted everything and stopped."""
    hub, given = Hub(history.fresh(root)), {}
    for number, group in enumerate(history.groups):
        for one in receipts(hub.submit(group)):
            given[place_of(one)] = one
        if number % 3 == 0:
            hub.catch_up()
    hub.catch_up()
    hub.close()
    return given


@pytest.fixture(scope="module")
def source(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "hub"
    filled(root, history)
    return root


@pytest.fixture(scope="module")
def packed_source(packed_history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed source") / "hub"
    filled(root, packed_history)
    return root


def forked(source: Path, target: Path, upto: dict[bytes, int] | None = None, now: int = LATER) -> Path:
    fork.fork(QuickDisk(), source, target, upto, now)
    return target


def sizes(root: Path) -> dict[bytes, int]:
    hub = Hub(root, clock=Clock(LATER))
    with hub.store.index.read() as rows:
        found = {label: head.size for label, head in rows.labels()}
    hub.close()
    return found


def main_label(root: Path) -> bytes:
    routing = metadata.read_metadata(Folders(root)).identity.routing_key
    return naming.label(routing, naming.stream_id("stream 0"), 0)


def extended(root: Path, count: int = 12, now: int = LATER, name: str = "zoe") -> list[Receipt]:
    """New entries on the main label, by a hub that starts, catches up and stops."""
    hub = Hub(root, clock=Clock(now))
    label = label_of(hub.rules, "stream 0")
    client = Client(name, hub.rules)
    given = receipts(hub.submit([client.message(label) for _ in range(count)]))
    hub.catch_up()
    hub.close()
    return [Receipt.decode(one) for one in given]


def clean(root: Path) -> None:
    report = fsck.check(root, isolated=False)
    assert report.findings == []


def test_a_fork_and_its_source_both_verify_and_go_their_ways(source: Path, place: Path) -> None:
    mine, theirs = shutil.copytree(source, place / "source"), forked(source, place / "fork")
    clean(mine)
    clean(theirs)
    before = sizes(mine)[main_label(mine)]
    here, there = extended(mine, name="at the source"), extended(theirs, name="at the fork")
    assert [one.stream_seq for one in here] == [one.stream_seq for one in there] == list(range(before + 1, before + 13))
    assert here[0].mmr_root != there[0].mmr_root
    clean(mine)
    clean(theirs)
    old, new = (metadata.read_metadata(Folders(root)).identity for root in (mine, theirs))
    for one in here:
        assert old.verify_receipt(one) == old.newest
        with pytest.raises(VeenError):
            new.verify_receipt(one)
    for one in there:
        assert new.verify_receipt(one) == new.newest
        with pytest.raises(VeenError):
            old.verify_receipt(one)


def test_the_prefix_keeps_every_byte_it_had(source: Path, place: Path) -> None:
    root = forked(source, place / "fork")
    assert log_files(root) == log_files(source)
    assert node_files(root) == node_files(source)


def test_a_fork_has_an_identity_of_its_own_and_the_routing_key_of_its_origin(source: Path, place: Path) -> None:
    old = metadata.read_metadata(Folders(source)).identity
    new = metadata.read_metadata(Folders(forked(source, place / "fork"))).identity
    assert new.hub_id != old.hub_id
    assert new.routing_key == old.routing_key == naming.routing_key(old.hub_id)
    assert new.routing_key != naming.routing_key(new.hub_id)
    assert new.origin is not None
    assert new.origin.hub_id == old.hub_id
    assert not {key.hub_pk for key in new.hub_keys} & {key.hub_pk for key in old.hub_keys}
    assert {path.name for path in (place / "fork" / "keys").iterdir()}.isdisjoint(
        path.name for path in (source / "keys").glob("hub-*")
    )


def test_the_origin_is_the_sources_checkpoint_of_what_was_kept(source: Path, place: Path) -> None:
    label, hub_metadata = main_label(source), metadata.read_metadata(Folders(source))
    root = forked(source, place / "fork", {label: 5})
    origin = ForkOrigin.decode((root / "origin.cbor").read_bytes())
    (hub,) = origin.hubs
    assert hub.identity == hub_metadata.identity
    (kept,) = hub.checkpoints
    assert (kept.label_curr, kept.upto_seq) == (label, 5)
    hub_metadata.identity.verify_checkpoint(kept, hub_metadata.profile)
    whole = Hub(source)
    assert kept.mmr_root == whole.lookup.root(label, 5)
    whole.close()


def test_a_fork_at_any_entry_has_the_files_of_a_hub_that_took_only_so_much(source: Path, place: Path) -> None:
    label = main_label(source)
    size, whole = sizes(source)[label], log_files(source)
    for last in range(1, size + 1):
        root = forked(source, place / str(last), {label: last})
        files = log_files(root)
        for name, data in files.items():
            if name.endswith("-open.log"):
                assert any(other.startswith(data) for other in whole.values())
            elif not name.startswith("checkpoint-index"):
                assert whole[name] == data
        clean(root)
        assert sizes(root) == {label: last}
        extended(root, count=size - last + 9)
        clean(root)
        shutil.rmtree(root)


def test_without_its_index_a_fork_comes_back_the_same(source: Path, place: Path) -> None:
    root = forked(source, place / "fork")
    extended(root)
    hub = Hub(root, clock=Clock(LATER))
    rows, nodes = index_rows(hub), node_files(root)
    hub.close()
    shutil.rmtree(root / "index")
    again = Hub(root, clock=Clock(LATER))
    assert index_rows(again) == rows
    assert node_files(root) == nodes
    again.close()


def test_a_compressed_log_forks_into_a_compressed_one(packed_source: Path, place: Path) -> None:
    label = main_label(packed_source)
    root = forked(packed_source, place / "fork", {label: 9})
    assert {path.name for path in (root / "log").glob("*.zst")} == {
        path.name for path in (packed_source / "log").glob(f"chunk-{label.hex()}-{1:020d}-*.zst")
    }
    extended(root)
    clean(root)


def test_what_was_accepted_before_the_fork_is_a_duplicate_after_it(source: Path, place: Path, history: History) -> None:
    hub = Hub(forked(source, place / "fork"), clock=Clock(LATER))
    sent = [one for group in history.groups for one in group if isinstance(one, bytes) and len(one) > 32]
    plain = [one for one in sent if Msg.decode(one).auth_ref is None]
    for outcome in hub.submit(plain):
        assert isinstance(outcome, Refused)
        assert outcome.detail_enum == "DUPLICATE"
    hub.close()


def test_a_fork_does_not_copy_permissions(source: Path, place: Path, history: History) -> None:
    hub = Hub(forked(source, place / "fork"), clock=Clock(LATER))
    token, stream = history.groups[0]
    assert index_rows(hub)["caps"] == index_rows(hub)["streams"] == index_rows(hub)["buckets"] == []
    client = Client("ann", hub.rules)
    message = client.message(label_of(hub.rules, "another stream"), auth_ref=token.auth_ref())  # type: ignore[union-attr]
    (refused,) = hub.submit([message])
    assert isinstance(refused, Refused)
    assert refused.detail_enum == "CAP_MISSING"
    given = receipts(hub.submit([token, stream]))  # repeated, so logged again
    assert {Receipt.decode(one).hub_ts for one in given} == {LATER}
    hub.close()


def test_attachments_come_along(source: Path, place: Path) -> None:
    root = shutil.copytree(source, place / "source")
    store = AttachmentStore(QuickDisk(), Folders(root))
    coid = bytes.fromhex("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae")
    store.put(coid, b"foo")
    made = forked(root, place / "fork")
    assert AttachmentStore(QuickDisk(), Folders(made)).get(coid) == b"foo"
    clean(made)


def test_a_fork_can_have_a_new_key_and_keeps_its_origin(source: Path, place: Path) -> None:
    root = forked(source, place / "fork")
    extended(root)
    rotation.rotate_key(QuickDisk(), Folders(root), LATER + 100, 0)
    extended(root, now=LATER + 200, name="later")
    clean(root)
    assert metadata.read_metadata(Folders(root)).identity.origin is not None


def test_a_fork_of_a_fork_verifies_back_to_the_first_hub(source: Path, place: Path) -> None:
    label, first = main_label(source), forked(source, place / "first")
    before = sizes(first)[label]
    extended(first)
    second = forked(first, place / "second", {label: before + 7}, LATER + 10)
    extended(second, now=LATER + 20, name="again")
    clean(second)
    lineage = metadata.read_metadata(Folders(second)).lineage
    hubs = [metadata.read_metadata(Folders(root)).identity for root in (second, first, source)]
    assert list(lineage.identities) == hubs
    assert [lineage.identity_at(label, seq) for seq in (before, before + 1, before + 7, before + 8)] == [
        hubs[2],
        hubs[1],
        hubs[1],
        hubs[0],
    ]
    assert hubs[0].routing_key == hubs[2].routing_key


def test_a_fork_can_be_forked_again_where_its_origin_left_a_checkpoint(source: Path, place: Path) -> None:
    label, first = main_label(source), forked(source, place / "first")
    regular = Checkpoint.decode(sorted((source / "log").glob(f"checkpoint-{label.hex()}-*"))[0].read_bytes())
    clean(forked(first, place / "regular", {label: regular.upto_seq}, LATER + 10))
    clean(forked(first, place / "end", {label: sizes(first)[label]}, LATER + 10))
    with pytest.raises(Unavailable, match="fork the origin, or choose a later entry"):
        forked(first, place / "between", {label: regular.upto_seq - 1}, LATER + 10)
    assert not (place / "between").exists()


def test_with_epochs_the_origin_names_the_label_before(place: Path) -> None:
    root = create(place / "source", profile=Profile(epoch_sec=3600))
    hub = Hub(root)
    stream, epoch = naming.stream_id("stream 0"), hub.hub_metadata.profile.epoch(NOW)
    label = label_of(hub.rules, "stream 0", epoch)
    client = Client("ann", hub.rules)
    receipts(hub.submit([stream]))
    receipts(hub.submit([client.message(label) for _ in range(3)]))
    hub.catch_up()
    hub.close()
    made = forked(root, place / "fork", {label: 2})
    (kept,) = ForkOrigin.decode((made / "origin.cbor").read_bytes()).hubs[0].checkpoints
    kept.check_labels(hub.hub_metadata.profile, hub.rules.routing_key, stream)
    assert (kept.epoch, kept.label_prev) == (epoch, label_of(hub.rules, "stream 0", epoch - 1))
    clean(made)


# Rejected forks.


def test_a_running_hub_is_not_forked(source: Path, place: Path) -> None:
    hub = Hub(shutil.copytree(source, place / "source"))
    with pytest.raises(Unavailable, match="a hub is running"):
        forked(place / "source", place / "fork")
    hub.close()


@pytest.mark.parametrize("last", [0, -1, 10_000])
def test_an_entry_that_is_not_there_is_named(source: Path, place: Path, last: int) -> None:
    with pytest.raises(Unavailable, match=f"so entry {last} cannot be kept"):
        forked(source, place / "fork", {main_label(source): last})
    assert not (place / "fork").exists()


def test_a_label_that_is_not_there_is_named(source: Path, place: Path) -> None:
    with pytest.raises(Unavailable, match="has 0 entries"):
        forked(source, place / "fork", {bytes(32): 1})


def test_what_only_the_journal_has_is_not_forked(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "source"))
    for group in history.groups:
        receipts(hub.submit(group))
    hub.abandon()
    with pytest.raises(Unavailable, match="has not caught up"):
        forked(place / "source", place / "fork")
    again = Hub(place / "source")
    again.catch_up()
    again.close()
    clean(forked(place / "source", place / "fork"))


def test_a_label_the_journal_goes_on_with_is_forked_only_before_it(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "source"))
    for group in history.groups[:6]:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    before = sizes(place / "source")[main_label(place / "source")]
    hub = Hub(place / "source")
    for group in history.groups[6:]:
        receipts(hub.submit(group))
    hub.abandon()
    label = main_label(place / "source")
    with pytest.raises(Unavailable):
        forked(place / "source", place / "fork", {label: before + 1})
    clean(forked(place / "source", place / "fork", {label: before}))


def test_a_target_that_has_something_in_it_is_left_alone(source: Path, place: Path) -> None:
    (place / "fork").mkdir()
    (place / "fork" / "mine").write_text("mine")
    with pytest.raises(Unavailable, match="is not empty"):
        forked(source, place / "fork")
    assert [path.name for path in (place / "fork").iterdir()] == ["mine"]


def test_without_its_key_a_hub_is_forked_only_at_a_checkpoint_it_gave(source: Path, place: Path) -> None:
    root = shutil.copytree(source, place / "source")
    shutil.rmtree(root / "keys")
    label = main_label(root)
    regular = Checkpoint.decode(sorted((root / "log").glob(f"checkpoint-{label.hex()}-*"))[0].read_bytes())
    with pytest.raises(Unavailable, match="cannot be read"):
        forked(root, place / "fork", {label: regular.upto_seq - 1})
    clean(forked(root, place / "fork", {label: regular.upto_seq}))


def _flip(pattern: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = sorted(root.glob(pattern))[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return damage


@pytest.mark.parametrize("pattern", ["log/chunk-*-0*[0-9].log", "log/checkpoint-[0-9a-f]*-*", "hub-identity.json"])
def test_a_damaged_source_is_not_forked_and_leaves_nothing_behind(source: Path, place: Path, pattern: str) -> None:
    root = shutil.copytree(source, place / "source")
    _flip(pattern)(root)
    with pytest.raises(VeenError):
        forked(root, place / "fork")
    assert not (place / "fork").exists()


@pytest.mark.parametrize("kind", ["write", "open_append", "sync", "replace", "sync_folder", "sync_filesystem"])
def test_a_full_disk_leaves_nothing_behind(source: Path, place: Path, kind: str) -> None:
    disk = RefusingDisk()
    disk.fail(kind)
    with pytest.raises(Unavailable, match="No space left"):
        fork.fork(disk, source, place / "fork", None, LATER)
    assert not (place / "fork").exists()


@pytest.mark.parametrize("last", [Last.LOST, Last.HALF, Last.DONE, None])
def test_a_crash_leaves_a_whole_fork_or_no_hub_at_all(source: Path, place: Path, last: Last | None) -> None:
    label, ended = main_label(source), set()
    for n in range(1, 300, 2):
        root = place / "fork"
        shutil.rmtree(root, ignore_errors=True)
        disk = ForgetfulDisk(place, n) if last is None else DyingDisk(n, last)
        try:
            fork.fork(disk, source, root, {label: 9}, LATER)
        except Died:
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            whole = (root / "hub-identity.json").exists()
            ended.add(whole)
            if whole:
                assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN, (n, last)
            else:
                with pytest.raises(Unavailable):
                    metadata.read_metadata(Folders(root))
            continue
        break
    assert False in ended
    assert n > 15


# Forks that do not verify.


def test_an_entry_of_the_sources_behind_the_fork_point_is_damage(source: Path, place: Path) -> None:
    """The same label, the next place, a valid signature: by the origin."""
    mine = shutil.copytree(source, place / "source")
    theirs = forked(source, place / "fork")
    extended(mine, count=2)
    label = main_label(mine)
    open_chunk = next((mine / "log").glob(f"chunk-{label.hex()}-*-open.log"))
    shutil.copy(open_chunk, theirs / "log" / open_chunk.name)
    shutil.rmtree(theirs / "index")
    report = fsck.check(theirs, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    faults = [finding for finding in report.findings if finding.stream_seq == sizes(source)[label] + 1]
    assert any("no key of the hub" in finding.what for finding in faults)


def test_an_entry_of_the_forks_before_the_fork_point_is_damage(source: Path, place: Path) -> None:
    """The fork itself signs the last entry of the prefix."""
    root, label = forked(source, place / "fork"), main_label(source)
    path = next((root / "log").glob(f"chunk-{label.hex()}-*-open.log"))
    entries = list(frame.read_all(path.read_bytes()))
    old = Receipt.decode(entries[-1].receipt)
    hub_metadata = metadata.read_metadata(Folders(root))
    key = metadata.read_signing_key(Folders(root), hub_metadata.identity.newest.key_id)
    signed = receipt.sign(
        key,
        label=label,
        stream_seq=old.stream_seq,
        leaf_hash=old.leaf_hash,
        mmr_root=old.mmr_root,
        hub_ts=LATER,
    )
    framed = frame.write(label, old.stream_seq, entries[-1].msg, signed.encode())[0]
    path.write_bytes(path.read_bytes()[: -entries[-1].size] + framed)
    shutil.rmtree(root / "index")
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any("no key of the hub" in finding.what for finding in report.findings)


def test_a_prefix_that_is_not_all_there_is_damage(source: Path, place: Path) -> None:
    root, label = forked(source, place / "fork"), main_label(source)
    next((root / "log").glob(f"chunk-{label.hex()}-*-open.log")).unlink()
    shutil.rmtree(root / "index")
    report = fsck.check(root, isolated=False)
    assert any("entries of its origin" in finding.what for finding in report.findings)


def test_a_label_of_the_origin_that_is_not_there_at_all_is_damage(source: Path, place: Path) -> None:
    root, label = forked(source, place / "fork"), main_label(source)
    for path in (root / "log").glob(f"*{label.hex()}*"):
        path.unlink()
    shutil.rmtree(root / "index")
    report = fsck.check(root, isolated=False)
    assert any(finding.label == label and "entries of its origin" in finding.what for finding in report.findings)


def _of_another(root: Path, place: Path) -> None:
    shutil.copy(place / "other" / "origin.cbor", root / "origin.cbor")


def _shorter(root: Path, place: Path) -> None:
    origin = ForkOrigin.decode((root / "origin.cbor").read_bytes())
    hub = origin.hubs[0]
    (root / "origin.cbor").write_bytes(ForkOrigin((replace(hub, checkpoints=hub.checkpoints[1:]),)).encode())


def _longer(root: Path, place: Path) -> None:
    origin = ForkOrigin.decode((root / "origin.cbor").read_bytes())
    (root / "origin.cbor").write_bytes(ForkOrigin(origin.hubs * 2).encode())


ORIGINS: dict[str, Callable[[Path, Path], None]] = {
    "missing": lambda root, place: (root / "origin.cbor").unlink(),
    "another fork's": _of_another,
    "a label less": _shorter,
    "a hub more": _longer,
    "a flipped bit": lambda root, place: _flip("origin.cbor")(root),
}


@pytest.mark.parametrize("fault", ORIGINS)
def test_an_origin_that_is_not_the_one_signed_for_is_refused(source: Path, place: Path, fault: str) -> None:
    root = forked(source, place / "fork")
    forked(source, place / "other", {main_label(source): 3})
    ORIGINS[fault](root, place)
    with pytest.raises(VeenError):
        metadata.read_metadata(Folders(root))
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any(finding.artifact == "origin.cbor" for finding in report.findings)


def test_an_origin_where_there_should_be_none_is_refused(source: Path, place: Path) -> None:
    root = shutil.copytree(source, place / "hub")
    shutil.copy(forked(source, place / "fork") / "origin.cbor", root / "origin.cbor")
    with pytest.raises(VeenError):
        metadata.read_metadata(Folders(root))
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.DAMAGED


def _signed_anew(root: Path, origin: ForkOrigin) -> None:
    """An origin with false content that the fork's identity is signed for."""
    folders = Folders(root)
    record: HubIdentity = metadata.read_metadata(folders).identity
    key = metadata.read_signing_key(folders, record.newest.key_id)
    record = replace(record, origin=origin.ref())
    folders.origin.write_bytes(origin.encode())
    folders.identity.write_bytes(wire_json.encode(record))
    folders.identity_sig.write_bytes(wire_json.encode(hub_identity.sign(record, key)))


def test_an_origin_that_the_source_did_not_sign_is_found(source: Path, place: Path) -> None:
    root = forked(source, place / "fork")
    hub = ForkOrigin.decode((root / "origin.cbor").read_bytes()).hubs[0]
    forged = tuple(replace(one, hub_sig=bytes(64)) for one in hub.checkpoints)
    _signed_anew(root, ForkOrigin((replace(hub, checkpoints=forged),)))
    metadata.read_metadata(Folders(root))  # the identity matches the origin
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any(finding.artifact == "origin.cbor" for finding in report.findings)


def test_an_origin_that_ends_elsewhere_is_found(source: Path, place: Path) -> None:
    """A valid checkpoint of the source, for a longer prefix than the fork has."""
    label = main_label(source)
    root, longer = forked(source, place / "fork", {label: 5}), forked(source, place / "longer", {label: 7})
    extended(root)
    _signed_anew(root, ForkOrigin.decode((longer / "origin.cbor").read_bytes()))
    report = fsck.check(root, isolated=False)
    assert any("does not match the origin's checkpoint" in finding.what for finding in report.findings)
    assert {finding.stream_seq for finding in report.findings} >= {6, 7}


def test_a_source_whose_checkpoint_contradicts_its_log_is_not_forked(source: Path, place: Path) -> None:
    root, label = shutil.copytree(source, place / "source"), main_label(source)
    one, other = sorted((root / "log").glob(f"checkpoint-{label.hex()}-*"))[:2]
    shutil.copy(other, one)
    with pytest.raises(Malformed, match="does not match the entries"):
        forked(root, place / "fork")
