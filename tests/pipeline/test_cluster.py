"""The same job, unchanged, on a real cluster and over Spark Connect."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from bench.big_log import BigLog
from tests.pipeline.cluster import cluster, environment
from tests.pipeline.cluster_job import PARALLELISM
from veen.core import Limits
from veen.pipeline import plan, select

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

CONNECT = """
import sys
from veen.pipeline import read, read_stream, session
from veen.pipeline.audit import audit
from veen.pipeline.jobs import on_spark

spark = session(remote="local[2]")
assert "connect" in type(spark).__module__
frame = read(sys.argv[1], spark=spark, columns=["label", "stream_seq"])
print(frame.count(), frame.where("stream_seq <= 3").count(), frame.count())
print(spark.read.format("veen").option("verify", "entry").load(sys.argv[1]).where("ok").count())
print(sum(len(one.findings) for one in audit([sys.argv[1]], on_spark(spark)).directories))
spark.stop()
"""


def job(master: str, root: Path, *worker: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.pipeline.cluster_job", master, str(root), *map(str, worker)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_a_cluster_gives_the_same_result_also_if_a_worker_is_killed_midway(tmp_path: Path) -> None:
    made = BigLog(tmp_path / "hub", streams=3, limits=Limits(max_checkpoint_interval=500))
    made.grow(30_000)
    assert len(plan(select(made.folders.root, parallelism=PARALLELISM))) >= 12
    alone = job("local[2]", made.folders.root)
    assert (alone["entries"], alone["verdict"], alone["audited"]) == (30_000, "sound", 30_000)
    with cluster(tmp_path / "cluster") as found:
        together = job(found.url, made.folders.root)
        assert together == {**alone, "executors": 2}
        bereft = job(found.url, made.folders.root, found.workers[0])
    assert len(bereft["killed"]) == 1
    assert bereft == {**alone, "killed": bereft["killed"], "executors": 1}


def test_spark_connect_finds_the_format_by_itself_and_audits(tmp_path: Path) -> None:
    made = BigLog(tmp_path / "hub", streams=2)
    made.grow(40)
    command = [sys.executable, "-c", CONNECT, str(made.folders.root)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["40", "6", "40", "40", "0"]
