"""Links, FIFOs, folders and endless files in the place of files of a data directory."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from plumbing import durable
from tests.storage.hubs import NOW, SCRATCH, Client, Hub, QuickDisk, create, label_of, receipts
from veen.core import Checkpoint, HubIdentity, Malformed, Unavailable, Unverified, VeenError, naming, wire_json
from veen.core.hashing import h
from veen.core.hub_identity import HubKey
from veen.core.limits import (
    MAX_BOUND_CHECKPOINTS,
    MAX_CHUNKS_PER_LABEL,
    MAX_EXACT_INT,
    MAX_HUB_KEYS,
    MAX_PEAKS,
    MAX_WITNESS_SIGS,
)
from veen.pipeline.sources import LocalFiles
from veen.storage import chunk_reader, fork, fsck, safe_open
from veen.storage.artifacts import BoundCheckpoint, ChunkSummary, IndexedCheckpoint, PeakSnapshot
from veen.storage.attachment_store import AttachmentStore
from veen.storage.checkpoint_files import WitnessKeys
from veen.storage.directory_reader import LogReader, chunk_entries
from veen.storage.fsck_report import FsckVerdict, Severity
from veen.storage.lock import is_held, lock_directory, shared
from veen.storage.paths import Folders

HUGE = 1 << 36
U64 = 2**64 - 1
SECRET = b"what is outside stays outside, and stays as it is\n" * 10
SEALED = b"sealed" * 100


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A data directory with every kind of file."""
    with TemporaryDirectory(dir=SCRATCH) as scratch:
        root = create(Path(scratch) / "hub")
        hub = Hub(root)
        one, label = Client("one", hub.rules), label_of(hub.rules, "doors")
        receipts(hub.submit([one.message(label) for _ in range(17)]))
        hub.catch_up()
        hub.close()
        AttachmentStore(QuickDisk(), Folders(root)).put(h(SEALED), SEALED)
        hub = Hub(root)
        receipts(hub.submit([one.message(label)]))
        hub.abandon()
        yield root


def ended(root: Path) -> Path:
    """After a hub that stopped cleanly."""
    hub = Hub(root)
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture
def root(made: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=SCRATCH) as scratch:
        shutil.copytree(made, Path(scratch) / "hub")
        outside = Path(scratch) / "outside"
        outside.mkdir()
        (outside / "file").write_bytes(SECRET)
        yield Path(scratch) / "hub"
        assert [path.name for path in outside.iterdir()] == ["file"]
        assert (outside / "file").read_bytes() == SECRET


def link(path: Path) -> None:
    path.symlink_to(path.parents[len(path.parts) - path.parts.index("hub") - 1] / "outside" / "file")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


KINDS = [link, fifo, folder, huge]
METADATA_FILES = [
    "hub-identity.json",
    "hub-identity.sig",
    "hub-key-map.json",
    "limits.json",
    "profile.json",
    "admission.json",
    "format.json",
]
# The expected verdict of fsck for each file.
ARTIFACTS = {
    **dict.fromkeys([*METADATA_FILES, "hub-identity.next", "origin.cbor"], FsckVerdict.DAMAGED),
    "keys/control.seed": FsckVerdict.KEYLESS,
    "checkpoint-binding.cbor": FsckVerdict.REPAIRABLE,
    "journal/*.wal": FsckVerdict.DAMAGED,
    "log/chunk-*-open.log": FsckVerdict.DAMAGED,
    "log/chunk-*7.log": FsckVerdict.DAMAGED,
    "log/chunk-*.summary": FsckVerdict.REPAIRABLE,
    "log/peaks-*.cbor": FsckVerdict.REPAIRABLE,
    "log/checkpoint-*7.cbor": FsckVerdict.DAMAGED,
    "log/checkpoint-index-*.cbor": FsckVerdict.REPAIRABLE,
    "index/data.mdb": FsckVerdict.REPAIRABLE,
    "index/nodes/*.mmr": FsckVerdict.REPAIRABLE,
    "attachments/??/*": FsckVerdict.DAMAGED,
    f"evidence/equivocation-{'0' * 64}.cbor": FsckVerdict.DAMAGED,
}


def put(root: Path, artifact: str, kind: Callable[[Path], None]) -> Path:
    """Replace what exists there."""
    path = min(root.glob(artifact), default=root / artifact)
    durable.remove_all(path)
    kind(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_fsck_reports_what_is_not_a_file_of_its_kind(root: Path, artifact: str, kind: Callable[[Path], None]) -> None:
    path = put(root, artifact, kind)
    report = fsck.check(root, isolated=False)
    assert report.verdict is ARTIFACTS[artifact]
    told = [one.artifact for one in report.findings if one.severity is not Severity.LEFTOVER]
    assert any(name in (str(path.relative_to(root)), path.parent.name) for name in told)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("artifact", [name for name, verdict in ARTIFACTS.items() if verdict is FsckVerdict.REPAIRABLE])
def test_what_follows_from_the_log_is_put_in_its_place(root: Path, artifact: str, kind: Callable[[Path], None]) -> None:
    path = put(root, artifact, kind)
    assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
    assert safe_open.is_file(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_a_hub_starts_without_it_or_says_why_not(root: Path, artifact: str, kind: Callable[[Path], None]) -> None:
    put(root, artifact, kind)
    started, reason = False, ""
    try:
        Hub(root).abandon()
        started = True
    except (Malformed, Unavailable, Unverified) as error:
        reason = str(error)
    assert started or reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("artifact", [name for name in ARTIFACTS if not name.startswith("journal/")])
def test_a_fork_is_made_without_it_or_not_at_all(root: Path, artifact: str, kind: Callable[[Path], None]) -> None:
    ended(root)
    put(root, artifact, kind)
    target = root.parent / "fork"
    try:
        fork.fork(QuickDisk(), root, target, None, NOW)
    except VeenError:
        assert not target.exists()
    else:
        assert all(path.is_dir() or safe_open.is_file(path) for path in target.rglob("*"))
        assert all(SECRET not in path.read_bytes() for path in target.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("artifact", [name for name in ARTIFACTS if not name.startswith(("index/", "attachments/"))])
def test_an_audit_reads_no_other_kind_of_file(root: Path, artifact: str, kind: Callable[[Path], None]) -> None:
    path = put(root, artifact, kind)
    with pytest.raises(Malformed):
        LocalFiles(root).read(str(path.relative_to(root)))


@pytest.mark.parametrize("kind", [link, fifo, folder])
def test_a_reader_does_not_wait_for_what_is_not_a_chunk(root: Path, kind: Callable[[Path], None]) -> None:
    put(root, "log/chunk-*7.log", kind)
    with LogReader(root) as reader:
        first = reader.chunks()[0]
        with pytest.raises(Malformed, match="not a file"):
            list(chunk_entries(first))


@pytest.mark.parametrize("kind", KINDS)
def test_no_attachment_is_served_but_a_file(root: Path, kind: Callable[[Path], None]) -> None:
    put(root, "attachments/??/*", kind)
    store = AttachmentStore(QuickDisk(), Folders(root))
    for get in (store.get, store.mapped):
        with pytest.raises(Malformed, match=r"not a file|the maximum is"):
            get(h(SEALED))


PLACES = {
    "keys": FsckVerdict.KEYLESS,
    **dict.fromkeys(["journal", "log", "attachments", "attachments/drafts", "attachments/ab"], FsckVerdict.DAMAGED),
    **dict.fromkeys(["evidence", "witnesses"], FsckVerdict.DAMAGED),
    **dict.fromkeys(["index", "index/nodes", "index.draft", "fault.txt"], FsckVerdict.REPAIRABLE),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_place_leads_out_of_the_directory(root: Path, place: str) -> None:
    durable.remove_all(root / place)
    (root / place).symlink_to(root.parent / "outside")
    assert fsck.check(root, isolated=False).verdict is PLACES[place]
    with pytest.raises(VeenError, match=f"{place}.*: a link|keys.*cannot be read"):
        Hub(root)
    with pytest.raises(Malformed, match=f"{place}: a link"):
        fork.fork(QuickDisk(), root, root.parent / "fork", None, NOW)
    if PLACES[place] is FsckVerdict.REPAIRABLE:
        assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
        Hub(root).abandon()


def test_drafts_are_removed_in_a_real_folder_only(root: Path) -> None:
    drafts = Folders(root).attachment_drafts
    durable.remove_all(drafts)
    drafts.symlink_to(root.parent / "outside")
    AttachmentStore(QuickDisk(), Folders(root)).remove_drafts()
    drafts.unlink()
    drafts.mkdir()
    (drafts / "x.draft").touch()
    (drafts / "someones").mkdir()
    AttachmentStore(QuickDisk(), Folders(root)).remove_drafts()
    assert [path.name for path in drafts.iterdir()] == ["someones"]


def test_a_fork_takes_attachments_and_nothing_that_lies_beside_them(root: Path) -> None:
    ended(root)
    folders, target = Folders(root), Folders(root.parent / "fork")
    (folders.attachments / "a").symlink_to(".")
    (folders.attachments / "b").symlink_to(root.parent / "outside")
    (folders.attachment(h(SEALED)).parent / "note.txt").write_text("no attachment")
    fork.fork(QuickDisk(), root, target.root, None, NOW)
    assert [path.name for path in target.attachments.rglob("*") if path.is_file()] == [h(SEALED).hex()]


def test_a_fork_takes_no_attachment_that_has_rotted(root: Path) -> None:
    ended(root)
    Folders(root).attachment(h(SEALED)).write_bytes(SEALED[1:])
    with pytest.raises(Malformed, match="do not hash to its name"):
        fork.fork(QuickDisk(), root, root.parent / "fork", None, NOW)
    assert not (root.parent / "fork").exists()


@pytest.mark.parametrize("kind", [link, fifo, folder])
def test_what_is_written_goes_to_files_only(root: Path, kind: Callable[[Path], None]) -> None:
    path = put(root, "fault.txt", kind)
    for opened in (QuickDisk().open_append, QuickDisk().open_update):
        with pytest.raises(OSError, match=r"not a file|Is a directory"):
            opened(path)


@pytest.mark.parametrize("kind", [link, fifo, huge])
def test_a_draft_that_is_there_is_not_written_into(root: Path, kind: Callable[[Path], None]) -> None:
    kind(root / "limits.json.draft")
    QuickDisk().write_file(root / "limits.json", b"new")
    assert safe_open.is_file(root / "limits.json")
    assert (root / "limits.json").read_bytes() == b"new"


def test_the_directory_itself_may_be_reached_through_a_link(root: Path) -> None:
    (root.parent / "way").symlink_to(root)
    ended(root.parent / "way")
    assert fsck.check(root.parent / "way", isolated=False).verdict is FsckVerdict.CLEAN


@pytest.mark.parametrize("kind", [link, fifo, folder])
def test_a_lock_that_is_not_a_file_is_refused(root: Path, kind: Callable[[Path], None]) -> None:
    path = put(root, "lock", kind)
    with pytest.raises(VeenError, match=r"not a file|Is a directory"):
        lock_directory(path)
    with pytest.raises(VeenError, match=r"not a file|Is a directory"):
        fsck.check(root)


def test_removing_the_lock_file_lets_no_second_hub_in(root: Path) -> None:
    hub = Hub(root)
    (root / "lock").unlink()
    assert is_held(root / "lock")
    with pytest.raises(Unavailable, match="a hub is already running"):
        Hub(root)
    with pytest.raises(Unavailable, match="a hub is running"), shared(root / "lock"):
        pass
    hub.abandon()
    assert not is_held(root / "lock")


def test_readers_share_a_directory_and_keep_hubs_out(root: Path) -> None:
    with shared(root / "lock"), shared(root / "lock"):
        assert not is_held(root / "lock")
        with pytest.raises(Unavailable, match="a hub is already running"):
            Hub(root)
    Hub(root).abandon()


def test_a_hub_does_not_go_on_in_another_directory_than_it_locked(root: Path) -> None:
    hub = Hub(root)
    moved = root.with_name("moved")
    receipts(hub.submit([Client("two", hub.rules).message(label_of(hub.rules, "doors"))]))
    root.rename(moved)
    tail = hub.store.begin_catching_up()
    assert tail is not None
    with pytest.raises(Unavailable, match=r"is gone"):
        hub.store.catch_up(tail)
    shutil.copytree(moved, root)
    there = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(Malformed, match="was replaced while"):
        hub.store.catch_up(tail)
    hub.store.close()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == there
    Hub(moved).abandon()


def test_no_group_goes_to_another_directory_than_was_locked(root: Path) -> None:
    hub = Hub(ended(root))
    root.rename(root.with_name("moved"))
    shutil.copytree(root.with_name("moved"), root)
    message = Client("two", hub.rules).message(label_of(hub.rules, "doors"))
    with pytest.raises(Malformed, match="was replaced while"):
        hub.submit([message])
    assert not list(Folders(root).journal.iterdir())
    hub.store.close()


def test_a_file_of_zeros_is_not_counted_through(tmp_path: Path) -> None:
    path = tmp_path / "chunk-x-open.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(Malformed, match="no entry at byte 0"):
        chunk_reader.size_of([chunk_reader.ChunkFile(1, None, path)])


_PUBLIC = [number.to_bytes(32, "big") for number in range(MAX_HUB_KEYS)]
KEYS = tuple(
    HubKey(naming.key_id(key), key, MAX_EXACT_INT - 1, MAX_EXACT_INT, bytes(64) if at else None)
    for at, key in enumerate(_PUBLIC)
)
LARGEST = {
    "hub-identity.json": wire_json.encode(HubIdentity(bytes(32), KEYS)),
    "checkpoint-x.cbor": Checkpoint(
        bytes(32), bytes(32), U64, bytes(32), U64, bytes(64), (bytes(64),) * MAX_WITNESS_SIGS
    ).encode(),
    "peaks-x.cbor": PeakSnapshot(bytes(32), U64, (bytes(32),) * MAX_PEAKS).encode(),
    "x.summary": ChunkSummary(bytes(32), U64 - 1, U64, bytes(32), 2, U64, bytes(32)).encode(),
    f"{'0' * 64}-1.cbor": WitnessKeys(bytes(32), U64, tuple(bytes(31) + bytes([n]) for n in range(64))).encode(),
}


@pytest.mark.parametrize("name", LARGEST)
def test_every_bound_leaves_room_for_the_largest_there_can_be(name: str) -> None:
    assert len(LARGEST[name]) <= safe_open.max_bytes(name)


def test_a_row_has_room_in_the_bounds_of_the_files_of_rows() -> None:
    row = max(
        len(IndexedCheckpoint(U64, bytes(32), U64, U64, U64).encode()),
        len(BoundCheckpoint(bytes(32), U64, U64, bytes(32), bytes(32)).encode()),
    )
    assert safe_open.max_bytes("checkpoint-index-x.cbor") >= row * MAX_CHUNKS_PER_LABEL
    assert safe_open.max_bytes("checkpoint-binding.cbor") >= row * MAX_BOUND_CHECKPOINTS


def test_only_what_has_a_bound_is_read(root: Path) -> None:
    (root / "elsewhere.txt").touch()
    with pytest.raises(ValueError, match="is not a file name"):
        safe_open.read(root / "elsewhere.txt")
