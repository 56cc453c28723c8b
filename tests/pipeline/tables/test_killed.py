"""Streams that are killed repeatedly, and a search for key material in a whole Spark run. Takes minutes."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from bench.folding import measure
from tests.pipeline.tables.logs import OTHERS, Place, contents, everything, filled, recorded, writes
from tests.pipeline.tables.test_on_spark import leaks
from veen.pipeline.tables import Table, Tables, load
from veen.pipeline.tables.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]

SEEN = """
import json, sys
from veen.pipeline import session
spark = session(master="local[2]")
for table in ("entries", "events", "quarantine"):
    frame = spark.read.parquet(f"{sys.argv[1]}/{table}").select("label", "stream_seq")
    print(json.dumps([frame.count(), frame.distinct().count()]))
"""


def streaming(made: Place, *more: str) -> "subprocess.Popen[str]":
    keys = [word for path in made.keys.references for word in ("--key", path)]
    command = [sys.executable, "-m", "veen.cli", "pipeline", "stream", str(made.log.folders.root)]
    command += ["--out", str(made.tables.root), "--master", "local[2]", "--max-entries", "7", *keys, *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def test_after_kills_of_a_stream_spark_and_pyarrow_see_every_entry_once(place: Path) -> None:
    made, chance = filled(place), random.Random(6)
    for number in range(4):
        process = streaming(made, "--every", "0.1")
        assert process.stdout
        for _ in range(chance.randrange(1, 4)):
            assert process.stdout.readline()  # a batch is in the tables, and Spark may not have recorded it yet
            made.log.say(writes(3, 100 * number))
            made.log.say((OTHERS, recorded(one)) for one in range(2))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    last = streaming(made, "--once")
    last.communicate()
    assert last.returncode == 0
    load(Tables(place / "plain"), made.selection, made.keys)
    assert everything(made.tables.root) == everything(place / "plain")
    assert verify(made.tables, made.selection, made.keys).problems == []
    counted = [len(contents(made.tables.root, table)) for table in (Table.ENTRIES, Table.EVENTS, Table.QUARANTINE)]
    seen = subprocess.run(
        [sys.executable, "-c", SEEN, str(made.tables.root)], check=True, capture_output=True, text=True
    )
    assert [line for line in seen.stdout.split("\n") if line] == [f"[{count}, {count}]" for count in counted]


WATCHED = """
import sys
from pathlib import Path
from veen.core import VeenError
from veen.pipeline import jobs, select, session
from veen.pipeline.decoding import Keys
from veen.pipeline.folding import fold
from veen.pipeline.tables import Tables, load
from veen.pipeline.tables.table_load import follow
root, hub, *references = sys.argv[1:]
spark = session(master="local[2]", settings={
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{root}/events",
    "spark.eventLog.compress": "false", "spark.sql.debug.maxToStringFields": "1000"})
spark.sparkContext.setLogLevel("DEBUG")
keys = Keys(tuple(references))
load(Tables(Path(root) / "tables"), select(hub), keys, jobs.on_spark(spark))
follow(Tables(Path(root) / "streamed"), select(hub), keys, spark, once=True).awaitTermination()
fold(Tables(Path(root) / "tables"), "kv", "doors", jobs.on_spark(spark))
Path(root, "broken.key").write_bytes(Path(references[0]).read_bytes()[:-1])
Path(root, "broken.key").chmod(0o600)
broken = Keys((str(Path(root, "broken.key")),))
for wrong in (broken, Keys(("python:nowhere:nothing",))):
    try:
        load(Tables(Path(root) / "wrong"), select(hub, stream="doors"), wrong, jobs.on_spark(spark))
    except VeenError as error:
        print("ERROR", error, error.__notes__ if hasattr(error, "__notes__") else "")
try:
    follow(Tables(Path(root) / "wrong"), select(hub, stream="doors"), broken, spark, once=True).awaitTermination()
except Exception as error:
    print("ERROR", error)
spark.stop()
"""


def test_no_key_is_in_a_plan_a_log_an_event_or_an_error_of_spark(place: Path) -> None:
    made = filled(place)
    (place / "events").mkdir()
    command = [sys.executable, "-c", WATCHED, str(place), str(made.log.folders.root), *made.keys.references]
    done = subprocess.run(command, check=True, capture_output=True)
    assert done.stdout.count(b"ERROR") == 3
    shutil.rmtree(made.log.folders.root)
    for key_file in (*made.keys.references, str(place / "broken.key")):
        os.unlink(key_file)
    kept = {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert any("/events/" in path and len(data) > 10_000 for path, data in kept.items())
    assert len(done.stderr) > 100_000
    secrets = [key.secret for key in made.log.keys.values()]
    for where, data in {**kept, "stdout": done.stdout, "stderr": done.stderr}.items():
        assert leaks(data, secrets) == [], where


def test_the_fold_benchmark_keeps_its_bounds() -> None:
    report = measure(events=60_000, wallets=3_000)
    assert report.kept
