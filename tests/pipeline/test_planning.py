"""A plan covers only the selection, whole entries, each once, in tasks of about equal weight."""

from itertools import pairwise
from pathlib import Path

import pytest

from bench.big_log import BORN, BigLog
from tests.pipeline.damage import copied
from veen.core import Malformed, Unavailable, Unverified
from veen.pipeline import Piece, Selection, Verify, plan, select
from veen.pipeline.read_plan import MAX_PER_TASK, deal, pieces, split
from veen.pipeline.selection import NAMES, selection
from veen.pipeline.sources import Chunk, open_source
from veen.storage.lock import exclusive


def ranges(found: list[Piece]) -> dict[bytes, list[tuple[int, int]]]:
    made: dict[bytes, list[tuple[int, int]]] = {}
    for piece in found:
        made.setdefault(piece.chunk.label, []).append((piece.first, piece.last))
    return made


def a_piece(entries: int, size: int = 0, start: int = 1) -> Piece:
    return Piece(
        "hub", bytes(32), Chunk(bytes(32), start, start + entries - 1, "chunk", size), start, start + entries - 1
    )


def test_every_entry_is_planned_once(log: BigLog) -> None:
    found = ranges(pieces(select(log.folders.root)))
    assert found.keys() == set(log.labels)
    assert {label: sum(last - first + 1 for first, last in parts) for label, parts in found.items()} == {
        log.labels[0]: 31,
        log.labels[1]: 30,
    }
    assert all(parts[0][0] == 1 and all(a[1] + 1 == b[0] for a, b in pairwise(parts)) for parts in found.values())


def test_a_label_and_a_range_exclude_all_other_chunks(log: BigLog) -> None:
    by_label = select(log.folders.root, label=log.labels[1], seq_min=9, seq_max=16)
    by_stream = select(log.folders.root, stream="stream 1", seq_min=9, seq_max=16)
    assert ranges(pieces(by_label)) == ranges(pieces(by_stream)) == {log.labels[1]: [(9, 14), (15, 16)]}


@pytest.mark.parametrize(
    ("ts_min", "ts_max", "planned"),
    [
        (None, None, [1, 8, 15, 22, 29]),
        (BORN, BORN, [1]),
        (BORN + 6, None, [29]),
        (BORN + 5, None, [22, 29]),
        (None, BORN + 1, [1, 8]),
        (BORN + 2, BORN + 2, [8, 15]),
        (BORN + 100, None, [29]),
        (None, BORN - 1, []),
    ],
)
def test_a_time_range_excludes_chunks_outside_it(
    log: BigLog, ts_min: int | None, ts_max: int | None, planned: list[int]
) -> None:
    found = pieces(select(log.folders.root, label=log.labels[0], ts_min=ts_min, ts_max=ts_max))
    assert [piece.chunk.start_seq for piece in found] == planned


def test_several_directories_are_planned_together(log: BigLog, place: Path) -> None:
    other = copied(log.folders.root, place / "copy")
    found = pieces(select([log.folders.root, other], label=log.labels[0]))
    assert {piece.source for piece in found} == {str(log.folders.root), str(other)}
    assert sum(piece.entries for piece in found) == 62


def test_planning_reads_no_closed_chunk(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    for path in root.glob("log/chunk-*-0*[0-9].log"):
        path.write_bytes(b"")
    assert sum(piece.entries for piece in pieces(select(root))) == 61


def test_an_open_chunk_is_planned_as_far_as_its_entries_are_whole(log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/*-open.log"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert sum(piece.entries for piece in pieces(select(root, verify="none"))) == 60
    with exclusive(root / "lock"):  # as if a hub were writing the last entry
        assert sum(piece.entries for piece in pieces(select(root))) == 60


def test_a_pin_refuses_another_hub(log: BigLog) -> None:
    assert plan(select(log.folders.root, pin=log.hub_metadata.identity.hub_id))
    with pytest.raises(Unverified, match="not the hub that was entered"):
        plan(select(log.folders.root, pin=bytes(32)))


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_a_split_piece_is_the_same_entries(count: int) -> None:
    parts = list(split(a_piece(1000), 1000 // count))
    assert [entry for part in parts for entry in range(part.first, part.last + 1)] == list(range(1, 1001))
    assert len(parts) == count
    assert max(part.entries for part in parts) - min(part.entries for part in parts) <= 1


def test_a_piece_is_never_split_below_one_entry() -> None:
    assert [part.entries for part in split(a_piece(3, size=1 << 30), 10)] == [1, 1, 1]


def test_large_chunks_are_split_and_small_ones_packed() -> None:
    large, small = a_piece(200_000), [a_piece(10, start=1 + 10 * number) for number in range(1_000)]
    assert all(sum(piece.entries for piece in task) <= MAX_PER_TASK * 5 // 4 for task in deal([large], 2))
    assert len(deal([large], 2)) >= 8
    tasks = deal(small, 2)
    assert 2 <= len(tasks) <= 10
    assert [piece for task in tasks for piece in task] == small


def test_no_pieces_give_no_tasks() -> None:
    assert deal([], 2) == []


def test_a_selection_survives_the_conversion_to_options() -> None:
    made = Selection(
        paths=("a b", "s3://bucket/x,y"),
        labels=(bytes(32), b"\x01" * 32),
        streams=("label", "doors, windows", "x"),
        epochs=(0, 7),
        seq_min=3,
        seq_max=9,
        ts_min=1,
        ts_max=2,
        columns=("label", "stream_seq"),
        verify=Verify.ENTRY,
        pin=b"\x02" * 32,
        parallelism=4,
        max_entries=100,
    )
    assert selection(made.options()) == made
    assert made.options().keys() == NAMES


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "no path is given"),
        ({"path": "x", "colour": "red"}, "unknown option colour"),
        ({"path": "x", "verify": "maybe"}, "verify is 'maybe'"),
        ({"path": "x", "label": "abc"}, "label is not 64 hex digits"),
        ({"path": "x", "pin": "zz"}, "pin is not 64 hex digits"),
        ({"path": "x", "seq_min": "-1"}, "seq_min is '-1'"),
        ({"path": "x", "ts_max": "soon"}, "ts_max is 'soon'"),
        ({"path": "x", "columns": "label,colour"}, "unknown column 'colour'"),
        ({"path": "x", "columns": "ok"}, "column ok exists only with verify=entry"),
    ],
)
def test_invalid_options_are_rejected_with_a_hint(options: dict[str, str], expected: str) -> None:
    with pytest.raises(Malformed, match=expected) as raised:
        selection(options)
    assert raised.value.__notes__


def test_a_missing_source_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        plan(select(tmp_path / "nowhere"))
    with pytest.raises(Unavailable, match="cannot be reached"):
        open_source("teapot://kettle/hub")
