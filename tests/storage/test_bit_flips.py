"""One wrong bit in any artifact is detected, and repaired if the log contains the correct value."""

import random
import shutil
from pathlib import Path

import pytest

from tests.storage.hubs import NOW, History, Hub, QuickDisk, index_rows, log_files, node_files, receipts
from veen.core.hashing import h
from veen.storage import fork, fsck, index_check
from veen.storage.attachment_store import AttachmentStore
from veen.storage.fsck import FsckVerdict
from veen.storage.fsck_report import FsckReport
from veen.storage.paths import Folders

# The artifacts to flip bits in, and how many.
ARTIFACTS = {
    "chunk": ("log/chunk-*-0*[0-9].log", 60),
    "open chunk": ("log/chunk-*-open.log", 40),
    "checkpoint": ("log/checkpoint-[0-9a-f]*-*", 40),
    "journal": ("journal/*.wal", 60),
    "identity": ("hub-identity.json", 40),
    "signature": ("hub-identity.sig", 40),
    "key map": ("hub-key-map.json", 20),
    "profile": ("profile.json", 40),
    "attachment": ("attachments/*/*", 10),
}
# Artifacts derived from the entries, tested in the same way.
DERIVED = {
    "summary": ("log/*.summary", 40),
    "peaks": ("log/peaks-*", 40),
    "checkpoint index": ("log/checkpoint-index-*", 40),
}


@pytest.fixture(scope="module")
def original(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with every kind of artifact."""
    root = history.fresh(tmp_path_factory.mktemp("original") / "hub")
    hub = Hub(root)
    for number, group in enumerate(history.groups):
        receipts(hub.submit(group))
        if number % 4 == 3:
            hub.catch_up()
    assert hub.store.pending.records
    hub.abandon()
    AttachmentStore(QuickDisk(), Folders(root)).put(h(b"sealed"), b"sealed")
    return root


def look(root: Path) -> FsckReport:
    return fsck.check(root, isolated=False)


def state(root: Path) -> tuple[object, ...]:
    hub = Hub(root)
    hub.catch_up()
    found = index_rows(hub), node_files(root), log_files(root)
    hub.close()
    return found


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def places(size: int, count: int, seed: str) -> list[tuple[int, int]]:
    """The first and last byte, and some between."""
    rng = random.Random(seed)
    return [(0, 0), (size - 1, 7)] + [(rng.randrange(size), rng.randrange(8)) for _ in range(count - 2)]


@pytest.fixture(scope="module")
def packed_original(packed_history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose closed chunks are compressed."""
    root = packed_history.fresh(tmp_path_factory.mktemp("packed original") / "hub")
    hub = Hub(root)
    for group in packed_history.groups:
        receipts(hub.submit(group))
    hub.catch_up()
    hub.close()
    return root


@pytest.fixture(scope="module")
def fork_original(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fork."""
    folder = tmp_path_factory.mktemp("fork original")
    hub = Hub(shutil.copytree(original, folder / "source"))
    hub.catch_up()
    hub.close()
    fork.fork(QuickDisk(), folder / "source", folder / "hub", None, NOW + 10)
    return folder / "hub"


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_a_flipped_bit_is_found(original: Path, place: Path, artifact: str) -> None:
    pattern, count = ARTIFACTS[artifact]
    check_flips(shutil.copytree(original, place / "hub"), pattern, count, artifact)


def test_a_flipped_bit_of_a_compressed_chunk_is_found(packed_original: Path, place: Path) -> None:
    check_flips(shutil.copytree(packed_original, place / "hub"), "log/*.zst", 120, "compressed chunk")


@pytest.mark.parametrize("artifact", ["origin.cbor", "log/checkpoint-[0-9a-f]*-*", "log/chunk-*-0*[0-9].log"])
def test_a_flipped_bit_of_a_fork_is_found(fork_original: Path, place: Path, artifact: str) -> None:
    check_flips(shutil.copytree(fork_original, place / "hub"), artifact, 40, artifact)


@pytest.mark.parametrize("kind", ["plain", "compressed", "fork"])
@pytest.mark.parametrize("artifact", DERIVED)
def test_a_flipped_bit_beside_the_chunks_is_found_and_healed(
    original: Path, packed_original: Path, fork_original: Path, place: Path, artifact: str, kind: str
) -> None:
    source = {"plain": original, "compressed": packed_original, "fork": fork_original}[kind]
    root = shutil.copytree(source, place / "hub")
    before = log_files(root)
    pattern, count = DERIVED[artifact]
    path = sorted(root.glob(pattern))[0]
    sound = path.read_bytes()
    for number, (at, bit) in enumerate(places(len(sound), count if kind == "plain" else 6, artifact)):
        flip(path, at, bit)
        report = look(root)
        assert report.verdict is FsckVerdict.REPAIRABLE, (artifact, at, bit, report.findings)
        assert [finding.artifact for finding in report.findings] == [f"log/{path.name}"]
        if number % 8 == 0:
            assert fsck.repair(root, isolated=False).findings == []
            assert log_files(root) == before
        path.write_bytes(sound)


def test_a_flipped_bit_of_the_checkpoint_binding_is_found_and_healed(original: Path, place: Path) -> None:
    root = shutil.copytree(original, place / "hub")
    path = root / "checkpoint-binding.cbor"
    sound = path.read_bytes()
    for number, (at, bit) in enumerate(places(len(sound), 60, "binding")):
        flip(path, at, bit)
        report = look(root)
        assert report.verdict is FsckVerdict.REPAIRABLE, (at, bit)
        assert [finding.artifact for finding in report.findings] == ["checkpoint-binding.cbor"]
        if number % 10 == 0:
            assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
            assert path.read_bytes() == sound
        path.write_bytes(sound)


def check_flips(root: Path, pattern: str, count: int, artifact: str) -> None:
    """Each flip is detected on its own, and without it the directory is clean."""
    paths = sorted(root.glob(pattern))
    assert paths
    path = paths[0]
    sound = path.read_bytes()
    # Behind the last group of a journal there is only filler, which is not read.
    size = sound.rindex(b"VJG1") + 40 if artifact == "journal" else len(sound)
    for at, bit in places(size, count, artifact):
        flip(path, at, bit)
        report = look(root)
        assert report.verdict is FsckVerdict.DAMAGED, (artifact, at, bit)
        path.write_bytes(sound)
    assert look(root).verdict is FsckVerdict.CLEAN


def test_a_flipped_bit_of_the_limits_is_found_where_it_changes_the_log(original: Path, place: Path) -> None:
    """The limits are not signed: a digit that changes to another is only detected if chunks would end elsewhere."""
    root = shutil.copytree(original, place / "hub")
    path = root / "limits.json"
    sound = path.read_bytes()
    at_digit = [at for at, byte in enumerate(sound) if chr(byte).isdigit()]
    for at in range(0, len(sound), 5):
        for bit in (1, 6):
            flip(path, at, bit)
            if at not in at_digit or not chr(path.read_bytes()[at]).isdigit():
                assert look(root).verdict is FsckVerdict.DAMAGED, (at, bit)
            path.write_bytes(sound)
    for name in (b'"max_checkpoint_interval":', b'"max_chunk_bytes":'):
        at = sound.index(name) + len(name)
        flip(path, at, 1)
        assert look(root).verdict is FsckVerdict.DAMAGED, name
        path.write_bytes(sound)


def test_a_flipped_bit_of_a_node_file_is_found_and_healed(original: Path, place: Path) -> None:
    expected = state(shutil.copytree(original, place / "expected"))
    for number, path in enumerate(sorted((original / "index" / "nodes").iterdir())):
        root = shutil.copytree(original, place / str(number))
        for at, bit in places(path.stat().st_size, 12, path.name):
            flip(root / "index" / "nodes" / path.name, at, bit)
            report = look(root)
            assert report.verdict is FsckVerdict.REPAIRABLE
            assert report.first is not None
            assert report.first.artifact == f"index/nodes/{path.name}"
            flip(root / "index" / "nodes" / path.name, at, bit)
        flip(root / "index" / "nodes" / path.name, 5, 5)
        assert fsck.repair(root, isolated=False).verdict is FsckVerdict.CLEAN
        assert state(root) == expected


def rows_of(root: Path, place: Path) -> bytes:
    index_check.write_rows(root / "index", place / "rows")
    return (place / "rows").read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_index_is_found_and_healed(original: Path, place: Path, seed: int) -> None:
    """The index is detected as damaged even if reading it crashes the process."""
    expected = state(shutil.copytree(original, place / "expected"))
    root = shutil.copytree(original, place / "hub")
    sound = rows_of(original, place)
    path = root / "index" / "data.mdb"
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    if seed == 0:  # the meta pages: no valid index
        data[0:64], data[4096:4160] = rng.randbytes(64), rng.randbytes(64)
    elif seed == 1:  # every other page
        for page in range(2, len(data) // 4096):
            data[page * 4096 + 8 : page * 4096 + 16] = rng.randbytes(8)
    else:  # every row of one label, or single bits anywhere
        label = next((original / "index" / "nodes").iterdir()).stem
        needle = bytes.fromhex(label)
        if seed == 2:
            data = data.replace(needle, needle[:-1] + bytes([needle[-1] ^ 1]))
        else:
            for _ in range(40):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    report = fsck.check(root)
    if report.verdict is FsckVerdict.CLEAN:  # the bits hit unused space
        assert seed > 2
        assert rows_of(root, place) == sound
        return
    assert report.verdict is FsckVerdict.REPAIRABLE or seed > 1, report.findings
    if report.verdict is FsckVerdict.DAMAGED:  # the index listed entries that do not exist
        shutil.rmtree(root / "index")
    assert fsck.repair(root).verdict is FsckVerdict.CLEAN
    assert state(root) == expected
