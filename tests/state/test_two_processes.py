"""Several processes may keep the fold of one stream in one client directory: each sees a state that the log has."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.client.pair import STREAM, Pair
from tests.hub.client import Hub
from tests.state.hubs import SMALL, at_a_hub, say
from veen.overlays import fold
from veen.overlays.fold import state_hash
from veen.overlays.kv import KV, Write
from veen.state import DirectorySource, StateView
from veen.state.entry_source import folded

ROUNDS, LOOKS = 12, 10


def test_two_processes_extend_one_cache_and_see_the_state_of_the_log(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [
            sys.executable,
            "-m",
            "tests.state.second_reader",
            str(hub.data_dir),
            str(place / "reader"),
            str(LOOKS),
        ]
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
        seen: dict[int, set[str]] = {}
        async with people.writer() as writer, people.reader() as reader:
            for number in range(ROUNDS):
                await say(writer, *(Write(b"k%d" % one, 0, b"%d" % number) for one in range(5)))
                source = DirectorySource(hub.data_dir, people.reader_dir)
                async with StateView(source, STREAM, KV) as view, view.reading() as reading:
                    seen.setdefault(reading.upto.stream_seq, set()).add(reading.state_hash().hex())
            entries = [folded(entry) async for entry in reader.read(STREAM)]
        for other in others:
            told, _ = await asyncio.to_thread(other.communicate)
            assert other.returncode == 0
            lines = told.splitlines()
            assert len(lines) == LOOKS
            for line in lines:
                size, hashed = line.split()
                seen.setdefault(int(size), set()).add(hashed)
        for upto, hashes in seen.items():
            assert hashes == {state_hash(KV, fold(KV, entries[:upto]).states).hex()}
        assert max(seen) == 5 * ROUNDS

    at_a_hub(place, work, limits=SMALL)
