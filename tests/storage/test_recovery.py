"""Recovery: what is provable is kept and stated, and a new key goes on. No key ever signs two entries for one place."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench.lost_journal import harm
from lab.disk import Died
from tests.storage.disks import DyingDisk, Last
from tests.storage.hubs import NOW, SMALL, Client, History, Hub, QuickDisk, label_of, receipts, small_history
from tests.storage.test_lost_journal import crashed, cut_segment, keep_only_log_and_keys, remove_mark, remove_segments
from veen.core import Malformed, Profile, Receipt, SigningKey, Unavailable, Unverified, naming
from veen.core import hub_identity as identities
from veen.core.recovery import LabelRecovery
from veen.core.root_key import RootSecret
from veen.storage import fsck, journal, metadata, recovery
from veen.storage.fsck import FsckVerdict
from veen.storage.fsck_report import MAX_FINDINGS
from veen.storage.paths import Folders
from veen.storage.recovery import RecoveredLabels

LATER = NOW + 1000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return small_history(tmp_path_factory.mktemp("template") / "hub")


def identity_of(root: Path) -> identities.HubIdentity:
    return metadata.read_metadata(Folders(root)).identity


def keys_by_place(root: Path, given: list[bytes]) -> dict[tuple[bytes, int, bytes], set[bytes]]:
    """The leaves that each key signed for each place."""
    found: dict[tuple[bytes, int, bytes], set[bytes]] = {}
    identity = identity_of(root)
    for receipt in map(Receipt.decode, given):
        key = identity.verify_receipt(receipt)
        found.setdefault((receipt.label, receipt.stream_seq, key.key_id), set()).add(receipt.leaf_hash)
    return found


def start(root: Path) -> Hub:
    """A hub at the time of the recovery or later, as `HubService` starts it."""
    hub = Hub(root)
    hub.clock.now = LATER + 1
    return hub


@pytest.mark.parametrize("lose", [remove_segments, cut_segment, remove_mark, keep_only_log_and_keys])
def test_a_recovered_hub_continues_with_a_new_key_and_a_statement(
    history: History, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    root = tmp_path / "hub"
    given = crashed(history, root)
    lose(root)
    done = recovery.recover(QuickDisk(), root, LATER)
    assert fsck.check(root).verdict is FsckVerdict.CLEAN
    identity, said = identity_of(root), done.log.statement.recovery
    done.log.statement.verify(identity)
    assert [key.key_id for key in identity.signing_keys] == [said.old_key_id, said.new_key_id]
    hub = start(root)
    for row in done.log.labels:
        assert (row.size, row.mmr_root) == (hub.lookup.size(row.label), hub.lookup.root(row.label, row.size))
    assert 0 < done.entries <= len(given)
    kept = [one for one in given if hub.lookup.entry(Receipt.decode(one).label, Receipt.decode(one).stream_seq)]
    assert len(kept) == done.entries
    writer = Client("new", hub.rules)
    fresh = receipts(hub.submit([writer.message(label_of(hub.rules, f"stream {n}")) for n in range(3)]))
    assert all(identity.verify_receipt(Receipt.decode(one)).key_id == said.new_key_id for one in fresh)
    assert all(len(leaves) == 1 for leaves in keys_by_place(root, given + fresh).values())
    hub.catch_up()
    hub.close()
    assert fsck.check(root).verdict is FsckVerdict.CLEAN
    for one in given:
        identity.verify_receipt(Receipt.decode(one))  # also those that are lost: they are evidence


def test_a_recovery_keeps_the_sound_groups_of_a_damaged_journal(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    given = crashed(history, root)
    path = max((root / "journal").iterdir())
    data = bytearray(path.read_bytes())
    last = data.rindex(b"VJG1")
    data[last + 60] ^= 1
    path.write_bytes(data)
    done = recovery.recover(QuickDisk(), root, LATER)
    assert done.entries == len(given) - len(history.groups[-1])
    (moved,) = done.moved
    assert moved.read_bytes() == data
    assert [found[0] for found in journal.read(root / "journal", 0) if isinstance(found, tuple)]
    hub = start(root)
    assert hub.replayed > 0
    hub.close()


@pytest.mark.parametrize("what", ["upload", "attachment"])
def test_damage_beside_the_log_moves_no_journal_and_blocks_no_recovery(
    history: History, tmp_path: Path, what: str
) -> None:
    root = tmp_path / "hub"
    given = crashed(history, root)
    path = getattr(Folders(root), what)(bytes(32))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"garbage")
    found = fsck.check(root, isolated=False)
    assert ([one.artifact for one in found.findings], found.verdict) == (
        [str(path.relative_to(root))],
        FsckVerdict.DAMAGED,
    )
    done = recovery.recover(QuickDisk(), root, LATER)
    assert (done.entries, done.moved) == (len(given), ())
    assert path.read_bytes() == b"garbage", "a copy may have the sound file: nothing removes the damaged one"
    hub = start(root)
    assert hub.replayed > 0
    hub.close()


def test_many_damaged_attachments_hide_no_damage_of_the_log(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    (root / "uploads").mkdir(exist_ok=True)
    for number in range(MAX_FINDINGS):
        Folders(root).upload(number.to_bytes(32)).write_bytes(b"garbage")
    segment = max((root / "journal").iterdir())
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
    found = fsck.check(root, isolated=False)
    assert found.damages_log
    assert found.blocking is not None
    assert found.blocking.artifact == "journal"
    with pytest.raises(Malformed, match="journal"):
        fsck.repair(root, isolated=False)


def test_segments_of_another_copy_are_moved_aside(history: History, tmp_path: Path) -> None:
    """Their numbers continue those of this log, but their entries do not."""
    root, other = tmp_path / "hub", tmp_path / "other"
    for place, logged in ((root, (0, 1, 2, 3)), (other, (0, 1))):
        hub = Hub(history.fresh(place))
        for number in logged[:2]:
            hub.submit(history.groups[number])
        if place == root:
            for number in logged[2:]:
                hub.submit(history.groups[number])
        hub.catch_up()
        hub.close()
    hub = Hub(root)
    hub.submit(history.groups[4])
    hub.abandon()
    (segment,) = (root / "journal").iterdir()
    data = segment.read_bytes()
    shutil.copy(segment, other / "journal")
    shutil.copy(root / "journal.mark", other / "journal.mark")
    shutil.rmtree(other / "index")
    with pytest.raises(Malformed):
        Hub(other)
    done = recovery.recover(QuickDisk(), other, LATER)
    assert [path.read_bytes() for path in done.moved] == [data]
    assert done.entries == len(history.groups[0]) + len(history.groups[1])
    start(other).close()


def test_a_damaged_log_is_not_recovered(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    chunk = min(root.glob("log/chunk-*"))
    data = bytearray(chunk.read_bytes())
    data[200] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(Malformed, match="restore the log from another copy"):
        recovery.recover(QuickDisk(), root, LATER)
    assert metadata.is_recovery_pending(Folders(root))
    assert len(identity_of(root).signing_keys) == 1


@pytest.mark.parametrize("last", [Last.LOST, Last.DONE])
def test_a_recovery_that_was_interrupted_can_be_repeated(history: History, tmp_path: Path, last: Last) -> None:
    given = crashed(history, tmp_path / "lost")
    cut_segment(tmp_path / "lost")
    n, root = 0, tmp_path / "hub"
    while True:
        n += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "lost", root)
        disk = DyingDisk(n, last)
        with suppress(Died):
            recovery.recover(disk, root, LATER, isolated=False)
        if disk.calls < n:
            break
        if metadata.is_recovery_pending(Folders(root)) or not recovery.read_recoveries(Folders(root)):
            recovery.recover(QuickDisk(), root, LATER, isolated=False)
        found = recovery.read_recoveries(Folders(root))
        assert found
        for one in found:
            one.statement.verify(identity_of(root))
        assert sum(row.size for row in found[-1].labels) <= len(given)
        assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN, n
    assert n > 10


def test_the_rows_of_a_statement_are_proved_and_others_are_not(history: History, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    crashed(history, root)
    remove_segments(root)
    done = recovery.recover(QuickDisk(), root, LATER)
    identity, labels = identity_of(root), RecoveredLabels(recovery.read_recoveries(Folders(root)))
    for row in done.log.labels:
        (shown,) = labels.of(row.label).recoveries
        assert LabelRecovery.decode(shown.encode()).size_of(row.label, identity) == row.size
        with pytest.raises(Unverified):
            replace(shown, rows=()).size_of(row.label, identity)
        between = row.label[:-1] + bytes([row.label[-1] ^ 1])
        (absent,) = labels.of(between).recoveries
        assert absent.size_of(between, identity) == 0
    first, second, *_ = done.log.labels
    shown = labels.of(first.label).recoveries[0]
    wrong = replace(shown, rows=(replace(shown.rows[0], row=second),))
    with pytest.raises(Unverified):
        wrong.size_of(second.label, identity)


def test_a_root_key_endorses_the_recovery(tmp_path: Path) -> None:
    root_key = SigningKey.generate()
    secret = RootSecret(root_key.seed, naming.hub_id(root_key.public_key), NOW)
    root = tmp_path / "hub"
    metadata.create(QuickDisk(), root, Profile(), SMALL, NOW, None, root_key)
    hub = Hub(root)
    receipts(hub.submit([Client("ann", hub.rules).message(label_of(hub.rules, "s"))]))
    hub.abandon()
    remove_segments(root)
    with pytest.raises(Unavailable, match="root key of the hub must endorse"):
        recovery.recover(QuickDisk(), root, LATER)
    assert not metadata.is_recovery_pending(Folders(root))
    other = SigningKey.generate()
    with pytest.raises(Unavailable, match="belongs to another hub"):
        recovery.recover(QuickDisk(), root, LATER, RootSecret(other.seed, secret.hub_id, NOW))
    done = recovery.recover(QuickDisk(), root, LATER, secret)
    statement, identity = done.log.statement, identity_of(root)
    statement.verify(identity)
    root_key_sig = root_key.sign(statement.recovery.digest())
    assert statement.endorsement == root_key_sig
    assert done.log.labels == ()
    start(root).close()


@pytest.mark.parametrize("lost", ["the signing key", "all keys"])
def test_a_hub_with_a_root_is_recovered_without_its_old_keys(tmp_path: Path, lost: str) -> None:
    root_key = SigningKey.generate()
    secret = RootSecret(root_key.seed, naming.hub_id(root_key.public_key), NOW)
    root = tmp_path / "hub"
    metadata.create(QuickDisk(), root, Profile(), SMALL, NOW, None, root_key)
    hub = Hub(root)
    receipts(hub.submit([Client("ann", hub.rules).message(label_of(hub.rules, "s"))]))
    hub.catch_up()
    hub.close()
    if lost == "all keys":
        shutil.rmtree(root / "keys")
    else:
        next((root / "keys").glob("hub-*")).unlink()
    done = recovery.recover(QuickDisk(), root, LATER, secret)
    assert [row.size for row in done.log.labels] == [1]
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN
    hub = start(root)
    (signed,) = receipts(hub.submit([Client("bob", hub.rules).message(label_of(hub.rules, "s"))]))
    assert identity_of(root).verify_receipt(Receipt.decode(signed)).key_id == done.log.statement.recovery.new_key_id
    hub.close()


def test_a_backup_is_restored_under_a_new_key(history: History, tmp_path: Path) -> None:
    root, backup = tmp_path / "hub", tmp_path / "backup"
    hub = Hub(history.fresh(root))
    given = [one for group in history.groups[:9] for one in receipts(hub.submit(group))]
    hub.catch_up()
    hub.close()
    shutil.copytree(root, backup)
    hub = Hub(root)
    given += [one for group in history.groups[9:] for one in receipts(hub.submit(group))]
    hub.abandon()
    shutil.rmtree(root)
    before = {path: path.read_bytes() for path in sorted(backup.rglob("*")) if path.is_file()}
    done = recovery.restore(QuickDisk(), backup, root, LATER)
    assert {path: path.read_bytes() for path in sorted(backup.rglob("*")) if path.is_file()} == before
    assert done.entries == sum(map(len, history.groups[:9]))
    hub = start(root)
    for group in history.groups[9:]:
        given += receipts(hub.submit(group))
    hub.close()
    found = keys_by_place(root, given)
    assert all(len(leaves) == 1 for leaves in found.values())
    assert len({(label, seq) for label, seq, _ in found}) < len(found)  # places that both keys signed
    with pytest.raises(Unavailable, match="not empty"):
        recovery.restore(QuickDisk(), backup, root, LATER)


@pytest.mark.parametrize("seed", range(12))
def test_no_key_signs_two_entries_for_one_place_whatever_was_lost(history: History, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    assert lose_and_recover(history, tmp_path, random.Random(seed)) in ("started", "recovered")


@pytest.mark.slow
def test_no_key_signs_two_entries_for_one_place_in_200_runs(history: History, tmp_path: Path) -> None:
    for seed in range(12, 212):
        place = tmp_path / str(seed)
        place.mkdir()
        print(f"seed {seed}")
        assert lose_and_recover(history, place, random.Random(seed)) in ("started", "recovered")
        shutil.rmtree(place)


def lose_and_recover(history: History, place: Path, rng: random.Random) -> str:
    """Harm a killed hub's journal, start or recover it, and write on. A client keeps all receipts and compares."""
    root, older = place / "hub", place / "older"
    hub = Hub(history.fresh(root))
    given: list[bytes] = []
    copied, ended = rng.randrange(1, 12), rng.randrange(12, len(history.groups))
    for number, group in enumerate(history.groups[:ended]):
        given += receipts(hub.submit(group))
        if rng.random() < 0.4:
            hub.catch_up()
        if number == copied:
            shutil.copytree(root, older)
    hub.abandon()
    harm(rng, root, older)
    outcome = "started"
    try:
        hub = start(root)
    except Malformed:
        recovery.recover(QuickDisk(), root, LATER, isolated=False)
        hub, outcome = start(root), "recovered"
    else:
        for receipt in map(Receipt.decode, given):
            entry = hub.lookup.entry(receipt.label, receipt.stream_seq)
            assert entry is not None
            assert Receipt.decode(entry.receipt).leaf_hash == receipt.leaf_hash
    writer = Client(f"later {rng.random()}", hub.rules)
    given += receipts(hub.submit([writer.message(label_of(hub.rules, f"stream {n % 3}")) for n in range(9)]))
    hub.close()
    assert all(len(leaves) == 1 for leaves in keys_by_place(root, given).values())
    return outcome
