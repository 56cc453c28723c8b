"""Foreign files in a data directory are reported as notices and change no verdict."""

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.storage.hubs import NOW, History, Hub, QuickDisk, key, receipts
from veen.core import Receipt, SigningKey, receipt
from veen.core.envelopes import Equivocation
from veen.core.hashing import h
from veen.storage import fsck, metadata
from veen.storage.fsck import FsckVerdict, Severity
from veen.storage.fsck_report import FsckReport
from veen.storage.paths import Folders


@pytest.fixture(scope="module")
def sound(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = history.fresh(tmp_path_factory.mktemp("sound") / "hub")
    hub = Hub(root, QuickDisk())
    receipts(hub.submit(history.groups[0]))
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture
def folders(sound: Path, place: Path) -> Folders:
    return Folders(shutil.copytree(sound, place / "hub"))


def look(folders: Folders) -> FsckReport:
    return fsck.check(folders.root, isolated=False)


@pytest.mark.parametrize(
    "name",
    [
        *("README", "notes/", "hub-identity.json.bak", ".hidden", "lock2", "index.old/"),
        *("journal/README", "journal/x.wal", f"journal/{7:020d}.wal.bak"),
        *("attachments/README", "attachments/abc/", "attachments/AB/", "attachments/ab/note.txt"),
        *("evidence/README", "evidence/notes/", "witnesses/README", f"witnesses/{'0' * 64}.cbor"),
    ],
)
def test_a_foreign_file_is_reported_and_the_directory_is_clean(folders: Folders, name: str) -> None:
    path = folders.root / name
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if name.endswith("/") else path.write_bytes(b"a note of the operator's")
    report = look(folders)
    assert [(one.severity, one.artifact) for one in report.findings] == [(Severity.NOTICE, name.rstrip("/"))]
    assert report.verdict is FsckVerdict.CLEAN
    assert report.first is None


def test_a_stray_does_not_keep_a_repair_from_what_it_can_do(folders: Folders) -> None:
    (folders.root / "README").write_bytes(b"ours")
    shutil.rmtree(folders.index)
    assert fsck.repair(folders.root, isolated=False).verdict is FsckVerdict.CLEAN
    assert (folders.root / "README").read_bytes() == b"ours"


def test_a_stray_in_the_journal_of_a_hub_that_never_ran_makes_no_index_missing(history: History, place: Path) -> None:
    root = history.fresh(place / "hub")
    (root / "journal" / "README").write_bytes(b"ours")
    assert [one.severity for one in fsck.check(root, isolated=False).findings] == [Severity.NOTICE]


@pytest.mark.parametrize("name", ["lost+found", "fault.txt", "lock", "attachments/drafts", "attachments/ab"])
def test_what_a_hub_or_its_file_system_puts_there_is_no_stray(folders: Folders, name: str) -> None:
    path = folders.root / name
    path.touch() if "." in name or name == "lock" else path.mkdir()
    assert look(folders).findings == []


@pytest.mark.parametrize(
    "name",
    ["limits.json.draft", "index.draft", "evidence/equivocation-x.cbor.draft", "attachments/drafts/x.draft"],
)
def test_a_draft_of_the_hubs_own_is_a_leftover(folders: Folders, name: str) -> None:
    path = folders.root / name
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if name == "index.draft" else path.touch()
    assert [(one.severity, one.artifact) for one in look(folders).findings] == [(Severity.LEFTOVER, name)]


def hub_key(folders: Folders) -> SigningKey:
    key = metadata.read_signing_key(folders, metadata.read_metadata(folders).identity.newest.key_id)
    assert isinstance(key, SigningKey)
    return key


def two_stories(one: SigningKey, other: SigningKey) -> bytes:
    """Two receipts for one place, each signed by a key, in the order that a hub stores."""
    made = [_receipt(one, b"one"), _receipt(other, b"two")]
    return min(Equivocation(*made).encode(), Equivocation(*reversed(made)).encode())


def _receipt(signer: SigningKey, name: bytes) -> Receipt:
    return receipt.sign(signer, label=h(b"s"), stream_seq=1, leaf_hash=h(name), mmr_root=h(name), hub_ts=NOW)


def put_evidence(folders: Folders, data: bytes) -> Path:
    path = folders.evidence / f"equivocation-{hashlib.sha256(data).hexdigest()}.cbor"
    path.write_bytes(data)
    return path


def test_evidence_that_holds_is_no_finding(folders: Folders) -> None:
    put_evidence(folders, two_stories(hub_key(folders), hub_key(folders)))
    assert look(folders).findings == []


@pytest.mark.parametrize("kind", ["garbage", "empty", "cut short", "of strangers", "of one stranger", "of one story"])
def test_what_is_no_evidence_is_damage_though_its_name_is_its_hash(folders: Folders, kind: str) -> None:
    ours, stranger = hub_key(folders), key("stranger")
    told = _receipt(ours, b"one").encode()
    data = {
        "garbage": b"no evidence at all",
        "empty": b"",
        "cut short": two_stories(ours, ours)[:-1],
        "of strangers": two_stories(stranger, stranger),
        "of one stranger": two_stories(ours, stranger),
        "of one story": b"\xa3\x01\x01\x02" + told + b"\x03" + told,
    }[kind]
    path = put_evidence(folders, data)
    report = look(folders)
    assert report.verdict is FsckVerdict.DAMAGED
    assert [one.artifact for one in report.findings] == [f"evidence/{path.name}"]


def test_evidence_under_another_name_than_its_hash_is_damage(folders: Folders) -> None:
    data = two_stories(hub_key(folders), hub_key(folders))
    (folders.evidence / f"equivocation-{'0' * 64}.cbor").write_bytes(data)
    assert look(folders).verdict is FsckVerdict.DAMAGED
