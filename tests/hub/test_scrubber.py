"""The background scrubber finds damage while the hub runs, reports no sound file, and reads a bounded share."""

import json
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbing.durable import Disk
from tests.hub.client import START, TOKEN, Clock, Hub, log_file, log_rows, make_dir, running, until
from tests.hub.disks import QuickDisk
from veen.core import Checkpoint, Limits, Profile, SigningKey
from veen.core.envelopes import RotationRequest
from veen.core.hashing import h
from veen.core.retention import RetentionPolicy, RetentionRequest
from veen.core.root_key import RootSecret
from veen.hub.scrubber import NEXT_STEP, RECHECK_S, Scrubber
from veen.storage import checkpoint_files, fsck, lock, metadata, rotation
from veen.storage.attachment_store import AttachmentStore
from veen.storage.chunk_reader import FRAME_BYTES
from veen.storage.directory_reader import LogReader
from veen.storage.fsck import FsckVerdict
from veen.storage.index import PAIR, PLACE, SECONDS_PER_DAY, Index, LabelHead
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders
from veen.storage.scrub import KINDS, DirectoryScrub, ScrubStep, kind_of

SMALL = Limits(max_checkpoint_interval=5)
PACKED = Limits(max_checkpoint_interval=5, chunk_zstd_level=3)
ENTRIES = 13  # two closed chunks and an open one
FAST: dict[str, Any] = {"scrub_bytes_per_s": 1 << 30, "scrub_pause_s": 0}


def figure(hub: Hub, name: str) -> float:
    lines = hub.get("/metrics").body.decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def passes(hub: Hub) -> float:
    return figure(hub, "veen_scrub_passes_total")


def flip(path: Path, at: int | None = None) -> None:
    """Change one byte of a file in place, as a bad disk would."""
    data = path.read_bytes()
    at = len(data) // 2 if at is None else at
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 0x10]))


def artifacts(data_dir: Path) -> list[Path]:
    return sorted([*(data_dir / "log").iterdir(), *(data_dir / "index" / "nodes").iterdir()])


def write(data_dir: Path, entries: int = ENTRIES) -> None:
    with running(data_dir, disk=QuickDisk(), scrub_bytes_per_s=0) as hub:
        hub.writer("a").send_many(entries)
        hub.writer("b").send()


def scrub(data_dir: Path) -> Iterator[ScrubStep]:
    folders = Folders(data_dir)
    index = Index(folders.index, readonly=True)
    try:
        hub_metadata = read_metadata(folders)
        yield from DirectoryScrub(folders, index, lambda: hub_metadata, metadata.check_key).walk(None)
    finally:
        index.close()


def found(data_dir: Path) -> list[str]:
    """The damaged artifacts."""
    return [one.artifact for step in scrub(data_dir) if step.result for one in step.result.findings]


@pytest.fixture(scope="module", params=[SMALL, PACKED], ids=["plain", "compressed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = make_dir(tmp_path_factory.mktemp("scrub"), limits=request.param)
    write(data_dir)
    return data_dir


def test_a_flipped_byte_in_a_closed_chunk_is_found_while_the_hub_runs_and_ends_when_it_is_restored(
    tmp_path: Path,
) -> None:
    data_dir = make_dir(tmp_path, limits=SMALL)
    write(data_dir)
    with log_file(tmp_path / "log") as lines, running(data_dir, disk=QuickDisk(), **FAST) as hub:
        until(lambda: passes(hub) >= 1)
        assert hub.get("/readyz").json() == {"ready": True, "reason": "", "bad_states": []}
        assert hub.status()["scrub"]["damaged"] == dict.fromkeys(KINDS, 0)
        chunk = next(path for path in artifacts(data_dir) if path.name.endswith("00005.log"))
        sound = chunk.read_bytes()
        flip(chunk)
        until(lambda: hub.get("/readyz").json()["bad_states"] == ["damage"])
        assert figure(hub, 'veen_hub_bad_state{reason="damage"}') == 1
        assert figure(hub, 'veen_scrub_damaged{kind="chunk"}') == 1
        assert hub.status()["trouble"] == "stored data of the hub is damaged"
        assert hub.writer("a").send().stream_seq > ENTRIES, "damage in a closed chunk must not stop new messages"
        chunk.write_bytes(sound)
        until(lambda: hub.get("/readyz").json()["bad_states"] == [])
        assert figure(hub, 'veen_scrub_damaged{kind="chunk"}') == 0
    entered, left = [row for row in log_rows(lines) if row["event"].startswith("bad_state")]
    assert (entered["event"], entered["reason"]) == ("bad_state_entered", "damage")
    assert entered["artifact"] == f"log/{chunk.name}"
    assert entered["label"] in chunk.name
    assert "entry hash" in entered["error"]
    assert "veen fsck" in entered["next"]
    assert left["event"] == "bad_state_left"
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN


def test_each_file_of_a_log_is_checked(written: Path) -> None:
    """One flipped byte in any file is found and attributed to that file."""
    assert found(written) == []
    of_log = {"chunk", "summary", "peaks", "checkpoint", "checkpoint_index", "nodes"}
    assert {kind_of(path.name) for path in artifacts(written)} == of_log
    for path in artifacts(written):
        sound = path.read_bytes()
        flip(path)
        named = {Path(artifact).name for artifact in found(written)}
        path.write_bytes(sound)
        assert named == {path.name}
        path.unlink()
        named = {Path(artifact).name.removesuffix(".zst") for artifact in found(written)}
        path.write_bytes(sound)
        assert named == {path.name.removesuffix(".zst")}
    assert found(written) == []


@given(st.data())
def test_every_byte_of_a_chunk_is_checked(written: Path, data: st.DataObject) -> None:
    chunks = [path for path in artifacts(written) if kind_of(path.name) == "chunk"]
    path = data.draw(st.sampled_from(chunks))
    sound = path.read_bytes()
    flip(path, data.draw(st.integers(0, len(sound) - 1)))
    try:
        assert {Path(artifact).name for artifact in found(written)} == {path.name}
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize("policy", [RetentionPolicy(1), RetentionPolicy(1, 2)], ids=["payloads", "receipts"])
def test_a_flipped_byte_in_a_pruned_chunk_is_found(tmp_path: Path, policy: RetentionPolicy) -> None:
    data_dir, operator, clock = make_dir(tmp_path, limits=SMALL), f"Bearer {TOKEN}", Clock()
    with running(data_dir, clock, QuickDisk(), scrub_bytes_per_s=0) as hub:
        hub.writer("a").send_many(ENTRIES)
        label = hub.label("a")
        assert hub.post("/tooling/retention/policy", policy, authorization=operator).status == 200
        clock.now += 10

        def prune() -> bool:
            hub.post("/tooling/retention/run", RetentionRequest(False), authorization=operator)
            return len(list((data_dir / "log").glob("*.pruned"))) == 2

        until(prune)
    assert found(data_dir) == []
    for path in sorted((data_dir / "log").glob(f"chunk-{label.hex()}-*.pruned")):
        sound = path.read_bytes()
        for at in range(0, len(sound), 13):  # no record has a multiple of 13 bytes
            flip(path, at)
            assert {Path(artifact).name for artifact in found(data_dir)} == {path.name}, at
            path.write_bytes(sound)
        path.unlink()
        assert {Path(artifact).name for artifact in found(data_dir)} == {path.with_suffix(".log").name}
        path.write_bytes(sound)
    flip(Folders(data_dir).manifest(label))
    assert found(data_dir) != []


ATTACHMENT = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with every kind of file: the hub began as an incarnation, and its key was replaced."""
    folders = Folders(tmp_path_factory.mktemp("full") / "hub")
    root = SigningKey.generate()
    made = metadata.create(Disk(), folders.root, Profile(), SMALL, START, None, root, incarnates=True)
    write(folders.root)
    store = AttachmentStore(Disk(), folders)
    store.put(h(ATTACHMENT), ATTACHMENT)
    store.note_upload(h(ATTACHMENT), h(b"label"), START)
    path = next(folders.log.glob("checkpoint-[0-9a-f]*-*5.cbor"))
    signed, witness = Checkpoint.decode(path.read_bytes()), SigningKey.generate()
    path.write_bytes(replace(signed, witness_sigs=(witness.sign(signed.signing_digest()),)).encode())
    known = checkpoint_files.WitnessKeys(signed.label_curr, signed.upto_seq, (witness.public_key,))
    checkpoint_files.write_witnesses(Disk(), folders, known)
    with lock.exclusive(folders.lock):
        request = rotation.request_rotation(Disk(), folders, START + 1000)
        endorsement = request.endorse(RootSecret(root.seed, made.identity.hub_id, START))
        rotated = rotation.rotate_key(Disk(), folders, START + 1000, 0, endorsement)
        rotation.destroy_retired(Disk(), folders, rotated)
    assert found(folders.root) == []
    return folders.root


DAMAGES = {
    "attachments/*/*": "attachment",
    "uploads/*.cbor": "upload",
    "hub-identity.json": "metadata",
    "hub-identity.sig": "metadata",
    "hub-key-map.json": "metadata",
    "limits.json": "metadata",
    "profile.json": "metadata",
    "admission.json": "metadata",
    "format.json": "metadata",
    "checkpoint-binding.cbor": "binding",
    "handovers/*.cbor": "handover",
    "handovers/*.rows": "handover",
    "handovers/*.mmr": "handover",
    "recoveries/recovery-*.cbor": "recovery",
    "witnesses/*.cbor": "witness",
    "keys/hub-*.seed": "key",
    "keys/control.seed": "key",
    "index/nodes/*.mmr": "nodes",
}


@pytest.mark.parametrize("pattern", DAMAGES)
def test_a_flipped_byte_in_any_file_is_found_while_the_hub_runs(full: Path, tmp_path: Path, pattern: str) -> None:
    data_dir = Path(shutil.copytree(full, tmp_path / "hub"))
    check_found(data_dir, tmp_path, DAMAGES[pattern], lambda: flip(next(data_dir.glob(pattern))), pattern)


def check_found(data_dir: Path, tmp_path: Path, kind: str, damage: Callable[[], None], pattern: str) -> str:
    """The hub must find a damage while it runs, and name the file. Returns the text of the error."""
    with log_file(tmp_path / "log") as lines, running(data_dir, Clock(START + 2000), QuickDisk(), **FAST) as hub:
        until(lambda: passes(hub) >= 1)
        assert hub.get("/readyz").json()["bad_states"] == []
        damage()
        until(lambda: figure(hub, f'veen_scrub_damaged{{kind="{kind}"}}') >= 1)
        assert hub.get("/readyz").json()["bad_states"] == ["damage"]
        assert hub.status()["scrub"]["damaged"][kind] >= 1
    found_rows = [row for row in log_rows(lines) if row["event"] in ("bad_state_entered", "damage_found")]
    named = pattern.replace(".rows", ".cbor").replace(".mmr", ".cbor") if kind == "handover" else pattern
    rows = [row for row in found_rows if PurePath(row["artifact"]).match(named)]
    assert rows, f"no log line names {named}: {found_rows}"
    assert {row["artifact"] for row in found_rows} == {rows[0]["artifact"]}
    assert rows[0]["next"] == NEXT_STEP
    return str(rows[0]["error"])


def flip_row(data_dir: Path, row: bytes, at: int) -> None:
    """Change a byte of an index row in all pages that have it, in place: a running hub has the file mapped."""
    path = Folders(data_dir).index / "data.mdb"
    data = path.read_bytes()
    assert row in data
    with path.open("r+b") as file:
        for one in re.finditer(re.escape(row), data):
            file.seek(one.start() + at)
            file.write(bytes([row[at] ^ 1]))


@pytest.mark.parametrize("table", ["places", "by_client", "days", "heads", "a head that cannot be decoded"])
def test_a_flipped_byte_in_an_index_row_is_found_while_the_hub_runs(full: Path, tmp_path: Path, table: str) -> None:
    data_dir = Path(shutil.copytree(full, tmp_path / "hub"))
    label, head = longest(data_dir)
    rows = {
        "places": (PLACE.pack(6, 6, 0), PLACE.size - 1),
        "by_client": (PAIR.pack(7, 7), PAIR.size - 1),
        "days": (PAIR.pack(START // SECONDS_PER_DAY, 1), PAIR.size - 1),
        "heads": (head.encode(), len(head.encode()) - 1),
        "a head that cannot be decoded": (head.encode(), 7),
    }
    error = check_found(data_dir, tmp_path, "index", lambda: flip_row(data_dir, *rows[table]), "index/data.mdb")
    assert "head" in error if "head" in table else table in error
    assert Folders(data_dir).fault.exists(), "the next start must rebuild the index"
    with running(data_dir, Clock(START + 3000)) as hub:
        assert hub.status()["entries"] >= ENTRIES
    assert fsck.check(data_dir).verdict is FsckVerdict.CLEAN
    with LogReader(data_dir) as log:
        assert log.head(label) == head


def longest(data_dir: Path) -> tuple[bytes, LabelHead]:
    """The label with the most entries, and its head."""
    with LogReader(data_dir) as log:
        return max(log.labels(), key=lambda found: found[1].size)


def test_a_missing_or_exposed_key_is_found_and_the_signer_goes_on(full: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(full, tmp_path / "hub"))
    newest, control = next(data_dir.glob("keys/hub-*.seed")), data_dir / "keys" / "control.seed"
    with running(data_dir, Clock(START + 2000), QuickDisk(), **FAST) as hub:
        signer = hub.service.signer.pid
        newest.unlink()
        control.chmod(0o644)
        until(lambda: figure(hub, 'veen_scrub_damaged{kind="key"}') == 2)
        hub.writer().send()
        assert hub.service.signer.pid == signer


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_a_signer_with_too_many_open_files_is_no_damage_of_a_key(full: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(full, tmp_path / "hub"))
    with running(data_dir, Clock(START + 2000), QuickDisk(), **FAST) as hub:
        signer = hub.service.signer.pid
        soft, hard = resource.prlimit(signer, resource.RLIMIT_NOFILE)
        resource.prlimit(signer, resource.RLIMIT_NOFILE, (1, hard))
        until(lambda: not {"storage", "damage"}.isdisjoint(hub.get("/readyz").json()["bad_states"]))
        assert hub.get("/readyz").json()["bad_states"] == ["storage"]
        resource.prlimit(signer, resource.RLIMIT_NOFILE, (soft, hard))
        assert figure(hub, 'veen_scrub_damaged{kind="key"}') == 0
        hub.service.signer.check_file(data_dir / "keys" / "control.seed", None)
        assert hub.service.signer.pid == signer


def test_the_scrubber_opens_no_secret_key(written: Path, tmp_path: Path) -> None:
    """The hub runs it, and no secret key may come into the process of a hub: its signer reads the files."""
    data_dir = Path(shutil.copytree(written, tmp_path / "hub"))
    opened, is_watching = set[str](), True

    def watch(event: str, given: tuple[object, ...]) -> None:
        if is_watching and event == "open":
            opened.add(str(given[0]))

    sys.addaudithook(watch)  # it stays as long as the process
    try:
        with running(data_dir, disk=QuickDisk(), **FAST) as hub:
            until(lambda: passes(hub) >= 1)
    finally:
        is_watching = False
    assert str(data_dir / "hub-identity.json") in opened
    assert [path for path in opened if "keys" in Path(path).parts] == []


def test_an_attachment_that_is_removed_ends_the_state(full: Path, tmp_path: Path) -> None:
    data_dir = Path(shutil.copytree(full, tmp_path / "hub"))
    path = Folders(data_dir).attachment(h(ATTACHMENT))
    flip(path)
    run = Simulation(data_dir, 1 << 30, 100 * RECHECK_S)
    run.until(lambda: run.scrubber.passes == 1)
    assert run.scrubber.damaged_by_kind()["attachment"] == 1
    path.unlink()
    run.until(lambda: not run.scrubber.damaged)
    assert run.scrubber.passes == 1
    run.index.close()


def test_rotations_and_lowered_limits_beside_the_scrubber_report_no_damage(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path, limits=SMALL), Clock()
    with log_file(tmp_path / "log") as lines, running(data_dir, clock, **FAST) as hub:
        for turn in range(10):
            hub.writer().send_many(6)
            clock.now += 10
            key = metadata.next_key(hub.service.folders, hub.service.hub_metadata.identity)
            metadata.add_signing_key(Disk(), hub.service.folders, key)
            asked = RotationRequest(key.signer.public_key, int(clock.now), 0)
            lowered = replace(SMALL, max_body_bytes=SMALL.max_body_bytes - 1 - turn)
            for path, body in (("/tooling/rotate-key", asked), ("/tooling/limits", lowered)):
                assert hub.post(path, body, authorization=f"Bearer {TOKEN}").status == 200
        enough = passes(hub) + 2
        until(lambda: passes(hub) >= enough)
        assert hub.status()["scrub"]["damaged"] == dict.fromkeys(KINDS, 0)
    assert not [row for row in log_rows(lines) if row.get("reason") == "damage"]


@pytest.mark.parametrize("limits", [SMALL, PACKED], ids=["plain", "compressed"])
def test_passes_beside_writes_and_closing_chunks_report_no_damage(tmp_path: Path, limits: Limits) -> None:
    data_dir = make_dir(tmp_path, limits=limits)
    with log_file(tmp_path / "log") as lines, running(data_dir, disk=QuickDisk(), **FAST) as hub:
        writers = [hub.writer(name) for name in "abc"]
        sent = 0
        while passes(hub) < 30 or sent < 300:
            for writer in writers:
                sent += len(writer.send_many(7))
        assert hub.status()["scrub"]["damaged"] == dict.fromkeys(KINDS, 0)
    assert [row["event"] for row in log_rows(lines)] == ["started", "stopped"]


class Simulation:
    """A scrubber on a clock that only its own waits advance."""

    def __init__(self, data_dir: Path, bytes_per_s: int, pause_s: float) -> None:
        self.time = 1000.0
        self.folders = Folders(data_dir)
        self.index = Index(self.folders.index, readonly=True)
        hub_metadata = read_metadata(self.folders)
        self.scrubber = Scrubber(
            DirectoryScrub(self.folders, self.index, lambda: hub_metadata, metadata.check_key),
            self.folders.scrub,
            bytes_per_s,
            pause_s,
            lambda: self.time,
            lambda: self.time,
        )

    def until(self, condition: Callable[[], bool]) -> list[tuple[float, int]]:
        """Step until a condition holds. Returns when each step ended, and how much it read."""
        steps = []
        while not condition():
            before = self.scrubber.checked_bytes
            wait_s = self.scrubber.step().wait_s
            steps.append((self.time, self.scrubber.checked_bytes - before))
            self.time += wait_s
        return steps


@pytest.fixture
def large(tmp_path: Path) -> Path:
    data_dir = make_dir(tmp_path, limits=Limits(max_checkpoint_interval=64))
    with running(data_dir, disk=QuickDisk(), scrub_bytes_per_s=0) as hub:
        writer = hub.writer()
        for _ in range(100):
            writer.send(bytes(10_000))
    return data_dir


def test_the_scrubber_reads_at_most_its_share(large: Path) -> None:
    rate = 50_000
    run = Simulation(large, rate, 1000.0)
    steps = run.until(lambda: run.scrubber.passes == 2)
    assert sum(size for _, size in steps) >= 2 * sum(path.stat().st_size for path in (large / "log").iterdir())
    largest = max(size for _, size in steps)
    assert largest <= FRAME_BYTES
    for first, (start, _) in enumerate(steps):
        read = 0
        for time, size in steps[first:]:
            read += size
            assert read <= rate * (time - start) + largest + 1  # rounding
    gaps = [later - time for (time, _), (later, _) in pairwise(steps)]
    assert max(gaps) > 500, "a pass must wait for the pause after the one before"
    run.index.close()


def test_damaged_chunks_are_checked_again_before_the_next_pass(large: Path) -> None:
    chunk = next(path for path in artifacts(large) if path.name.endswith("00064.log"))
    sound = chunk.read_bytes()
    flip(chunk)
    run = Simulation(large, 1 << 30, 100 * RECHECK_S)
    run.until(lambda: run.scrubber.passes == 1)
    assert run.scrubber.damaged_by_kind()["chunk"] == 1
    chunk.write_bytes(sound)
    run.until(lambda: not run.scrubber.damaged)
    assert run.scrubber.passes == 1
    run.index.close()


def test_position_and_damage_survive_a_restart(large: Path) -> None:
    chunk = next(path for path in artifacts(large) if path.name.endswith("00064.log"))
    flip(chunk)
    first = Simulation(large, 1 << 30, 1000.0)
    first.until(lambda: first.scrubber.pass_entries > 0 or bool(first.scrubber.damaged))
    first.until(lambda: bool(first.scrubber.damaged))
    first.scrubber.step()
    first.scrubber.save()
    first.index.close()
    again = Simulation(large, 1 << 30, 1000.0)
    assert not again.scrubber.damaged
    again.until(lambda: bool(again.scrubber.damaged))
    assert again.scrubber.passes == 0
    before = again.scrubber.checked_bytes
    again.until(lambda: again.scrubber.passes == 1)
    whole = sum(path.stat().st_size for path in (large / "log").iterdir())
    assert again.scrubber.checked_bytes - before < whole, "the pass must continue where it stopped"
    again.index.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"place":["zz",1]}', b"\xff\x00"], ids=range(5))
def test_a_useless_position_file_only_starts_over(large: Path, content: bytes) -> None:
    Folders(large).scrub.write_bytes(content)
    run = Simulation(large, 1 << 30, 1000.0)
    run.until(lambda: run.scrubber.passes == 1)
    assert not run.scrubber.damaged
    assert json.loads(Folders(large).scrub.read_text())["finished"] is True
    run.index.close()
    assert fsck.check(large).verdict is FsckVerdict.CLEAN
    assert not fsck.check(large).findings


def test_a_hub_without_scrubber_reads_nothing(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), scrub_bytes_per_s=0) as hub:
        assert hub.status()["scrub"] is None
        assert b"veen_scrub" not in hub.get("/metrics").body
