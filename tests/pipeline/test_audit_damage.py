"""An audit finds every kind of damage at its place, and reports nothing else."""

import re
from pathlib import Path

import pytest

from bench.big_log import BigLog
from tests.pipeline.damage import artifacts, copied, findings, flip, frames, places, rewrite, swap
from veen.core import Limits, Profile
from veen.pipeline.audit import audit
from veen.pipeline.jobs import run_inline

CHUNK = "log/chunk-*-0*[0-9].log"
ARTIFACTS = {
    "chunk": (CHUNK, 60),
    "open chunk": ("log/chunk-*-open.log", 40),
    "summary": ("log/*.summary", 30),
    "peaks": ("log/peaks-*", 30),
    "checkpoint": ("log/checkpoint-[0-9a-f]*-*", 30),
    "checkpoint index": ("log/checkpoint-index-*", 20),
    "identity": ("hub-identity.json", 20),
    "signature": ("hub-identity.sig", 20),
    "key map": ("hub-key-map.json", 10),
    "profile": ("profile.json", 20),
    "binding": ("checkpoint-binding.cbor", 30),
}
# Findings that cannot be distinguished from it, or that follow from it.
METADATA_FILES = {"hub-identity.json", "hub-identity.sig", "hub-key-map.json", "log"}
BESIDE = {"identity": METADATA_FILES, "signature": {"log"}, "profile": {"log"}}
LOGGED = [name for name, (pattern, _) in ARTIFACTS.items() if pattern.startswith("log/")]
SINGLE = [name for name in ARTIFACTS if name not in LOGGED]


def files(root: Path, artifact: str) -> list[Path]:
    return sorted(root.glob(ARTIFACTS[artifact][0]))


def names(*paths: Path, root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in paths)


def test_a_sound_log_has_no_findings(log: BigLog) -> None:
    assert findings(log.folders.root) == []


@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_a_flipped_bit_is_found_where_it_is(log: BigLog, place: Path, artifact: str, share: int) -> None:
    root = copied(log.folders.root, place / "hub")
    for path in files(root, artifact)[1:3] or files(root, artifact):
        sound = path.read_bytes()
        for at, bit in places(len(sound), ARTIFACTS[artifact][1] // share, artifact):
            flip(path, at, bit)
            found = artifacts(root)
            (name,) = names(path, root=root)
            beside = BESIDE.get(artifact, set())
            # Either the record or its signature may be the one that changed.
            assert name in found or (artifact == "identity" and "hub-identity.sig" in found), (at, bit, findings(root))
            assert set(found) - {name} <= beside, (artifact, at, bit, findings(root))
            path.write_bytes(sound)


@pytest.mark.parametrize("artifact", LOGGED)
def test_a_truncated_file_is_found_where_it_is(log: BigLog, place: Path, artifact: str) -> None:
    root = copied(log.folders.root, place / "hub")
    path = files(root, artifact)[0]
    sound = path.read_bytes()
    for size in {len(sound) - 1, len(sound) // 2, 1}:
        path.write_bytes(sound[:size])
        (found,) = artifacts(root)
        # If no whole entry is left, the end of the label is missing, not one file.
        assert found in (*names(path, root=root), f"log/{path.name[:70]}-*"), (size, findings(root))


@pytest.mark.parametrize("artifact", [name for name in LOGGED if name != "open chunk"])
def test_two_files_swapped_are_both_found(log: BigLog, place: Path, artifact: str) -> None:
    root = copied(log.folders.root, place / "hub")
    one, other = files(root, artifact)[:2]
    swap(one, other)
    assert artifacts(root) == names(one, other, root=root), findings(root)


@pytest.mark.parametrize("artifact", ["chunk", "summary", "peaks", "checkpoint", "checkpoint index"])
def test_a_removed_file_is_the_only_finding(log: BigLog, place: Path, artifact: str) -> None:
    root = copied(log.folders.root, place / "hub")
    for path in files(root, artifact):
        sound = path.read_bytes()
        path.unlink()
        assert artifacts(root) == names(path, root=root), findings(root)
        path.write_bytes(sound)


def test_a_removed_open_chunk_is_found(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = files(root, "open chunk")[0]
    path.unlink()
    (found,) = findings(root)
    assert found.artifact.startswith("log/chunk-")
    assert found.stream_seq == int(path.name.split("-")[2])


# The number to change in the name of the copy: the last, or the one before it.
COPIES = [(name, -1) for name in LOGGED] + [("chunk", -2), ("summary", -2)]


@pytest.mark.parametrize(("artifact", "at"), COPIES)
@pytest.mark.parametrize("step", [1, -1])
def test_a_duplicate_under_another_name_is_the_only_finding(
    log: BigLog, place: Path, artifact: str, at: int, step: int
) -> None:
    for number in range(len(files(log.folders.root, artifact))):
        root = copied(log.folders.root, place / f"hub {number}")
        path = files(root, artifact)[number]
        double = path.with_name(another(path.name, at, step))
        if double.exists():
            continue
        double.write_bytes(path.read_bytes())
        assert artifacts(root) == names(double, root=root), findings(root)


def another(name: str, at: int, step: int) -> str:
    """A name with one of its numbers changed, or its label if it has none."""
    numbers = list(re.finditer(r"(?<=-)\d{20}(?=[-.])", name))
    if not numbers:
        return re.sub(r"[0-9a-f]{64}", lambda found: found[0][::-1], name)
    found = numbers[at]
    return f"{name[: found.start()]}{int(found[0]) + step:020d}{name[found.end() :]}"


@pytest.mark.parametrize("change", ["truncated", "emptied", "removed", "of another hub"])
@pytest.mark.parametrize("artifact", SINGLE)
def test_metadata_of_another_hub_is_found(log: BigLog, place: Path, artifact: str, change: str) -> None:
    root = copied(log.folders.root, place / "hub")
    (path,) = files(root, artifact)
    match change:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-1])
        case "emptied":
            path.write_bytes(b"")
        case "removed":
            path.unlink()
        case _:
            other = BigLog(place / "other", profile=Profile(pad_block=512))
            other.grow(9)
            path.write_bytes((place / "other" / path.name).read_bytes())
    found, (name,) = set(artifacts(root)), names(path, root=root)
    assert name in found or (artifact == "identity" and "hub-identity.sig" in found), findings(root)
    assert found - {name} <= BESIDE.get(artifact, set()), findings(root)


def test_a_foreign_file_in_the_log_folder_is_found(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    (root / "log" / "notes.txt").write_text("hello")
    assert artifacts(root) == ["log/notes.txt"]


@pytest.mark.parametrize("change", ["removed", "duplicated", "swapped", "moved from another label"])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_entries_out_of_place_are_found_at_the_first_of_them(log: BigLog, place: Path, change: str, at: int) -> None:
    root = copied(log.folders.root, place / "hub")
    chunks = files(root, "chunk")
    path, elsewhere = chunks[1], next(one for one in chunks if one.name[:20] != chunks[1].name[:20])
    entries = frames(path)
    match change:
        case "removed":
            del entries[at]
        case "duplicated":
            entries.insert(at, entries[at])
            at += 1
        case "swapped":
            entries[at], entries[at + 1] = entries[at + 1], entries[at]
        case _:
            entries[at] = frames(elsewhere)[at]
    rewrite(path, entries)
    start = int(path.name.split("-")[2])
    found = findings(root)
    assert {one.artifact for one in found} == {f"log/{path.name}"}, found
    assert {one.stream_seq for one in found} == {start + at}, found


@pytest.mark.slow
def test_a_flipped_byte_is_a_finding_of_its_entry_only(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = files(root, "chunk")[1]
    sound, lengths = path.read_bytes(), [len(one) for one in frames(path)]
    start, begin, size = int(path.name.split("-")[2]), sum(lengths[:2]), lengths[2]
    for at in range(begin, begin + size, 7):
        flip(path, at, at % 8)
        found = findings(root)
        assert {(one.artifact, one.stream_seq) for one in found} == {(f"log/{path.name}", start + 2)}, (at, found)
        path.write_bytes(sound)


@pytest.mark.parametrize("where", [150, 400, -30, -90, -120])
def test_damage_after_damage_is_found_as_well(log: BigLog, place: Path, where: int) -> None:
    root = copied(log.folders.root, place / "hub")
    path, summary = files(root, "chunk")[1], files(root, "summary")[1]
    lengths, start = [len(one) for one in frames(path)], int(path.name.split("-")[2])
    flip(path, sum(lengths[:1]) + where % lengths[1])
    flip(path, sum(lengths[:5]) - 10)
    flip(summary, 60)
    found = {(one.artifact, one.stream_seq) for one in findings(root)}
    assert found == {(f"log/{path.name}", start + 1), (f"log/{path.name}", start + 4), (f"log/{summary.name}", None)}


def test_a_large_chunk_after_a_damaged_snapshot_is_verified_whole(place: Path) -> None:
    """Its pieces are large: alone, the chunk would be dealt out in smaller ones than in the first round."""
    made = BigLog(place / "hub", limits=Limits(max_checkpoint_interval=4_000))
    made.grow(12_000)
    snapshot = min(made.folders.log.glob("peaks-*"))
    flip(snapshot, 60)
    (found,) = audit([str(made.folders.root)], run_inline, parallelism=1).directories
    assert [(one.artifact, one.what) for one in found.findings] == [
        (f"log/{snapshot.name}", "it differs from what the tree yields")
    ]
    (links,) = found.labels.values()
    assert [link.outcome.entries for link in links] == [4_000, 4_000, 4_000]
