"""fsck reports nothing for a sound directory, every fault of a damaged one, and repairs what can be derived."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.disk import Died
from tests.storage.disks import DyingDisk
from tests.storage.hubs import (
    NOW,
    Client,
    Clock,
    History,
    Hub,
    QuickDisk,
    index_rows,
    key,
    label_of,
    log_files,
    node_files,
    receipts,
)
from veen.core import Malformed, Mmr, Msg, Receipt, Unavailable, msg, receipt
from veen.core.hashing import h
from veen.storage import frame, fsck, journal, journal_mark, metadata, rebuild, rotation
from veen.storage.artifacts import CheckpointIndex
from veen.storage.attachment_store import AttachmentStore
from veen.storage.frame import AcceptedEntry, CommitGroup
from veen.storage.fsck import FsckVerdict, Severity
from veen.storage.fsck_report import MAX_FINDINGS, Finding, FsckReport
from veen.storage.index import Index
from veen.storage.paths import Folders


@pytest.fixture(scope="module")
def stopped(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a hub that stopped cleanly, with entries of two days and an attachment."""
    root = history.fresh(tmp_path_factory.mktemp("stopped") / "hub")
    hub = Hub(root)
    for number, group in enumerate(history.groups):
        hub.clock.now += 9000
        receipts(hub.submit(group))
        if number % 4 == 3:
            hub.catch_up()
    hub.catch_up()
    hub.close()
    AttachmentStore(QuickDisk(), Folders(root)).put(h(b"sealed"), b"sealed")
    return root


@pytest.fixture(scope="module")
def killed(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a hub that was killed with entries only in the journal."""
    root = history.fresh(tmp_path_factory.mktemp("killed") / "hub")
    hub = Hub(root)
    for number, group in enumerate(history.groups):
        receipts(hub.submit(group))
        if number == 8:
            hub.catch_up()
    hub.abandon()
    return root


def copy(source: Path, place: Path) -> Path:
    shutil.copytree(source, place / "hub")
    return place / "hub"


def look(root: Path) -> FsckReport:
    return fsck.check(root, isolated=False)


def test_a_sound_directory_is_clean(stopped: Path, killed: Path, history: History) -> None:
    for root in (stopped, killed, history.template):
        report = fsck.check(root)
        assert report.findings == []
        assert report.verdict is FsckVerdict.CLEAN
        assert report.total == 0
        assert report.first is None
    found = look(stopped)
    assert found.entries == sum(map(len, history.groups))
    in_journal = look(killed)
    assert (in_journal.entries, in_journal.labels) == (found.entries, found.labels)
    assert look(stopped).labels == 4


def test_checking_changes_nothing(killed: Path) -> None:
    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(killed.rglob("*")) if path.is_file()}

    before = everything()
    look(killed)
    assert everything() == before


def test_progress_goes_up_to_the_whole(stopped: Path) -> None:
    told: list[tuple[int, int]] = []
    fsck.check(stopped, lambda done, total: told.append((done, total)), isolated=False)
    assert told == sorted(told)
    total = sum(path.stat().st_size for path in (stopped / "log").glob("*.log"))
    assert told[-1] == (total, total)


def test_nothing_is_checked_or_repaired_under_a_running_hub(place: Path, history: History) -> None:
    hub = Hub(history.fresh(place / "hub"))
    with pytest.raises(Unavailable, match="a hub is running"):
        fsck.check(place / "hub")
    with pytest.raises(Unavailable, match="a hub is already running"):
        fsck.repair(place / "hub")
    hub.close()
    assert fsck.check(place / "hub").verdict is FsckVerdict.CLEAN


def test_what_was_never_finished_is_named_and_is_no_fault(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    drafts = ["limits.json.draft", "log/peaks-x.cbor.draft", f"attachments/{h(b'sealed').hex()[:2]}/x.draft"]
    for name in drafts:
        (root / name).write_bytes(b"half")
    report = look(root)
    assert report.verdict is FsckVerdict.CLEAN
    assert sorted(finding.artifact for finding in report.findings) == sorted(drafts)
    assert {finding.severity for finding in report.findings} == {Severity.LEFTOVER}


def test_a_torn_group_is_named_and_is_no_fault_unless_the_mark_names_it(killed: Path, place: Path) -> None:
    root = copy(killed, place)
    path = journal.segments(root / "journal")[-1][1]
    data = bytearray(path.read_bytes())
    last = data.rindex(b"VJG1")
    group, end = int.from_bytes(data[last + 4 : last + 12], "big"), int.from_bytes(data[last + 16 : last + 20], "big")
    data[last + 40 : last + 28 + end] = bytes(end - 12)
    path.write_bytes(data)
    report = look(root)
    assert report.verdict is FsckVerdict.DAMAGED
    assert report.first is not None
    assert f"groups {group} to {group}, and later ones, may have been acknowledged" in report.first.what
    mark = journal_mark.read(root / "journal")
    assert mark is not None
    journal_mark.create(QuickDisk(), root / "journal", replace(mark, highest=group - 1))
    report = look(root)
    assert report.verdict is FsckVerdict.CLEAN
    assert ["may have been acknowledged if the disk lost data" in finding.what for finding in report.findings] == [True]


Damage = Callable[[Path], None]


def _first(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[0]


def _remove(pattern: str) -> Damage:
    return lambda root: _first(root, pattern).unlink()


def _cut(pattern: str) -> Damage:
    def damage(root: Path) -> None:
        path = _first(root, pattern)
        path.write_bytes(path.read_bytes()[:-7])

    return damage


def _swap(pattern: str) -> Damage:
    def damage(root: Path) -> None:
        a, b = sorted(root.glob(pattern))[:2]
        a_bytes, b_bytes = a.read_bytes(), b.read_bytes()
        a.write_bytes(b_bytes)
        b.write_bytes(a_bytes)

    return damage


CLOSED = "log/chunk-*-0*[0-9].log"


def _rename_end(root: Path) -> None:
    path = _first(root, CLOSED)
    end = int(path.stem.rpartition("-")[2])
    path.rename(path.with_name(path.name.replace(f"{end:020d}.log", f"{end + 1:020d}.log")))


def _merge_chunks(root: Path) -> None:
    """Two chunks in one file: every entry exists, but the limits would have ended the first earlier."""
    first = _first(root, CLOSED)
    _, label, start, end = first.stem.split("-")
    second = _first(root, f"log/chunk-{label}-{int(end) + 1:020d}-*.log")
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    first.rename(first.with_name(f"chunk-{label}-{start}-{second.stem.split('-')[3]}.log"))


def _stray(name: str) -> Damage:
    def damage(root: Path) -> None:
        (root / name).write_bytes(b"stray")

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no chunk": (_remove(f"log/chunk-*-{1:020d}-0*.log"), "are missing"),
    "no open chunk": (_remove("log/chunk-*-open.log"), "the index lists"),
    "short chunk": (_cut(CLOSED), "are left"),
    "short open chunk": (_cut("log/chunk-*-open.log"), "are left"),
    "no checkpoint": (_remove("log/checkpoint-[0-9a-f]*-*"), "missing"),
    "swapped chunks": (_swap(CLOSED), ""),
    "swapped checkpoints": (_swap("log/checkpoint-[0-9a-f]*-*"), "differ from the file name"),
    "a chunk of another name": (_rename_end, "its last entry is "),
    "two chunks as one": (_merge_chunks, "the limits"),
    "a stray file": (_stray("log/notes.txt"), "no"),
    "a stray checkpoint": (_stray(f"log/checkpoint-{'0' * 64}-{'9' * 20}.cbor"), "it belongs to no chunk"),
    "no log": (lambda root: shutil.rmtree(root / "log"), "missing"),
    "no journal": (lambda root: shutil.rmtree(root / "journal"), "missing"),
    "no identity": (_remove("hub-identity.json"), "cannot be read"),
    "no signature": (_remove("hub-identity.sig"), "cannot be read"),
    "no key map": (_remove("hub-key-map.json"), "cannot be read"),
    "no limits": (_remove("limits.json"), "cannot be read"),
    "no profile": (_remove("profile.json"), "cannot be read"),
    "an attachment of another name": (_stray(f"attachments/{h(b'sealed').hex()[:2]}/{'0' * 64}"), "name"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(stopped: Path, place: Path, name: str) -> None:
    root = copy(stopped, place)
    damage, word = DAMAGES[name]
    damage(root)
    report = look(root)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any(word in str(finding) for finding in report.findings), report.findings
    if "attachment" in name:  # the log is sound: there is nothing to repair
        assert fsck.repair(root, isolated=False) == report
        return
    with pytest.raises(Malformed, match="repair cannot derive this from the log"):
        fsck.repair(root, isolated=False)


def _empty(pattern: str) -> Damage:
    def damage(root: Path) -> None:
        _first(root, pattern).write_bytes(b"")

    return damage


def _lose_everything_derived(root: Path) -> None:
    for pattern in ("log/*.summary", "log/peaks-*", "log/checkpoint-index-*"):
        for path in root.glob(pattern):
            path.unlink()
    shutil.rmtree(root / "index")
    (root / "checkpoint-binding.cbor").unlink()


def _index_of_another_root(root: Path) -> None:
    path = _first(root, "log/checkpoint-index-*")
    found = CheckpointIndex.decode(path.read_bytes())
    first, *rest = found.checkpoints
    path.write_bytes(CheckpointIndex(found.label, (replace(first, mmr_root=bytes(32)), *rest)).encode())


DERIVED: dict[str, tuple[Damage, str]] = {
    "no summary": (_remove("log/*.summary"), "cannot be read: No such file"),
    "no peaks": (_remove("log/peaks-*"), "cannot be read: No such file"),
    "no checkpoint index": (_remove("log/checkpoint-index-*"), "cannot be read: No such file"),
    "empty summary": (_empty("log/*.summary"), "does not match the chunk"),
    "short peaks": (_cut("log/peaks-*"), "does not match the tree"),
    "short checkpoint index": (_cut("log/checkpoint-index-*"), "checkpoint index"),
    "swapped summaries": (_swap("log/*.summary"), "does not match the chunk"),
    "swapped peaks": (_swap("log/peaks-*"), "does not match the tree"),
    "swapped checkpoint indexes": (_swap("log/checkpoint-index-*"), "does not match the checkpoints in the log"),
    "a checkpoint index of another root": (_index_of_another_root, "does not match the checkpoints in the log"),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_follows_from_the_log_is_named_and_made_again_byte_for_byte(
    stopped: Path, killed: Path, place: Path, name: str
) -> None:
    damage, word = DERIVED[name]
    for number, source in enumerate((stopped, killed)):
        root = shutil.copytree(source, place / str(number))
        before, binding = log_files(root), (root / "checkpoint-binding.cbor").read_bytes()
        damage(root)
        report = look(root)
        assert report.verdict is FsckVerdict.REPAIRABLE, report.findings
        assert any(word in str(finding) for finding in report.findings), report.findings
        assert fsck.repair(root, isolated=False).findings == []
        assert log_files(root) == before
        assert (root / "checkpoint-binding.cbor").read_bytes() == binding


def test_all_that_follows_from_the_log_can_be_made_again_at_once(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    expected, binding = _state(copy(stopped, place / "expected")), (root / "checkpoint-binding.cbor").read_bytes()
    _lose_everything_derived(root)
    named = {finding.artifact.partition("-")[0] for finding in look(root).findings}
    assert {"log/chunk", "log/peaks", "log/checkpoint", "checkpoint"} <= named
    assert fsck.repair(root, isolated=False).findings == []
    assert (root / "checkpoint-binding.cbor").read_bytes() == binding
    assert _state(root) == expected


def test_nothing_is_made_again_from_entries_that_do_not_hold(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    chunk = _first(root, CLOSED)
    flipped = bytearray(chunk.read_bytes())
    flipped[-1] ^= 1
    chunk.write_bytes(flipped)
    beside = chunk.with_suffix(".summary")
    beside.unlink()
    elsewhere = sorted(root.glob("log/*.summary"))[-1]
    elsewhere.unlink()
    found = {finding.artifact: finding.severity for finding in look(root).findings}
    assert found[f"log/{chunk.name}"] is found[f"log/{beside.name}"] is Severity.DAMAGED
    assert found[f"log/{elsewhere.name}"] is Severity.REPAIRABLE  # of another label
    with pytest.raises(Malformed, match="repair cannot derive this from the log"):
        fsck.repair(root, isolated=False)
    assert not beside.exists()
    assert not elsewhere.exists()


def test_a_summary_beside_an_entry_of_a_wrong_signature_is_damage(place: Path, history: History) -> None:
    forged = Forged(history.fresh(place / "hub"))
    forged.key = key("another hub")
    forged.write(lambda number, message, given: (message, given))
    summary = _first(place / "hub", f"log/chunk-{forged.label.hex()}-*.summary")
    summary.unlink()
    named = [finding.severity for finding in look(place / "hub").findings if finding.artifact == f"log/{summary.name}"]
    assert set(named) == {Severity.DAMAGED}


def test_a_repair_that_a_crash_ended_is_begun_again(
    stopped: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = log_files(stopped)
    for n in range(1, 1000, 7):
        root = place / str(n)
        shutil.copytree(stopped, root)
        _lose_everything_derived(root)
        disk = DyingDisk(n)
        monkeypatch.setattr(fsck, "Disk", lambda disk=disk: disk)
        try:
            fsck.repair(root, isolated=False)
        except Died:
            monkeypatch.setattr(fsck, "Disk", QuickDisk)
            assert look(root).verdict is FsckVerdict.REPAIRABLE
            assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
            whole = {name: data for name, data in log_files(root).items() if not name.endswith(".draft")}
            assert whole == expected
            shutil.rmtree(root)
            continue
        assert n > 50
        return


def test_every_further_fault_is_named_too(stopped: Path, place: Path) -> None:
    """One fault in each label, and two in one: a fault does not hide the next."""
    root = copy(stopped, place)
    broken = sorted(root.glob(CLOSED))
    assert len(broken) > 4
    for path in broken[::2]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    peaks = _first(root, "log/peaks-*")
    peaks.unlink()
    named = {finding.artifact for finding in look(root).findings}
    assert named == {f"log/{path.name}" for path in broken[::2]} | {f"log/{peaks.name}"}


def test_findings_are_bounded_and_counted() -> None:
    report = FsckReport()
    for number in range(MAX_FINDINGS + 10):
        report.add(Finding(Severity.REPAIRABLE, "index", "wrong", stream_seq=number))
    assert len(report.findings) == MAX_FINDINGS
    assert report.total == report.counts[Severity.REPAIRABLE] == MAX_FINDINGS + 10
    assert str(report.first) == "index, entry 0: wrong"


class Forged:
    """Writes a log as a hub with other rules would, with valid hashes and signatures."""

    def __init__(self, root: Path) -> None:
        self.hub = Hub(root)
        self.label = label_of(self.hub.rules, "forged")
        self.client = Client("mal", self.hub.rules)
        self.key = self.hub._signer.at(NOW)

    def write(self, change: Callable[[int, Msg, Receipt], tuple[Msg, Receipt]], entries: int = 10) -> None:
        """Write entries, each changed by `change` and signed again."""
        tree, batch = Mmr(), CommitGroup()
        for number in range(1, entries + 1):
            encoded = self.client.message(self.label)
            given = Receipt(self.label, number, bytes(32), bytes(32), NOW, bytes(64))
            message, place = change(number, Msg.decode(encoded), given)
            message = msg.sign(
                self.client.key,
                profile_id=message.profile_id,
                label=message.label,
                client_seq=message.client_seq,
                prev_ack=message.prev_ack,
                auth_ref=None,
                ciphertext=message.ciphertext,
            )
            made = tree.append(message.leaf_hash())
            root = tree.root() if place.mmr_root == bytes(32) else place.mmr_root
            signed = receipt.sign(
                self.key,
                label=place.label,
                stream_seq=place.stream_seq,
                leaf_hash=message.leaf_hash(),
                mmr_root=root,
                hub_ts=place.hub_ts,
            ).encode()
            framed, digest = frame.write(self.label, number, message.encode(), signed)
            batch.records.append(
                AcceptedEntry(
                    self.label,
                    number,
                    framed,
                    digest,
                    made,
                    self.client.key.public_key,
                    message.client_seq,
                    message.prev_ack,
                    place.hub_ts,
                )
            )
        self.hub.store._writer.apply(batch, 1)
        self.hub.close()


def _at(number: int, change: Callable[[Msg, Receipt], tuple[Msg, Receipt]]) -> Callable[..., tuple[Msg, Receipt]]:
    return lambda at, message, given: change(message, given) if at == number else (message, given)


FORGERIES: dict[str, tuple[Callable[..., tuple[Msg, Receipt]], str]] = {
    "client_seq skips": (_at(5, lambda m, r: (replace(m, client_seq=9), r)), "client_seq 9 follows 4"),
    "prev_ack ahead": (_at(5, lambda m, r: (replace(m, prev_ack=5), r)), "prev_ack 5 is not within 0..4"),
    "hub_ts back": (_at(5, lambda m, r: (m, replace(r, hub_ts=NOW - 1))), "no key of the hub"),
    "another root": (_at(5, lambda m, r: (m, replace(r, mmr_root=bytes([1]) * 32))), "mmr_root does not match"),
    "another place": (_at(5, lambda m, r: (m, replace(r, stream_seq=6))), "another place than the header"),
    "another label": (_at(5, lambda m, r: (replace(m, label=bytes(32)), r)), "label"),
    "another profile": (_at(5, lambda m, r: (replace(m, profile_id=bytes(32)), r)), "profile"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_log_that_breaks_a_rule_is_named_where_it_does(place: Path, history: History, name: str) -> None:
    change, word = FORGERIES[name]
    Forged(history.fresh(place / "hub")).write(change)
    report = look(place / "hub")
    assert report.verdict is FsckVerdict.DAMAGED
    found = [finding for finding in report.findings if finding.stream_seq == 5]
    assert any(word in finding.what for finding in found), report.findings


def test_a_log_forged_by_the_rules_is_clean(place: Path, history: History) -> None:
    Forged(history.fresh(place / "hub")).write(lambda number, message, given: (message, given))
    assert look(place / "hub").findings == []


def test_time_that_goes_back_within_a_label_is_named(place: Path, history: History) -> None:
    Forged(history.fresh(place / "hub")).write(lambda number, m, r: (m, replace(r, hub_ts=NOW + 20 - number)))
    found = look(place / "hub").findings
    assert [finding.what for finding in found if finding.stream_seq == 2] == [
        f"hub_ts goes back from {NOW + 19} to {NOW + 18}"
    ]


def test_time_that_goes_back_behind_a_missing_chunk_is_named(place: Path, history: History) -> None:
    forged = Forged(history.fresh(place / "hub"))
    forged.write(lambda number, m, r: (m, replace(r, hub_ts=NOW + 20 if number < 15 else NOW)), entries=25)
    (missing,) = (place / "hub" / "log").glob(f"chunk-{forged.label.hex()}-*8-*14.log")
    missing.unlink()
    found = look(place / "hub").findings
    assert [finding.what for finding in found if finding.stream_seq == 15] == [
        f"hub_ts goes back from {NOW + 20} to {NOW}"
    ]


def test_a_receipt_of_another_key_is_named(place: Path, history: History) -> None:
    forged = Forged(history.fresh(place / "hub"))
    forged.key = key("another hub")
    forged.write(lambda number, message, given: (message, given))
    report = look(place / "hub")
    assert sum("no key of the hub" in finding.what for finding in report.findings) >= 10


# The index.


def _rows(root: Path) -> Iterator[Index]:
    index = Index(root / "index")
    yield index
    index.close()


Change = Callable[[Index, bytes], None]


def _drop(table: str) -> Change:
    def change(index: Index, label: bytes) -> None:
        with index._env.begin(write=True) as txn, txn.cursor(index._dbs[table]) as cursor:
            assert cursor.first()
            cursor.delete()

    return change


def _alter(table: str) -> Change:
    def change(index: Index, label: bytes) -> None:
        with index._env.begin(write=True) as txn, txn.cursor(index._dbs[table]) as cursor:
            assert cursor.first()
            row_key, row = cursor.item()
            cursor.delete()
            txn.put(row_key, row[:-1] + bytes([row[-1] ^ 1]), db=index._dbs[table])

    return change


def _add(table: str) -> Change:
    def change(index: Index, label: bytes) -> None:
        with index._env.begin(write=True) as txn, txn.cursor(index._dbs[table]) as cursor:
            assert cursor.first()
            txn.put(b"\xff" * len(cursor.key()), cursor.value(), db=index._dbs[table])

    return change


TABLES = ("heads", "cursors", "caps", "buckets", "streams", "chunks", "places", "by_client", "days")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("change", [_drop, _alter, _add])
def test_a_wrong_row_of_the_index_is_named_and_healed(
    stopped: Path, place: Path, table: str, change: Callable[[str], Change]
) -> None:
    root = copy(stopped, place)
    before = _state(root)
    for index in _rows(root):
        change(table)(index, b"")
    report = look(root)
    assert report.verdict is FsckVerdict.REPAIRABLE, report.findings
    assert report.first is not None
    assert report.first.artifact == "index/data.mdb"
    assert fsck.repair(root, isolated=False).findings == []
    assert _state(root) == before


def test_entries_that_a_sound_index_has_seen_and_that_are_nowhere_are_damage(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    for index in _rows(root):
        with index.write() as rows:
            _, head = next(rows.labels())
            rows.put_head(bytes(32), head)
            rows.commit()
    report = look(root)
    assert report.verdict is FsckVerdict.DAMAGED
    assert report.first is not None
    assert "the index lists" in report.first.what


def _state(root: Path) -> tuple[object, ...]:
    hub = Hub(root, clock=Clock(NOW))
    hub.catch_up()
    found = index_rows(hub), node_files(root), log_files(root)
    hub.close()
    return found


def test_an_index_that_is_missing_is_repairable_and_healed(stopped: Path, killed: Path, place: Path) -> None:
    for number, source in enumerate((stopped, killed)):
        root = place / str(number)
        shutil.copytree(source, root)
        expected = _state(shutil.copytree(source, place / f"{number} expected"))
        shutil.rmtree(root / "index")
        assert look(root).verdict is FsckVerdict.REPAIRABLE
        assert fsck.repair(root).verdict is FsckVerdict.CLEAN
        assert _state(root) == expected


def test_an_index_older_than_the_journal_is_repairable_and_healed_at_start(
    place: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 2000)
    root = history.fresh(place / "hub")
    hub = Hub(root)
    for number, group in enumerate(history.groups):
        receipts(hub.submit(group))
        hub.catch_up()
        if number == 3:
            hub.abandon()
            shutil.copytree(root / "index", place / "old")
            hub = Hub(root)
    hub.abandon()
    assert journal.segments(root / "journal")[0][0] > 5
    expected = _state(shutil.copytree(root, place / "expected"))
    shutil.rmtree(root / "index")
    shutil.copytree(place / "old", root / "index")
    assert any("the journal starts at group" in finding.what for finding in look(root).findings)
    assert _state(root) == expected


@pytest.mark.parametrize("what", ["missing", "short", "wrong", "long", "stray"])
def test_a_wrong_node_file_is_named_and_healed(stopped: Path, place: Path, what: str) -> None:
    root = copy(stopped, place)
    before = _state(root)
    path = _first(root, "index/nodes/*.mmr")
    data = path.read_bytes()
    wrong = {"short": data[:-32], "wrong": bytes([data[0] ^ 1]) + data[1:], "long": data + bytes(32)}
    if what == "missing":
        path.unlink()
    elif what == "stray":
        path.with_name(f"{'0' * 64}.mmr").write_bytes(bytes(32))
    else:
        path.write_bytes(wrong[what])
    report = look(root)
    assert report.verdict is FsckVerdict.REPAIRABLE
    assert [finding.artifact.startswith("index/nodes/") for finding in report.findings] == [True]
    assert fsck.repair(root, isolated=False).findings == []
    assert _state(root) == before


def test_repair_leaves_a_sound_directory_as_it_is(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    before = (root / "index" / "data.mdb").stat()
    assert fsck.repair(root).verdict is FsckVerdict.CLEAN
    assert (root / "index" / "data.mdb").stat().st_ino == before.st_ino


def test_a_rebuild_of_a_damaged_log_leaves_the_old_index(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    before = (root / "index" / "data.mdb").read_bytes()
    path = _first(root, CLOSED)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Malformed):
        rebuild.rebuild_index(QuickDisk(), Folders(root))
    assert (root / "index" / "data.mdb").read_bytes() == before


def test_a_rebuild_that_a_crash_ended_is_begun_again(stopped: Path, place: Path) -> None:
    root = copy(stopped, place)
    before = _state(root)
    for n in range(1, 100):
        shutil.rmtree(root / "index", ignore_errors=True)
        try:
            rebuild.rebuild_index(DyingDisk(n), Folders(root)).close()
        except Died:
            assert _state(root) == before
            continue
        assert n > 5
        return


def test_a_rotated_hub_is_clean_also_between_the_steps(place: Path, history: History) -> None:
    root = history.fresh(place / "hub")
    hub = Hub(root)
    for group in history.groups[:6]:
        receipts(hub.submit(group))
    hub.close()
    folders = Folders(root)
    rotation.rotate_key(QuickDisk(), folders, NOW + 100, 0)
    hub = Hub(root, clock=Clock(NOW + 200))
    for group in history.groups[6:]:
        receipts(hub.submit(group))
    hub.close()
    assert len(metadata.read_metadata(folders).identity.hub_keys) == 2
    assert look(root).findings == []


def test_journals_that_contradict_the_log_are_named(killed: Path, place: Path) -> None:
    """Groups of another run: valid by themselves, but not the continuation."""
    root = copy(killed, place)
    rng = random.Random(5)
    segment = journal.segments(root / "journal")[0][1]
    groups = [found for found in journal.read(root / "journal", 0) if not isinstance(found, journal.Torn)]
    segment.unlink()
    (root / "journal.mark").unlink()
    again = journal.Journal(QuickDisk(), root / "journal", 1)
    for number, entries in groups:
        left_out = rng.randrange(len(entries)) if number == 12 else None
        kept = [entry for at, entry in enumerate(entries) if at != left_out]
        framed = b"".join(frame.write(e.label, e.stream_seq, e.msg, e.receipt)[0] for e in kept)
        again.append(framed, len(kept))
    again.close()
    report = look(root)
    assert report.verdict is FsckVerdict.DAMAGED
    assert any("it follows entry" in finding.what for finding in report.findings)


def _delete(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _open_to_others(path: Path) -> None:
    path.chmod(0o644)


def _exchange(path: Path) -> None:
    path.write_bytes(b"\x07" * 32)


@pytest.mark.parametrize(
    ("pattern", "harm", "what"),
    [
        ("hub-*.seed", _delete, "missing"),
        ("hub-*.seed", _shorten, "31 bytes, not 32"),
        ("hub-*.seed", _open_to_others, "run: chmod 600"),
        ("hub-*.seed", _exchange, "it does not match the public key in hub-identity.json"),
        ("control.seed", _delete, "missing"),
        ("control.seed", _shorten, "31 bytes, not 32"),
    ],
)
def test_a_secret_key_that_no_hub_could_use_is_named_and_is_no_damage_of_the_log(
    pattern: str, harm: Callable[[Path], None], what: str, stopped: Path, tmp_path: Path
) -> None:
    root = copy(stopped, tmp_path)
    path = next((root / "keys").glob(pattern))
    harm(path)
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.KEYLESS
    assert [(one.severity, one.artifact) for one in report.findings] == [(Severity.KEYLESS, f"keys/{path.name}")]
    assert what in report.findings[0].what
