"""Looking up a hundred events: the cost of a table ten times as large."""

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.call_times import Action, microseconds, per_call
from bench.entry_tables import Filler
from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import Progress, silent
from veen.overlays import FoldEntry
from veen.overlays.record import RecordEvent
from veen.pipeline.engine import Engine, EventQuery
from veen.pipeline.tables import Tables
from veen.pipeline.tables.compaction import compact

FEW, MANY, MATCH = 100_000, 1_000_000, 100
MOST_TIMES = 1.5
STREAM = "record/app/http"
_START = 1_700_006_400  # midnight, so all events are of one day
_LABEL, _CLIENT = sha256(b"a label").digest(), sha256(b"a client").digest()


def events(count: int) -> Iterator[FoldEntry]:
    """Events with a hundred per subject, subjects in turn."""
    subjects = count // MATCH
    for seq in range(1, count + 1):
        event = RecordEvent(f"user:{seq % subjects:06}", "view", seq, "gateway", f'{{"status":{200 + seq % 4}}}')
        yield FoldEntry(_LABEL, 0, seq, _START + seq // 50, _CLIENT, None, seq.to_bytes(32, "big"), *event.payload())


def measure(progress: Progress = silent, few: int = FEW, many: int = MANY) -> BenchReport:
    query = EventQuery((STREAM,), "user:000077", projection=("receipt_id", "payload.status"))
    with TemporaryDirectory(prefix="veen-bench-") as folder:
        engines = {}
        for count in (few, many):
            progress(f"questions: a table of {count:,} events")
            tables = Tables(Path(folder) / str(count))
            Filler(tables, STREAM).add(events(count))
            compact(tables)
            engines[count] = Engine(tables.root)
        progress("questions: running queries")
        answers = {count: engine.run(query) for count, engine in engines.items()}
        queries: dict[str, Action] = {
            f"{MATCH} of {count:,} events": partial(engine.run, query) for count, engine in engines.items()
        }
        times = per_call(queries, rounds=15, calls=5)
    rows = [*microseconds(times)]
    rows += [BenchRow.of(f"rows read of {count:,}", [answer.rows_read], "rows") for count, answer in answers.items()]
    quick, slow = times.values()
    rows.append(BenchRow.of("times as long", [slow / quick], "times", most=MOST_TIMES))
    return BenchReport("pipeline: look-ups", tuple(rows), ("compacted tables, without Spark",))
