"""Watched queries count what they hold correctly, and stop when the watch raises."""

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from bench.entry_tables import Filler
from tests.overlays.logs import CLIENTS
from veen.core import canonical_json
from veen.overlays import FoldEntry
from veen.overlays.record import RecordEvent
from veen.pipeline import jobs
from veen.pipeline.engine import Engine, EventQuery, EvidencePolicy, QueryWatch
from veen.pipeline.engine.aggregate import Partial, decode, weigh, whole
from veen.pipeline.engine.engine import plan, spread
from veen.pipeline.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "record/app/watched"
COUNT = 3_000  # read in batches of about 1,000
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.fixed_dictionaries({"payload.a": PLAIN, "payload.b": PLAIN}), max_size=8)
ASKED = [
    EventQuery((STREAM,), projection=("payload.a", "payload.b")),
    EventQuery((STREAM,), projection=("payload.a", "payload.b"), limit=3),
    EventQuery((STREAM,), group_by=("payload.a",), metrics=("count", "max(payload.b)", "min(payload.b)")),
    EventQuery((STREAM,), metrics=("distinct(payload.a)", "sum(payload.b)"), evidence=EvidencePolicy("full")),
]


class Enough(Exception):
    """Raised by the watch to stop a query."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of one stream, each with another subject, in one file."""
    folder = tmp_path_factory.mktemp("watched")
    events = (RecordEvent(f"user:{number:05}", "view", 1, "shop", '{"size":1}') for number in range(COUNT))
    log = [
        FoldEntry(b"\1" * 32, 0, seq, 1_700_000_000, CLIENTS[0], None, seq.to_bytes(32, "big"), *event.payload())
        for seq, event in enumerate(events, 1)
    ]
    Filler(Tables(folder), STREAM).add(log, per_file=COUNT)
    return folder


@given(value=PLAIN)
def test_a_value_weighs_no_more_than_its_json(value: Any) -> None:
    assert weigh(value) <= len(canonical_json.encode(value))


def taken(query: EventQuery, rows: list[dict[str, Any]], numbers: Iterator[int]) -> Partial:
    made = Partial(query)
    for row in rows:
        number = next(numbers)
        made.add((number, "", 0, ""), dict(row), ("", "", number, "", ""))
    return made


@pytest.mark.parametrize("query", ASKED, ids=range(len(ASKED)))
@given(parts=st.lists(ROWS, max_size=4))
@settings(deadline=None)
def test_the_held_size_is_the_same_in_one_piece_and_in_many(
    query: EventQuery, parts: list[list[dict[str, Any]]]
) -> None:
    numbers = count()
    pieces = [taken(query, rows, numbers) for rows in parts]
    one = taken(query, [row for rows in parts for row in rows], count())
    one.shorten()
    many = whole(query, [decode(query, piece.encode()) for piece in pieces])
    assert (many.held, many.weight) == (one.held, one.weight)


def test_a_stopped_query_ends_within_a_batch(root: Path) -> None:
    seen: list[int] = []

    def on(held: int, size: int) -> None:
        seen.append(held)
        raise Enough

    with pytest.raises(Enough):
        Engine(root).run(EventQuery((STREAM,)), watch=QueryWatch(on))
    assert 0 < seen[0] < COUNT / 2
    assert len(seen) == 1


@pytest.mark.parametrize(
    "query",
    [EventQuery((STREAM,)), EventQuery((STREAM,), group_by=("subject_id",), metrics=("count",))],
    ids=["rows", "groups"],
)
@pytest.mark.parametrize("bound", [{"max_held": 10}, {"max_bytes": 100}], ids=str)
def test_a_worker_stops_at_its_bounds_and_the_merge_detects_it(
    root: Path, query: EventQuery, bound: dict[str, int]
) -> None:
    calls: list[tuple[int, int]] = []
    engine = Engine(root)
    parts = plan(Tables(root).view().of(Table.EVENTS), query, str(root), engine.footer)
    watch = QueryWatch(lambda held, size: calls.append((held, size)), **bound)
    found = spread(query, parts, jobs.run_inline, watch)
    assert found.read < COUNT
    assert watch.exceeded(*calls[-1])


def test_bounds_that_are_not_reached_change_nothing(root: Path) -> None:
    query = EventQuery((STREAM,), projection=("subject_id",))
    parts = plan(Tables(root).view().of(Table.EVENTS), query, str(root), Engine(root).footer)
    whole_answer, calls = Engine(root).run(query), list[tuple[int, int]]()
    watch = QueryWatch(lambda held, size: calls.append((held, size)), COUNT, 1 << 30)
    assert [row for _, row, _ in spread(query, parts, jobs.run_inline, watch).rows] == list(whole_answer.rows)
    assert calls[-1][0] == COUNT


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
def test_a_stopped_query_also_ends_on_spark(spark: "SparkSession") -> None:
    def tell(done: int, total: int) -> None:
        raise Enough

    def never_ends(job: int) -> bytes:
        threading.Event().wait()
        return b""

    with pytest.raises(Enough):
        jobs.on_spark(spark)(never_ends, [1, 2], tell)
    assert jobs.on_spark(spark)(lambda job: b"done", [1], lambda done, total: None) == [b"done"]
