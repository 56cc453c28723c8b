"""The simulated disk keeps what a real one promises to keep, and loses what a real one may lose."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lab.disk import (
    ERRORS,
    Coverage,
    Damage,
    Died,
    EverythingSurvives,
    Fault,
    Plan,
    Platter,
    RemovalsSurvive,
    SeededSurvival,
    SimulatedDisk,
    Survival,
    artifact_of,
    at_call,
)

SEEDS = range(60)
OLD, NEW = b"o" * 3000, b"n" * 3000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "hub" / "journal").mkdir(parents=True)
    return tmp_path / "hub"


def disk_of(root: Path, plan: Plan | None = None) -> SimulatedDisk:
    return SimulatedDisk(Platter(root), plan)


def failing(name: str, fault: Fault) -> Plan:
    return lambda call: fault if call.name == name else None


def appended(disk: SimulatedDisk, path: Path, data: bytes, *, sync: bool = False) -> int:
    fd = disk.open_append(path)
    disk.write(fd, data)
    if sync:
        disk.sync(fd)
    return fd


def stored(disk: SimulatedDisk, path: Path, data: bytes) -> None:
    os.close(appended(disk, path, data, sync=True))
    disk.sync_folder(path.parent)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_synced_file_with_a_synced_name_survives_every_power_cut(root: Path, seed: int) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    appended(disk, root / "b", NEW)
    disk.cut_power(SeededSurvival(Random(seed)))
    assert (root / "a").read_bytes() == OLD


def test_an_unsynced_write_is_lost_torn_at_sectors_or_whole(root: Path, tmp_path: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    fd = disk.open_update(root / "a")
    disk.write_at(fd, NEW, 0)
    state = disk.platter.state()
    found = {state.after_power_cut(SeededSurvival(Random(seed))).files["a"][0] for seed in SEEDS}
    assert {OLD, NEW} < found
    for content in found:
        for at in range(0, len(OLD), 512):
            assert content[at : at + 512] in (OLD[at : at + 512], NEW[at : at + 512])


def test_an_appended_write_may_leave_zeros_in_its_place(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    appended(disk, root / "a", NEW)
    state = disk.platter.state()
    found = [state.after_power_cut(SeededSurvival(Random(seed))).files["a"][0] for seed in range(200)]
    assert any(len(content) == len(OLD + NEW) and bytes(512) in content for content in found)
    assert any(len(OLD) < len(content) < len(OLD + NEW) for content in found)


def test_a_synced_file_without_a_synced_name_may_be_gone(root: Path) -> None:
    disk = disk_of(root)
    appended(disk, root / "a", OLD, sync=True)
    state = disk.platter.state()
    found = [state.after_power_cut(SeededSurvival(Random(seed))).files.get("a", (None, 0))[0] for seed in SEEDS]
    assert set(found) == {None, OLD}


def test_a_kill_keeps_what_was_written_but_does_not_make_it_durable(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    appended(disk, root / "a", NEW)
    disk.kill()
    assert (root / "a").read_bytes() == OLD + NEW
    SimulatedDisk(disk.platter).cut_power(Survival())
    assert (root / "a").read_bytes() == OLD


def test_a_sync_of_the_next_process_makes_the_writes_of_a_killed_one_durable(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    appended(disk, root / "a", NEW)
    disk.kill()
    disk = SimulatedDisk(disk.platter)
    fd = disk.open_append(root / "a")
    disk.sync(fd)
    disk.cut_power(Survival())
    assert (root / "a").read_bytes() == OLD + NEW


def test_no_later_sync_makes_the_writes_of_a_failed_sync_durable(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    fd = appended(disk, root / "a", NEW)
    disk.plan = at_call(disk.calls + 1, Fault.FAILED_SYNC)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.sync(fd)
    assert (root / "a").read_bytes() == OLD + NEW  # as in the page cache of a real machine
    disk.write(fd, b"later")
    disk.sync(fd)
    disk.cut_power(EverythingSurvives())
    found = (root / "a").read_bytes()
    assert found.endswith(b"later")
    assert found != OLD + NEW + b"later"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replaced_file_is_the_old_or_the_new_one_until_its_folder_is_synced(root: Path, seed: int) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    disk.write_file(root / "a", NEW)
    state = disk.platter.state()
    found = state.after_power_cut(SeededSurvival(Random(seed))).files
    assert found["a"][0] in (OLD, NEW)
    assert found.get("a.draft", (NEW, 0))[0] in (NEW, b"")
    disk.sync_folder(root)
    disk.cut_power(SeededSurvival(Random(seed)))
    assert (root / "a").read_bytes() == NEW
    assert not (root / "a.draft").exists()


def test_a_removed_file_may_come_back_until_its_folder_is_synced(root: Path) -> None:
    disk = disk_of(root)
    for name in "abc":
        stored(disk, root / name, OLD)
    for name in "abc":
        disk.unlink(root / name)
    state = disk.platter.state()
    found = {tuple(state.after_power_cut(SeededSurvival(Random(seed))).files) for seed in range(200)}
    assert {(), ("a", "b", "c"), ("b",), ("c",)} <= found
    assert not state.after_power_cut(RemovalsSurvive()).files
    disk.sync_folder(root)
    disk.cut_power(Survival())
    assert not list(root.glob("[abc]"))


def test_a_file_with_a_second_name_survives_under_one_of_them(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "journal" / "a", OLD)
    disk.link(root / "journal" / "a", root / "b")
    disk.sync_folder(root)
    disk.unlink(root / "journal" / "a")
    found = disk.platter.state().after_power_cut(RemovalsSurvive()).files
    assert {path: content for path, (content, _) in found.items()} == {"b": OLD}
    disk.cut_power(Survival())
    assert ((root / "b").read_bytes(), (root / "journal" / "a").read_bytes()) == (OLD, OLD)


def test_a_folder_whose_name_was_not_synced_takes_its_files_with_it(root: Path) -> None:
    disk = disk_of(root)
    disk.make_folder(root / "log" / "inner")
    stored(disk, root / "log" / "inner" / "a", OLD)
    assert disk.platter.state().after_power_cut(Survival()).folders == ("journal",)
    disk.sync_folder(root / "log")
    disk.sync_folder(root)
    disk.cut_power(Survival())
    assert (root / "log" / "inner" / "a").read_bytes() == OLD


def test_a_renamed_folder_has_its_old_or_its_new_name(root: Path) -> None:
    disk = disk_of(root)
    disk.make_folder(root / "index.draft")
    stored(disk, root / "index.draft" / "a", OLD)
    disk.sync_folder(root)
    disk.replace(root / "index.draft", root / "index")
    state = disk.platter.state()
    found = {tuple(state.after_power_cut(SeededSurvival(Random(seed))).files) for seed in SEEDS}
    assert found == {("index.draft/a",), ("index/a",)}


def test_a_sync_of_the_file_system_makes_everything_durable(root: Path) -> None:
    disk = disk_of(root)
    appended(disk, root / "journal" / "a", OLD)
    disk.sync_filesystem(root)
    disk.cut_power(Survival())
    assert (root / "journal" / "a").read_bytes() == OLD


def test_a_truncation_is_done_or_not_until_it_is_synced(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    disk.truncate(disk.open_append(root / "a"), 10)
    state = disk.platter.state()
    found = {state.after_power_cut(SeededSurvival(Random(seed))).files["a"][0] for seed in SEEDS}
    assert found == {OLD, OLD[:10]}


def test_changes_without_the_disk_are_durable(root: Path) -> None:
    disk = disk_of(root)
    stored(disk, root / "a", OLD)
    (root / "a").write_bytes(b"by LMDB")
    (root / "b").write_bytes(b"new")
    disk.cut_power(Survival())
    assert ((root / "a").read_bytes(), (root / "b").read_bytes()) == (b"by LMDB", b"new")


def test_the_mode_of_a_file_survives(root: Path) -> None:
    disk = disk_of(root)
    disk.write_file(root / "a", OLD, 0o600)
    disk.sync_folder(root)
    disk.cut_power(Survival())
    assert (root / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("fault", "left"), [(Fault.DIE_BEFORE, b""), (Fault.DIE_DURING, NEW[:1500]), (Fault.DIE_AFTER, NEW)]
)
def test_a_process_dies_before_during_or_after_a_write(root: Path, fault: Fault, left: bytes) -> None:
    disk = disk_of(root, at_call(2, fault))
    with pytest.raises(Died):
        appended(disk, root / "a", NEW)
    assert (root / "a").read_bytes() == left
    with pytest.raises(Died):
        disk.unlink(root / "a")


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC])
def test_a_failed_write_leaves_half_of_its_data(root: Path, fault: Fault) -> None:
    disk = disk_of(root, at_call(2, fault))
    with pytest.raises(OSError) as failed:  # noqa: PT011  the number is checked
        appended(disk, root / "a", NEW)
    assert failed.value.errno == getattr(errno, fault)
    assert (root / "a").read_bytes() == NEW[:1500]


def test_every_call_can_fail(root: Path) -> None:
    calls: dict[str, Callable[[SimulatedDisk], object]] = {
        "open": lambda disk: disk.open_append(root / "a"),
        "write": lambda disk: disk.write(appended(disk, root / "a", OLD), NEW),
        "write_at": lambda disk: disk.write_at(appended(disk, root / "a", OLD), NEW, 0),
        "truncate": lambda disk: disk.truncate(appended(disk, root / "a", OLD), 1),
        "sync": lambda disk: disk.sync(appended(disk, root / "a", OLD)),
        "sync_folder": lambda disk: disk.sync_folder(root),
        "sync_filesystem": lambda disk: disk.sync_filesystem(root),
        "replace": lambda disk: disk.replace(root / "a", root / "b"),
        "link": lambda disk: disk.link(root / "a", root / "b"),
        "unlink": lambda disk: disk.unlink(root / "a"),
        "make_folder": lambda disk: disk.make_folder(root / "c"),
        "remove_tree": lambda disk: disk.remove_tree(root / "c"),
        "commit": lambda disk: disk.commit(root / "a", OLD, lambda: None, durable=True),
    }
    assert calls.keys() == ERRORS.keys()
    for name, act in calls.items():
        for fault in ERRORS[name]:
            disk = disk_of(root, failing(name, fault))
            with pytest.raises(OSError, match="No space" if fault is Fault.ENOSPC else "Input/output"):
                act(disk)
            disk.kill()


def test_the_end_of_a_process_closes_its_descriptors_and_no_others(root: Path) -> None:
    disk = disk_of(root)
    mine, closed = appended(disk, root / "a", OLD), appended(disk, root / "b", OLD)
    os.close(closed)
    other = os.open(root / "b", os.O_RDONLY)
    disk.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(mine)
    os.close(other)


def test_the_same_seed_leaves_the_same(root: Path) -> None:
    disk = disk_of(root)
    for name in "abcdef":
        appended(disk, root / name, NEW)
    state = disk.platter.state()
    first, again, other = (state.after_power_cut(SeededSurvival(Random(seed))) for seed in (1, 1, 2))
    assert first == again != other


def test_each_kind_of_damage_changes_the_file_as_it_says(root: Path) -> None:
    for kind in Damage:
        path = root / f"{kind}"
        disk = disk_of(root)
        stored(disk, path, OLD)
        stored(disk, path, NEW)
        assert disk.platter.damage(path, kind, Random(3))
        found = path.read_bytes() if path.exists() else None
        match kind:
            case Damage.BIT_ROT:
                assert sum((a ^ b).bit_count() for a, b in zip(found or b"", OLD + NEW, strict=True)) == 1
            case Damage.MISDIRECTED:
                assert found != OLD + NEW
                assert len(found or b"") == len(OLD + NEW)
            case Damage.LOST_WRITE:
                assert found == OLD + bytes(len(NEW))
            case Damage.ROLLED_BACK:
                assert found in (OLD, b"")
            case Damage.MISSING:
                assert found is None
        SimulatedDisk(disk.platter).cut_power(EverythingSurvives())
        assert (path.read_bytes() if path.exists() else None) == found
        path.unlink(missing_ok=True)


def test_a_replaced_file_can_be_rolled_back_to_an_older_one_also_after_a_power_cut(root: Path) -> None:
    disk = disk_of(root)
    for content in (b"1", b"2", b"3"):
        disk.write_file(root / "a", content)
        disk.sync_folder(root)
    disk.cut_power(Survival())
    assert disk.platter.damage(root / "a", Damage.ROLLED_BACK, Random(0))
    assert (root / "a").read_bytes() in (b"1", b"2")


def test_coverage_counts_artifact_call_and_fault_and_names_what_is_missing(root: Path) -> None:
    coverage = Coverage()
    disk = SimulatedDisk(Platter(root, coverage), at_call(2, Fault.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        appended(disk, root / "journal" / "00000000000000000001.wal", OLD)
    expected = [("journal", "write", "ENOSPC"), ("journal", "open", "none"), ("journal", "sync", "failed sync")]
    assert coverage.missing(expected) == [("journal", "sync", "failed sync")]
    other = Coverage()
    other.count("journal", "sync", "failed sync")
    coverage.merge(other)
    assert not coverage.missing(expected)
    assert coverage.table()[0].split() == ["journal", "open", "none", "1"]


def test_a_crash_point_is_the_calls_before_it_and_what_survived_not_the_content(tmp_path: Path) -> None:
    coverage = Coverage()

    def crash(name: str, content: bytes, survival: Survival) -> int:
        (tmp_path / name).mkdir()
        disk = SimulatedDisk(Platter(tmp_path / name, coverage))
        appended(disk, tmp_path / name / "a", content)
        disk.cut_power(survival)
        return len(coverage.crash_points)

    assert crash("1", OLD, Survival()) == 1
    assert crash("2", NEW, Survival()) == 1
    assert crash("3", OLD, EverythingSurvives()) == 2
    assert crash("4", OLD[:-1], Survival()) == 3


def test_files_are_counted_by_their_kind() -> None:
    label, number = "ab" * 32, "0" * 20
    names = {
        f"journal/{number}.wal": "journal",
        "journal.mark": "journal mark",
        f"log/chunk-{label}-{number}-open.log": "open chunk",
        f"log/chunk-{label}-{number}-{number}.log.zst": "chunk",
        f"log/chunk-{label}-{number}-{number}.summary": "summary",
        f"log/peaks-{label}-{number}.cbor": "peaks",
        f"log/checkpoint-{label}-{number}.cbor.draft": "checkpoint",
        f"log/checkpoint-index-{label}.cbor": "checkpoint index",
        f"index/nodes/{label}.mmr": "nodes",
        "index/data.mdb": "index",
        "checkpoint-binding.cbor": "binding",
        "hub-identity.json": "metadata",
        "limits.json.draft": "limits",
        "handovers/0123.cbor": "hand-over",
        "attachments/ab": "attachment",
        "keys/control.seed": "key",
        "log": "folder log",
    }
    assert {path: artifact_of(Path("/hub") / path) for path in names} == names
