"""Merging files in ranges gives byte for byte the file of sorting all rows at once."""

import random
from hashlib import sha256

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

import pyarrow as pa

from veen.pipeline.tables import layout
from veen.pipeline.tables.compaction import merged
from veen.pipeline.tables.layout import Table

LONG = "x" * 5_000  # too long for statistics of a row group
SUBJECTS: dict[str, list[str | None]] = {
    "many": [f"user:{number:05}" for number in range(3_000)],
    "one": ["robot"],
    "few, and none": [None, "a", "b", "\U0001f980", "é"],
    "none": [None],
    "long": [LONG, "a", LONG + "y", None],
}


def rows_of(chance: random.Random, first: int, count: int, subjects: list[str | None]) -> "pa.Table":
    """Events as a load leaves them; only the order matters."""
    made = []
    for seq in range(first, first + count):
        named = {
            "label": b"label",
            "epoch": 0,
            "stream_seq": seq,
            "hub_ts": 1_700_000_000 + seq // 7,
            "subject_id": chance.choice(subjects),
            "event_type": chance.choice(["view", "click"]),
            "body": sha256(seq.to_bytes(8, "big")).digest(),
        }
        made.append(tuple(named.get(name) for name in layout.COLUMNS[Table.EVENTS]))
    return layout.arrow(Table.EVENTS, made)


@pytest.mark.parametrize("slice_rows", [1, 3_000, 1_000_000])
@pytest.mark.parametrize("kind", SUBJECTS)
def test_events_are_merged_as_if_all_had_been_sorted_at_once(kind: str, slice_rows: int) -> None:
    chance, seq, rows = random.Random(kind), 1, []
    for count in (9_000, 1, 4_096, 40):
        rows.append(layout.sort_events(rows_of(chance, seq, count, SUBJECTS[kind])))
        seq += count
    files = [layout.parquet(Table.EVENTS, one) for one in rows]
    at_once = layout.parquet(Table.EVENTS, layout.sort_events(pa.concat_tables(rows)))
    assert merged(Table.EVENTS, files, slice_rows) == at_once


def test_other_rows_are_concatenated() -> None:
    names = layout.COLUMNS[Table.QUARANTINE]
    rows = [
        layout.arrow(
            Table.QUARANTINE,
            [tuple({"stream_seq": seq, "kind": "sealed"}.get(name) for name in names) for seq in range(first, last)],
        )
        for first, last in ((1, 70_000), (70_000, 70_001), (70_001, 70_400))
    ]
    files = [layout.parquet(Table.QUARANTINE, one) for one in rows]
    assert merged(Table.QUARANTINE, files) == layout.parquet(Table.QUARANTINE, pa.concat_tables(rows))


def test_events_without_a_subject_come_last_whichever_file_they_are_in() -> None:
    chance = random.Random(7)
    rows = [rows_of(chance, 1, 50, ["a", None]), rows_of(chance, 51, 9_000, [f"z{number}" for number in range(9)])]
    rows = [layout.sort_events(one) for one in rows]
    files = [layout.parquet(Table.EVENTS, one) for one in rows]
    assert merged(Table.EVENTS, files, 1) == layout.parquet(Table.EVENTS, layout.sort_events(pa.concat_tables(rows)))
