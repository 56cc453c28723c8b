"""Answers equal those of a scan over every event, and lookups read only the rows around their result."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from bench.entry_tables import HUB_ID, Filler
from tests.overlays.logs import CLIENTS
from veen.core import Malformed, Unavailable, canonical_json
from veen.overlays import Event, FoldEntry
from veen.overlays.kv import Write
from veen.overlays.record import RecordEvent
from veen.pipeline.engine import Engine, EventQuery, EvidencePolicy
from veen.pipeline.engine import engine as running
from veen.pipeline.engine.engine import plan, spread
from veen.pipeline.jobs import no_progress, run_inline
from veen.pipeline.tables import Table, Tables
from veen.pipeline.tables.compaction import compact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HTTP, APP, KEYS = "record/app/http", "record/app/jobs", "keys"
START = 1_700_000_000
TYPES = ("login", "logout", "view")
PAYLOADS: tuple[Any, ...] = (
    {"status": 200, "size": 10},
    {"status": 404, "size": 0.5, "tags": ["a", "b"]},
    {"status": "odd", "size": 1e16},
    {"size": -1e16, "deep": {"er": [1, {"est": "x"}]}},
    {"size": 0.1},
    {"size": True},
    [1, 2],
    "text",
    None,
)


def recorded(number: int) -> RecordEvent:
    content = canonical_json.encode(PAYLOADS[number * 5 % len(PAYLOADS)]).decode()
    millis = (START + number) * 1000 + number % 1000
    return RecordEvent(f"user:{number * 7 % 11}", TYPES[number % 3], millis, f"gateway-{number % 2}", content)


def entries(stream: str, events: Iterator[Event], start: int = 1) -> list[FoldEntry]:
    label = sha256(stream.encode()).digest()
    made = []
    for seq, event in enumerate(events, start):
        client, own = CLIENTS[seq % 3], sha256(b"%s %d" % (stream.encode(), seq)).digest()
        made.append(FoldEntry(label, 0, seq, START + seq * 3_000, client, None, own, *event.payload()))
    return made


LOGS = {
    HTTP: entries(HTTP, (recorded(number) for number in range(90))),
    APP: entries(APP, (recorded(number * 3 + 1) for number in range(40))),
    KEYS: entries(KEYS, (Write(b"k%d" % (number % 3), 0, b"\xff") for number in range(20))),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several days, several files a day, of three streams."""
    folder = tmp_path_factory.mktemp("engine")
    for stream, log in LOGS.items():
        Filler(Tables(folder), stream).add(log, per_file=13)
    return folder


def moment(millis: int) -> str:
    return f"{datetime.fromtimestamp(millis // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{millis % 1000:03}Z"


def shown(stream: str, entry: FoldEntry) -> dict[str, Any]:
    """The fields of an event, computed without the tables."""
    assert entry.body is not None
    row: dict[str, Any] = {
        "stream": stream,
        "principal_id": entry.client_id.hex(),
        "hub_commit_time": moment(entry.hub_ts * 1000),
        "hub_commit_seq": entry.stream_seq,
        "receipt_id": f"{entry.label.hex()}:{entry.stream_seq}",
        "msg_id": entry.msg_id.hex(),
    }
    if stream == KEYS:
        write = Write.decode(entry.body)
        payload = {"key": write.key.hex(), "ts": 0, "value": "ff"}
        return {
            **row,
            "subject_id": write.key.decode(),
            "event_type": "crdt.lww.v1",
            "event_time": None,
            "origin": None,
            "payload": payload,
        }
    event = RecordEvent.decode(entry.body)
    own = {"subject_id": event.subject_id, "event_type": event.event_type, "origin": event.origin}
    return {**row, **own, "event_time": moment(event.event_time), "payload": json.loads(event.content)}


def dig(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    value = row["payload"]
    for step in name.split(".")[1:]:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int | float):
        return 2, value
    return (3, value) if isinstance(value, str) else (4, json.dumps(value, sort_keys=True, separators=(",", ":")))


def measured(metric: str, rows: list[dict[str, Any]]) -> Any:
    if metric == "count":
        return len(rows)
    kind, _, name = metric[:-1].partition("(")
    values = [value for row in rows if (value := dig(row, name)) is not None]
    if kind == "distinct":
        return len({json.dumps(value, sort_keys=True) for value in values})
    if kind == "sum":
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        exact = sum(map(Fraction, numbers), Fraction())
        return None if not numbers else int(exact) if all(isinstance(one, int) for one in numbers) else float(exact)
    best = min if kind == "min" else max
    return best(values, key=sort_key, default=None)


def answered(query: EventQuery) -> list[dict[str, Any]]:
    """The answer, by a plain scan over all events."""
    found = []
    for stream in query.scope:
        for entry in LOGS[stream]:
            row = shown(stream, entry)
            if (
                query.subject_id in (None, row["subject_id"])
                and (query.event_types is None or row["event_type"] in query.event_types)
                and (query.time_from is None or entry.hub_ts >= query.time_from)
                and (query.time_to is None or entry.hub_ts < query.time_to)
            ):
                found.append(((entry.hub_ts, stream, entry.stream_seq), row))
    rows = [row for _, row in sorted(found, key=lambda one: one[0])]
    if not query.metrics:
        return [{name: dig(row, name) for name in query.shown} for row in rows[: query.limit]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([dig(row, name) for name in query.group_by], sort_keys=True), []).append(row)
    if not query.group_by:
        groups = {"": rows}
    keyed = [([dig(some[0], name) for name in query.group_by] if some else [], some) for some in groups.values()]
    keyed.sort(key=lambda one: [sort_key(value) for value in one[0]])
    return [
        {**dict(zip(query.group_by, keys, strict=True)), **{metric: measured(metric, some) for metric in query.metrics}}
        for keys, some in keyed[: query.limit]
    ]


FIELDS = (
    "stream",
    "subject_id",
    "event_type",
    "event_time",
    "origin",
    "principal_id",
    "hub_commit_time",
    "hub_commit_seq",
    "receipt_id",
    "payload",
    "payload.size",
    "payload.status",
    "payload.tags.1",
    "payload.deep.er.1.est",
    "payload.nothing.there",
)
METRICS = st.lists(
    st.one_of(
        st.just("count"),
        st.builds(
            lambda kind, name: f"{kind}({name})",
            st.sampled_from(("min", "max", "sum", "distinct")),
            st.sampled_from(FIELDS),
        ),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)
TIMES = st.none() | st.integers(0, 100).map(lambda number: START + 3_000 * number)


@st.composite
def queries(draw: st.DrawFn) -> EventQuery:
    query = EventQuery(
        tuple(draw(st.lists(st.sampled_from((HTTP, APP, KEYS)), min_size=1, unique=True))),
        draw(st.none() | st.sampled_from(("user:0", "user:7", "nobody", "k1"))),
        draw(st.none() | st.lists(st.sampled_from((*TYPES, "crdt.lww.v1")), max_size=2, unique=True).map(tuple)),
        draw(TIMES),
        draw(TIMES),
        limit=draw(st.none() | st.integers(1, 20)),
        evidence=draw(st.sampled_from((EvidencePolicy(), EvidencePolicy("full"), EvidencePolicy("spot", 0.2)))),
    )
    if draw(st.booleans()):
        some = draw(st.lists(st.sampled_from(FIELDS), max_size=2, unique=True))
        return replace(query, group_by=tuple(some), metrics=tuple(draw(METRICS)))
    return replace(query, projection=tuple(draw(st.lists(st.sampled_from(FIELDS), min_size=1, unique=True))))


@given(query=queries())
@settings(max_examples=60, deadline=None)
def test_an_answer_equals_a_full_scan_also_in_pieces(root: Path, query: EventQuery) -> None:
    engine = Engine(root)
    answer = engine.run(query, seed=b"seed")
    assert list(answer.rows) == answered(query)
    parts = plan(Tables(root).view().of(Table.EVENTS), query, str(root), engine.footer)
    single = [replace(part, groups=(group,)) for part in parts for group in part.groups]
    pieces = engine._answer(query, spread(query, single, _one_by_one), Tables(root).view(), b"seed", "tables")
    assert pieces == answer


def _one_by_one(work: Any, jobs: Any, progress: Any = no_progress) -> list[bytes]:
    """Run every part on its own, last first: results may arrive in any order."""
    single = [replace(job, parts=(part,)) for job in jobs for part in job.parts]
    return run_inline(work, single[::-1], progress)


QUERIES = (
    EventQuery((HTTP, APP, KEYS)),
    EventQuery((HTTP,), "user:7", ("login",), START, START + 200_000, ("payload.size", "receipt_id")),
    EventQuery(
        (APP, HTTP),
        group_by=("event_type", "payload.status"),
        metrics=("count", "sum(payload.size)", "min(event_time)"),
    ),
    EventQuery((HTTP,), evidence=EvidencePolicy("spot", 0.3), limit=25),
    EventQuery((HTTP, KEYS), metrics=("distinct(subject_id)", "max(payload.size)"), evidence=EvidencePolicy("full")),
)


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
def test_spark_answers_the_same(root: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "JOB_ROWS", 40)
    started: list[int] = []

    def begin() -> "SparkSession":
        started.append(1)
        return spark

    large, small = Engine(root, begin, small_rows=0), Engine(root, begin)
    for query in QUERIES:
        near, far = small.run(query, seed=b"s"), large.run(query, seed=b"s")
        assert (near.ran, far.ran) == ("tables", "spark")
        assert replace(far, ran="tables") == near
        assert list(near.rows) == answered(query)
    assert started == [1]


def test_a_small_query_does_not_start_spark(root: Path) -> None:
    def never() -> "SparkSession":
        raise AssertionError("Spark was started")

    assert Engine(root, never).run(QUERIES[0]).ran == "tables"


@pytest.mark.slow
def test_a_lookup_reads_as_few_rows_of_a_table_five_times_as_large(tmp_path: Path) -> None:
    read = {}
    for count in (8_000, 40_000):
        tables = Tables(tmp_path / str(count))
        subjects = count // 100
        filler = Filler(tables, HTTP)
        label = sha256(b"label").digest()
        body = {n: RecordEvent(f"user:{n:06}", "view", 1, "gateway", "{}").payload() for n in range(subjects)}
        log = (
            FoldEntry(
                label, 0, seq, START + seq // 50, CLIENTS[0], None, seq.to_bytes(32, "big"), *body[seq % subjects]
            )
            for seq in range(1, count + 1)
        )
        filler.add(log)
        compact(tables)
        answer = Engine(tmp_path / str(count)).run(EventQuery((HTTP,), "user:000077"))
        assert answer.row_count == 100
        read[count] = answer.rows_read
    assert max(read.values()) <= 2 * 4_096


def test_a_lookup_reads_only_rows_around_its_type_and_time(tmp_path: Path) -> None:
    tables, label = Tables(tmp_path / "tables"), sha256(b"label").digest()
    body = [RecordEvent("robot", kind, 1, "gateway", "{}").payload() for kind in ("alarm", "view")]
    Filler(tables, HTTP).add(
        FoldEntry(label, 0, seq, START + seq // 10, CLIENTS[0], None, seq.to_bytes(32, "big"), *body[seq % 100 > 0])
        for seq in range(1, 12_001)
    )
    engine, read = Engine(tables.root), {}
    window = {"time_from": START + 600, "time_to": START + 610}
    for what, kept, count in (
        ("all", {}, 12_000),
        ("type", {"event_types": ("alarm",)}, 120),
        ("time", window, 100),
        ("both", {"event_types": ("alarm",), **window}, 1),
    ):
        answer = engine.run(EventQuery((HTTP,), "robot", **kept))
        assert answer.row_count == count
        read[what] = answer.rows_read
    assert read["all"] == 12_000
    assert read["type"] == read["both"] == 4_096
    assert read["time"] <= 2 * 4_096


def test_a_sample_is_deterministic_and_never_empty(root: Path) -> None:
    engine = Engine(root)
    query = EventQuery((HTTP,), evidence=EvidencePolicy("spot", 0.25))
    one, two, other = (engine.run(query, seed=seed).places for seed in (b"a", b"a", b"b"))
    assert one == two != other
    assert 8 <= len(one) <= 40
    tiny = engine.run(replace(query, evidence=EvidencePolicy("spot", 1e-12))).places
    assert len(tiny) == 1
    assert len(engine.run(replace(query, evidence=EvidencePolicy("spot", 1))).places) == 90
    assert engine.run(replace(query, subject_id="nobody")).places == ()


def test_a_place_names_its_receipt(root: Path) -> None:
    answer = Engine(root).run(EventQuery((HTTP,), evidence=EvidencePolicy("full"), limit=3, projection=("receipt_id",)))
    assert [place.receipt_id for place in answer.places] == [row["receipt_id"] for row in answer.rows]
    assert {place.hub_id for place in answer.places} == {HUB_ID}
    assert [place.msg_id for place in answer.places] == [entry.msg_id for entry in LOGS[HTTP][:3]]
    assert [(one.stream, one.upto_seq) for one in answer.basis] == [(HTTP, 90)]


def test_compacting_changes_no_answer(root: Path, tmp_path: Path) -> None:
    copied = tmp_path / "tables"
    shutil.copytree(root, copied)
    compact(Tables(copied))
    for query in QUERIES:
        assert replace(Engine(copied).run(query), rows_read=0) == replace(Engine(root).run(query), rows_read=0)


WRONG = [
    (EventQuery(()), "scope names no stream"),
    (EventQuery(("",)), "scope names no stream"),
    (EventQuery((HTTP,), projection=()), "projection names no field"),
    (EventQuery((HTTP,), projection=("colour",)), "unknown field 'colour'"),
    (EventQuery((HTTP,), projection=("payload.",)), "unknown field 'payload.'"),
    (EventQuery((HTTP,), projection=("payload..a",)), "unknown field"),
    (EventQuery((HTTP,), projection=("*", "stream")), r"unknown field '\*'"),
    (EventQuery((HTTP,), projection=("stream", "stream")), "contains a duplicate"),
    (EventQuery((HTTP,), group_by=("stream",)), "group_by needs metrics"),
    (EventQuery((HTTP,), group_by=("colour",), metrics=("count",)), "unknown field 'colour'"),
    (EventQuery((HTTP,), metrics=("average(payload.size)",)), "is not a metric"),
    (EventQuery((HTTP,), metrics=("count(stream)",)), "is not a metric"),
    (EventQuery((HTTP,), metrics=("sum",)), "is not a metric"),
    (EventQuery((HTTP,), metrics=("sum(colour)",)), "unknown field 'colour'"),
    (EventQuery((HTTP,), metrics=("count", "count")), "contains a duplicate"),
    (EventQuery((HTTP,), limit=0), "limit is 0"),
    (EventQuery((HTTP,), evidence=EvidencePolicy("some")), "evidence mode is 'some'"),
    (EventQuery((HTTP,), evidence=EvidencePolicy("full", 0.5)), "sample_rate is only for evidence mode spot"),
    (EventQuery((HTTP,), evidence=EvidencePolicy("spot")), "sample_rate must be above 0"),
    (EventQuery((HTTP,), evidence=EvidencePolicy("spot", 0)), "sample_rate must be above 0"),
    (EventQuery((HTTP,), evidence=EvidencePolicy("spot", 1.5)), "sample_rate must be above 0"),
]


@pytest.mark.parametrize(("query", "what"), WRONG)
def test_an_invalid_query_is_rejected_with_a_hint(root: Path, query: EventQuery, what: str) -> None:
    with pytest.raises(Malformed, match=what) as caught:
        Engine(root).run(query)
    assert caught.value.__notes__


def test_a_stream_that_is_not_in_the_tables_is_unavailable(root: Path) -> None:
    with pytest.raises(Unavailable, match="no stream 'record/app/none'"):
        Engine(root).run(EventQuery(("record/app/none",)))
