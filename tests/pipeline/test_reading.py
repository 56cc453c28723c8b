"""Reads return every entry unchanged, verified as selected, with failures next to the row."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.big_log import BORN, BigLog
from tests.hub.client import Clock, running
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import copied, flip, frames, rewrite, rows
from tests.storage.hubs import NOW, PACKED
from veen.core import Malformed, Msg, Receipt, Unverified
from veen.pipeline import plan, select
from veen.pipeline.chunk_verifier import VerifiedEntry
from veen.pipeline.read_plan import pieces, split
from veen.pipeline.rows import batches, columns
from veen.pipeline.selection import COLUMN_TYPES, ENTRY_COLUMNS
from veen.storage.directory_reader import LogReader


def read(root: object, **given: Any) -> list[dict[str, Any]]:
    """All rows, as Spark would get them."""
    made = select(str(root), **given)
    return [dict(zip(made.shown(), row, strict=True)) for task in plan(made) for row in rows(task, made)]


def chunk(root: Path, at: int = 1) -> Path:
    return sorted(root.glob("log/chunk-*-0*[0-9].log"))[at]


def start_of(path: Path) -> int:
    return int(path.name.split("-")[2])


@pytest.mark.parametrize("verify", ["none", "entry", "full"])
def test_every_entry_is_read_unchanged(log: BigLog, verify: str) -> None:
    found = {(row["label"], row["stream_seq"]): row for row in read(log.folders.root, verify=verify)}
    assert len(found) == 61
    with LogReader(log.folders.root) as reader:
        for label in log.labels:
            for entry in reader.entries(label, 1, 100):
                row, message, receipt = (
                    found[label, entry.stream_seq],
                    Msg.decode(entry.msg),
                    Receipt.decode(entry.receipt),
                )
                assert (row["msg"], row["receipt"], row["entry_hash"]) == (entry.msg, entry.receipt, entry.entry_hash)
                assert (row["client_id"], row["client_seq"]) == (message.client_id, message.client_seq)
                assert (row["prev_ack"], row["auth_ref"], row["ct_hash"]) == (0, None, message.ct_hash)
                assert (row["leaf_hash"], row["mmr_root"]) == (message.leaf_hash(), receipt.mmr_root)
                assert (row["hub_ts"], row["hub_id"]) == (receipt.hub_ts, log.hub_metadata.identity.hub_id)
                assert row["source"] == str(log.folders.root)
    assert all(row["ok"] and row["faults"] == [] for row in found.values()) if verify == "entry" else True


@pytest.mark.parametrize("verify", ["none", "entry", "full"])
@pytest.mark.parametrize("share", [1, 2, 3, 4])
def test_split_chunks_give_the_same_rows(log: BigLog, verify: str, share: int) -> None:
    made = select(log.folders.root, verify=verify)
    parts = [part for piece in pieces(made) for part in split(piece, share)]
    assert len(parts) > len(pieces(made))
    assert rows(tuple(parts), made) == [row for task in plan(made) for row in rows(task, made)]


@pytest.mark.parametrize("verify", ["none", "entry", "full"])
def test_ranges_of_numbers_and_time_are_exact(log: BigLog, verify: str) -> None:
    given = {"label": log.labels[0], "verify": verify, "columns": ["stream_seq", "hub_ts"]}
    found = read(log.folders.root, seq_min=5, seq_max=20, ts_min=BORN + 1, ts_max=BORN + 2, **given)
    assert [row["stream_seq"] for row in found] == list(range(6, 16))
    assert {row["hub_ts"] for row in found} == {BORN + 1, BORN + 2}


@pytest.mark.parametrize("name", COLUMN_TYPES)
def test_each_column_can_be_read_alone(log: BigLog, name: str) -> None:
    whole = read(log.folders.root, verify="entry")
    assert [row[name] for row in whole] == [row[name] for row in read(log.folders.root, verify="entry", columns=name)]


def test_batches_contain_the_rows(log: BigLog) -> None:
    pytest.importorskip("pyarrow", reason="the pipeline's batches need pyarrow: pip install '.[spark]'")
    made = select(log.folders.root)
    for task in plan(made):
        found = [tuple(row.values()) for batch in batches(task, made) for row in batch.to_pylist()]
        assert found == rows(task, made)


FLIPS = {
    # Offset within an entry: the check that fails. The header has 82 bytes; a MSG begins with profile_id.
    "version": (0, {"entry_hash"}),
    "label of the header": (2, {"place"}),
    "stream_seq of the header": (41, {"place"}),
    "length of the message": (45, {"entry_hash"}),
    "length of the receipt": (49, {"entry_hash"}),
    "entry_hash": (60, {"entry_hash"}),
    "profile_id": (82 + 10, {"entry_hash", "binding", "client_sig", "size"}),
    "label of the message": (82 + 45, {"entry_hash", "binding", "client_sig"}),
    "client_id": (82 + 80, {"entry_hash", "binding", "client_sig"}),
    "ciphertext": (82 + 300, {"entry_hash", "binding", "client_sig"}),
    "signature of the client": (-185, {"entry_hash", "client_sig"}),
    "leaf_hash of the receipt": (-120, {"entry_hash", "binding", "hub_sig"}),
    "mmr_root of the receipt": (-90, {"entry_hash", "hub_sig", "root"}),
    "signature of the hub": (-10, {"entry_hash", "hub_sig"}),
}


@pytest.mark.parametrize("where", FLIPS)
def test_only_the_row_of_a_flipped_bit_has_failed_checks(log: BigLog, place: Path, where: str) -> None:
    root = copied(log.folders.root, place / "hub")
    path = chunk(root)
    lengths = [len(one) for one in frames(path)]
    offset, checks = FLIPS[where]
    flip(path, sum(lengths[:3]) + offset % lengths[3])
    bad = [row for row in read(root, verify="entry") if not row["ok"]]
    assert [(row["stream_seq"], row["label"].hex()) for row in bad] == [(start_of(path) + 3, path.name[6:70])]
    # A changed number may also be out of order.
    assert set(bad[0]["faults"]) - {"order"} == checks, bad[0]["faults"]


@pytest.mark.parametrize("where", FLIPS)
def test_full_verification_ends_at_the_flipped_bit_and_names_its_place(log: BigLog, place: Path, where: str) -> None:
    root = copied(log.folders.root, place / "hub")
    path = chunk(root)
    lengths = [len(one) for one in frames(path)]
    flip(path, sum(lengths[:3]) + FLIPS[where][0] % lengths[3])
    with pytest.raises(Unverified) as raised:
        read(root)
    assert f"{root}/log/{path.name}, entry {start_of(path) + 3}: " in str(raised.value)


def test_full_verification_ends_at_a_wrong_artifact_and_names_it(log: BigLog, place: Path) -> None:
    for pattern in ("*.summary", "checkpoint-[0-9a-f]*-*"):
        root = copied(log.folders.root, place / pattern.strip("*."))
        path = sorted(root.glob(f"log/{pattern}"))[1]
        flip(path, 60)
        with pytest.raises(Unverified, match=path.name):
            read(root)


def test_a_wrong_snapshot_is_found_at_both_of_its_ends(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/peaks-*"))[0]
    flip(path, 60)
    upto, label = int(path.stem.split("-")[2]), path.stem.split("-")[1]
    with pytest.raises(Unverified, match=path.name):
        read(root, label=label, seq_max=upto)
    with pytest.raises(Unverified, match=f"entry {upto + 1}: root: "):
        read(root, label=label, seq_min=upto + 1)


def test_rows_with_an_unknown_tree_are_not_ok(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/peaks-*"))[0]
    path.unlink()
    upto, label = int(path.stem.split("-")[2]), path.stem.split("-")[1]
    bad = [row for row in read(root, label=label, verify="entry") if not row["ok"]]
    assert {(row["stream_seq"], *row["faults"]) for row in bad} == {
        (seq, "anchor") for seq in range(upto + 1, upto + 1 + SMALL.max_checkpoint_interval)
    }


@pytest.mark.parametrize("verify", ["none", "full"])
def test_a_missing_entry_ends_the_read_where_it_should_be(log: BigLog, place: Path, verify: str) -> None:
    root = copied(log.folders.root, place / "hub")
    path = chunk(root)
    entries = frames(path)
    rewrite(path, entries[:2] + entries[3:])
    with pytest.raises((Malformed, Unverified), match=f"entry {start_of(path) + 2}: "):
        read(root, verify=verify)


def test_a_row_represents_unreadable_entries_and_the_next_chunk_is_read(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = chunk(root)
    path.write_bytes(path.read_bytes()[:1500])
    found = read(root, label=path.name[6:70], verify="entry")
    bad = [row for row in found if not row["ok"]]
    assert [(row["stream_seq"], row["faults"], row["msg"]) for row in bad] == [(start_of(path) + 1, ["frame"], None)]
    assert found[-1]["stream_seq"] == max(row["stream_seq"] for row in read(log.folders.root, label=path.name[6:70]))


def test_a_number_beyond_bigint_is_null_and_not_an_error(log: BigLog) -> None:
    (row,) = read(log.folders.root, label=log.labels[0], seq_max=1, columns="receipt")
    received, (piece, *_) = Receipt.decode(row["receipt"]), pieces(select(log.folders.root))
    found = [VerifiedEntry(1, 0, receipt=replace(received, hub_ts=ts)) for ts in ((1 << 63) - 1, 1 << 63)]
    assert columns(["hub_ts"], piece, found) == [[(1 << 63) - 1, None]]


def test_compressed_chunks_are_read_the_same(place: Path) -> None:
    made = BigLog(place / "hub", streams=2, clients=3, limits=PACKED)
    made.grow(40)
    assert list(made.folders.log.glob("*.zst"))
    assert len(read(made.folders.root)) == 40
    flip(sorted(made.folders.log.glob("*.zst"))[0], 200)
    with pytest.raises(Unverified):
        read(made.folders.root)


def test_an_open_chunk_that_closes_after_planning_is_read_as_planned(place: Path) -> None:
    made = BigLog(place / "hub", clients=2, limits=SMALL)
    made.grow(10)
    selected = select(made.folders.root, columns="stream_seq")
    tasks = plan(selected)
    made.grow(10)
    assert [row[0] for task in tasks for row in rows(task, selected)] == list(range(1, 11))
    assert len(read(made.folders.root)) == 20


def test_a_hub_key_added_while_a_worker_lives_is_accepted(place: Path) -> None:
    made = BigLog(place / "hub", clients=2, limits=SMALL)
    made.grow(10)
    assert len(read(made.folders.root)) == 10
    made.rotate()
    made.grow(10)
    assert len(read(made.folders.root)) == 20


@contextmanager
def served(log: BigLog, place: Path) -> Iterator[tuple[str, BigLog]]:
    with running(copied(log.folders.root, place / "served"), Clock(NOW + 100)) as hub:
        yield f"http://127.0.0.1:{hub.port}", log


def test_a_hub_is_read_like_its_directory(log: BigLog, place: Path) -> None:
    named = [name for name in ENTRY_COLUMNS if name != "source"]
    given = {"stream": ["stream 0", "stream 1"], "columns": named, "pin": log.hub_metadata.identity.hub_id}
    with served(log, place) as (url, _):
        assert read(url, **given) == read(log.folders.root, **given)
        part = {**given, "stream": "stream 1", "seq_min": 9, "seq_max": 20, "verify": "entry"}
        assert read(url, **part) == read(log.folders.root, **part)


def test_a_hub_that_is_not_the_pinned_one_is_not_read(log: BigLog, place: Path) -> None:
    with served(log, place) as (url, _), pytest.raises(Unverified, match="not the hub that was entered"):
        read(url, stream="stream 0", pin=bytes(32))


def test_a_read_from_a_hub_must_select_labels_or_streams(log: BigLog, place: Path) -> None:
    with served(log, place) as (url, _), pytest.raises(Malformed, match="do not list their labels"):
        read(url)


@pytest.mark.parametrize("scheme", ["file://", "local://"])
def test_a_directory_is_read_by_url(log: BigLog, scheme: str) -> None:
    pytest.importorskip("fsspec" if scheme == "local://" else "pyarrow")
    named = [name for name in ENTRY_COLUMNS if name != "source"]
    found = read(f"{scheme}{log.folders.root}", columns=named)
    assert found == read(log.folders.root, columns=named)
    timed = {"label": log.labels[0], "ts_min": BORN + 5, "columns": named}
    assert read(f"{scheme}{log.folders.root}", **timed) == read(log.folders.root, **timed)


def test_a_directory_read_by_url_is_verified_too(log: BigLog, place: Path) -> None:
    pytest.importorskip("fsspec")
    root = copied(log.folders.root, place / "hub")
    flip(chunk(root), 700)
    with pytest.raises(Unverified):
        read(f"local://{root}")
