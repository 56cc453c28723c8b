"""Data directories of earlier versions open, verify, go on and can be upgraded; those of later ones are refused.

`data/format-1.tar.xz` is a hub's data directory and a client's, as the version of commit b81c618 left them: ten entries
of one stream, two closed chunks, an open one, an attachment, and a hub that was killed. These commands of that version
leave the same files, with ten messages of which one has an attachment (--attach):

    veen keygen --out alice --no-passphrase
    veen hub init --data-dir hub --limit max_checkpoint_interval=4
    veen hub start --data-dir hub --admission open
    veen stream-key create doors --client alice
    veen send --hub http://127.0.0.1:37411 --client alice --stream doors --pin hub --body TEXT
    kill -9 PID
    tar cJf format-1.tar.xz hub alice
"""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.disk import Died
from plumbing.durable import Disk
from tests.storage.disks import DyingDisk
from tests.storage.hubs import NOW, Client, Hub, QuickDisk, create, label_of, receipts
from veen.core import Malformed, Unavailable
from veen.storage import backup, fork, fsck, metadata, recovery, upgrade
from veen.storage.fsck import FsckVerdict
from veen.storage.metadata import FORMAT, NewerFormat
from veen.storage.paths import Folders

ARCHIVE = Path(__file__).parent / "data" / "format-1.tar.xz"
ENTRIES = 10
STREAM = "doors"


@pytest.fixture
def old(place: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place / "hub"


def goes_on(root: Path) -> None:
    """Run a hub there: it has every entry, takes more, and the directory verifies."""
    hub = Hub(root)
    label = label_of(hub.rules, STREAM)
    assert hub.lookup.size(label) == ENTRIES
    assert len(list(hub.lookup.entries(label, 1, ENTRIES))) == ENTRIES
    hub.clock.now = hub.sequencer.state.hub_ts + 1
    client = Client("zoe", hub.rules)
    for _ in range(4):
        receipts(hub.submit([client.message(label)]))
    hub.catch_up()
    hub.close()
    assert fsck.check(root, isolated=False).verdict is FsckVerdict.CLEAN


def test_a_directory_of_format_1_opens_verifies_and_goes_on_as_it_is(old: Path) -> None:
    assert metadata.read_format(Folders(old)) == 1
    assert fsck.check(old, isolated=False).verdict is FsckVerdict.CLEAN
    goes_on(old)
    assert metadata.read_format(Folders(old)) == 1


def test_an_upgrade_says_what_it_will_do_does_it_and_is_then_done(old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    planned = upgrade.check(Folders(old), isolated=False)
    assert (planned.found, planned.entries) == (1, ENTRIES)
    assert [step.split()[1].rstrip(":,") for step in planned.steps] == ["journal.mark", "admission.json", "format.json"]
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    assert upgrade.upgrade(Disk(), Folders(old), isolated=False) == planned
    assert metadata.read_format(Folders(old)) == FORMAT
    assert metadata.accepts_bare_tokens(Folders(old)), "capabilities that were authorized before stay valid"
    assert upgrade.upgrade(Disk(), Folders(old), isolated=False).steps == ()
    report = fsck.check(old, isolated=False)
    assert (report.verdict, report.findings) == (FsckVerdict.CLEAN, [])
    goes_on(old)


def test_an_upgrade_rebuilds_an_index_that_is_missing(old: Path) -> None:
    Hub(old).close()  # writes journal.mark: without index and mark, nothing shows where the journal ended
    shutil.rmtree(old / "index")
    planned = upgrade.upgrade(Disk(), Folders(old), isolated=False)
    assert planned.steps[0] == "rebuild index from the log"
    goes_on(old)


def test_a_damaged_attachment_or_record_does_not_block_repair_and_upgrade(old: Path) -> None:
    Hub(old).close()
    shutil.rmtree(old / "index")
    for path in (Folders(old).upload(bytes(32)), Folders(old).attachment(bytes(32))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"garbage")
    assert upgrade.upgrade(Disk(), Folders(old), isolated=False).steps[0] == "rebuild index from the log"
    assert metadata.read_format(Folders(old)) == FORMAT
    report = fsck.check(old, isolated=False)
    assert (report.verdict, report.blocking, report.is_repairable) == (FsckVerdict.DAMAGED, None, False)
    assert [one.artifact.partition("/")[0] for one in report.findings] == ["attachments", "uploads"]


def test_a_damaged_directory_is_not_upgraded(old: Path) -> None:
    path = min((old / "log").glob("chunk-*4.log"))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(Malformed, match="before the upgrade"):
        upgrade.upgrade(Disk(), Folders(old), isolated=False)
    assert metadata.read_format(Folders(old)) == 1
    assert not (old / "admission.json").exists()


def test_an_interrupted_upgrade_leaves_a_directory_that_goes_on(old: Path, place: Path) -> None:
    done = False
    for ops in range(1, 100):
        root = Path(shutil.copytree(old, place / f"copy-{ops}"))
        disk = DyingDisk(ops)
        try:
            upgrade.upgrade(disk, Folders(root), isolated=False)
        except (Died, Unavailable):
            assert metadata.read_format(Folders(root)) in (1, FORMAT)
        else:
            done = True
        upgrade.upgrade(QuickDisk(), Folders(root), isolated=False)
        goes_on(root)
        shutil.rmtree(root)
        if done:
            return
    raise AssertionError("100 changes were not enough")


def newer(root: Path) -> Folders:
    (root / "format.json").write_bytes(b'{"format":%d}' % (FORMAT + 1))
    return Folders(root)


USES: dict[str, Callable[[Path, Path], object]] = {
    "open": lambda root, place: Hub(root),
    "fsck": lambda root, place: fsck.check(root, isolated=False),
    "repair": lambda root, place: fsck.repair(root, isolated=False),
    "upgrade": lambda root, place: upgrade.upgrade(QuickDisk(), Folders(root), isolated=False),
    "check": lambda root, place: upgrade.check(Folders(root), isolated=False),
    "backup": lambda root, place: backup.backup(QuickDisk(), root, place / "to", NOW),
    "restore": lambda root, place: recovery.restore(QuickDisk(), root, place / "restored", NOW),
    "recover": lambda root, place: recovery.recover(QuickDisk(), root, NOW, isolated=False),
    "fork": lambda root, place: fork.fork(QuickDisk(), root, place / "fork", None, NOW),
}


@pytest.mark.parametrize("use", USES)
def test_a_directory_of_a_later_format_is_refused_and_not_changed(use: str, place: Path) -> None:
    root = create(place / "hub")
    newer(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(NewerFormat, match=f"has format {FORMAT + 1}, and this version knows formats up to {FORMAT}"):
        USES[use](root, place)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"} == before


@pytest.mark.parametrize(
    "data", [b"", b"2", b"{}", b'{"format":0}', b'{"format":true}', b'{"format": 2}', b'{"format":2}\n']
)
def test_a_damaged_format_file_is_damage(data: bytes, place: Path) -> None:
    root = create(place / "hub")
    (root / "format.json").write_bytes(data)
    with pytest.raises(Malformed):
        metadata.read_metadata(Folders(root))
    report = fsck.check(root, isolated=False)
    assert report.verdict is FsckVerdict.DAMAGED
    assert [one.artifact for one in report.findings] == ["format.json"]
