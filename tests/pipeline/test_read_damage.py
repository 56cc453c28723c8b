"""Reads of damaged data directories never mark a wrong row as ok and never skip an entry silently."""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from bench.big_log import BORN, BigLog
from tests.hub.client import Clock, running
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import Damage, copied, flip, frames, rewrite, rows, run_audit, swap
from tests.storage.hubs import NOW, PACKED, History, Hub, QuickDisk, receipts, small_history
from veen.core import Mmr, Msg, Unavailable, Unverified, VeenError, mmr
from veen.pipeline import plan, select
from veen.pipeline.extents import extent_of
from veen.pipeline.sources import DirectoryChunks, RemoteFiles
from veen.storage import fork, frame
from veen.storage.artifacts import ChunkSummary, PeakSnapshot
from veen.storage.lock import exclusive
from veen.storage.paths import ChunkName, Folders

Entries = dict[tuple[bytes, int], tuple[bytes, bytes]]
COLUMNS = ("label", "stream_seq", "msg", "receipt")
CHUNK = 1  # the second chunk of the first label: entries 8 to 14
FIRST = 8


def chunks(root: Path) -> list[Path]:
    """Closed chunks, compressed or not, by label and start."""
    return sorted(path for path in root.glob("log/chunk-*") if (name := ChunkName.parse(path.name)) and name.end_seq)


def label_of(root: Path) -> str:
    """The first label."""
    return sorted(path.name[6:70] for path in root.glob("log/chunk-*"))[0]


def last_chunk(root: Path) -> Path:
    return [path for path in chunks(root) if label_of(root) in path.name][-1]


def open_chunk(root: Path) -> Path:
    return next(root.glob(f"log/chunk-{label_of(root)}-*-open.log"))


def artifact(root: Path, pattern: str, at: int = CHUNK) -> Path:
    return sorted(root.glob(pattern))[at]


def flipped(where: int, entry: int = 3) -> Damage:
    def damage(root: Path) -> None:
        path = chunks(root)[CHUNK]
        lengths = [len(one) for one in frames(path)]
        flip(path, sum(lengths[:entry]) + where % lengths[entry])

    return damage


def flipped_file(pattern: str, at: int = 60) -> Damage:
    return lambda root: flip(artifact(root, pattern), at)


def swapped_files(pattern: str, one: int, other: int) -> Damage:
    return lambda root: swap(artifact(root, pattern, one), artifact(root, pattern, other))


def cut(path: Path, entries: int) -> None:
    """Remove the last entries."""
    rewrite(path, frames(path)[:-entries])


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def copy_over(root: Path) -> None:
    shutil.copy(chunks(root)[CHUNK], chunks(root)[CHUNK + 1])


def renamed_copy(start: int, end: int) -> Damage:
    """A copy of a chunk under a name with other ends."""

    def damage(root: Path) -> None:
        path = chunks(root)[CHUNK]
        name = ChunkName.parse(path.name)
        assert name
        assert name.end_seq
        shutil.copy(path, path.with_name(ChunkName(name.label, name.start_seq + start, name.end_seq + end).file_name()))

    return damage


def in_chunk(change: str) -> Damage:
    def damage(root: Path) -> None:
        path, elsewhere = chunks(root)[CHUNK], chunks(root)[-1]
        entries = frames(path)
        match change:
            case "removed":
                del entries[2]
            case "last removed":
                del entries[-1]
            case "duplicated":
                entries.insert(2, entries[2])
            case "swapped":
                entries[2], entries[3] = entries[3], entries[2]
            case "of another label":
                entries[2] = frames(elsewhere)[2]
            case "of another chunk":
                entries[2] = frames(chunks(root)[CHUNK + 1])[2]
            case "added":
                entries.append(frames(chunks(root)[CHUNK + 1])[0])
        rewrite(path, entries)

    return damage


def split_chunk_with_summary(root: Path) -> None:
    """Add the second half of a chunk again, as a chunk of its own with all artifacts."""
    path = chunks(root)[0]
    name = ChunkName.parse(path.name)
    assert name
    assert name.end_seq == 7
    entries, folders, tree, hashes = frames(path), Folders(root), Mmr(), Mmr()
    for number, entry in enumerate(entries, 1):
        opened, _ = frame.read(entry)
        tree.append(Msg.decode(opened.msg).leaf_hash())
        if number == 4:
            folders.peaks(name.label, 4).write_bytes(PeakSnapshot(name.label, 4, tuple(tree.peaks)).encode())
        if number > 4:
            hashes.append(opened.entry_hash)
    half = path.with_name(ChunkName(name.label, 5, 7).file_name())
    rewrite(half, entries[4:])
    summary = ChunkSummary(name.label, 5, 7, mmr.root_of(tree.peaks), 3, half.stat().st_size, hashes.root())
    folders.summary(name.label, 5, 7).write_bytes(summary.encode())


def binding_of_another_label(root: Path) -> None:
    path = root / "checkpoint-binding.cbor"
    path.write_bytes(path.read_bytes().replace(bytes.fromhex(label_of(root)), bytes(32), 1))


def without_label(*more: str) -> Damage:
    def damage(root: Path) -> None:
        label = label_of(root)
        for path in (root / "log").glob(f"*{label}*"):
            path.unlink()
        for name in more:
            (root / name.format(label=label)).unlink()

    return damage


def without_chunk(at: int, *, beside: bool = False) -> Damage:
    def damage(root: Path) -> None:
        path = chunks(root)[at] if at >= 0 else last_chunk(root)
        name = ChunkName.parse(path.name)
        assert name
        path.unlink()
        if beside:
            for other in (root / "log").glob(f"*{name.label.hex()}*-{name.end_seq:020d}.*"):
                other.unlink()

    return damage


def without_tail(root: Path) -> None:
    """Remove the last closed chunk with its artifacts, and the open chunk."""
    open_chunk(root).unlink()
    without_chunk(-1, beside=True)(root)


HEADER = 82
# Each damage, and the error of a full read; None if every entry is still readable and valid.
DAMAGES: dict[str, tuple[Damage, str | None]] = {
    "nothing": (lambda root: None, None),
    "bit of a header's version": (flipped(0), "entry 11: entry_hash"),
    "bit of a header's label": (flipped(2), "entry 11: place"),
    "bit of a header's stream_seq": (flipped(41), "entry 11: place"),
    "bit of a message's length": (flipped(45), "entry 11: entry_hash"),
    "bit of a receipt's length": (flipped(49), "entry 11: entry_hash"),
    "bit of an entry_hash": (flipped(60), "entry 11: entry_hash"),
    "bit of a profile_id": (flipped(HEADER + 10), "entry 11: entry_hash"),
    "bit of a message's label": (flipped(HEADER + 45), "entry 11: entry_hash"),
    "bit of a client_id": (flipped(HEADER + 80), "entry 11: entry_hash"),
    "bit of a ciphertext": (flipped(HEADER + 300), "entry 11: entry_hash"),
    "bit of a client's signature": (flipped(-185), "entry 11: entry_hash"),
    "bit of a leaf_hash": (flipped(-120), "entry 11: entry_hash"),
    "bit of an mmr_root": (flipped(-90), "entry 11: entry_hash"),
    "bit of a hub's signature": (flipped(-10), "entry 11: entry_hash"),
    "bit of an open chunk": (lambda root: flip(open_chunk(root), 300), "entry 29: "),
    "bit of a summary": (flipped_file("log/*.summary"), "00014.summary: "),
    "bit of a snapshot": (flipped_file("log/peaks-*"), "log/peaks-.*00014|entry 15: root"),
    "bit of a checkpoint": (flipped_file("log/checkpoint-[0-9a-f]*-0*"), "log/checkpoint-"),
    "bit of a checkpoint index": (flipped_file("log/checkpoint-index-*", 50), None),
    "bit of the binding": (lambda root: flip(root / "checkpoint-binding.cbor", -1), None),
    "binding of another label": (binding_of_another_label, "label 0{64}, entry 1: .*checkpoint-binding.cbor"),
    "entry removed": (in_chunk("removed"), "entry 10: "),
    "last entry of a chunk removed": (in_chunk("last removed"), "entry 14: "),
    "entry duplicated": (in_chunk("duplicated"), "entry 11: "),
    "entries swapped": (in_chunk("swapped"), "entry 10: "),
    "entry of another label": (in_chunk("of another label"), "entry 10: "),
    "entry of another chunk": (in_chunk("of another chunk"), "entry 10: "),
    "entry added to a chunk": (in_chunk("added"), "entry 15: |continues after"),
    "chunks swapped": (lambda root: swap(chunks(root)[CHUNK], chunks(root)[CHUNK + 1]), "entry 8: "),
    "chunks of two labels swapped": (lambda root: swap(chunks(root)[CHUNK], chunks(root)[CHUNK + 4]), "entry 8: "),
    "summaries swapped": (swapped_files("log/*.summary", 1, 2), "00014.summary: "),
    "snapshots swapped": (swapped_files("log/peaks-*", 1, 2), "peaks-|anchor"),
    "checkpoints swapped": (swapped_files("log/checkpoint-[0-9a-f]*-0*", 1, 2), "log/checkpoint-"),
    "copy that ends later": (renamed_copy(0, 1), None),
    "copy that ends earlier": (renamed_copy(0, -1), None),
    "copy that begins later": (renamed_copy(1, 0), None),
    "copy that begins earlier": (renamed_copy(-1, 0), None),
    "copy in the next chunk's place": (copy_over, "entry 15: "),
    "part of a chunk as one of its own": (split_chunk_with_summary, "entry 5: it repeats entries of"),
    "chunk cut by a byte": (lambda root: shorten(chunks(root)[CHUNK], -1), "entry 14: "),
    "chunk cut within its first entry": (lambda root: shorten(chunks(root)[CHUNK], 30), "entry 8: "),
    "chunk emptied": (lambda root: shorten(chunks(root)[CHUNK], 0), "entry 8: "),
    "open chunk cut by a byte": (lambda root: shorten(open_chunk(root), -1), "entry 3[01]: entry 3[01] is missing"),
    "open chunk without its last two entries": (lambda root: cut(open_chunk(root), 2), "entry (29|30): entr"),
    "open chunk emptied": (lambda root: shorten(open_chunk(root), 0), "entry 29: entr"),
    "summary removed": (lambda root: artifact(root, "log/*.summary").unlink(), "00014.summary is missing"),
    "snapshot removed": (lambda root: artifact(root, "log/peaks-*").unlink(), "anchor|peaks-.* is missing"),
    "checkpoint removed": (lambda root: artifact(root, "log/checkpoint-[0-9a-f]*-0*").unlink(), "is missing"),
    "first chunk removed": (without_chunk(0), "00001-00000000000000000007.log, entry 1: entries 1 to 7 are missing"),
    "chunk removed": (without_chunk(CHUNK), "00008-00000000000000000014.log, entry 8: entries 8 to 14 are missing"),
    "chunk and all beside it removed": (without_chunk(CHUNK, beside=True), "entry 8: entries 8 to 14 are missing"),
    "last closed chunk removed": (without_chunk(-1), "entry 22: entries 22 to 28 are missing"),
    "open chunk removed": (lambda root: open_chunk(root).unlink(), "entry 29: entr.* missing at the end"),
    "end of a label removed": (without_tail, "entry 22: entries 22 to 3[01] are missing at the end"),
    "label removed": (without_label(), "entry 1: entries 1 to 3[01] are missing at the end"),
    "label removed, also from the index": (
        without_label("index/nodes/{label}.mmr"),
        "entry 1: entries 1 to 28 are missing .*checkpoint-binding.cbor",
    ),
}  # fmt: skip


def truth(root: Path) -> Entries:
    return {(row["label"], row["stream_seq"]): (row["msg"], row["receipt"]) for row in found(root)}


def found(root: object, **given: Any) -> list[dict[str, Any]]:
    """All rows, as Spark would get them."""
    made = select(str(root), **given)
    return [dict(zip(made.shown(), row, strict=True)) for task in plan(made) for row in rows(task, made)]


@pytest.fixture(scope="module")
def sound(log: BigLog) -> Entries:
    entries = truth(log.folders.root)
    assert len(entries) == 61
    return entries


def flagged_places(given: list[dict[str, Any]], sound: Entries) -> set[tuple[bytes, int]]:
    """Each ok row is an entry of the sound log, once; each gap begins with a flagged row."""
    true = Counter((row["label"], row["stream_seq"]) for row in given if row["ok"])
    assert not {place for place, count in true.items() if count > 1}
    assert all(sound[row["label"], row["stream_seq"]] == (row["msg"], row["receipt"]) for row in given if row["ok"])
    flagged = {(row["label"], row["stream_seq"]) for row in given if not row["ok"] and row["faults"]}
    for label, seq in sound.keys() - true.keys():
        begins = seq == 1 or (label, seq - 1) in true
        assert not begins or (label, seq) in flagged, f"entry {seq} is missing without a flagged row"
    assert flagged or sound.keys() == true.keys()
    return flagged


@pytest.mark.parametrize("name", DAMAGES)
def test_a_full_read_of_a_damaged_directory_names_the_place(
    log: BigLog, place: Path, sound: Entries, name: str
) -> None:
    damage, expected = DAMAGES[name]
    root = copied(log.folders.root, place / "hub")
    damage(root)
    if expected is None:
        assert truth(root) == sound
        return
    with pytest.raises(VeenError, match=expected):
        found(root)


# Artifacts of chunks, which a read of entries does not need.
BESIDE = {
    "bit of a summary", "bit of a checkpoint", "summaries swapped", "checkpoints swapped", "summary removed",
    "checkpoint removed",
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_read_with_verify_entry_flags_damaged_rows(log: BigLog, place: Path, sound: Entries, name: str) -> None:
    damage, expected = DAMAGES[name]
    root = copied(log.folders.root, place / "hub")
    damage(root)
    damaged = expected is not None and name not in BESIDE
    assert bool(flagged_places(found(root, verify="entry"), sound)) == damaged


GAPS = [
    name
    for name, (_, error) in DAMAGES.items()
    if error and name.endswith("removed") and ("to" in error or "end" in error)
]


@pytest.mark.parametrize("verify", ["entry", "full"])
def test_a_range_that_does_not_touch_the_gap_is_read(log: BigLog, place: Path, verify: str) -> None:
    root = copied(log.folders.root, place / "hub")
    label = label_of(root)
    without_chunk(CHUNK)(root)
    open_chunk(root).unlink()
    for given in ({"seq_max": 7}, {"seq_min": 15, "seq_max": 28}, {"seq_min": 16, "seq_max": 20}, {"seq_min": 1000}):
        read_rows = found(root, label=label, verify=verify, **given)
        last = min(given.get("seq_max", 0), 28)
        assert [row["stream_seq"] for row in read_rows] == list(range(given.get("seq_min", 1), last + 1))
    (other,) = {one.hex() for one in log.labels} - {label}
    assert len(found(root, label=other, verify=verify)) in (30, 31)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (14, 15), (10, 12), (14, 14), (20, 29), (1, None)])
def test_a_range_that_touches_the_gap_is_rejected_or_flagged(
    log: BigLog, place: Path, first: int, last: int | None
) -> None:
    root = copied(log.folders.root, place / "hub")
    label = label_of(root)
    without_chunk(CHUNK)(root)
    open_chunk(root).unlink()
    given = {"label": label, "seq_min": first, "seq_max": last}
    with pytest.raises(Unverified, match="missing"):
        found(root, **given)
    flagged = [row for row in found(root, verify="entry", **given) if not row["ok"]]
    assert {tuple(row["faults"]) for row in flagged} == {("missing",)}
    starts = {max(FIRST, first) if first < 15 else 29} | ({29} if last is None else set())
    assert {row["stream_seq"] for row in flagged} == starts


def test_a_time_range_that_may_touch_the_gap_is_rejected_and_another_is_read(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    label = label_of(root)
    times = {row["stream_seq"]: row["hub_ts"] for row in found(root, label=label)}
    without_chunk(CHUNK)(root)
    assert len(found(root, label=label, ts_min=times[22] + 1)) == sum(at > times[22] for at in times.values())
    assert [row["stream_seq"] for row in found(root, label=label, ts_max=times[1] - 1)] == []
    for given in ({"ts_max": times[8]}, {"ts_min": times[10]}, {"ts_min": times[10], "ts_max": times[11]}):
        with pytest.raises(Unverified, match="entries 8 to 14 are missing"):
            found(root, label=label, **given)


@pytest.mark.parametrize(("first", "ts_max"), [(15, BORN + 5), (22, BORN + 4)])
def test_an_unsigned_time_does_not_exclude_chunks(log: BigLog, place: Path, first: int, ts_max: int) -> None:
    """Chunks are selected by the times of their first entries, so those receipts are verified."""
    root = copied(log.folders.root, place / "hub")
    path = chunks(root)[(first - 1) // 7]
    assert f"-{first:020d}-" in path.name
    (row,) = found(root, label=label_of(root), seq_min=first, seq_max=first)
    flip(path, frames(path)[0].rindex(row["hub_ts"].to_bytes(4, "big")), 7)
    with pytest.raises(Unverified, match=f"entry {first}: "):
        found(root, label=label_of(root), ts_max=ts_max)


@pytest.mark.parametrize("name", ["nothing", *GAPS])
def test_gaps_between_compressed_chunks_are_found(place: Path, name: str) -> None:
    made = BigLog(place / "hub", streams=2, clients=3, limits=PACKED)
    made.grow(8 * PACKED.max_checkpoint_interval + 3)
    root = made.folders.root
    assert chunks(root)
    assert all(path.suffix == ".zst" for path in chunks(root))
    sound = truth(root)
    DAMAGES[name][0](root)
    if name == "nothing":
        assert truth(root) == sound
        return
    with pytest.raises(Unverified, match="missing"):
        found(root)
    assert flagged_places(found(root, verify="entry"), sound)


@pytest.mark.parametrize("name", GAPS)
def test_gaps_are_found_in_a_remote_directory(log: BigLog, place: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    root = copied(log.folders.root, place / "hub")
    near, far = DirectoryChunks(str(root)), DirectoryChunks(str(root))
    far.files = RemoteFiles(f"file://{root}")
    assert extent_of(far, far.metadata(), None).gaps == []
    DAMAGES[name][0](root)
    gaps = extent_of(far, far.metadata(), None).gaps
    assert gaps
    assert gaps == extent_of(near, near.metadata(), None).gaps


def test_without_verification_existing_entries_are_read(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    without_chunk(CHUNK)(root)
    assert len(found(root, verify="none")) == 54


def test_a_copy_of_chunks_alone_is_read_as_far_as_they_go(log: BigLog, place: Path) -> None:
    """Such a copy cannot prove entries after its last chunk, but gaps before it show."""
    root = copied(log.folders.root, place / "hub")
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "journal")
    (root / "checkpoint-binding.cbor").unlink()
    for path in list((root / "log").iterdir()):
        if ChunkName.parse(path.name) is None and not path.name.startswith("peaks-"):
            path.unlink()
    assert len(found(root, verify="entry")) == 61
    open_chunk(root).unlink()
    assert all(row["ok"] for row in found(root, verify="entry"))
    without_chunk(CHUNK)(root)
    flagged = [(row["stream_seq"], row["faults"]) for row in found(root, verify="entry") if not row["ok"]]
    assert flagged == [(8, ["missing"])]


def test_a_checkpoint_index_proves_a_tail_where_there_is_no_binding(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    shutil.rmtree(root / "index")
    (root / "checkpoint-binding.cbor").unlink()
    assert len(found(root)) == 61
    without_tail(root)
    with pytest.raises(Unverified, match=r"entries 22 to 28 are missing .*log/checkpoint-index-"):
        found(root)


def test_a_fork_that_lacks_a_label_of_its_origin_is_incomplete(log: BigLog, place: Path) -> None:
    fork.fork(QuickDisk(), copied(log.folders.root, place / "source"), place / "hub", None, BORN + 100)
    root = place / "hub"
    assert len(found(root)) == 61
    without_label("index/nodes/{label}.mmr")(root)
    (root / "checkpoint-binding.cbor").unlink()
    with pytest.raises(Unverified, match=r"entries 1 to 3\d are missing .*origin.cbor"):
        found(root)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return small_history(tmp_path_factory.mktemp("history") / "hub")


@contextmanager
def lagging(history: History, root: Path) -> Iterator[Hub]:
    """A hub whose log is behind its journal."""
    hub = Hub(history.fresh(root))
    for number, group in enumerate(history.groups):
        receipts(hub.submit(group))
        if number % 4 == 3:
            hub.catch_up()
    assert hub.store.pending.records
    try:
        yield hub
    finally:
        hub.abandon()


@pytest.mark.parametrize("verify", ["entry", "full"])
def test_a_log_that_is_behind_its_journal_is_not_incomplete(history: History, place: Path, verify: str) -> None:
    with lagging(history, place / "hub"), exclusive(copied(place / "hub", place / "live") / "lock"):
        running_rows = found(place / "live", verify=verify)  # as while the hub runs
    assert running_rows
    assert found(place / "hub", verify=verify, columns=COLUMNS) == [
        {name: row[name] for name in COLUMNS} for row in running_rows
    ]
    assert all(row.get("ok", True) for row in running_rows)


@pytest.mark.parametrize("verify", ["entry", "full"])
def test_a_half_written_entry_is_not_missing_if_the_journal_has_it(history: History, place: Path, verify: str) -> None:
    with lagging(history, place / "hub") as hub:
        early = copied(place / "hub", place / "early")
        hub.catch_up()
        late = copied(place / "hub", place / "late")
    before = found(early, verify=verify, columns=COLUMNS)
    for path in (late / "log").iterdir():
        name = ChunkName.parse(path.name)
        if name is None:
            shutil.copy(path, early / "log")  # artifacts of closed chunks
    for path in (late / "index" / "nodes").iterdir():
        shutil.copy(path, early / "index" / "nodes")
    assert found(early, verify=verify, columns=COLUMNS) == before
    with exclusive(early / "lock"):
        assert found(early, verify=verify, columns=COLUMNS) == before
    shutil.rmtree(early / "journal")
    (early / "journal").mkdir()
    if verify == "full":
        with pytest.raises(Unverified, match="missing at the end"):
            found(early)


def test_a_missing_chunk_before_the_open_one_is_found_while_the_hub_runs(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    without_chunk(CHUNK)(root)
    with exclusive(root / "lock"), pytest.raises(Unverified, match="entries 8 to 14 are missing"):
        found(root)


def test_a_directory_is_read_while_its_hub_rolls_chunks(place: Path) -> None:
    made = BigLog(place / "hub", streams=3, clients=2, limits=SMALL)
    tasks: list[int] = []
    done = Event()

    def grow() -> None:
        try:
            for _ in range(60):
                made.grow(5)
        finally:
            done.set()

    made.grow(5)
    writer = Thread(target=grow)
    writer.start()
    with exclusive(place / "hub" / "lock"):
        while not done.is_set():
            tasks.append(sum(piece.entries for task in plan(select(place / "hub")) for piece in task))
        writer.join()
    assert tasks == sorted(tasks)
    assert len(found(place / "hub")) == 305


@pytest.mark.parametrize("verify", ["none", "entry", "full"])
def test_an_unknown_stream_is_rejected_with_the_labels_found(log: BigLog, verify: str) -> None:
    with pytest.raises(Unavailable, match="stream streem 1 has no entries in") as raised:
        found(log.folders.root, stream=["stream 1", "streem 1"], verify=verify)
    notes = "\n".join(raised.value.__notes__)
    assert "did you mean stream stream 1" in notes
    assert all(label.hex() in notes for label in log.labels)
    wrong = log.labels[0].hex()[:-2] + "00"
    with pytest.raises(Unavailable, match=f"label {wrong} has no entries in") as raised:
        found(log.folders.root, label=wrong, verify=verify)
    assert f"did you mean label {log.labels[0].hex()}" in "\n".join(raised.value.__notes__)


def test_a_stream_need_not_be_in_every_epoch_nor_in_every_directory(log: BigLog, place: Path) -> None:
    assert len(found(log.folders.root, stream="stream 1", epoch=[0, 1, 2])) == 30
    other = BigLog(place / "other", streams=1, limits=SMALL)
    other.grow(5)
    made = select([log.folders.root, other.folders.root], stream="stream 1")
    assert sum(len(rows(task, made)) for task in plan(made)) == 30


def test_a_hub_that_has_no_such_stream_is_named(log: BigLog, place: Path) -> None:
    with running(copied(log.folders.root, place / "served"), Clock(NOW + 100)) as hub:
        url = f"http://127.0.0.1:{hub.port}"
        with pytest.raises(Unavailable, match=f"stream nothing has no entries in {url}"):
            found(url, stream="nothing")


def test_an_audit_finds_the_gaps_that_a_read_is_rejected_for(log: BigLog, place: Path) -> None:
    for name in GAPS:
        root = copied(log.folders.root, place / name)
        DAMAGES[name][0](root)
        assert run_audit(root).directories[0].findings, name
