"""Logs for the pipeline tests, and one Spark session per test process."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.big_log import BigLog
from tests.storage.hubs import SCRATCH
from veen.core import Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings for a short-lived Spark session.
QUICK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
}
SMALL = Limits(max_msg_bytes=4096, max_chunk_bytes=8192, max_checkpoint_interval=7)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder on a fast filesystem."""
    with tempfile.TemporaryDirectory(dir=SCRATCH if SCRATCH.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> BigLog:
    """Sixty entries on two streams in chunks of seven; ten entries per second of hub time."""
    made = BigLog(tmp_path_factory.mktemp("log") / "hub", streams=2, clients=3, limits=SMALL, per_sec=10)
    made.grow(61)
    return made


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Spark on two cores, started once per test process."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")
    from veen.pipeline import session

    found = session(master="local[2]", settings=QUICK)
    found.sparkContext.setLogLevel("FATAL")
    yield found
    found.stop()
