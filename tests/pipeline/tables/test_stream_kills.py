"""A stream whose writer ends before or after a commit has every entry once when it has run again."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from plumbing import durable
from plumbing.durable import Disk
from tests.pipeline.tables.logs import OTHERS, Place, everything, filled, recorded, writes
from veen.pipeline import select
from veen.pipeline.decoding import Keys
from veen.pipeline.tables import Tables, load
from veen.pipeline.tables.table_load import follow
from veen.pipeline.tables.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

BATCH = 15  # entries; the log has three batches
BATCHES = 3


class Seam(StrEnum):
    """Where a writer ends, in the order of the writes of one batch."""

    STAGED = "before the intent of a commit"
    INTENDED = "after the intent"
    COMMITTED = "after the commit"
    REPORTED = "before Spark notes the batch"


class Ended(Exception):
    """The writer ended here. It changes nothing on the disk any more."""


class SeamDisk(Disk):
    """Calls `end` at one seam of the nth batch."""

    def __init__(self, seam: Seam, number: int, end: Callable[[], object]) -> None:
        self.seam, self.number, self.end = seam, number, end
        self.batch = 1
        self.has_ended = False

    def reported(self, _: object = None) -> None:
        self.at(Seam.REPORTED)
        self.batch += 1

    def at(self, seam: Seam) -> None:
        if (seam, self.batch) == (self.seam, self.number):
            self.has_ended = True
            self.end()
            self.check()

    def check(self) -> None:
        if self.has_ended:
            raise Ended

    def write_shared_file(self, path: Path, data: bytes | Iterable[bytes], mode: int = durable.PRIVATE_FILE) -> None:
        self.check()
        if path.name == "pending.json":
            self.at(Seam.STAGED)
        super().write_shared_file(path, data, mode)
        if path.name == "pending.json":
            self.at(Seam.INTENDED)
        elif path.parent.name == "commits":
            self.at(Seam.COMMITTED)

    def unlink(self, path: Path) -> None:
        self.check()
        super().unlink(path)

    def replace(self, source: Path, target: Path) -> None:
        self.check()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.check()
        super().link(source, target)

    def remove_tree(self, path: Path) -> None:
        self.check()
        super().remove_tree(path)


def stream(root: Path, hub: Path, keys: Keys, spark: "SparkSession", disk: SeamDisk | None = None) -> None:
    """Load what is in the log, in batches."""
    with durable.used(disk or Disk()):
        selection = select(hub, max_entries=BATCH)
        query = follow(
            Tables(root), selection, keys, spark, once=True, on_batch=None if disk is None else disk.reported
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def check(made: Place, spark: "SparkSession", finished: int) -> None:
    """Check what a writer left after `finished` batches, and let the stream run again on a log that has grown."""
    expected = expectation(made, "before")
    with made.tables.writing():
        pass  # recovery
    for table, rows in everything(made.tables.root).items():
        assert all(row in expected[table] for row in rows), f"a row of {table} is not in the log"
        assert len({(row["label"], row["stream_seq"]) for row in rows}) == len(rows), f"{table} has a row twice"
    loaded, present = (len(found["entries"]) for found in (everything(made.tables.root), expected))
    assert (loaded > 0, loaded == present) == (finished > 0, finished == BATCHES)
    made.log.say(writes(3, 50))
    made.log.say((OTHERS, recorded(number)) for number in range(2))
    stream(made.tables.root, made.log.folders.root, made.keys, spark)
    assert everything(made.tables.root) == expectation(made, "after")
    assert verify(made.tables, made.selection, made.keys).problems == []


def expectation(made: Place, name: str) -> dict[str, list[dict[str, object]]]:
    """The tables of the log, made at once without Spark."""
    load(Tables(made.folder / name), made.selection, made.keys)
    return everything(made.folder / name)


def finished(seam: Seam, number: int) -> int:
    """The batches in the tables after recovery: one whose intent is stored is carried out."""
    return number - (seam is Seam.STAGED)


@pytest.mark.parametrize("seam", [Seam.STAGED, Seam.REPORTED])
def test_a_stream_that_ended_at_a_commit_has_every_entry_once(seam: Seam, spark: "SparkSession", place: Path) -> None:
    made = filled(place)
    disk = SeamDisk(seam, 2, lambda: None)
    with pytest.raises(Exception, match="Ended"):
        stream(made.tables.root, made.log.folders.root, made.keys, spark, disk)
    assert disk.has_ended
    check(made, spark, finished(seam, 2))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(root: str, hub: str, seam: str, number: str, *references: str) -> None:
    """The program of a killed writer."""
    from tests.pipeline.conftest import QUICK
    from veen.pipeline import session

    spark = session(master="local[2]", settings=QUICK)
    stream(Path(root), Path(hub), Keys(references), spark, SeamDisk(Seam(seam), int(number), kill))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, BATCHES + 1))
@pytest.mark.parametrize("seam", Seam)
def test_a_stream_that_was_killed_at_a_commit_has_every_entry_once(
    seam: Seam, number: int, spark: "SparkSession", place: Path
) -> None:
    made = filled(place)
    code = f"import sys; from {__name__} import run_and_die; run_and_die(*sys.argv[1:])"
    words = (str(made.tables.root), str(made.log.folders.root), seam.value, str(number), *made.keys.references)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    check(made, spark, finished(seam, number))
