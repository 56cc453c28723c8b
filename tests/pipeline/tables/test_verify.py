"""Verification of tables finds every difference from the log, and its place."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from tests.pipeline.tables.crashing_disk import deaths
from tests.pipeline.tables.logs import DOORS, OTHERS, Place, everything, writes
from veen.client.keystore import ReaderKey
from veen.core import DhKey, Mmr, Unverified, msg
from veen.pipeline import select
from veen.pipeline.decoding import Keys
from veen.pipeline.tables import FileRef, Table, Tables, load
from veen.pipeline.tables import commit as commits
from veen.pipeline.tables.commit import Commit
from veen.pipeline.tables.compaction import compact
from veen.pipeline.tables.layout import parquet, schema
from veen.pipeline.tables.verify import check_files, verify

Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def rewrite(made: Place, table: Table, change: Change, *, cover: bool = True) -> FileRef:
    """Change the rows of one file; with `cover`, also its hash in the commit, as an attacker would."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = made.tables.view().of(table)[0]
    path = made.tables.root / file.path
    rows = change(pq.read_table(pa.BufferReader(path.read_bytes())).to_pylist())
    data = parquet(table, pa.Table.from_pylist(rows, schema=schema(table)))
    path.write_bytes(data)
    if cover:
        listed = made.tables.own / "commits" / "00000001.json"
        commit = Commit.decode(listed.read_bytes())
        hidden = [
            replace(one, sha256=sha256(data).digest(), rows=len(rows)) if one.path == file.path else one
            for one in commit.adds
        ]
        listed.write_bytes(replace(commit, adds=tuple(hidden)).encode())
    return file


def problems(made: Place, *, keys: bool = False) -> list[tuple[str, int | None, str]]:
    found = verify(made.tables, made.selection, made.keys if keys else None).problems
    return [(str(one.where).split("/")[0], one.stream_seq, one.what) for one in found]


def changed(at: int, **values: Any) -> Change:
    return lambda rows: [{**row, **values} if row["stream_seq"] == at else row for row in rows]


def without(at: int) -> Change:
    return lambda rows: [row for row in rows if row["stream_seq"] != at]


def doubled(at: int) -> Change:
    return lambda rows: [row for row in rows for _ in range(2 if row["stream_seq"] == at else 1)]


def test_tables_of_a_sound_log_match_the_signed_roots(made: Place) -> None:
    for keys in (None, made.keys):
        found = verify(made.tables, made.selection, keys)
        assert (found.problems, found.entries, found.events, found.quarantined) == ([], 42, 40, 2)
        assert found.signed == sorted(made.tables.view().spans.values(), key=lambda span: span.label)


ENTRIES = [
    (changed(5, client_seq=9), (5, "the row differs from the entry in the log")),
    (changed(5, ct_hash=bytes(32)), (5, "the row differs from the entry in the log")),
    (changed(5, leaf_hash=bytes(32)), (5, "the row differs from the entry in the log")),
    (changed(5, mmr_root=bytes(32)), (5, "the row differs from the entry in the log")),
    (changed(1, client_id=bytes(32)), (1, "the row differs from the entry in the log")),
    (without(5), (5, "the row is missing")),
    (doubled(5), (5, "an extra row")),
    (changed(5, stream_seq=4), (4, "an extra row")),
    (changed(5, stream_seq=1000), (1000, "an extra row")),
]


@pytest.mark.parametrize(("change", "expected"), ENTRIES)
def test_a_changed_removed_or_added_row_of_entries_is_found(
    made: Place, change: Change, expected: tuple[int, str]
) -> None:
    rewrite(made, Table.ENTRIES, change)
    assert ("entries", *expected) in problems(made)


def test_consistently_forged_rows_do_not_yield_the_signed_root(made: Place) -> None:
    profile_id = made.log.hub_metadata.profile.profile_id()

    def forge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        tree, forged = Mmr(), changed(20, ct_hash=bytes(32))(rows)
        for row in forged:
            client = (row["ct_hash"], row["client_id"], row["client_seq"])
            row["leaf_hash"] = msg.leaf_hash(row["label"], profile_id, *client)
            tree.append(row["leaf_hash"])
            row["mmr_root"] = tree.root()
        return forged

    rewrite(made, Table.ENTRIES, forge)
    assert "its rows do not yield the root that the hub signed" in [one[2] for one in problems(made)]


def test_one_changed_row_of_entries_is_one_problem(made: Place) -> None:
    rewrite(made, Table.ENTRIES, changed(5, client_seq=9))
    assert [one for one in problems(made) if one[0] == "entries"] == [
        ("entries", 5, "the row differs from the entry in the log")
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(5), ("events", 5, "the row is missing")),
        (doubled(5), ("events", 5, "an extra row")),
        (changed(5, hub_ts=1), ("events", 5, "the row does not match the entry at its place")),
        (changed(5, msg_id=bytes(32)), ("events", 5, "the row does not match the entry at its place")),
        (changed(5, stream_seq=6), ("events", 6, "an extra row")),
    ],
)
def test_a_changed_removed_or_added_row_of_events_is_found(
    made: Place, change: Change, expected: tuple[str, int, str]
) -> None:
    rewrite(made, Table.EVENTS, change)
    assert expected in problems(made)


def test_with_keys_the_content_of_events_is_compared_with_the_log(made: Place) -> None:
    rewrite(made, Table.EVENTS, changed(5, event='{"key":"00"}', subject_id="me"))
    assert problems(made) == []
    assert problems(made, keys=True) == [("events", 5, "the row differs from the decoded entry in: subject_id, event")]


def another_key(place: Path, name: str = DOORS) -> Keys:
    """A key for a stream of the same name that no entry is sealed for."""
    path = place / "another.key"
    path.write_bytes(ReaderKey(name, b"\x07" * 32).encode())
    path.chmod(0o600)
    return Keys((str(path),))


def test_a_stream_that_the_keys_do_not_open_is_unopened_and_not_a_problem(made: Place, place: Path) -> None:
    for keys, streams in ((Keys(made.keys.references[:1]), {OTHERS}), (another_key(place), {DOORS, OTHERS})):
        found = verify(made.tables, made.selection, keys)
        assert found.problems == []
        assert {one.stream for one in found.unopened} == streams
    assert verify(made.tables, made.selection, made.keys).unopened == []


def test_a_changed_event_is_found_next_to_a_stream_without_key(made: Place) -> None:
    rewrite(made, Table.EVENTS, changed(5, event="{}"))
    assert DOORS in made.tables.view().of(Table.EVENTS)[0].path
    found = verify(made.tables, made.selection, Keys(made.keys.references[:1]))
    assert [one.stream_seq for one in found.problems] == [5]


def test_a_single_entry_that_does_not_open_is_compared_with_its_row(made: Place) -> None:
    right = made.log.keys[DOORS]
    made.log.keys[DOORS] = DhKey(b"\x09" * 32)
    made.log.say(writes(1))
    made.log.keys[DOORS] = right
    shutil.rmtree(made.tables.root)
    made.load()
    assert problems(made, keys=True) == []
    rewrite(made, Table.QUARANTINE, changed(23, reason="forged"))
    assert problems(made, keys=True) == [("quarantine", 23, "the row differs from the decoded entry in: reason")]


def test_tables_made_without_a_key_are_reported_when_the_key_is_given(made: Place, place: Path) -> None:
    closed = Tables(place / "closed")
    load(closed, made.selection, Keys())
    found = {one.what for one in verify(closed, made.selection, made.keys).problems}
    assert found == {"the entry opens with these keys; rebuild the tables to decode it"}


def test_a_file_with_changed_bytes_is_found_without_the_log(made: Place) -> None:
    rewrite(made, Table.EVENTS, changed(5, event="{}"), cover=False)
    assert problems(made) == [("events", None, "its bytes differ from those committed")]


def test_a_missing_or_added_file_is_found(made: Place) -> None:
    one, *_ = made.tables.view().of(Table.QUARANTINE)
    path = made.tables.root / one.path
    path.rename(path.with_name("f" * 8 + ".parquet"))
    found = problems(made)
    assert ("quarantine", 21, "the file is missing") in [(a, 21 if b == one.first else b, c) for a, b, c in found]
    assert ("quarantine", None, "the file belongs to no commit") in found


def test_tables_with_another_root_are_found(made: Place) -> None:
    listed = made.tables.own / "commits" / "00000001.json"
    commit = Commit.decode(listed.read_bytes())
    listed.write_bytes(replace(commit, spans=tuple(replace(one, mmr_root=bytes(32)) for one in commit.spans)).encode())
    assert [one[2] for one in problems(made)] == ["the root in the tables differs from the hub's"] * 2


def test_a_log_that_ends_before_the_tables_is_reported(made: Place, place: Path) -> None:
    shutil.copytree(made.log.folders.root, place / "older")
    made.log.say(writes(3))
    made.load()
    found = verify(made.tables, select(place / "older")).problems
    assert [one.what for one in found] == ["the log ends before this entry"]


def test_compacting_changes_no_row_and_leaves_few_files(made: Place) -> None:
    for number in range(4):
        made.log.say(writes(3, 100 * number))
        made.load()
    before = everything(made.tables.root)
    done = compact(made.tables)
    assert (done.before, done.after) == (13, 5)
    assert everything(made.tables.root) == before
    assert verify(made.tables, made.selection, made.keys).problems == []
    assert compact(made.tables) == replace(done, before=5)
    made.log.say(writes(2))
    assert made.load().entries == 2


def test_a_crash_while_compacting_changes_no_row(made: Place, place: Path) -> None:
    for number in range(2):
        made.log.say(writes(3, 100 * number))
        made.load()
    before, died = everything(made.tables.root), 0
    for copied in deaths(made.tables.root, place, compact):
        listed = Tables(copied).view()
        assert all((copied / path).exists() for path in listed.files)
        with Tables(copied).writing():
            pass
        assert everything(copied) == before
        assert list(check_files(copied, Tables(copied).view())) == []
        died += 1
    assert died > 4


def test_compacting_refuses_damaged_files(made: Place) -> None:
    made.log.say(writes(3))
    made.load()
    rewrite(made, Table.EVENTS, changed(5, event="{}"), cover=False)
    with pytest.raises(Unverified, match="its bytes differ from those committed"):
        compact(made.tables)


def test_a_commit_survives_encoding(made: Place) -> None:
    data = (made.tables.own / "commits" / "00000001.json").read_bytes()
    assert Commit.decode(data).encode() == data
    with pytest.raises(Exception, match="it is not a commit of this version"):
        Commit.decode(commits.encode({"number": 1}))
