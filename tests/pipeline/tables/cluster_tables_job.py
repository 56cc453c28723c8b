"""Make and fold tables as a user would, on a given master; optionally kill a worker in between.

python -m tests.pipeline.tables.cluster_tables_job {master|remote} URL TABLES HUB WORKER-PID KEY…
"""

import json
import sys
from pathlib import Path
from threading import Event, Thread

from tests.pipeline.cluster_job import PARALLELISM, SETTINGS, kill_midway
from tests.pipeline.tables.logs import DOORS
from veen.pipeline import select, session
from veen.pipeline.decoding import Keys
from veen.pipeline.folding import fold
from veen.pipeline.jobs import on_spark
from veen.pipeline.tables import Tables, load
from veen.pipeline.tables.table_load import follow


def main(kind: str, url: str, root: str, hub: str, pid: int, references: tuple[str, ...]) -> None:
    spark = session(remote=url) if kind == "remote" else session(master=url, settings=SETTINGS)
    killed: list[int] = []
    done = Event()
    if pid:
        Thread(target=kill_midway, args=(spark, pid, killed, done), daemon=True).start()
    keys, tables, do = Keys(references), Tables(Path(root) / "loaded"), on_spark(spark)
    loaded = load(tables, select(hub, parallelism=PARALLELISM), keys, do)
    done.set()
    state = fold(tables, "kv", DOORS, do).state_hash.hex()
    followed = Tables(Path(root) / "followed")
    follow(followed, select(hub, max_entries=5_000), keys, spark, once=True).awaitTermination()
    result = {"entries": loaded.entries, "state": state, "killed": killed, "spark": type(spark).__module__}
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), tuple(sys.argv[6:]))
