"""Audits of journals, compressed chunks, attachments, forks and copies."""

import shutil
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any, cast

import pytest

from bench.big_log import BigLog
from tests.hub.client import Clock, running
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import artifacts, copied, findings, flip, frames, places, rewrite, run_audit
from tests.pipeline.forks import Forks
from tests.storage.hubs import NOW, PACKED, Client, History, Hub, QuickDisk, key, label_of, receipts, small_history
from veen.core import Checkpoint, Msg, Receipt, SigningKey, receipt
from veen.core.handover import HandOver, retired_verdict
from veen.core.hashing import h
from veen.core.proof import decode_head
from veen.hub.admission_rules import Admission, Rules
from veen.pipeline.audit import KnownDates, audit, audit_report
from veen.pipeline.jobs import run_inline
from veen.storage import fork, frame, metadata, recovery, rotation
from veen.storage.attachment_store import AttachmentStore
from veen.storage.frame import LogEntry
from veen.storage.fsck_report import Severity
from veen.storage.journal import Journal, segments
from veen.storage.journal import read as read_journal
from veen.storage.lock import exclusive
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return small_history(tmp_path_factory.mktemp("history") / "hub")


@pytest.fixture(scope="module")
def abandoned(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose hub was killed with entries that only the journal has."""
    root = history.fresh(tmp_path_factory.mktemp("abandoned") / "hub")
    hub = Hub(root)
    for number, group in enumerate(history.groups):
        receipts(hub.submit(group))
        if number % 4 == 3:
            hub.catch_up()
    assert hub.store.pending.records
    hub.abandon()
    AttachmentStore(QuickDisk(), Folders(root)).put(h(b"sealed"), b"sealed")
    return root


def test_a_journal_that_continues_the_log_is_sound(abandoned: Path) -> None:
    found = run_audit(abandoned).directories[0]
    assert [one for one in found.findings if one.severity is not Severity.LEFTOVER] == []
    assert found.journal_entries > 0


@pytest.mark.slow
def test_a_flipped_bit_of_the_journal_is_found(abandoned: Path, place: Path) -> None:
    root = copied(abandoned, place / "hub")
    path = next(root.glob("journal/*.wal"))
    sound = path.read_bytes()
    used = len(sound.rstrip(sound[-16:]))
    for at, bit in places(used, 25, "journal"):
        flip(path, at, bit)
        assert artifacts(root), (at, bit)
        assert all(one.startswith("journal") for one in artifacts(root)), (at, bit, findings(root))
        path.write_bytes(sound)


def test_an_unsigned_entry_of_the_journal_is_found(abandoned: Path, place: Path) -> None:
    root = copied(abandoned, place / "hub")
    tree = run_audit(root).directories[0].labels
    label, links = next((label, links) for label, links in tree.items() if len(links) > 1)
    (last,) = [seq for one, seq in journal_ends(root).items() if one == label] or [links[-1].piece.last]
    forged = frame.write(label, last + 1, *forgery(root, label, last + 1))[0]
    groups = [group for group, _ in journal_groups(root)]
    journal = Journal(QuickDisk(), root / "journal", groups[-1] + 1)
    journal.append(forged, 1)
    journal.close()
    found = findings(root)
    assert {(one.artifact, one.stream_seq) for one in found} == {(f"journal, group {groups[-1] + 1}", last + 1)}
    reasons = " ".join(one.what for one in found)
    assert "no key of the hub" in reasons
    assert "mmr_root does not match" in reasons


def journal_groups(root: Path) -> list[tuple[int, list[LogEntry]]]:
    first = segments(root / "journal")[0][0]
    return [found for found in read_journal(root / "journal", first - 1) if isinstance(found, tuple)]


def journal_ends(root: Path) -> dict[bytes, int]:
    return {entry.label: entry.stream_seq for _, entries in journal_groups(root) for entry in entries}


def forgery(root: Path, label: bytes, seq: int) -> tuple[bytes, bytes]:
    """A message that its client signed, with a receipt that the hub did not."""
    hub_metadata = read_metadata(Folders(root))
    rules = Rules.of(
        hub_metadata.identity.hub_id,
        hub_metadata.profile,
        hub_metadata.limits,
        Admission.OPEN,
        bytes(32),
        hub_metadata.identity.routing_key,
    )
    message = Client("dan", rules).message(label)
    leaf = Msg.decode(message).leaf_hash()
    made = receipt.sign(key("nobody"), label=label, stream_seq=seq, leaf_hash=leaf, mmr_root=bytes(32), hub_ts=NOW + 99)
    return message, made.encode()


def test_leftovers_of_an_interrupted_write_are_not_damage(abandoned: Path, place: Path) -> None:
    """A crash during catch-up leaves a torn entry at the end of an open chunk; the journal has it too."""
    root = copied(abandoned, place / "hub")
    whole = copied(abandoned, place / "whole")
    hub = Hub(whole)
    hub.catch_up()
    hub.abandon()
    for path in (root / "log").glob("*-open.log"):
        later = whole / "log" / path.name
        if later.exists() and later.stat().st_size > path.stat().st_size:
            path.write_bytes(later.read_bytes()[: path.stat().st_size + 30])
    assert findings(root) == []


def test_a_flipped_attachment_is_found(abandoned: Path, place: Path) -> None:
    root = copied(abandoned, place / "hub")
    path = next(path for path in root.glob("attachments/*/*") if path.is_file())
    flip(path, 3)
    assert artifacts(root) == [str(path.relative_to(root))]


@pytest.mark.slow
def test_a_flipped_bit_of_a_compressed_chunk_is_found(tmp_path: Path) -> None:
    history = small_history(tmp_path / "packed", limits=PACKED)
    hub = Hub(history.template)
    for group in history.groups:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    assert findings(history.template) == []
    path = sorted(history.template.glob("log/*.zst"))[0]
    sound = path.read_bytes()
    for at, bit in places(len(sound), 40, "packed"):
        flip(path, at, bit)
        assert artifacts(history.template) == [f"log/{path.name}"], (at, bit, findings(history.template))
        path.write_bytes(sound)


def test_a_fork_is_audited_under_the_keys_of_its_origin(abandoned: Path, place: Path) -> None:
    hub = Hub(copied(abandoned, place / "source"))
    hub.catch_up()
    hub.close()
    fork.fork(QuickDisk(), place / "source", place / "hub", None, NOW + 10)
    assert findings(place / "hub") == []
    flip(place / "hub" / "origin.cbor", 100)
    assert artifacts(place / "hub") == ["log", "origin.cbor"]


def test_a_directory_without_keys_or_index_is_sound(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    shutil.rmtree(root / "keys")
    shutil.rmtree(root / "index")
    assert findings(root) == []


def test_a_pin_must_match_the_hub_of_the_log(log: BigLog) -> None:
    root, hub_id = log.folders.root, log.hub_metadata.identity.hub_id
    assert run_audit(root, pin=hub_id).directories[0].findings == []
    (found,) = run_audit(root, pin=bytes(32)).directories[0].findings
    assert found.artifact == "hub-identity.json"


@pytest.fixture
def twins(place: Path) -> tuple[Path, Path]:
    """Two copies of one hub that differ after entry 12 of its first label."""
    made = BigLog(place / "one", streams=2, clients=3, limits=SMALL, per_sec=10)
    made.grow(24)
    other = made.copied(place / "other")
    made.grow(20)
    other.grow(30)
    return place / "one", place / "other"


def test_equivocation_of_a_hub_is_proved_by_two_receipts(twins: tuple[Path, Path]) -> None:
    found = run_audit(*twins)
    assert [finding for one in found.directories for finding in one.findings] == []
    assert {(one.label, one.stream_seq) for one in found.equivocations} == {
        (label, 13) for label in found.directories[0].labels
    }
    for one in found.equivocations:
        mine, other = map(Receipt.decode, one.receipts)
        assert (mine.label, mine.stream_seq) == (other.label, other.stream_seq) == (one.label, one.stream_seq)
        assert mine.mmr_root != other.mmr_root


WITNESS, STRANGER = key("witness"), key("stranger")
TRUSTED = KnownDates(frozenset({WITNESS.public_key}))


@pytest.fixture
def forks(place: Path) -> Forks:
    return Forks(place)


def test_a_copy_that_a_thief_continued_with_a_retired_key_does_not_convict_the_hub(forks: Forks) -> None:
    """The witness signed only the log of the hub."""
    forks.cosign(forks.hub, 21, WITNESS)
    assert forks.verdicts() == forks.verdicts(TRUSTED) == forks.unsure
    found = run_audit(*forks.roots)
    assert audit_report.verdict(found) == found.equivocations[0].retired


@pytest.mark.parametrize("size", [14, 21])
def test_a_fork_that_a_witness_cosigned_convicts_the_hub(forks: Forks, size: int) -> None:
    forks.cosign(forks.fork, size, WITNESS)
    assert forks.verdicts() == forks.unsure
    assert forks.verdicts(KnownDates(frozenset({STRANGER.public_key}))) == forks.unsure
    assert forks.verdicts(TRUSTED) == {None}
    found = run_audit(*forks.roots, dates=TRUSTED)
    assert audit_report.verdict(found) == "equivocated"
    (row, _) = cast("Any", audit_report.report_of(found, 0, "here"))["equivocations"]
    label = bytes.fromhex(row["label"])
    shown = forks.fork.folders.newest_cosigned(label).read_bytes()
    covered = {decode_head(bytes.fromhex(one)) for one in row["dated_by"] if bytes.fromhex(one) != forks.made.encode()}
    assert covered == {Checkpoint.decode(shown)}


def test_a_fork_that_was_anchored_before_the_hand_over_convicts_the_hub(forks: Forks) -> None:
    at = forks.made.hub_ts
    assert forks.verdicts(forks.anchors(forks.fork, 14, at - 1)) == {None}
    assert forks.verdicts(forks.anchors(forks.fork, 14, at)) == forks.unsure
    assert forks.verdicts(forks.anchors(forks.hub, 14, at - 1)) == forks.unsure
    assert forks.verdicts(forks.anchors(forks.fork, 7, at - 1)) == forks.unsure, "both copies have that log"


def test_no_key_of_the_hub_counts_as_a_witness_of_a_copy(forks: Forks) -> None:
    newest = metadata.read_signing_key(forks.hub.folders, forks.identity.newest.key_id)
    for own in (forks.old, newest):
        forks.cosign(forks.fork, 14, cast("SigningKey", own))
        assert forks.verdicts(KnownDates(frozenset({own.public_key}))) == forks.unsure


def test_both_copies_of_a_retired_key_need_a_date(forks: Forks) -> None:
    """Without the hand-over and later entries, nothing covers the hub's own log either."""
    shutil.rmtree(forks.hub.folders.handovers)
    for path in forks.hub.folders.log.glob("chunk-*-open.log"):
        path.unlink()
    identity = forks.identity
    until = {retired_verdict(identity.signing_keys[0].valid_until or 0)}
    forks.cosign(forks.fork, 14, WITNESS)
    assert forks.verdicts(TRUSTED) == until
    forks.cosign(forks.hub, 21, WITNESS)
    assert forks.verdicts(TRUSTED) == {None}
    assert forks.verdicts() == until


def test_a_newer_record_shows_that_the_key_of_both_copies_is_retired(place: Path) -> None:
    hub = BigLog(place / "hub", streams=1, clients=3, limits=SMALL, per_sec=10)
    hub.grow(8)
    for name in ("one", "two"):
        hub.copied(place / name).grow(8)
    hub.rotate()
    copies = place / "one", place / "two"
    assert [one.retired for one in run_audit(*copies).equivocations] == [None]
    (found,) = run_audit(*copies, dates=KnownDates(record=hub.hub_metadata.identity)).equivocations
    assert found.retired is not None


def open_chunk(root: Path, label: bytes) -> Path:
    (path,) = root.glob(f"log/chunk-{label.hex()}-*-open.log")
    return path


def test_a_log_with_a_gap_dates_nothing_before_the_gap(forks: Forks) -> None:
    """A thief joins a forged log with the end of the hub's log, which the new key signed."""
    hub, fork = forks.roots
    for label in forks.hub.labels:
        forks.fork.folders.closed_chunk(label, 15, 21).unlink()
        shutil.copy(forks.hub.folders.peaks(label, 21), forks.fork.folders.log)
        rewrite(open_chunk(fork, label), frames(open_chunk(hub, label))[:-1])
    assert forks.verdicts() == forks.unsure


def test_a_receipt_that_a_thief_puts_into_the_log_of_the_hub_is_not_dated_by_it(forks: Forks, place: Path) -> None:
    hub, framed, label = forks.roots[0], copied(forks.roots[0], place / "framed"), forks.hub.labels[0]
    path = open_chunk(framed, label)
    entries = frames(path)[:-1]
    entry, _ = frame.read(entries[0], 0)
    true = Receipt.decode(entry.receipt)
    lie = receipt.sign(
        forks.old,
        label=label,
        stream_seq=22,
        leaf_hash=true.leaf_hash,
        mmr_root=h(b"another root"),
        hub_ts=true.hub_ts,
    )
    rewrite(path, [frame.write(label, 22, entry.msg, lie.encode())[0], *entries[1:]])
    (found,) = run_audit(hub, framed).equivocations
    assert (found.stream_seq, {found.retired}) == (22, forks.unsure)


def test_a_loss_that_the_hub_stated_is_no_equivocation(history: History, place: Path) -> None:
    """Without the statement, the same two copies are."""
    lost, restored = history.fresh(place / "lost"), place / "restored"
    hub = Hub(lost)
    for group in history.groups[:6]:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    shutil.copytree(lost, place / "backup")
    hub = Hub(lost)
    for group in history.groups[6:]:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    recovery.restore(QuickDisk(), place / "backup", restored, NOW + 1000)
    hub = Hub(restored)
    hub.clock.now = NOW + 1001
    writer = Client("later", hub.rules)
    receipts(hub.submit([writer.message(label_of(hub.rules, f"stream {n % 3}")) for n in range(60)]))
    hub.catch_up()
    hub.close()
    found = run_audit(lost, restored)
    assert (found.equivocations, audit_report.verdict(found)) == ((), "sound")
    shutil.rmtree(restored / "recoveries")
    assert run_audit(lost, restored).equivocations


def test_an_audit_reports_the_coverage_of_labels(place: Path) -> None:
    made = BigLog(place / "one", streams=2, clients=3, limits=SMALL, per_sec=10)
    made.grow(24)

    def coverage() -> set[object]:
        report: Any = audit_report.report_of(run_audit(place / "one"), 0, "here")
        return {label.get("coverage") for label in report["directories"][0]["labels"]}

    assert coverage() == {None}, "the hub has had one key only"
    made.rotate()
    assert coverage() == {"covered"}
    far: Any = audit_report.report_of(audit([f"file://{place / 'one'}"], run_inline), 0, "here")
    assert {label["coverage"] for label in far["directories"][0]["labels"]} == {"covered"}
    for path in (place / "one" / "handovers").iterdir():
        path.unlink()
    assert coverage() == {"uncovered"}
    made.grow(10)
    assert coverage() == {"current"}


def test_an_audit_reads_what_the_hub_stated_on_its_control_stream(log: BigLog, place: Path) -> None:
    root, clock = copied(log.folders.root, place / "hub"), Clock(NOW + 100)
    rotation.rotate_key(QuickDisk(), Folders(root), NOW + 90, 0)
    with running(root, clock) as hub:
        hub.writer().send()
    stated = recovery.recover(QuickDisk(), root, NOW + 200).log.statement.recovery
    clock.now = NOW + 300
    with running(root, clock) as hub:
        hub.writer("other").send()
    found = run_audit(root)
    assert audit_report.verdict(found) == "sound"
    (one,) = cast("Any", audit_report.report_of(found, 0, "here"))["directories"]
    assert [row["hub_ts"] for row in one["handovers"]] == [NOW + 90]
    (row,) = one["recoveries"]
    assert (row["recovered_at"], row["labels"]) == (stated.recovered_at, stated.labels)
    assert row["new_key_id"] == stated.new_key_id.hex()
    lacking = copied(root, place / "lacking")
    (file,) = (lacking / "recoveries").glob("*.cbor")
    file.unlink()
    assert artifacts(lacking) == [f"recoveries/{file.name}"]


def test_an_audit_reports_a_statement_of_the_control_stream_that_nobody_signed(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    rotation.rotate_key(QuickDisk(), Folders(root), NOW + 90, 0)
    (path,) = (root / "handovers").glob("*.cbor")
    sound = HandOver.decode(path.read_bytes())
    forged = replace(sound, old_sig=bytes(64))
    with running(root, Clock(NOW + 100)) as hub:
        logged: Queue[Any] = Queue()
        hub.loop.call_soon_threadsafe(hub.service.pipeline.log_event, forged, logged.put)
        logged.get()
    assert [one.what for one in findings(root)] == [
        "control event: hand-over: the signature does not verify under the key"
    ]


def test_equivocation_is_found_although_a_key_map_is_damaged(twins: tuple[Path, Path]) -> None:
    flip(twins[1] / "hub-key-map.json", 20)
    found = run_audit(*twins)
    assert {one.stream_seq for one in found.equivocations} == {13}
    assert [one.artifact for one in found.directories[1].findings] == ["hub-key-map.json"]


def test_copies_of_different_age_do_not_contradict_each_other(place: Path) -> None:
    made = BigLog(place / "one", streams=2, clients=3, limits=SMALL)
    made.grow(24)
    shutil.copytree(place / "one", place / "old")
    made.grow(20)
    assert run_audit(place / "one", place / "old").equivocations == ()


def test_a_damaged_copy_is_not_equivocation(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/*-open.log"))[0]
    size, last = path.stat().st_size, len(frames(path)[-1])
    for at in (size - last + 160, size - 120, size - 90):  # client_id, leaf_hash and mmr_root of the last entry
        flip(path, at)
    found = run_audit(log.folders.root, root)
    assert found.equivocations == ()
    assert found.directories[0].findings == []
    assert {one.artifact for one in found.directories[1].findings} == {f"log/{path.name}"}


def test_two_hubs_are_not_compared(log: BigLog, place: Path) -> None:
    other = BigLog(place / "other", streams=2, limits=SMALL)
    other.grow(9)
    assert run_audit(log.folders.root, other.folders.root).equivocations == ()


def test_a_directory_is_audited_while_its_hub_runs(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    with running(root, Clock(NOW + 100)) as hub:
        for number in range(9):
            assert hub.submit(hub.writer("other").message(b"%d" % number)).status == 200
        (found,) = run_audit(root).directories
        assert found.live
        assert [one for one in found.findings if one.severity is not Severity.LEFTOVER] == []
    assert findings(root) == []


def test_a_chunk_that_a_running_hub_is_closing_is_not_damage(log: BigLog, place: Path) -> None:
    """The state between writing the artifacts and renaming the chunk, as another process sees it."""
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/chunk-*-0*[0-9].log"))[3]
    path.rename(path.with_name(path.name[:92] + "open.log"))
    for later in root.glob(f"log/*{path.name[6:70]}-*open.log"):
        if later.name[:92] != path.name[:92]:
            later.unlink()
    with exclusive(Folders(root).lock):
        found = run_audit(root).directories[0]
    assert found.live
    assert [one for one in found.findings if one.severity is Severity.DAMAGED] == []


def test_a_relative_path_is_resolved_from_the_working_directory(log: BigLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.folders.root.parent)
    (found,) = run_audit(Path("hub")).directories
    assert (found.source.url, found.findings) == (str(log.folders.root), [])


def test_a_file_that_cannot_be_read_is_a_finding(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/chunk-*-0*[0-9].log"))[1]
    path.unlink()
    path.symlink_to(path.name)  # a symlink loop
    assert artifacts(root) == [f"log/{path.name}"]


def test_a_directory_without_a_log_is_a_finding(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    shutil.rmtree(root / "log")
    assert artifacts(root) == ["log"]
