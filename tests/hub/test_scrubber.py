"""The background scrubber finds damage while the hub runs, reports no sound file, and reads a bounded share."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub.client import Hub, log_file, log_rows, make_dir, running, until
from tests.hub.disks import QuickDisk
from veen.core import Limits
from veen.hub.scrubber import RECHECK_S, Scrubber
from veen.storage import fsck
from veen.storage.chunk_reader import FRAME_BYTES
from veen.storage.fsck import FsckVerdict
from veen.storage.index import Index
from veen.storage.log_scrub import KINDS, LogScrub, ScrubStep, kind_of
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

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
        metadata = read_metadata(folders)
        yield from LogScrub(folders, index, lambda: metadata).walk(None)
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
    assert {kind_of(path.name) for path in artifacts(written)} == set(KINDS)
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
        metadata = read_metadata(self.folders)
        self.scrubber = Scrubber(
            LogScrub(self.folders, self.index, lambda: metadata),
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
