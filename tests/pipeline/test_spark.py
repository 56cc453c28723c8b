"""The Spark format `veen` gives the same rows as the reader, for any query shape."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from bench.big_log import BigLog
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import copied, flip, frames, rows, run_audit
from tests.pipeline.forks import Forks
from tests.storage.hubs import key
from veen.pipeline import plan, read, read_stream, select
from veen.pipeline.audit import Audit, KnownDates, audit, report_of
from veen.pipeline.jobs import on_spark
from veen.pipeline.rows import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def collected(frame: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted(
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in frame.collect()
    )


def test_spark_reads_what_the_reader_reads_and_finds_the_format_by_itself(spark: "SparkSession", log: BigLog) -> None:
    root = str(log.folders.root)
    made = select(root, columns=["label", "stream_seq", "hub_ts", "msg"], verify="full")
    expected = sorted(row for task in plan(made) for row in rows(task, made))
    assert collected(read(root, spark=spark, columns=["label", "stream_seq", "hub_ts", "msg"])) == expected
    by_options = spark.read.format("veen").option("columns", "label,stream_seq,hub_ts,msg").load(root)
    assert collected(by_options) == expected
    by_schema = (
        spark.read.format("veen").schema("label binary, stream_seq bigint, hub_ts bigint, msg binary").load(root)
    )
    assert collected(by_schema) == expected


def test_a_reused_dataframe_united_with_itself_counts_right(spark: "SparkSession", log: BigLog) -> None:
    frame = read(log.folders.root, spark=spark, columns=["label", "stream_seq"])
    frame.createOrReplaceTempView("entries")
    first, last = frame.where("stream_seq <= 3"), frame.where("stream_seq > 3 and stream_seq <= 8")
    assert [frame.count(), first.count(), frame.count(), last.count()] == [61, 6, 61, 10]
    assert first.union(last).count() == 16
    assert spark.sql("select count(*) from entries where stream_seq = 1").first() == (2,)
    assert spark.sql("select count(*) from entries a join entries b using (label, stream_seq)").first() == (61,)


def test_filters_are_not_pushed_into_the_source(spark: "SparkSession") -> None:
    from pyspark.sql.datasource import DataSourceReader

    from veen.pipeline.datasource import VeenReader

    assert VeenReader.pushFilters is DataSourceReader.pushFilters


def test_the_schema_of_the_batches_equals_sparks(spark: "SparkSession", log: BigLog) -> None:
    frame = read(log.folders.root, spark=spark, verify="entry")
    assert arrow_schema(frame.columns) == to_arrow_schema(frame.schema, timezone="UTC")


def test_failures_are_a_column_and_full_verification_ends_the_job(
    spark: "SparkSession", log: BigLog, place: Path
) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/chunk-*-0*[0-9].log"))[2]
    flip(path, len(frames(path)[0]) + 300)
    seq = int(path.name.split("-")[2]) + 1
    bad = read(root, spark=spark, verify="entry").where("not ok").select("stream_seq", "faults").collect()
    assert [(row["stream_seq"], row["faults"]) for row in bad] == [(seq, ["entry_hash", "binding", "client_sig"])]
    with pytest.raises(PySparkException, match=f"{path.name}, entry {seq}: "):
        read(root, spark=spark).count()


def test_a_missing_chunk_ends_the_job_or_is_a_row(spark: "SparkSession", log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    path = sorted(root.glob("log/chunk-*-0*[0-9].log"))[1]
    path.unlink()
    next(root.glob(f"log/{path.name[:70]}-*-open.log")).unlink()
    with pytest.raises(PySparkException, match=rf"{path.name}, entry 8: .*entries 8 to 14 are missing"):
        read(root, spark=spark).count()
    entries = read(root, spark=spark, verify="entry")
    bad = entries.where("not ok").select("stream_seq", "faults", "msg").collect()
    assert sorted(map(tuple, bad)) == [(8, ["missing"], None), (29, ["missing"], None)]
    assert read(root, spark=spark, label=path.name[6:70], seq_min=15, seq_max=28).count() == 14
    with pytest.raises(PySparkException, match="stream streem has no entries"):
        read(root, spark=spark, stream="streem").count()


@pytest.mark.slow
def test_a_stream_over_a_missing_chunk_ends(spark: "SparkSession", log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    sorted(root.glob("log/chunk-*-0*[0-9].log"))[1].unlink()
    writer = read_stream(root, spark=spark, columns=["stream_seq"]).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(place / "at")).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="entries 8 to 14 are missing"):
        query.awaitTermination()


def test_invalid_options_are_rejected_before_anything_is_read(spark: "SparkSession", log: BigLog) -> None:
    with pytest.raises(PySparkException, match="unknown option colour"):
        spark.read.format("veen").option("colour", "red").load(str(log.folders.root))


def test_an_empty_selection_is_an_empty_dataframe(spark: "SparkSession", log: BigLog) -> None:
    assert read(log.folders.root, spark=spark, seq_min=1000).count() == 0


@pytest.mark.slow
def test_a_growing_log_is_streamed_in_bounded_batches_each_entry_once(spark: "SparkSession", place: Path) -> None:
    made = BigLog(place / "hub", streams=3, clients=2)
    made.grow(60)

    def run() -> list[int]:
        stream = read_stream(made.folders.root, spark=spark, columns=["label", "stream_seq"], max_entries=25)
        writer = stream.writeStream.format("parquet").option("path", str(place / "out"))
        query = writer.option("checkpointLocation", str(place / "at")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert run() == [25, 25, 10]
    made.grow(30)
    assert run() == [25, 5]
    table = spark.read.parquet(str(place / "out"))
    assert (table.count(), table.distinct().count()) == (90, 90)


@pytest.mark.slow
def test_an_audit_on_spark_gives_the_same_result(spark: "SparkSession", log: BigLog, place: Path) -> None:
    root = copied(log.folders.root, place / "hub")
    flip(sorted(root.glob("log/chunk-*-0*[0-9].log"))[2], 2000)
    flip(sorted(root.glob("log/peaks-*"))[1], 60)
    other = BigLog(place / "one", streams=2, clients=3)
    other.grow(20)
    liar = other.copied(place / "two")
    other.grow(4)
    liar.grow(4)
    roots = (log.folders.root, root, place / "one", place / "two")
    here = run_audit(*roots)
    reports: list[tuple[int, int]] = []
    there = audit([str(one) for one in roots], on_spark(spark), progress=lambda *far: reports.append(far))
    assert [one.findings for one in there.directories] == [one.findings for one in here.directories]
    assert there.equivocations == here.equivocations
    assert len(here.equivocations) == 2
    assert (reports[0][1], max(reports)) == (61 + 61 + 24 + 24, (170, 170))
    assert here.directories[1].findings


@pytest.mark.slow
def test_an_audit_on_spark_reports_coverage_and_verdicts_of_retired_keys(spark: "SparkSession", place: Path) -> None:
    made = BigLog(place / "one", streams=2, clients=3, limits=SMALL, per_sec=10)
    made.grow(24)
    stolen = made.copied(place / "stolen")
    made.grow(20)
    made.rotate()
    roots = [place / "one", copied(place / "one", place / "bare"), place / "stolen"]
    for path in (place / "bare" / "handovers").iterdir():
        path.unlink()
    stolen.grow(30)

    def report(audited: Audit) -> Any:
        return report_of(audited, 0, "here")

    here, there = run_audit(*roots), audit([str(one) for one in roots], on_spark(spark))
    shown = [{row.get("coverage") for row in one["labels"]} for one in report(there)["directories"]]
    assert shown == [{"covered"}, {"uncovered"}, {None}]
    assert report(there)["directories"][0]["labels"] == report(here)["directories"][0]["labels"]
    assert there.equivocations == here.equivocations
    verdict = report(there)["verdict"]
    assert verdict.startswith("contradiction under a retired key: the hub forked before ")
    assert verdict.endswith(", or the key was stolen")
    made.grow(10)
    assert {row["coverage"] for row in report(audit([str(roots[0])], on_spark(spark)))["directories"][0]["labels"]} == {
        "current"
    }


@pytest.mark.slow
def test_the_verdicts_on_retired_keys_are_the_same_on_spark(spark: "SparkSession", place: Path) -> None:
    """Each row: what is known of the fork, and whether it convicts the hub."""
    forks, witness, stranger = Forks(place), key("witness"), key("stranger")
    at = forks.made.hub_ts
    trusted, other = (KnownDates(frozenset({one.public_key})) for one in (witness, stranger))
    forks.cosign(forks.hub, 21, witness)

    def verdicts(dates: KnownDates) -> set[str | None]:
        there = audit([str(root) for root in forks.roots], on_spark(spark), dates=dates)
        assert there.equivocations == run_audit(*forks.roots, dates=dates).equivocations
        assert len(there.equivocations) == 2
        return {one.retired for one in there.equivocations}

    assert verdicts(KnownDates()) == forks.unsure, "stolen after, or forked before: nothing shows it"
    assert verdicts(trusted) == forks.unsure, "the witness signed the hub's own log only"
    assert verdicts(forks.anchors(forks.fork, 14, at)) == forks.unsure, "anchored after the hand-over"
    assert verdicts(forks.anchors(forks.fork, 14, at - 1)) == {None}
    forks.cosign(forks.fork, 14, witness)
    assert verdicts(other) == forks.unsure, "another witness is trusted"
    assert verdicts(trusted) == {None}


@pytest.mark.slow
def test_the_blocks_of_the_page_run(spark: "SparkSession", log: BigLog) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"spark": spark}
    for block in blocks:
        exec(block.replace('"doors"', '"stream 1"').replace('"hub"', repr(str(log.folders.root))), names)
    assert names["by_client"].count() == 3
    assert names["broken"].count() == 0
    assert names["stream"].isStreaming
