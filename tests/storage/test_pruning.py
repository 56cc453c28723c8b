"""Pruning removes payloads and later receipts, and nothing that proves the rest, whenever it is interrupted."""

import shutil
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk, ForgetfulDisk, HastyDisk, Last
from tests.storage.hubs import NOW, Client, Hub, QuickDisk, create, index_rows, label_of, node_files, receipts
from veen.core import Receipt, proof
from veen.core.proof import Leaf
from veen.core.retention import Level, Prune, RetentionPolicy
from veen.storage import fsck, pruned_chunk, rebuild, recovery, retention_check
from veen.storage.fsck import FsckVerdict, Severity
from veen.storage.paths import Folders
from veen.storage.pruned_chunk import Pruned, PrunedChunk
from veen.storage.pruning import Pruner
from veen.storage.retention_check import CheckedManifest

DAY = 86_400
ENTRIES = 30  # chunks of 7: four closed, one open


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one stream: an entry each hour."""
    root = create(tmp_path_factory.mktemp("filled") / "hub")
    hub = Hub(root)
    client, other, label = Client("ann", hub.rules), Client("ben", hub.rules), label_of(hub.rules, "doors")
    for number in range(ENTRIES):
        hub.clock.now = NOW + 3600 * number
        receipts(hub.submit([(other if number % 3 else client).message(label)]))
    hub.catch_up()
    hub.close()
    return root


def pruner_of(hub: Hub, disk: QuickDisk | ForgetfulDisk | None = None) -> Pruner:
    return Pruner(disk or QuickDisk(), hub.folders, hub.store.index, lambda: hub.hub_metadata)


def prune(hub: Hub, policy: RetentionPolicy, disk: QuickDisk | ForgetfulDisk | None = None) -> int:
    """Log and prune what a policy allows, as a hub does."""
    label, freed = label_of(hub.rules, "doors"), 0
    pruner = pruner_of(hub, disk)
    pruner.finish(label)
    for planned in pruner.plan(label, policy, hub.sequencer.hub_ts):
        event = Prune(label, planned.start_seq, planned.end_seq, planned.level)
        (logged,) = receipts(hub.submit([event]))
        key = hub._signer.at(hub.sequencer.hub_ts)
        freed += pruner.prune(planned, Receipt.decode(logged), key, 0, hub.sequencer.hub_ts)
    return freed


def later(root: Path, disk: QuickDisk | ForgetfulDisk | None = None) -> Hub:
    hub = Hub(root, disk)
    hub.clock.now = NOW + 10 * DAY
    return hub


PAYLOADS = RetentionPolicy(payload_sec=DAY)
EVERYTHING = RetentionPolicy(payload_sec=DAY, receipt_sec=2 * DAY)


def copied(filled: Path, place: Path) -> Path:
    if place.exists():
        shutil.rmtree(place)
    return Path(shutil.copytree(filled, place))


def test_a_pruned_log_has_every_receipt_proof_and_index_row_that_it_had(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label = label_of(hub.rules, "doors")
    before = [hub.lookup.headers(label, seq)[1] for seq in range(1, ENTRIES + 1)]
    rows, nodes = index_rows(hub), node_files(root)
    assert prune(hub, PAYLOADS) > 0
    assert [hub.lookup.headers(label, seq)[1] for seq in range(1, ENTRIES + 1)] == before
    for receipt in before:
        assert receipt is not None
        made = hub.lookup.prove(label, receipt.stream_seq, ENTRIES)
        assert before[-1] is not None
        proof.verify_inclusion(made, Leaf.of(receipt), before[-1])
    with pytest.raises(Pruned, match="entries 1 to 7"):
        hub.lookup.entry(label, 3)
    assert hub.lookup.entry(label, 29) is not None
    hub.catch_up()
    hub.close()
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN
    shutil.rmtree(root / "index")
    rebuild.rebuild_index(QuickDisk(), Folders(root)).close()
    again = later(root)
    kept = {name: of for name, of in index_rows(again).items() if name not in ("meta", "heads")}
    control = {name: [row for row in of if label in row[0]] for name, of in kept.items()}
    assert control == {name: [row for row in rows[name] if label in row[0]] for name in kept}
    assert node_files(root)[f"{label.hex()}.mmr"] == nodes[f"{label.hex()}.mmr"]
    again.close()


def test_a_prune_keeps_no_byte_of_the_payloads_and_later_no_receipt(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label = label_of(hub.rules, "doors")
    entry, receipt = hub.lookup.entry(label, 2), hub.lookup.headers(label, 2)[1]
    assert entry is not None
    assert receipt is not None
    secret = entry.open()[0].ciphertext[:32]
    prune(hub, PAYLOADS)
    assert not any(secret in path.read_bytes() for path in (root / "log").iterdir())
    assert any(receipt.hub_sig in path.read_bytes() for path in (root / "log").iterdir())
    prune(hub, EVERYTHING)
    assert not any(receipt.hub_sig in path.read_bytes() for path in (root / "log").iterdir())
    left = hub.lookup.headers(label, 2)[1]
    assert left is not None
    assert (left.leaf_hash, left.mmr_root, left.hub_ts) == (receipt.leaf_hash, receipt.mmr_root, receipt.hub_ts)
    hub.catch_up()
    hub.close()
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN


def test_a_client_cannot_repeat_a_pruned_message(filled: Path, place: Path) -> None:
    hub = later(copied(filled, place / "hub"))
    label = label_of(hub.rules, "doors")
    prune(hub, EVERYTHING)
    (outcome,) = hub.submit([Client("ann", hub.rules).message(label)])
    assert getattr(outcome, "detail_enum", None) == "DUPLICATE"
    assert getattr(outcome, "detail", {})["stream_seq"] == 1
    hub.close()


def test_a_young_chunk_and_the_open_chunk_are_kept(filled: Path, place: Path) -> None:
    hub = later(copied(filled, place / "hub"))
    hub.clock.now = NOW + 3600 * 13 + DAY  # the 14th entry is a day old
    label = label_of(hub.rules, "doors")
    (planned,) = pruner_of(hub).plan(label, PAYLOADS, hub.sequencer.hub_ts)
    assert planned.chunks == ((1, 7), (8, 14))
    prune(hub, PAYLOADS)
    assert pruner_of(hub).plan(label, PAYLOADS, hub.sequencer.hub_ts) == []
    assert hub.lookup.entry(label, 15) is not None
    hub.close()


def damaged(root: Path) -> list[str]:
    report = fsck.check(root, isolated=False)
    return [one.artifact for one in report.findings if one.severity is Severity.DAMAGED]


@pytest.mark.parametrize("spoil", ["manifest", "artifact", "forged", "by hand", "bit"])
def test_a_range_that_no_valid_manifest_explains_is_damage(filled: Path, place: Path, spoil: str) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label, folders = label_of(hub.rules, "doors"), Folders(root)
    if spoil == "forged":  # the artifact is made from the chunk, but nobody signed for it
        with pytest.raises(Died):
            prune(hub, PAYLOADS, DyingDisk(3))
        folders.closed_chunk(label, 1, 7).unlink()
    else:
        prune(hub, PAYLOADS)
    hub.catch_up()
    hub.close()
    left = folders.pruned_chunk(label, 1, 7)
    if spoil == "manifest":
        folders.manifest(label).unlink()
    elif spoil == "artifact":
        left.unlink()
    elif spoil == "by hand":
        folders.open_chunk(label, 29).unlink()
    elif spoil == "bit":
        data = bytearray(left.read_bytes())
        data[-1] ^= 1
        left.write_bytes(data)
    assert damaged(root)


def test_a_damaged_chunk_is_never_pruned(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label = label_of(hub.rules, "doors")
    path = hub.folders.closed_chunk(label, 8, 14)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"hash|bytes"):
        prune(hub, PAYLOADS)
    assert path.exists()
    assert hub.folders.closed_chunk(label, 1, 7).exists()
    hub.close()


@pytest.mark.parametrize("last", [Last.LOST, Last.HALF, Last.DONE, ForgetfulDisk, HastyDisk])
def test_a_prune_that_dies_at_any_call_loses_nothing_and_can_be_repeated(
    filled: Path, place: Path, last: Last | type[ForgetfulDisk]
) -> None:
    moments = 0
    for policies in ((PAYLOADS,), (PAYLOADS, EVERYTHING), (EVERYTHING,)):
        for call in range(1, 200):
            root = copied(filled, place / "hub")
            for policy in policies[:-1]:
                hub = later(root)
                prune(hub, policy)
                hub.catch_up()
                hub.close()
            disk = DyingDisk(call, last) if isinstance(last, Last) else last(root, call)
            hub = later(root)
            label = label_of(hub.rules, "doors")
            before = [hub.lookup.headers(label, seq)[1] for seq in range(1, ENTRIES + 1)]
            try:
                prune(hub, policies[-1], disk)
                hub.close()
                break
            except Died:
                hub.abandon()
            if isinstance(disk, ForgetfulDisk):
                disk.lose_power()
            moments += 1
            verdict = fsck.check(root, isolated=False)
            assert not [one for one in verdict.findings if one.severity is Severity.DAMAGED], (call, verdict.findings)
            hub = later(root)
            kept = [hub.lookup.headers(label, seq)[1] for seq in range(1, ENTRIES + 1)]
            for was, now in zip(before, kept, strict=True):
                assert was is not None
                assert now is not None
                assert (was.leaf_hash, was.mmr_root, was.hub_ts) == (now.leaf_hash, now.mmr_root, now.hub_ts)
            prune(hub, policies[-1])
            hub.catch_up()
            hub.close()
            assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN, call
        else:
            pytest.fail("the disk was called more often than expected")
    assert moments >= (15 if last is Last.HALF else 25), moments  # only writes are done by half; 115 in total


def test_the_manifest_covers_every_closed_chunk_and_its_tombstones_verify(filled: Path, place: Path) -> None:
    hub = later(copied(filled, place / "hub"))
    hub.clock.now = NOW + 3600 * 13 + DAY
    label, identity = label_of(hub.rules, "doors"), hub.hub_metadata.identity
    prune(hub, PAYLOADS)
    manifest = pruned_chunk.verified_manifest(hub.folders, identity, label)
    assert manifest is not None
    assert [segment.level for segment in manifest.segments] == [Level.PAYLOADS, Level.PAYLOADS, 0, 0]
    assert manifest.find(8) == 1
    tombstone = manifest.tombstone(1)
    tombstone.verify(identity)
    assert (tombstone.segment.start_seq, tombstone.segment.end_seq) == (8, 14)
    with PrunedChunk(hub.folders.pruned_chunk(label, 8, 14)) as left:
        pruned_chunk.check_pruned(left, manifest)
    hub.close()


def only_checked(root: Path) -> CheckedManifest:
    (checked,) = retention_check.check_manifests(root)
    return checked


def pruned_twice(filled: Path, place: Path) -> tuple[Path, Path]:
    """A directory in which 14 entries were pruned, and then 14 more; and a copy from between."""
    root = copied(filled, place / "hub")
    for day in (13, ENTRIES):
        hub = later(root)
        hub.clock.now = NOW + 3600 * day + DAY
        prune(hub, PAYLOADS)
        hub.catch_up()
        hub.close()
        if day == 13:
            copied(root, place / "between")
    return root, place / "between"


def test_manifests_are_complete_and_every_prune_was_logged(filled: Path, place: Path) -> None:
    root, between = pruned_twice(filled, place)
    assert (only_checked(between).pruned, only_checked(root).pruned) == (2, 4)
    assert only_checked(root).faults == ()
    assert only_checked(root).unfinished == 0


def test_an_earlier_manifest_is_noticed_although_the_hub_signed_it(filled: Path, place: Path) -> None:
    root, between = pruned_twice(filled, place)
    label = only_checked(root).label
    shutil.copy(Folders(between).manifest(label), Folders(root).manifest(label))
    found = only_checked(root)
    assert found.faults[0] == "entries 15 to 21 are missing, and no manifest says that they were pruned"
    assert damaged(root)
    for start in (15, 22):  # the payloads are put back, too: only the control stream knows that they were pruned
        chunk = Folders(between).closed_chunk(label, start, start + 6)
        shutil.copy(chunk, Folders(root).log / chunk.name)
    found = only_checked(root)
    assert (found.faults, found.unfinished) == ((), 1)


def test_a_pruned_row_without_a_logged_event_is_a_fault(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label = label_of(hub.rules, "doors")
    pruner = pruner_of(hub)
    (planned,) = pruner.plan(label, PAYLOADS, hub.sequencer.hub_ts)
    (event,) = receipts(hub.submit([Prune(label, 1, 7, Level.PAYLOADS)]))  # for a part of it
    hub_ts = hub.sequencer.hub_ts
    pruner.prune(planned, Receipt.decode(event), hub._signer.at(hub_ts), 0, hub_ts)
    hub.catch_up()
    hub.close()
    text = "entries {} to {} were pruned without an event on the control stream"
    assert only_checked(root).faults == tuple(text.format(start, start + 6) for start in (8, 15, 22))


@pytest.mark.parametrize("damage", ["garbage", "signature", "folder"])
def test_an_invalid_statement_of_a_recovery_is_one_fault_and_the_rest_is_checked(
    filled: Path, place: Path, damage: str
) -> None:
    root, _ = pruned_twice(filled, place)
    done = recovery.recover(QuickDisk(), root, NOW + 1000 * DAY)
    (sound,) = retention_check.check_manifests(root)
    data = bytearray(done.path.read_bytes())
    if damage == "folder":
        done.path.unlink()
        done.path.mkdir()
    elif damage == "garbage":
        done.path.write_bytes(b"garbage")
    else:
        at = data.index(done.log.statement.sig)
        data[at] ^= 1
        done.path.write_bytes(data)
    invalid, rest = retention_check.check_manifests(root)
    assert rest == sound
    assert (invalid.label, len(invalid.faults)) == (b"", 1)
    assert invalid.faults[0].startswith(f"recoveries/{done.path.name}: ")


def test_an_interrupted_prune_is_unfinished_and_a_range_removed_by_hand_is_a_fault(filled: Path, place: Path) -> None:
    root = copied(filled, place / "hub")
    hub = later(root)
    label = label_of(hub.rules, "doors")
    with pytest.raises(Died):
        prune(hub, PAYLOADS, DyingDisk(3))
    hub.abandon()
    assert (only_checked(root).unfinished, only_checked(root).faults) == (1, ())
    Folders(root).closed_chunk(label, 8, 14).unlink()
    assert only_checked(root).faults == ("entries 8 to 14 are missing, and no manifest says that they were pruned",)
