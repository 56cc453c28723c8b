"""A real cluster, also with a killed worker, and Spark Connect give the same tables and state. Takes minutes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from tests.pipeline.cluster import cluster, environment
from tests.pipeline.tables.logs import DOORS, Place, everything, filled
from veen.core import Limits
from veen.overlays.kv import KV
from veen.pipeline.folding import fold
from veen.pipeline.tables.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture
def made(tmp_path: Path) -> Place:
    """A log and its tables made by one process: enough entries for more tasks than the cluster has cores."""
    found = filled(tmp_path, count=6_000, per_sec=100, limits=Limits(max_checkpoint_interval=500))
    found.load()
    return found


def job(made: Place, kind: str, url: str, root: Path, worker: int = 0) -> dict[str, Any]:
    given = [kind, url, str(root), str(made.log.folders.root), str(worker), *made.keys.references]
    command = [sys.executable, "-m", "tests.pipeline.tables.cluster_tables_job", *given]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    for name in ("loaded", "followed"):
        assert everything(root / name) == everything(made.tables.root), name
    assert found["state"] == fold(made.tables, KV.CLASS, DOORS).state_hash.hex()
    assert found["entries"] == 12_002
    return found


def test_a_cluster_makes_the_same_tables_also_when_a_worker_is_killed_midway(made: Place, tmp_path: Path) -> None:
    with cluster(tmp_path / "cluster") as found:
        assert job(made, "master", found.url, tmp_path / "together")["killed"] == []
        assert len(job(made, "master", found.url, tmp_path / "bereft", found.workers[0])["killed"]) == 1
    assert verify(made.tables, made.selection, made.keys).problems == []


def test_spark_connect_makes_the_same_tables(made: Place, tmp_path: Path) -> None:
    assert "connect" in job(made, "remote", "local[2]", tmp_path / "far")["spark"]
