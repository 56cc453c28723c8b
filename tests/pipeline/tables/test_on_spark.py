"""Tables made by Spark, at once and by streaming, equal those of one process; keys are never sent."""

import base64
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from tests.pipeline.tables.logs import DOORS, OTHERS, everything, filled, recorded, writes
from veen.core import Unavailable, Unverified, naming
from veen.pipeline import jobs, read_plan, select
from veen.pipeline.decoding import Keys, LabelStream
from veen.pipeline.tables import Tables, load
from veen.pipeline.tables.table_load import COLUMNS, TableBatch, TableLoad, follow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


def spellings(secret: bytes) -> list[bytes]:
    """The encodings in which a key might appear in a text."""
    hexed = secret.hex().encode()
    plain = [base64.b64encode(secret)[:-2], base64.urlsafe_b64encode(secret)[:-2], repr(secret)[2:-1].encode()]
    shifted = [base64.b64encode(bytes(by) + secret)[4:-4] for by in (1, 2)]
    return [secret, hexed, hexed.upper(), *plain, *shifted]


def leaks(text: bytes, secrets: list[bytes]) -> list[bytes]:
    return [form for secret in secrets for form in spellings(secret) if form in text]


def test_spark_makes_the_same_tables_as_one_process_and_reports_progress(spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    made.load()
    reports: list[tuple[int, int]] = []
    load(
        Tables(place / "spark"),
        made.selection,
        made.keys,
        jobs.on_spark(spark),
        progress=lambda *args: reports.append(args),
    )
    assert everything(place / "spark") == everything(made.tables.root)
    assert reports[-1][0] == reports[-1][1] > 0


def test_spark_reads_the_tables_as_pyarrow_does(spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    made.load()
    for table, rows in everything(made.tables.root).items():
        frame = spark.read.parquet(str(made.tables.root / table))
        seen = {(row["stream"], str(row["day"]), row["stream_seq"]) for row in frame.collect()}
        assert seen == {(row["stream"], row["day"], row["stream_seq"]) for row in rows}


def test_a_growing_log_is_streamed_in_batches_with_each_entry_once(spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    spans: list[int] = []

    def run(root: Path) -> None:
        selection = select(made.log.folders.root, max_entries=15)
        query = follow(
            Tables(root), selection, made.keys, spark, once=True, on_batch=lambda found: spans.append(len(found))
        )
        query.awaitTermination()

    run(place / "followed")
    assert len(spans) == 3
    made.load()
    made.log.say(writes(5, 50))
    made.log.say((OTHERS, recorded(number)) for number in range(4))
    run(made.tables.root)  # a batch load continues where the stream stopped, without Spark's checkpoint
    load(Tables(place / "followed"), made.selection, made.keys)
    assert everything(place / "followed") == everything(made.tables.root)
    assert len(everything(place / "followed")["entries"]) == 51


def test_a_failure_in_a_worker_is_raised_as_a_veen_error(spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    gone = Keys((str(place / "gone.key"),))
    (place / "gone.key").write_bytes(b"x")
    (place / "gone.key").chmod(0o600)
    with pytest.raises(Exception, match="neither a client directory nor a reader key"):
        load(made.tables, made.selection, gone, jobs.on_spark(spark))
    with pytest.raises(Unverified, match=r"^job: for a reason$"):
        jobs.on_spark(spark)(_fails, [1, 2])


def _fails(job: int) -> bytes:
    raise Unverified("job", "for a reason")


def test_results_are_in_job_order_also_from_processes(spark: "SparkSession") -> None:
    expected = [b"%d" % number for number in range(5)]
    for run in (jobs.run_inline, jobs.in_processes(2), jobs.on_spark(spark)):
        assert run(_shown, range(5)) == expected
    with pytest.raises(Unverified, match=r"^job: for a reason$"):
        jobs.in_processes(2)(_fails, [1, 2])
    with pytest.raises(Unavailable, match="results of 0 of 1 jobs"):
        jobs.results([], 1)


def _shown(job: int) -> bytes:
    return b"%d" % job


def test_jobs_and_plans_contain_no_key(spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    secrets = [key.secret for key in made.log.keys.values()]
    assert made.keys.key(naming.stream_id(DOORS)) is not None  # cached in this process, but in nothing that is sent
    tasks = read_plan.plan(made.selection)
    job = TableLoad(tasks[0], bytes(32), (LabelStream(bytes(32), DOORS, naming.stream_id(DOORS)),), made.keys, "folder")
    batch = TableBatch(job.streams, (), made.keys, "folder")
    options = str(select(made.log.folders.root, columns=COLUMNS, verify="entry").options())
    frame = spark.read.format("veen").load(str(made.log.folders.root))
    plan = frame._jdf.queryExecution().toString()
    sent = pickle.dumps((job, batch)) + repr((job, batch)).encode() + options.encode() + plan.encode()
    assert leaks(sent, secrets) == []
    made.load()
    kept = b"".join(path.read_bytes() for path in made.tables.root.rglob("*") if path.is_file())
    assert leaks(kept, secrets) == []
    assert leaks(made.log.key_file(DOORS, place).read_bytes(), secrets) != []
    assert all(leaks(b"in " + form + b" a text", secrets) for form in spellings(secrets[0]))


def test_a_streaming_query_over_a_pruned_log_ends_with_the_reason(spark: "SparkSession", place: Path) -> None:
    from tests.pipeline.tables.test_pruned_tables import POLICIES, keys
    from tests.pipeline.test_pruned_source import pruned_hub

    with pruned_hub(place, POLICIES[0]) as (hub, url):
        sources = (url, str(hub.data_dir))
        for number, source in enumerate(sources):
            query = follow(Tables(place / str(number)), select(source, stream="news"), keys(place), spark, once=True)
            with pytest.raises(Exception, match="entries 1 to 8 were pruned"):
                query.awaitTermination()
