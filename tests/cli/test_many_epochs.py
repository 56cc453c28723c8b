"""A log over many epochs and streams is read, verified, audited and folded as one."""

import asyncio
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
from tests.pipeline.conftest import place
from tests.pipeline.damage import rows
from tests.storage.many_epochs import EPOCH_SEC, ManyEpochs
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin
from veen.overlays import kv
from veen.pipeline import plan, select
from veen.state.state_view import StateView
from veen.storage import fsck

__all__ = ["place"]  # a fixture: the client directory is on a fast filesystem, because each page is a transaction
T = TypeVar("T")
SIZES = [(8, 4), pytest.param(200, 50, marks=pytest.mark.slow)]


def timed(what: str, work: Callable[[], T]) -> T:
    """Print how long the work took: these are the figures of the slow case."""
    started = time.perf_counter()
    done = work()
    print(f"{what}: {time.perf_counter() - started:.1f} s")
    return done


@pytest.mark.parametrize(("epochs", "streams"), SIZES)
def test_streams_over_many_epochs_are_one_for_every_reader(
    veen: Veen, tmp_path: Path, place: Path, epochs: int, streams: int
) -> None:
    log = ManyEpochs(tmp_path / "hub", epochs, streams, START - START % EPOCH_SEC)
    reader = place / "reader"
    with ClientDir.create(reader, None, START) as client:
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
        at_hub = ("--client", reader, "--hub", f"http://127.0.0.1:{hub.port}", "--pin", log.root)
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
        whole = timed("all streams by one client", lambda: asyncio.run(all_folded(log, reader, hub.port)))
        values = {b"key %d" % number: b"%d" % log.in_epoch(number) for number in range(epochs)}
        assert whole == dict.fromkeys(map(log.name, range(streams)), (log.entries, values))
    tables = tmp_path / "tables"
    run = ("pipeline", "run", log.root, "--out", tables, "--client", reader, "--stream", name, "--fold", "kv")
    loaded = timed("tables", lambda: veen.done(*run, "--processes", 1, "--json").json())
    assert (loaded["entries"], loaded["quarantined"]) == (log.entries, 0)
    assert len(loaded["stands_for"]) == epochs
    (state,) = loaded["state"]
    assert state["parts"] == epochs


async def all_folded(log: ManyEpochs, reader: Path, port: int) -> dict[str, tuple[int, dict[bytes, bytes | None]]]:
    """Of each stream, the entries that a client read and verified, and the state that it folded from them."""
    found = {}
    with ClientDir.open(reader) as opened:
        async with Client(f"http://127.0.0.1:{port}", opened, pin=Pin.of_file(log.root)) as client:
            for name in map(log.name, range(log.streams)):
                async with StateView.of(client, name, kv.KV) as view, view.reading() as reading:
                    values = {key: kv.get(reading.states, key) for key in kv.keys(reading.states)}
                    found[name] = sum(end.stream_seq for end in reading.ends()), values
    return found
