"""A log over many epochs and streams is read, verified, audited and folded as one."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from tests.cli.runner import Veen
from tests.hub.client import START, Clock, running
from tests.hub.disks import QuickDisk
from tests.pipeline.damage import rows
from tests.storage.many_epochs import EPOCH_SEC, ManyEpochs
from veen.client import ClientDir
from veen.pipeline import plan, select
from veen.storage import fsck

T = TypeVar("T")
SIZES = [(8, 4), pytest.param(200, 50, marks=pytest.mark.slow)]


def timed(what: str, work: Callable[[], T]) -> T:
    """Print how long the work took: these are the figures of the slow case."""
    started = time.perf_counter()
    done = work()
    print(f"{what}: {time.perf_counter() - started:.1f} s")
    return done


@pytest.mark.parametrize(("epochs", "streams"), SIZES)
def test_a_stream_over_many_epochs_is_one_for_every_reader(
    veen: Veen, tmp_path: Path, epochs: int, streams: int
) -> None:
    log = ManyEpochs(tmp_path / "hub", epochs, streams, START - START % EPOCH_SEC)
    with ClientDir.create(tmp_path / "reader", None, START) as client:
        timed("made", lambda: log.make(client))
    name = log.name(streams - 1)
    report = timed("fsck", lambda: fsck.check(log.root, isolated=False))
    assert report.findings == []
    audited = timed("audit", lambda: veen.done("audit", log.root, "--workers", 1, "--json").json())
    assert audited["verdict"] == "sound"
    wanted = select(log.root, stream=name)
    read = timed("Spark source", lambda: sum(len(rows(task, wanted)) for task in plan(wanted)))
    assert read == log.entries
    with running(log.root, Clock(log.end), QuickDisk()) as hub:
        at_hub = ("--client", tmp_path / "reader", "--hub", f"http://127.0.0.1:{hub.port}", "--pin", log.root)
        verified = timed("verify", lambda: veen.done("verify", "--stream", name, *at_hub, "--json").json())
        assert (verified["epochs"], verified["entries"], verified["opened"]) == (epochs, log.entries, log.entries)
        shown = timed("stream", lambda: veen.done("stream", "--stream", name, *at_hub, "--json").out)
        places = [(one["epoch"], one["stream_seq"]) for one in map(json.loads, shown.splitlines())]
        assert places == sorted(places)
        assert len(places) == log.entries
        listed = timed("epochs", lambda: veen.done("stream", "--stream", name, "--epochs", *at_hub, "--json").json())
        rows_of = listed["epochs"]
        assert [row["checkpoint"] for row in rows_of[:-1]] == [row["entries"] for row in rows_of[:-1]]
        assert all(row["ended"] for row in rows_of[:-1])
        folded = timed("kv", lambda: veen.done("kv", "list", "--stream", name, *at_hub, "--json").json())
        assert len(folded["keys"]) == epochs
    tables = tmp_path / "tables"
    loaded = timed(
        "tables",
        lambda: veen.done(
            *("pipeline", "run", log.root, "--out", tables, "--client", tmp_path / "reader", "--stream", name),
            *("--fold", "kv", "--processes", 1, "--json"),
        ).json(),
    )
    assert (loaded["entries"], loaded["quarantined"]) == (log.entries, 0)
    assert len(loaded["stands_for"]) == epochs
    (state,) = loaded["state"]
    assert state["parts"] == epochs
