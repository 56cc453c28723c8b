"""A job as a user would run it, on a given master; optionally a worker is killed in between.

python -m tests.pipeline.cluster_job MASTER DIR [WORKER-PID]
"""

import json
import os
import signal
import sys
from hashlib import sha256
from threading import Event, Thread

from pyspark.sql import SparkSession

from veen.pipeline import read, session
from veen.pipeline.audit import audit, report_of
from veen.pipeline.jobs import on_spark

PARALLELISM = 8  # more tasks than the cluster has cores, so that some are left when a worker dies
SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}


def kill_midway(spark: SparkSession, pid: int, killed: list[int], done: Event) -> None:
    """Kill a worker and its executor once some tasks are done and others are not."""
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(0.02):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info and 2 <= info.numCompletedTasks <= info.numTasks - 4:
                os.killpg(pid, signal.SIGKILL)
                killed.append(info.numCompletedTasks)
                return


def main(master: str, root: str, pid: int | None) -> None:
    spark = session(master=master, settings=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    killed: list[int] = []
    done = Event()
    if pid is not None:
        Thread(target=kill_midway, args=(spark, pid, killed, done), daemon=True).start()
    frame = read(root, spark=spark, columns=["label", "stream_seq", "mmr_root"], parallelism=PARALLELISM)
    found = frame.orderBy("label", "stream_seq").collect()
    done.set()
    digest = sha256(b"".join(bytes(row["label"]) + bytes(row["mmr_root"]) for row in found))
    audited = report_of(audit([root], on_spark(spark), parallelism=PARALLELISM), 0, "")
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(
        json.dumps(
            {
                "entries": len(found),
                "digest": digest.hexdigest(),
                "verdict": audited["verdict"],
                "audited": audited["entries"],
                "killed": killed,
                "executors": executors,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
